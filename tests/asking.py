"""Prompts, and calls of a Generator that differ in everything that must not make another program."""

import numpy as np


def prompts_of(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1000, n).tolist() for n in lengths]


def ask(generator):
    """One row, prompts of one bucket, everything else different each time."""
    (prompt,) = prompts_of(16)
    for i, (n_prompt, length) in enumerate([(16, 2), (2, 2), (9, 40), (16, 49), (5, 7), (15, 30)]):
        options = [
            {},
            {"temperature": 0},
            {"temperature": 0.7, "top_k": 40},
            {"top_k": 1, "top_p": 0.5, "stop": 7},
            {"temperature": 2.0, "top_p": 0, "stop": 999},
            {"top_k": 5000, "top_p": 1.0, "noise": np.zeros([length, 1])},
        ][i]
        generator.generate([prompt[:n_prompt]], length, **{"seed": i, **options})
    for _ in generator.stream([prompt], 20, chunk=3, seed=9):
        pass
