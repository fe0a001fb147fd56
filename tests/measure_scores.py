"""The figures of scoring in the README: `python tests/measure_scores.py --peer PYTHON`, of one with transformers.

The same model scores the same tokens in gpt2tf and, as its users do it, in transformers on torch: windows of 1,024
tokens with a stride of 512, two at a time, log-probabilities of what each window scores. Both take turns, since
machines are shared and noisy: the figure is the median of the turns' ratios. Then the memory of a process of its own.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

TOKENS = 2560  # of a turn: four windows
DTYPES = ("float32", "bfloat16")
# Runs in the peer's Python. A line "DTYPE SEED" goes in for each turn, a line "SECONDS LOG_PROBABILITY" comes out.
PEER = """
import sys, time
import numpy as np, torch
from transformers import GPT2LMHeadModel
load = GPT2LMHeadModel.from_pretrained
models = {name: load(sys.argv[1], dtype=getattr(torch, name)).eval() for name in sys.argv[3:]}

@torch.inference_mode()
def score(model, ids, n_ctx=1024, stride=512, batch=2):
    begins = range(0, max(len(ids) - n_ctx, 0) + stride, stride)
    total = 0.0
    for i in range(0, len(begins), batch):
        windows = torch.stack([ids[b : b + n_ctx] for b in begins[i : i + batch]])
        logits = model(windows, use_cache=False).logits
        for row, (window, b) in enumerate(zip(windows, begins[i : i + batch])):
            first = 1 if b == 0 else n_ctx - stride
            log_probs = torch.log_softmax(logits[row, first - 1 : -1].float(), -1)
            total += log_probs.gather(-1, window[first:, None]).sum().item()
    return total

for line in sys.stdin:
    dtype, seed = line.split()
    ids = torch.from_numpy(np.random.RandomState(int(seed)).randint(0, 50257, int(sys.argv[2])))
    start = time.perf_counter()
    total = score(models[dtype], ids)
    print(time.perf_counter() - start, total, flush=True)
"""
# Runs in a process of its own: the peak of memory over that of the loaded weights, for windows in batches.
MEMORY = """
import ctypes, re, sys
import numpy as np
from gpt2tf import Scorer
def memory(name): return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
scorer = Scorer(sys.argv[1], sys.argv[2])
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = memory("VmRSS")
rows = [np.random.RandomState(0).randint(0, 50257, n) for n in [2560] + 40 * [60] + 4 * [300]]
list(scorer.score(rows, alternatives=5))
print(memory("VmHWM") - before, before)
"""


def row(what, figure, peer):
    print(f"| {what} | {figure} | {peer} |", flush=True)


def ours(scorer, seed):
    """Returns the seconds of a turn, and the log-probability of all its tokens."""
    ids = np.random.RandomState(seed).randint(0, 50257, TOKENS)
    start = time.perf_counter()
    (score,) = scorer.score([ids])
    seconds = time.perf_counter() - start
    return seconds, float(np.nansum(score.log_probabilities, dtype=np.float64))


def speed(folder, python, turns):
    from gpt2tf import Scorer, load_model
    from gpt2tf.formats.hugging_face import write_hugging_face

    with tempfile.TemporaryDirectory() as scratch:
        copy = os.path.join(scratch, "hf")
        write_hugging_face(load_model(folder), copy)
        command = [python, "-c", PEER, copy, str(TOKENS), *DTYPES]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as peer:
            scorers = {dtype: Scorer(folder, dtype) for dtype in DTYPES}

            def peers(dtype, seed):
                print(dtype, seed, file=peer.stdin, flush=True)
                return map(float, peer.stdout.readline().split())

            for dtype in DTYPES:
                times = []
                for seed in range(turns + 1):  # the first is not counted
                    (mine, found), (other, expected) = ours(scorers[dtype], seed), peers(dtype, seed)
                    assert abs(found / expected - 1) < 1e-2, (found, expected)
                    times.append((mine, other))
                    print(dtype, f"{mine:.2f} s, transformers {other:.2f} s", file=sys.stderr, flush=True)
                ratio = statistics.median(other / mine for mine, other in times[1:])
                fast, slow = (turns * TOKENS / sum(column) for column in zip(*times[1:], strict=True))
                theirs = f"transformers {slow:,.0f} tokens/s ({ratio:.2f} x)"
                row(f"{turns * TOKENS:,} tokens in {dtype}", f"{fast:,.0f} tokens/s", theirs)
            peer.stdin.close()


def memory(folder):
    for dtype in DTYPES:
        run = subprocess.run([sys.executable, "-c", MEMORY, folder, dtype], capture_output=True, text=True, check=True)
        over, weights = map(int, run.stdout.split())
        row(f"memory in {dtype}", f"{over / 1e6:.0f} MB above", f"the loaded model {weights / 1e6:,.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder of the size of 124M; one with random weights is made if not given")
    parser.add_argument("--peer", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model
        if folder is None:
            from conftest import make_r124m

            folder = str(pathlib.Path(scratch, "R124M"))
            make_r124m(folder)
        print("| what | figure | peer |\n|---|---|---|")
        memory(folder)
        if args.turns:
            speed(folder, args.peer, args.turns)


if __name__ == "__main__":
    main()
