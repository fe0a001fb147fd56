"""How fast generation is, how much memory it takes, and how far both are from what the machine allows.

The machine is measured first: bytes it reads a second, operations it does a second. A row then says what share of
these a token's unavoidable reads and operations are. Peers have the same weights and take turns with us, since
machines are shared and noisy; figures are medians.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from gpt2tf.bench.costs import decode_cost, prompt_operations
from gpt2tf.bench.machine import Limits, timed
from gpt2tf.bench.peers import OURS, Own, Peer, Turns, installed, write_model
from gpt2tf.bench.plan import Case, Plan
from gpt2tf.checkpoint import load_weights
from gpt2tf.decode.network import Network
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import pack
from gpt2tf.devices import platform, use_device
from gpt2tf.generate import Generator
from gpt2tf.hparams import HParams

# The loop's tokens from which their speed is told. Their time is the difference of two calls, one of which makes the
# first token only, and a call is off by a few hundredths. A prompt of 512 tokens takes as long as some thirty steps of
# the loop, and so is off by a step or two: about a tenth of 16 steps, but more than all of one step.
LOOP_TOKENS = 16


@dataclasses.dataclass(frozen=True)
class Row:
    """One engine's figures for one case. Speeds are of all rows of the batch together; None: not measured.

    load_s: reading the weights, for gpt2tf with compilation. first_call_s: the whole case for the first time.
    prompt_s: until the first token is there. decode_tokens_per_s: of the tokens after it, from LOOP_TOKENS of them on.
    peak_bytes: see the function of that name; of gpt2tf only.
    *_share: of `Limits`, for gpt2tf. *_ratio: gpt2tf's speed over this engine's, for the others.
    """

    engine: str
    dtype: str
    batch_size: int
    prompt_length: int
    length: int
    load_s: float
    first_call_s: float
    prompt_s: float
    prompt_tokens_per_s: float
    decode_tokens_per_s: float | None
    peak_bytes: int | None = None
    bytes_per_token: float | None = None
    bytes_per_s: float | None = None
    bandwidth_share: float | None = None
    operations_per_token: float | None = None
    operations_per_s: float | None = None
    arithmetic_share: float | None = None
    prompt_arithmetic_share: float | None = None
    prompt_ratio: float | None = None
    decode_ratio: float | None = None


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of an engine at a case: of `Row`, and of each run, until the first token is there and until all are."""

    load_s: float
    first_call_s: float
    first: list[float]
    whole: list[float]


class Ours(Own):
    """Our engine; its calls make 1 token or case.length tokens, by the same compiled functions."""

    def __init__(self, path: str | os.PathLike, case: Case, top_k: int):
        self.path, self.case, self.top_k = path, case, top_k
        self.noise = np.random.default_rng(0).random([case.length, case.batch_size])

    def load(self) -> None:
        case = self.case
        first = case.batch_size, case.prompt_length, case.length
        self.generator = Generator(self.path, case.dtype, first=first)
        self.prompts = case.prompts(self.generator.hparams.n_vocab)

    def sample(self, length: int) -> None:
        options = {"top_k": self.top_k, "noise": self.noise}
        next(self.generator.stream(self.prompts, self.case.length, chunk=length, **options))


def measure(path: str | os.PathLike, cases: Sequence[Case], limits: Limits, plan: Plan) -> Iterator[Row]:
    """Yields the rows of each case, ours first, once the case is done.

    path: of a model. A peer of the plan that is not installed, or cannot do a case, is logged and left out.
    """
    hparams, weights, _ = load_weights(path)
    with tempfile.TemporaryDirectory(prefix="gpt2tf-peers-") as folder:
        plan = installed(plan, folder)
        if plan.peers:
            write_model(folder, hparams, weights)
        for case in cases:
            peak = peak_bytes(path, case, plan)
            times = _measure_case(path, case, case.prompts(hparams.n_vocab), plan, folder)
            own, *others = (row(name, case, times[name], hparams, limits) for name in times)
            yield dataclasses.replace(own, peak_bytes=peak)
            yield from (with_ratios(own, other) for other in others)


def _measure_case(path, case, prompts, plan, folder) -> dict[str, Times]:
    """Of each engine that could do the case. folder: of `write_model`"""
    gc.collect()  # the engines of the last case
    first, whole = ("sample", 1), ("sample", case.length)
    with Turns(Ours(path, case, plan.top_k), f"at {case.dtype}, batch size {case.batch_size}") as turns:
        for name in plan.peers:
            turns.add(name, Peer(name, plan.peer_python, folder), case.dtype, prompts, plan.top_k, plan.device)
        begun = turns.take(("load",), whole)
        runs = [turns.take(first, whole) for _ in range(plan.runs + 1)][1:]  # without that which warms up
    return {name: Times(*begun[name], *zip(*(run[name] for run in runs), strict=True)) for name in turns.engines}


def row(engine: str, case: Case, times: Times, hparams: HParams, limits: Limits) -> Row:
    """The figures that follow from the times."""
    prompt_s = statistics.median(times.first)
    loop_s = statistics.median(b - a for a, b in zip(times.first, times.whole, strict=True))
    looped = case.length - 1  # the first token is the prompt's
    speed = case.batch_size * looped / loop_s if looped >= LOOP_TOKENS and loop_s > 0 else None
    figures = {"load_s": times.load_s, "first_call_s": times.first_call_s, "prompt_s": prompt_s}
    figures["prompt_tokens_per_s"] = case.batch_size * case.prompt_length / prompt_s
    figures["decode_tokens_per_s"] = speed
    if engine == OURS:
        cost = decode_cost(hparams, case)
        figures |= {"bytes_per_token": cost.bytes, "operations_per_token": cost.operations}
        figures["prompt_arithmetic_share"] = prompt_operations(hparams, case) / prompt_s / limits.operations_per_s
        if speed:
            figures |= {"bytes_per_s": cost.bytes * speed, "operations_per_s": cost.operations * speed}
            figures["bandwidth_share"] = cost.bytes * speed / limits.bytes_per_s
            figures["arithmetic_share"] = cost.operations * speed / limits.operations_per_s
    return Row(engine, **dataclasses.asdict(case), **figures)


def with_ratios(own: Row, peer: Row) -> Row:
    """The peer's row with how many times as fast we are."""
    both = own.decode_tokens_per_s and peer.decode_tokens_per_s
    return dataclasses.replace(
        peer,
        prompt_ratio=peer.prompt_s / own.prompt_s,
        decode_ratio=own.decode_tokens_per_s / peer.decode_tokens_per_s if both else None,
    )


def peak_bytes(path: str | os.PathLike, case: Case, plan: Plan) -> int | None:
    """The most memory that a process of its own ever holds, from start to the end of the case, or its part on the GPU.

    A process of its own, because TensorFlow keeps memory that is free again, for its next tensors.
    """
    task = json.dumps([os.path.abspath(path), dataclasses.asdict(case), plan.top_k, plan.device])
    made = _python("import sys; from gpt2tf.bench import speed; speed.be_measured(sys.argv[1])", task)
    return json.loads(made.stdout.split()[-1])


def be_measured(task: str) -> None:
    """The other process of `peak_bytes`."""
    path, case, top_k, device = json.loads(task)
    use_device(device)
    engine = Ours(path, Case(**case), top_k)
    engine.load()
    engine.sample(case["length"])
    sys.stdout.write(f"{json.dumps(_peak(device))}\n")


def _peak(device: str) -> int | None:
    if device == "gpu":
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    try:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    except (OSError, TypeError):
        return None  # no Linux


def process_seconds(path: str | os.PathLike, length: int = 20, runs: int = 5) -> float:
    """A whole run of `sample.py --length 20`, from start to exit."""
    flags = ["--model_name", os.path.abspath(path), "--length", str(length)]
    run = functools.partial(_python, "from gpt2tf.cli import main; main(command='sample')", *flags)
    return statistics.median(timed(run) for _ in range(runs + 1))


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run code in a new interpreter that finds this package. Raises ChildProcessError with what it says last."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment["PYTHONSAFEPATH"] = "1"  # whatever lies in the working directory
    made = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)
    if made.returncode:
        last = made.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ChildProcessError(f"a run in another process failed ({made.returncode}) and said: {last[0]}")
    return made


def log_probability_difference(
    path: str | os.PathLike, dtype: str, batch_size: int = 8, seq: int = 128, jit_compile: bool = True
) -> float:
    """Mean |difference| from float32 of the log-probabilities of the next token, over the vocabulary, in nats.

    Over batch_size texts of seq / batch_size up to seq tokens, which the model itself makes in float32.
    """
    hparams, weights, _ = load_weights(path)
    seq = min(seq, hparams.n_ctx)
    noise = np.random.default_rng(0).random([seq, batch_size])
    start = [[hparams.n_vocab - 1]] * batch_size
    tokens = np.stack(Generator(path, jit_compile=jit_compile).generate(start, seq, noise=noise))  # [batch, seq]
    lengths = np.linspace(seq / batch_size, seq, batch_size).astype(np.int32)  # [batch]
    found = []
    for each in ("float32", dtype):
        packed = pack(weights, hparams, each, platform(), batch_size)
        net = Network(packed, hparams, Ops(jit_compile, platform()))

        def last_logits(tokens, lengths, net=net):  # by prefill and a step of the loop, as in generation
            _, cache = net.prefill(tokens, net.empty_cache(batch_size, seq + 1))
            slots = tf.range(seq + 1)
            mask = (slots < lengths[:, None] - 1) | (slots == seq)  # [batch, seq + 1]
            last = tf.gather(tokens, lengths - 1, batch_dims=1)  # [batch]
            return net.decode_step(last, lengths - 1, tf.constant(seq), tf.cast(mask, tf.float32), cache)[0]

        compiled = tf.function(last_logits, jit_compile=jit_compile, autograph=False)
        logits = compiled(tf.constant(tokens), tf.constant(lengths))  # [batch, padded vocab]
        found.append(tf.nn.log_softmax(logits[:, : hparams.n_vocab]).numpy())  # [batch, vocab]
    return float(np.abs(found[0] - found[1]).mean())
