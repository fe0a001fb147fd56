"""The figures in the README: `python tests/measure.py`. Prints the rows of its table.

Each figure stands beside a peer measured in the same run, since machines differ and are noisy: what the
original's algorithm takes, what the bytes alone would take, what Hugging Face's transformers does (if
`torch` and `transformers` are installed; the original itself needs TensorFlow 1).
"""

import importlib.util
import os
import pathlib
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pydoc_data.topics import topics

import numpy as np
from test_encoder import ENC, MERGES, Oracle

from encoder import Encoder

ROOT = pathlib.Path(__file__).parent.parent
NEW_TOKENS, TOP_K, RUNS = 128, 40, 5

# Runs in a process of its own: time and memory of loading, over TensorFlow's own.
LOAD = """
import re, sys, time
import gpt2tf.checkpoint
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before, start = peak(), time.perf_counter()
model = gpt2tf.checkpoint.load_model(sys.argv[1])
print(time.perf_counter() - start, peak() - before, peak())
"""


def fastest(function, runs=3):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def row(what, figure, peer):
    print(f"| {what} | {figure} | {peer} |", flush=True)


def command_line():
    run = [sys.executable, str(ROOT / "sample.py"), "--help"]
    ours = fastest(lambda: subprocess.run(run, stdout=subprocess.DEVNULL, check=True), 5)
    python = fastest(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 5)
    row("`sample.py --help`", f"{ours:.2f} s", f"Python alone {python:.2f} s")


def encoding():
    letters = "".join(random.Random(0).choices(string.ascii_letters, k=40_000))
    ours = fastest(lambda: Encoder(ENC.encoder, MERGES).encode(letters))
    short = letters[:10_000]
    peer = fastest(lambda: Oracle(ENC.encoder, MERGES).encode(short), 1)
    row(
        "encoding 40,000 random letters in one piece",
        f"{ours:.2f} s",
        f"rounds over the piece, 10,000 letters {peer:.1f} s",
    )
    text = "\n".join(topics.values()) * 3
    text = text[:1_000_000]
    ours, peer = (1 / fastest(lambda kind=kind: kind(ENC.encoder, MERGES).encode(text)) for kind in (Encoder, Oracle))
    row("encoding 1 MB of English", f"{ours:.1f} MB/s", f"the original's algorithm {peer:.1f} MB/s")


def loading(folder):
    weights = os.path.getsize(folder / "model.ckpt.data-00000-of-00001")
    outcomes = []
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
        outcomes.append([float(word) for word in run.stdout.split()])
    seconds, over, whole = min(outcomes)
    with open(folder / "model.ckpt.data-00000-of-00001", "rb") as file:
        reading = fastest(lambda: (file.seek(0), file.read()))
    row(f"loading {weights / 1e9:.2f} GB of weights", f"{seconds:.2f} s", f"reading the bytes alone {reading:.2f} s")
    row("peak of memory while loading", f"{over / weights:.2f} x the weights", f"in all {whole / 1e9:.1f} GB")


def sampling(folder):
    from gpt2tf import load_model, sample_sequence

    model = load_model(folder)
    noise = np.random.default_rng(0).random([NEW_TOKENS, 1])

    def ours():
        sample_sequence(model, length=NEW_TOKENS, start_token=50256, batch_size=1, top_k=TOP_K, noise=noise)

    contenders = {"gpt2tf": ours}
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        contenders["transformers"] = transformers_sampler(model)
    times = {name: [] for name in contenders}
    for run in range(RUNS + 1):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            if run:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    speeds = {name: NEW_TOKENS / statistics.median(seconds) for name, seconds in times.items()}
    peers = [f"{name} {speed:.0f} tokens/s" for name, speed in speeds.items() if name != "gpt2tf"]
    row(
        "sampling, batch 1, top_k 40, 128 tokens",
        f"{speeds['gpt2tf']:.0f} tokens/s",
        ", ".join(peers) or "not installed",
    )


def transformers_sampler(model):
    """The same weights in torch, on as many threads."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(os.cpu_count())
    h = model.hparams
    config = GPT2Config(vocab_size=h.n_vocab, n_positions=h.n_ctx, n_embd=h.n_embd, n_layer=h.n_layer, n_head=h.n_head)
    peer = GPT2LMHeadModel(config).eval()
    leaves = {"g": "weight", "w": "weight", "b": "bias", "wte": "wte.weight", "wpe": "wpe.weight"}
    weights = {}
    for v in model.variables:
        *scope, leaf = v.path.removeprefix("model/").split("/")
        scope = ["h", scope[0][1:], *scope[1:]] if scope and scope[0][1:].isdigit() else scope
        name = ".".join(["transformer", *scope, leaves[leaf]])
        weights[name] = torch.from_numpy(np.squeeze(v.numpy(), 0) if leaf == "w" else v.numpy())
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    start = torch.full([1, 1], 50256)

    def sample():
        with torch.no_grad():
            peer.generate(
                start, do_sample=True, top_k=TOP_K, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, pad_token_id=0
            )

    return sample


def main():
    from conftest import make_r124m

    print("| what | figure | peer |\n|---|---|---|")
    command_line()
    encoding()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "R124M"
        make_r124m(folder)
        loading(folder)
        sampling(folder)


if __name__ == "__main__":
    main()
