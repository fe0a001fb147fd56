"""The figures in the README: `python tests/measure.py`. Prints the rows of its table.

Each figure stands beside a peer measured in the same run, since machines differ and are noisy: what the
original's algorithm takes, what the bytes alone would take. `gpt2tf benchmark` measures generation.
"""

import os
import pathlib
import random
import string
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pydoc_data.topics import topics

from bpe_oracle import Oracle

from encoder import Encoder, get_encoder

ENC = get_encoder()
MERGES = list(ENC.bpe_ranks)
ROOT = pathlib.Path(__file__).parent.parent
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


def main():
    from conftest import make_r124m

    print("| what | figure | peer |\n|---|---|---|")
    command_line()
    encoding()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "R124M"
        make_r124m(folder)
        loading(folder)


if __name__ == "__main__":
    main()
