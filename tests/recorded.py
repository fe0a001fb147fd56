"""The runs that were recorded under TensorFlow 1, and what judges a difference from them."""

import json
import pathlib

import numpy as np
import oracle
import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"
ROOT = GOLDEN.parent.parent


def read_cases(folder):
    return json.loads((GOLDEN / folder / "samples.json").read_text(encoding="utf-8"))["cases"]


def recorded(folder):
    cases = read_cases(folder)
    return [pytest.param(case, id=str(i)) for i, case in enumerate(cases) if "rounding" not in case]


def context_of(case, n_vocab):
    return [n_vocab - 1] if case["prompt"] is None else case["prompt_tokens"]


def lists(rows):
    return [row.tolist() for row in rows]


def hinges_on_rounding(weights, n_head, case, context, token, u):
    """Whether, in float64, a last bit decides between the recorded token and the port's.

    Either the original's float32 running sum of top-p passed 1.0 although top_p is 1 and dropped the
    least likely token kept, with which the recorded token is what u picks; or u lies within the
    rounding of the logits (1e-4) of the boundary between the two tokens.
    """
    logits = oracle.forward(weights, n_head, np.array(context))[-1] / case["temperature"]
    kept = oracle.top_k_kept(logits, case["top_k"])
    without_the_last = kept - {min(kept, key=lambda index: logits[index])}
    if case["top_p"] == 1 and oracle.pick(logits, without_the_last, u) == token:
        return True
    cdf = np.cumsum(oracle.softmax(np.where(np.isin(np.arange(len(logits)), list(kept)), logits, -1e10)))
    return min(abs(u - cdf[token]), abs(u - cdf[token - 1])) < 1e-5


def differences(net, case):
    """Where the port would part from a recorded run of batch size 1, given the recorded tokens in front each time."""
    from gpt2tf.noise import sampling_noise
    from gpt2tf.sample import next_token

    (first, later), length = map(tuple, case["op_seeds"]), case["length"]
    options = {name: case[name] for name in ("temperature", "top_k", "top_p")}
    start = context_of(case, net.hparams.n_vocab)
    for run, (tokens,) in enumerate(case["runs"]):
        u = sampling_noise(first, later, length=length, run=run)[:, 0]
        logits = net(np.array([start + tokens[:-1]]))["logits"][0, len(start) - 1 :]  # [length, vocab]
        for at in np.flatnonzero(next_token(logits, u, **options) != tokens):
            yield start + tokens[:at], tokens[at], u[at]
