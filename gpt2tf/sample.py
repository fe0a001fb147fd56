"""From logits to the next token, and the original's loop over a growing `past`: to be read beside the original.

Mirrors openai/gpt-2 src/sample.py and the kernel of `tf.multinomial` in TensorFlow 1. Differences: the threshold of
top-p keeps its axis, so that batches work; top_p 1 is off, where the original's float32 running sum may pass 1.0 and
drop the least likely tokens; temperature 0 is arg-max; length 0 gives no token; the random number is an argument; what
does not fit is refused before the first token; logits that are not finite are an error. `gpt2tf.Generator` gives the
same tokens, compiled.

Logits are [batch, vocab] float32 everywhere.
"""

from __future__ import annotations

import operator

import numpy as np
import tensorflow as tf

from gpt2tf import checks, encoder
from gpt2tf.model import GPT2, past_shape

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

    vocab = encoder.real_tokens(model.vocabulary, model.hparams.n_vocab)
    past = tf.zeros(past_shape(model.hparams, len(context), 0), model.compute_dtype)  # of no positions yet
    any_prev = tf.TensorSpec([len(context), None], tf.int32)
    any_past = tf.TensorSpec(past_shape(model.hparams, len(context)), past.dtype)
    # Traced once for all lengths: op by op a token of 124M takes three times as long.
    step = tf.function(lambda prev, past: model(prev, past=past), input_signature=[any_prev, any_past])
    output = prev = tf.constant(context)  # [batch, seq]
    for u in noise:
        lm_output = step(prev, past)
        logits = lm_output["logits"][:, -1, :vocab]  # [batch, vocab]
        token = next_token(logits, u, temperature=temperature, top_k=top_k, top_p=top_p)  # [batch]
        if tf.reduce_any(token == NOT_FINITE):
            raise FloatingPointError("the model's logits are not finite; its weights are damaged or training diverged")
        past = tf.concat([past, lm_output["present"]], axis=-2)  # [batch, layer, 2, heads, src, head_features]
        prev = token[:, None]  # [batch, 1]
        output = tf.concat([output, prev], axis=1)  # [batch, seq]
    return output.numpy()


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
