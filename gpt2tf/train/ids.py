"""Token ids on their way into a model: of any integer dtype, and in range wherever they are looked up.

Called op by op, what is out of range is an error. In a graph it is an assertion. XLA drops assertions and clamps
indices, so a scalar `ok` comes with the ids, for what is made of them to be NaN where it is False.
"""

from __future__ import annotations

import tensorflow as tf

IGNORED = -100  # the target that does not count, as in PyTorch and Hugging Face's libraries


def as_ids(tokens, n_vocab: int, kind: str = "token", ignored: int | None = None):
    """tokens: integers of any dtype, or floats that are whole numbers -> (int32 in [0, n_vocab), ok)

    kind: what an error calls them. ignored: a number that may stand among them, and becomes 0.
    Raises ValueError for other dtypes and, op by op, for values that are not whole or not in range.
    """
    tokens = tf.convert_to_tensor(tokens)
    if not (tokens.dtype.is_integer or tokens.dtype.is_floating):
        raise ValueError(f"a {kind} must be a whole number, these are {tokens.dtype.name}")
    ids = tf.cast(tokens, tf.int64)  # of uint64, what is beyond int64 becomes negative
    fine = (ids >= 0) & (ids < n_vocab)
    if ignored is not None:
        fine |= ids == ignored
    if tokens.dtype.is_floating:
        fine &= tf.cast(ids, tokens.dtype) == tokens
    ok = tf.reduce_all(fine)
    if not tf.is_symbolic_tensor(ok) and ok:
        return tf.cast(tf.maximum(ids, 0), tf.int32), True
    flat = tf.concat([tf.reshape(fine, [-1]), [True]], axis=0)  # one more, since there may be none
    values = tf.concat([tf.reshape(tokens, [-1]), tf.zeros([1], tokens.dtype)], axis=0)
    wrong = values[tf.argmin(tf.cast(flat, tf.int32))]
    limit = f"is not a whole number from 0 to {n_vocab - 1}; the vocabulary has {n_vocab} tokens"
    with tf.control_dependencies(refuse_unless(ok, kind, wrong, limit)):
        return tf.cast(tf.where(fine & (ids >= 0), ids, 0), tf.int32), tf.identity(ok)


def refuse_unless(ok, what: str, value, limit: str) -> list[tf.Operation]:
    """Raises ValueError of what, the value and the limit; in a graph gives the assertion that does."""
    if tf.is_symbolic_tensor(ok):
        return [tf.debugging.Assert(ok, [what, value, limit])]
    if not ok:
        raise ValueError(f"{what} {value.numpy()} {limit}")
    return []
