"""The random stream of TensorFlow 1: the numbers that the original drew, as an array made ahead of the loop.

Mirrors what `tf.set_random_seed` and the two `tf.multinomial` ops of openai/gpt-2 src/sample.py:67 do
in a TensorFlow 1.14 or 1.15 session on a CPU; the formulas of the op seeds were measured there. Each
op is a Philox4x32-10 stream that lasts for the session, so run r (the next batch, the next prompt)
goes on where run r - 1 stopped. Differences: none for batch_size 1. For larger batches the published
code fails; its op seeds are used as if it did not.

The words come from a stateless TensorFlow op that gives the same ones on every device.
"""

from __future__ import annotations

import dataclasses
import numbers
import secrets

import numpy as np
import tensorflow as tf

MAX_INT32 = 2**31 - 1  # the modulus of tensorflow/python/framework/random_seed.py
BLOCKS_PER_ROW = 2048  # blocks of four words that one execution of tf.multinomial reserves for a row
PHILOX = 1  # tf.random.Algorithm.PHILOX

OpSeed = tuple[int, int]


def fresh_seed() -> int:
    """A seed for a run that was given none."""
    return secrets.randbelow(MAX_INT32)


def op_seeds(seed: int, n_layer: int, *, conditional: bool, temperature: float = 1, top_k: int = 0):
    """The seeds of the two sampling ops of the original's graph: (first token's, later tokens').

    The second half of an op's seed counts the ops made before it, which depends on the script
    (`conditional` for the interactive one), on top_k, and on whether the temperature was written as
    a float (0.7, 1.0) or as an int (1).
    """
    if conditional:
        first, later = 125 + 294 * n_layer, 261 + 537 * n_layer
    else:
        first, later = 118 + 209 * n_layer, 254 + 452 * n_layer
    if top_k > 0:
        first, later = first + 23, later + 46
    if not isinstance(temperature, numbers.Integral):
        first, later = first - 1, later - 2
    return (seed, first), (seed, later)


@dataclasses.dataclass(frozen=True)
class RandomStream:
    """The random numbers of one session of the original: those of its batches, one after the other.

    seed, n_layer, conditional, temperature, top_k: as for `op_seeds`.
    """

    seed: int
    n_layer: int
    conditional: bool
    temperature: float = 1
    top_k: int = 0

    def noise(self, length: int, batch_size: int, run: int = 0) -> np.ndarray:
        """The numbers of batch `run`, counted from 0: [length, batch_size] float64, as of `sampling_noise`."""
        options = {"conditional": self.conditional, "temperature": self.temperature, "top_k": self.top_k}
        first, later = op_seeds(self.seed, self.n_layer, **options)
        return sampling_noise(first, later, length=length, batch_size=batch_size, run=run)


def sampling_noise(first: OpSeed, later: OpSeed, *, length: int, batch_size: int = 1, run: int = 0) -> np.ndarray:
    """Noise of one run: [length, batch_size] float64 in [0, 1).

    first, later: the op seeds. run: how many runs of this length and batch size the session made before.
    """
    run, length = int(run), int(length)
    if run < 0 or length < 0 or batch_size < 1:
        raise ValueError(
            f"run {run}, length {length}, batch_size {batch_size}: the first two start at 0, the last at 1"
        )
    executions = [(first, run)] + [(later, run * (length - 1) + step) for step in range(length - 1)]
    rows = [_uniforms(op_seed, execution, batch_size) for op_seed, execution in executions[:length]]
    return np.stack(rows) if rows else np.zeros([0, batch_size])  # [length, batch]


def _uniforms(op_seed: OpSeed, execution: int, batch_size: int) -> np.ndarray:
    """What one execution of tf.multinomial draws: [batch_size] float64."""
    key, counter = (half % MAX_INT32 for half in op_seed)
    if (key, counter) == (0, 0):
        counter = MAX_INT32
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2 * batch_size],
        key=tf.constant([key], tf.uint64),
        counter=tf.constant([execution * BLOCKS_PER_ROW * batch_size, counter], tf.uint64),
        alg=PHILOX,
        dtype=tf.uint32,
    )
    w0, w1 = np.asarray(words, np.uint64).reshape(batch_size, 2).T
    one_to_two = np.uint64(0x3FF << 52) | (w0 & np.uint64(0xFFFFF)) << np.uint64(32) | w1
    return one_to_two.view(np.float64) - 1.0  # [batch]
