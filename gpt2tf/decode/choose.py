"""The choice of a token, compiled: what `gpt2tf.sample` does.

Mirrors openai/gpt-2 src/sample.py:6-40 and the pick of `sample.pick_token`, with which it agrees on every token.
Difference: on a CPU the k-th largest logit and the cut of top-p are found by bisection on the 32 bits of the floats,
since XLA takes 7 to 12 ms to sort a vocabulary there and the search takes 0.4 ms. On a GPU, where the host would wait
for each halving, one sort gives both.

Logits come in as [batch, vocab], the vocabulary padded to a whole number of blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpt2tf.decode.ops import BLOCK, Ops

LOWEST = -0x7F800000  # the key of -inf


def float_key(x):
    """float32 -> int32 in the same order; -0.0 and 0.0, which are equal, have the same."""
    bits = tf.bitcast(x, tf.int32)
    return tf.where(bits < 0, -tf.bitwise.bitwise_and(bits, 0x7FFFFFFF), bits)


def _midpoint(low, high, round_up: bool):
    """The middle of two int32, where their sum would overflow."""
    differing = tf.bitwise.bitwise_xor(low, high)
    middle = tf.bitwise.bitwise_and(low, high) + tf.bitwise.right_shift(differing, 1)
    return middle + tf.bitwise.bitwise_and(differing, 1) if round_up else middle


def _bisect(low, high, holds_at, round_up: bool):
    """[batch] bounds of keys -> the last key that holds_at (round_up) or the first (not), for a monotone holds_at."""

    def halve(low, high):
        middle = _midpoint(low, high, round_up)
        holds = holds_at(middle)  # [batch]
        # A row that is done goes on while others are not: its bounds, which have met, must not pass each other.
        if round_up:
            return tf.where(holds, middle, low), tf.where(holds, high, tf.maximum(middle - 1, low))
        return tf.where(holds, low, tf.minimum(middle + 1, high)), tf.where(holds, middle, high)

    return tf.while_loop(lambda low, high: tf.reduce_any(low < high), halve, (low, high))[0]


class Options(NamedTuple):
    """Scalars of the graph, so that other values need no other compilation."""

    temperature: tf.Tensor  # float32; 0 is arg-max
    top_k: tf.Tensor  # int32; 0 is off
    top_p: tf.Tensor  # float32; 1 is off

    @classmethod
    def of(cls, temperature: float = 1, top_k: int = 0, top_p: float = 1) -> Options:
        return cls(tf.constant(temperature, tf.float32), tf.constant(top_k, tf.int32), tf.constant(top_p, tf.float32))


def choose_token(ops: Ops, logits, u, n_vocab: int, options: Options):
    """[batch, padded vocab] float32, u [batch] float64 -> (token [batch] int32, finite [batch])

    finite: whether all logits of a row were; its token means nothing where they were not. batch need not be known.
    """
    padded = logits.shape[-1]
    temperature, top_k, top_p = options
    greedy = temperature == 0  # the same as the first of the largest: top_k 1 and u 0
    u = tf.where(greedy, tf.zeros_like(u), u)
    k = tf.where(greedy, 1, tf.where(top_k == 0, n_vocab, tf.minimum(top_k, n_vocab)))
    p = tf.where(greedy, 1.0, top_p)

    x = tf.where(tf.range(padded) < n_vocab, logits / tf.where(greedy, 1.0, temperature), -float("inf"))
    x = ops.barrier(tf.reshape(x, [-1, padded // BLOCK, BLOCK]))  # [batch, block, lane]
    finite = ops.total(tf.cast(tf.math.is_finite(x), tf.float32)) == n_vocab  # [batch]
    largest = tf.reduce_max(x, axis=[1, 2])[:, None, None]
    if ops.on_gpu:
        cut, order = _cut(ops, x, k, p), tf.identity
    else:
        key = ops.barrier(float_key(x))  # [batch, block, lane]
        cut = _top_k_cut(ops, key, k, n_vocab, float_key(largest[:, 0, 0]))
        cut, order = _top_p_cut(ops, x, key, cut, p), float_key

    def share(x):
        return tf.where(order(x) >= cut[:, None, None], tf.exp(tf.cast(x - largest, tf.float64)), 0)

    return _inverse_cdf(ops, x, share, u), finite


def _cut(ops, x, k, p):
    """The least logit that top-k and then top-p keep, [batch], by sorting them. x: [batch, block, lane]"""
    ascending = ops.sort(tf.reshape(-x, [-1, x.shape[1] * x.shape[2]]))  # [batch, rank] of -x
    kth = tf.gather(ascending, [k - 1], axis=1)[..., None]  # what ties with it stays

    def share(x):
        return tf.where(x <= kth, tf.exp(ascending[:, :1, None] - x), 0.0)

    n = _inverse_cdf(ops, tf.reshape(ascending, tf.shape(x)), share, p)  # [batch], the first that does not fit
    rank = tf.where(p < 1, tf.maximum(n - 1, 0), k - 1)
    return -tf.gather(ascending, rank, batch_dims=1)  # [batch]


def _top_k_cut(ops, key, k, n_vocab, largest):
    """The key of the k-th largest logit, [batch]; what ties with it is not below it and stays."""
    lowest = tf.fill(tf.shape(largest), LOWEST)

    def holds_k(cut):
        return ops.total(tf.cast(key >= cut[:, None, None], tf.float32)) >= tf.cast(k, tf.float32)

    return _bisect(lowest, tf.where(k < n_vocab, largest, lowest), holds_k, round_up=True)


def _top_p_cut(ops, x, key, cut, p):
    """The least key of the tokens that top-p keeps among those from `cut` up, [batch].

    The original keeps tokens while their running sum is at most p, and then all that tie with the last
    one: so the cut is the least key from which the sum is at most p, or the next one below where the sum
    is crossed inside a group of equals of which a part fits.
    """
    on = p < 1
    largest = tf.reduce_max(x, axis=[1, 2])  # [batch]

    def sum_from(cut):
        probability = tf.where(key >= cut[:, None, None], tf.exp(x - largest[:, None, None]), 0.0)
        return ops.total(probability)  # [batch]

    most = p * tf.where(on, sum_from(cut), 0.0)  # [batch]
    least = _bisect(cut, tf.where(on, float_key(largest), cut), lambda middle: sum_from(middle) <= most, round_up=False)
    within = (key < least[:, None, None]) & (key >= cut[:, None, None])
    below = tf.reduce_max(tf.where(within, x, -float("inf")), axis=[1, 2])  # [batch]
    part_fits = on & (sum_from(least) + tf.exp(below - largest) <= most)
    return tf.where(part_fits, tf.maximum(float_key(below), cut), least)


def _inverse_cdf(ops, x, share, u):
    """Where the running sum of the shares first exceeds the part u of the whole, [batch]: first in which block, then in
    which lane of it. x: [batch, block, lane]; share: a function from them to their shares, in the dtype of u.
    """
    sums = tf.reduce_sum(ops.barrier(share(x)), axis=-1)  # [batch, block]
    ends = tf.cumsum(sums, axis=-1)  # [batch, block]
    want = u * ends[:, -1]  # [batch]
    block = _first_above(ends, want, sums)  # [batch]
    start = tf.gather(ends - sums, block, batch_dims=1)  # [batch]
    lanes = share(tf.gather(x, block[:, None], batch_dims=1))[:, 0]  # [batch, lane]
    lane = _first_above(start[:, None] + tf.cumsum(lanes, axis=-1), want, lanes)  # [batch]
    return block * BLOCK + lane


def _first_above(cdf, want, share):
    """Where the running sum of shares first exceeds `want`, [batch]; never where the share is none.

    XLA adds up in pieces, so that the sum may differ in its last bit over shares of none, and may end below `want`.
    """
    index = tf.range(share.shape[-1])
    first = tf.reduce_min(tf.where((share > 0) & (cdf > want[:, None]), index, share.shape[-1]), axis=-1)
    last = tf.reduce_max(tf.where(share > 0, index, 0), axis=-1)
    return tf.minimum(first, last)
