"""From logits to the next token: temperature, top-k, top-p, and the pick.

Mirrors openai/gpt-2 src/sample.py:6-40 and the kernel of `tf.multinomial` in TensorFlow 1. Differences:
the threshold of top-p keeps its axis, so that batches work; top_p 1 is off, where the original's
float32 running sum may pass 1.0 and drop the least likely tokens; temperature 0 is arg-max; the random
number is an argument; logits that are not finite give NOT_FINITE in place of an arbitrary token.

Everywhere logits are [batch, vocab] float32.
"""

from __future__ import annotations

import tensorflow as tf

FILTERED = -1e10  # openai/gpt-2 src/sample.py:15
NOT_FINITE = -1  # the token picked from logits with a NaN or an infinity among them


def top_k_logits(logits, k: int):
    """Keep the k largest logits, and those that tie with the k-th; the others become FILTERED. k 0 is off."""
    if k == 0 or k >= logits.shape[-1]:
        return logits
    values, _ = tf.math.top_k(logits, k=k)  # [batch, k]
    return tf.where(logits < values[:, -1:], FILTERED, logits)


def top_p_logits(logits, p: float):
    """Keep the likeliest tokens whose running probability, their own included, is at most p; at least one.

    The token that crosses p is dropped (Hugging Face keeps it); ties with the last one kept stay.
    """
    if p >= 1:
        return logits
    descending = tf.sort(logits, direction="DESCENDING", axis=-1)  # [batch, vocab]
    cumulative = tf.cumsum(tf.nn.softmax(descending, axis=-1), axis=-1)  # [batch, vocab]
    kept = tf.reduce_sum(tf.cast(cumulative <= p, tf.int32), axis=-1)  # [batch]
    smallest = tf.gather(descending, tf.maximum(kept - 1, 0), batch_dims=1)  # [batch]
    return tf.where(logits < smallest[:, None], FILTERED, logits)


def pick_token(logits, u):
    """Inverse of the cumulative distribution, in float64. u: [batch] float64 in [0, 1) -> [batch] int32"""
    wide = tf.cast(logits, tf.float64)
    cdf = tf.cumsum(tf.exp(wide - tf.reduce_max(wide, axis=-1, keepdims=True)), axis=-1)  # [batch, vocab]
    return tf.searchsorted(cdf, (u * cdf[:, -1])[:, None], side="right")[:, 0]  # [batch]


def next_token(logits, u, *, temperature: float, top_k: int, top_p: float):
    """Temperature, then top-k, then top-p, then the pick: [batch] int32, NOT_FINITE where logits are not."""
    if temperature == 0:
        token = tf.argmax(logits, axis=-1, output_type=tf.int32)  # [batch]
    else:
        kept = top_p_logits(top_k_logits(logits / tf.cast(temperature, logits.dtype), top_k), top_p)
        token = pick_token(kept, u)  # [batch]
    return tf.where(tf.reduce_all(tf.math.is_finite(logits), axis=-1), token, NOT_FINITE)
