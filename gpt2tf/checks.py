"""What may be asked of the sampler, checked in Python before anything is loaded or computed.

The original checked one bound (src/generate_unconditional_samples.py:53-54) and left the rest to the
graph, which failed after minutes, or under XLA would not fail at all and print arbitrary text.
"""

from __future__ import annotations

import os

# Below this, logits of a usual size divided by it reach -1e10, the value of a filtered logit.
MIN_TEMPERATURE = 1e-5
# Long before this all tokens are equally likely; far above it float32 ends.
MAX_TEMPERATURE = 1e9
DTYPES = ("float32", "bfloat16", "float16", "int8")  # of the weights in generation
DEVICES = ("auto", "cpu", "gpu")  # auto takes a GPU where there is one
MAX_INT32 = 2**31 - 1  # what TensorFlow takes for a size
MAX_SEED = 2**32 - 1  # numpy.random.seed's, which the original called


def check_length(length: int) -> int:
    """Number of tokens to sample: 0 or more."""
    if length < 0:
        raise ValueError(f"length is {length}; it must be 0 or more")
    return length


def check_batch_size(batch_size: int) -> int:
    """Number of samples to make at a time: 1 or more."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be 1 or more")
    return batch_size


def check_nsamples(nsamples: int) -> int:
    """Number of samples to make for each prompt: 0 (without end) or more."""
    if nsamples < 0:
        raise ValueError(f"nsamples is {nsamples}; it must be 0 (without end) or more")
    return nsamples


def check_seed(seed: int) -> int:
    """What `numpy.random.seed` takes."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed is {seed}; it must be from 0 to {MAX_SEED}")
    return seed


def check_temperature(temperature: float) -> float:
    """0 (arg-max) or a number from MIN_TEMPERATURE to MAX_TEMPERATURE."""
    if not (temperature == 0 or MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE):
        raise ValueError(
            f"temperature is {temperature}; it must be 0 (arg-max) or from {MIN_TEMPERATURE} to {MAX_TEMPERATURE:.0e}"
        )
    return temperature


def check_top_k(top_k: int) -> int:
    """0 (off) or the number of logits to keep; more than the vocabulary is off too."""
    if not 0 <= top_k <= MAX_INT32:
        raise ValueError(f"top_k is {top_k}; it must be from 0 (off) to {MAX_INT32}")
    return top_k


def check_top_p(top_p: float) -> float:
    """The share of probability to keep, 0 (the likeliest token alone) to 1 (off)."""
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must be from 0 to 1 (off)")
    return top_p


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
