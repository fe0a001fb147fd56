"""The original's sampling loop over a growing `past`: the reference that is read beside the original.

Mirrors openai/gpt-2 src/sample.py:43-95. Differences: randomness is an argument; what does not fit is
refused before the first token; length 0 gives no token, where the original always sampled one; logits
that are not finite are an error.
"""

from __future__ import annotations

import functools
import operator

import numpy as np
import tensorflow as tf

from gpt2tf import checks
from gpt2tf.layers import GPT2
from gpt2tf.model import past_shape
from gpt2tf.sampling import next_token


def sample_sequence(
    model: GPT2,
    *,
    length: int,
    start_token: int | None = None,
    batch_size: int | None = None,
    context=None,
    temperature: float = 1,
    top_k: int = 0,
    top_p: float = 1,
    noise,
) -> np.ndarray:
    """Sample `length` tokens after a context.

    Give context, [batch, seq] ids (or [seq], which batch_size repeats), or start_token with batch_size.
    temperature: 0 is arg-max. top_k: 0 is off. top_p: 1 is off. noise: [length, batch] float64 in
    [0, 1), the random number of each pick (`gpt2tf.noise.sampling_noise` makes the original's).
    Returns [batch, seq + length] int32, the context in front.
    Raises ValueError for what is out of range, FloatingPointError when the model's logits are not finite.
    """
    length, top_k = checks.check_length(operator.index(length)), checks.check_top_k(operator.index(top_k))
    temperature, top_p = checks.check_temperature(float(temperature)), checks.check_top_p(float(top_p))
    context = _context(model, context, start_token, batch_size)  # [batch, seq]
    checks.check_window(model.hparams.n_ctx, context.shape[1], length)
    noise = checks.check_noise(np.asarray(noise, np.float64), length, len(context))
    # A function of this call alone: one that outlived it would keep the model.
    loop = tf.function(
        functools.partial(_loop, model, temperature=temperature, top_k=top_k, top_p=top_p), autograph=False
    )
    tokens = loop(tf.constant(context), tf.constant(noise)).numpy()
    if tokens.shape[1] < context.shape[1] + length or tokens.min() < 0:
        raise FloatingPointError("the model's logits are not finite; its weights are damaged or training diverged")
    return tokens


def _context(model: GPT2, context, start_token, batch_size) -> np.ndarray:
    """[batch, seq] int32"""
    if (context is None) == (start_token is None):
        raise ValueError("give either start_token or context")
    if context is None:
        context = [start_token]
    context = np.asarray(context)
    if context.ndim not in (1, 2):
        raise ValueError(f"context must be [batch, seq] or [seq] token ids; its shape is {context.shape}")
    if context.ndim == 1:
        context = np.tile(context, [checks.check_batch_size(batch_size or 1), 1])  # [batch, seq]
    if not len(context):
        raise ValueError("context has no rows; give at least one")
    if batch_size is not None and len(context) != batch_size:
        raise ValueError(f"context has {len(context)} rows, batch_size is {batch_size}")
    checks.check_tokens(context, model.hparams.n_vocab)
    return context.astype(np.int32)


def _loop(model, context, noise, *, temperature, top_k, top_p):
    """context: [batch, seq], noise: [length, batch] -> [batch, seq + length]; shorter where it met NOT_FINITE."""

    def body(i, past, prev, output):
        lm_output = model(prev, past=past)
        logits = lm_output["logits"][:, -1, :]  # [batch, vocab]
        token = next_token(logits, noise[i], temperature=temperature, top_k=top_k, top_p=top_p)[:, None]  # [batch, 1]
        past = tf.concat([past, lm_output["present"]], axis=-2)  # [batch, layer, 2, heads, seq, head_features]
        return i + 1, past, token, tf.concat([output, token], axis=1)

    nothing = tf.zeros(past_shape(model.hparams, context.shape[0], 0))
    _, _, _, output = tf.while_loop(
        cond=lambda i, past, prev, output: (i < noise.shape[0]) & tf.reduce_all(prev >= 0),
        body=body,
        loop_vars=[0, nothing, context, context],
        shape_invariants=[
            tf.TensorShape([]),
            tf.TensorShape(past_shape(model.hparams, context.shape[0])),
            tf.TensorShape([context.shape[0], None]),
            tf.TensorShape([context.shape[0], None]),
        ],
    )
    return output
