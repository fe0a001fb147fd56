"""What a benchmark measures, and how: its cases and its plan. No TensorFlow is imported."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

PEERS = ("transformers", "ctranslate2", "llama_cpp")


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured: `length` tokens after each of batch_size prompts of prompt_length tokens."""

    dtype: str = "float32"
    batch_size: int = 1
    prompt_length: int = 1
    length: int = 128

    @property
    def position(self) -> float:
        """Positions that a token made by the loop attends to, on average."""
        return self.prompt_length + self.length / 2

    def prompts(self, n_vocab: int) -> list[list[int]]:
        """A prompt of one token is <|endoftext|>; others are random tokens, the same each time."""
        if self.prompt_length == 1:
            return [[n_vocab - 1]] * self.batch_size
        return np.random.default_rng(0).integers(0, n_vocab - 1, [self.batch_size, self.prompt_length]).tolist()


# Batches, a long prompt, and late positions.
ALL_CASES = (
    *(Case(dtype) for dtype in ("float32", "float16", "int8")),
    *(Case(dtype, batch_size) for batch_size in (8, 32) for dtype in ("float32", "int8")),
    Case(prompt_length=512, length=2),
    Case(prompt_length=868, length=65),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How it is measured.

    top_k: of every engine. runs: after one to warm up. device: cpu or gpu. peers: some of PEERS, to be measured
    beside gpt2tf. peer_python: the program that runs them, of any Python that has NumPy and their modules.
    Raises ValueError for a peer that is not known.
    """

    top_k: int = 40
    runs: int = 5
    device: str = "cpu"
    peers: tuple[str, ...] = ()
    peer_python: str = sys.executable

    def __post_init__(self):
        for name in self.peers:
            if name not in PEERS:
                raise ValueError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
