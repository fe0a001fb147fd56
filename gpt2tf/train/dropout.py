"""Dropout, with random numbers that are a function of (seed, step, row, place) and of nothing else.

The original's published code has no dropout; GPT-2 was trained with it in the places that `gpt2tf.model` names. A
number is a hash of its position, so a mask is the same whether a batch is computed at once, in parts, on several
devices, or a second time for its gradients, and a run that is resumed goes on as if it had not stopped.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from gpt2tf.checks import fraction


@dataclasses.dataclass(frozen=True)
class Rates:
    """Shares that training drops: of the embeddings' sum, the attention weights, the residual branches' outputs."""

    embd: float = 0.1
    attn: float = 0.1
    resid: float = 0.1

    def __post_init__(self):
        for name, rate in dataclasses.asdict(self).items():
            fraction(f"dropout {name}", rate)


def row_keys(seed, step, rows):
    """One key for each row of a batch.

    seed, step: integer scalars; rows: [batch], the rows' numbers in the whole batch of the step -> [batch] uint32
    """
    return _hash(tf.cast(rows, tf.uint32) + _hash(tf.cast(step, tf.uint32) + _hash(tf.cast(seed, tf.uint32))))


def keys_at(keys, place: int):
    """The keys of one of several places that drop; None stays None."""
    return None if keys is None else _hash(keys + tf.constant(place + 1, tf.uint32))


def dropout(x, rate: float, keys):
    """x: [batch, ...]; keys: [batch] uint32, or None for no dropout -> the same shape, scaled to keep the mean."""
    if keys is None or rate == 0:
        return x
    # A place is row * columns + column. A zero made of a key is added before there are many places: of what depends on
    # no argument TensorFlow makes constants when it compiles, all at once, and that took more memory than training.
    shape = tf.shape(x)
    rows, columns = tf.reduce_prod(shape[1:-1]), shape[-1]
    zero = tf.bitwise.bitwise_and(tf.reduce_sum(tf.cast(keys[:1], tf.int32)), 0)  # a batch may have no rows
    row = tf.cast(tf.range(rows) * columns + zero, tf.uint32)
    places = row[:, None] + tf.cast(tf.range(columns), tf.uint32)  # [rows, columns]
    numbers = _hash(_hash(places) ^ keys[:, None, None])  # [batch, rows, columns]
    keep = tf.reshape(numbers >= tf.constant(min(round(rate * 2**32), 2**32 - 1), tf.uint32), shape)
    scaled = tf.cast(tf.cast(x, tf.float32) / (1 - rate), x.dtype)  # bfloat16 has no 0.9, and would shift the mean
    return tf.where(keep, scaled, tf.zeros([], x.dtype))


def _hash(x):
    """A permutation of 32-bit numbers in which each bit of x flips about half of the others.

    Two rounds of xor-shift and multiply with the constants of Chris Wellons' search ("lowbias32"): twenty times as fast
    under XLA on a CPU as Philox, which would cost as much as the rest of a training step.
    """
    x = tf.cast(x, tf.uint32)
    x = (x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))) * tf.constant(0x7FEB352D, tf.uint32)
    x = (x ^ tf.bitwise.right_shift(x, tf.constant(15, tf.uint32))) * tf.constant(0x846CA68B, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
