"""Checks of arguments, made in Python before anything is loaded or computed.

The original checked one bound (src/generate_unconditional_samples.py:53-54) and left the rest to the graph, which
failed after minutes, or under XLA would not fail at all and print arbitrary text.

A `Check` takes the name of an argument and its value, and returns the value; it raises ValueError with the name, the
value and what it must be. `at_least`, `above`, `between` and `one_of` make checks; NaN passes none of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

Check = Callable[[str, Any], Any]

# Below this, logits of a usual size divided by it reach -1e10, the value of a filtered logit.
MIN_TEMPERATURE = 1e-5
# Long before this all tokens are equally likely; far above it float32 ends.
MAX_TEMPERATURE = 1e9
DTYPES = ("float32", "bfloat16", "float16", "int8")  # of the weights in generation
SCORING_DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "gpu")  # auto takes a GPU where there is one
MAX_INT32 = 2**31 - 1  # what TensorFlow takes for a size
MAX_SEED = 2**32 - 1  # numpy.random.seed's, which the original called


def _check(holds: Callable[[Any], bool], requirement: str) -> Check:
    def check(name, value):
        if not holds(value):
            shown = repr(value) if isinstance(value, str) else value
            raise ValueError(f"{name} is {shown}; it must be {requirement}")
        return value

    return check


def at_least(least, most=math.inf, notes: Mapping | None = None) -> Check:
    """`least` or more. most: a limit far above any use, named only to those who exceed it; notes: as for `between`."""
    or_more = _check(lambda value: value >= least, f"{_words(least, notes)} or more")
    bounded = between(least, most, notes)
    return lambda name, value: bounded(name, or_more(name, value))


def above(bound, most=math.inf) -> Check:
    """More than the bound. most: as for `at_least`."""
    more = _check(lambda value: value > bound, f"above {bound}")
    bounded = _check(lambda value: value <= most, f"above {bound} and at most {most}")
    return lambda name, value: bounded(name, more(name, value))


def between(least, most, notes: Mapping | None = None) -> Check:
    """From least to most, both included. notes: what a bound means, such as {0: "off"}."""
    requirement = f"from {_words(least, notes)} to {_words(most, notes)}"
    return _check(lambda value: least <= value <= most, requirement)


def _words(bound, notes) -> str:
    return f"{bound} ({notes[bound]})" if notes and bound in notes else str(bound)


def one_of(values: Collection[str]) -> Check:
    """One of some words."""
    return _check(lambda value: value in values, f"one of {', '.join(values)}")


fraction: Check = _check(lambda value: 0 <= value < 1, "from 0 to below 1")


def check_length(length: int) -> int:
    """Number of tokens to sample: 0 or more."""
    return at_least(0)("length", length)


def check_batch_size(batch_size: int) -> int:
    """Number of samples to make at a time: 1 or more."""
    return at_least(1)("batch_size", batch_size)


def check_nsamples(nsamples: int) -> int:
    """Number of samples to make for each prompt: 0 (without end) or more."""
    return at_least(0, notes={0: "without end"})("nsamples", nsamples)


def check_seed(seed: int) -> int:
    """What `numpy.random.seed` takes."""
    return between(0, MAX_SEED)("seed", seed)


def check_temperature(temperature: float) -> float:
    """0 (arg-max) or a number from MIN_TEMPERATURE to MAX_TEMPERATURE."""
    requirement = f"0 (arg-max) or from {MIN_TEMPERATURE} to {MAX_TEMPERATURE:.0e}"
    return _check(lambda t: t == 0 or MIN_TEMPERATURE <= t <= MAX_TEMPERATURE, requirement)("temperature", temperature)


def check_top_k(top_k: int) -> int:
    """0 (off) or the number of logits to keep; more than the vocabulary is off too."""
    return between(0, MAX_INT32, {0: "off"})("top_k", top_k)


def check_top_p(top_p: float) -> float:
    """The share of probability to keep, 0 (the likeliest token alone) to 1 (off)."""
    return between(0, 1, {1: "off"})("top_p", top_p)


def check_window(n_ctx: int, n_prompt: int, length: int) -> None:
    """Refuse what does not fit the window: prompt and sample may have n_ctx + 1 tokens together.

    One more than the window because the last token is never fed back.
    """
    if n_prompt < 1:
        raise ValueError("the prompt is empty; it must have at least one token")
    if n_prompt > n_ctx:
        raise ValueError(f"the prompt has {n_prompt} tokens; the model's window has {n_ctx}, so shorten the prompt")
    if n_prompt + length > n_ctx + 1:
        raise ValueError(
            f"the prompt has {n_prompt} tokens and length is {length}; together they may be at most {n_ctx + 1}, "
            f"so give a length of {n_ctx + 1 - n_prompt} or less"
        )


def check_tokens(tokens, n_vocab: int) -> None:
    """Refuse an array that does not hold token ids of the vocabulary."""
    if tokens.size and tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be whole numbers, these are {tokens.dtype}")
    outside = tokens[(tokens < 0) | (tokens >= n_vocab)]
    if outside.size:
        raise ValueError(f"token {outside[0]} is not in the vocabulary of {n_vocab}")


def check_noise(noise, length: int, batch_size: int):
    """A float64 array of [length, batch], each number in [0, 1)."""
    if noise.shape != (length, batch_size):
        raise ValueError(f"noise has shape {noise.shape}; it must be [length, batch], {(length, batch_size)}")
    if not ((noise >= 0) & (noise < 1)).all():
        raise ValueError("noise has a number outside of [0, 1)")
    return noise


def check_memory(batch_size: int, row: int) -> None:
    """Refuse a batch that cannot be made on this machine, where Linux would kill the process on the way.

    row: bytes that one sample cannot do without.
    """
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if batch_size * row > memory:
        remedy = f"so give {memory // row} at the very most" if row <= memory else "so this model cannot be run here"
        raise ValueError(
            f"batch_size is {batch_size}; a sample needs {row:,} bytes and the machine has {memory:,}, {remedy}"
        )
