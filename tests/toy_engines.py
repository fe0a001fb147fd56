"""Peers for the tests of the benchmark: scripts of good and bad manners, run as the real ones by `bench/serve.py`."""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import numpy as np


class Good:
    """Takes a millisecond a token, and writes down its calls."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def check(self):
        """Nothing of this project is there, and nothing of it in place of another module."""
        assert not {"gpt2tf", "tensorflow"} & set(sys.modules)
        assert importlib.util.find_spec("costs") is None

    def prepare(self, *job):
        hparams = json.loads((self.folder / "hparams.json").read_text())
        wpe = np.load(self.folder / "model.wpe.npy")
        assert wpe.shape == (hparams["n_ctx"], hparams["n_embd"])
        self.note("prepare", *job)

    def load(self):
        self.note("load")

    def sample(self, length):
        time.sleep(length / 1000)
        self.note("sample", length)

    def update(self):
        self.note("update")

    def note(self, *call):
        path = self.folder / "calls.jsonl"
        path.write_text((path.read_text() if path.exists() else "") + json.dumps(call) + "\n")


class Noisy(Good):
    """Prints to stdout, as libraries do, also without an end of line and behind Python's back."""

    def sample(self, length):
        print("Loading weights: 100%")
        print('{"seconds": 0}', end="", flush=True)
        os.write(1, b"cudart: not found")
        super().sample(length)


class Dying(Good):
    """Ends in the middle, at the third sample."""

    samples = 0

    def sample(self, length):
        self.samples += 1
        if self.samples == 3:
            print("corrupted\n  double-linked list", file=sys.stderr, flush=True)
            os.abort()


class Absent(Good):
    def check(self):
        raise ModuleNotFoundError("no module of that name")


class Unable(Good):
    def prepare(self, *job):
        raise NotImplementedError("no such numbers")


class Failing(Good):
    def load(self):
        raise RuntimeError("out of\nmemory")


class Hanging(Good):
    def sample(self, length):
        time.sleep(600)


ENGINES = {kind.__name__.lower(): kind for kind in (Good, Noisy, Dying, Absent, Unable, Failing, Hanging)}
