"""The network, in the original's order and with its words.

Mirrors the arithmetic of openai/gpt-2 src/model.py:16-174, as functions of tensors. The variables are held by
`gpt2tf.layers` and, for generation, by `gpt2tf.decode.network`, which both call these functions. Difference:
softmax, norm and attention weights are computed in float32 when the stream is narrower (in float32 nothing changes).

Axis words of the project: batch, seq (positions), dst and src (positions that attend and are
attended to), heads, features (n_embd), head_features (n_embd // n_head), layer, vocab.
"""

from __future__ import annotations

import math

import tensorflow as tf

from gpt2tf.hparams import HParams

NORM_EPSILON = 1e-5  # openai/gpt-2 src/model.py:28
MASKED = 1e10  # openai/gpt-2 src/model.py:88; subtracted from the attention weights to be masked


def softmax(x):
    """Softmax over the last axis, in float32."""
    x = tf.cast(x, tf.float32)
    ex = tf.exp(x - tf.reduce_max(x, axis=-1, keepdims=True))
    return ex / tf.reduce_sum(ex, axis=-1, keepdims=True)


def gelu(x):
    """The tanh form of GELU; Keras's default is the exact form."""
    return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3))))


def norm(x, g, b):
    """Layer norm over the last axis, in float32; the result has the dtype of x.

    x: [..., features]; g, b: [features].
    """
    wide = tf.cast(x, tf.float32)
    u = tf.reduce_mean(wide, axis=-1, keepdims=True)
    s = tf.reduce_mean(tf.square(wide - u), axis=-1, keepdims=True)
    wide = (wide - u) * tf.math.rsqrt(s + NORM_EPSILON)
    return tf.cast(wide * tf.cast(g, tf.float32) + tf.cast(b, tf.float32), x.dtype)


def split_heads(x, n_head):
    """[batch, seq, features] -> [batch, heads, seq, head_features]"""
    batch, seq, features = shape_list(x)
    x = tf.reshape(x, [batch, seq, n_head, features // n_head])  # [batch, seq, heads, head_features]
    return tf.transpose(x, [0, 2, 1, 3])  # [batch, heads, seq, head_features]


def merge_heads(x):
    """[batch, heads, seq, head_features] -> [batch, seq, features]"""
    x = tf.transpose(x, [0, 2, 1, 3])  # [batch, seq, heads, head_features]
    batch, seq, n_head, head_features = shape_list(x)
    return tf.reshape(x, [batch, seq, n_head * head_features])  # [batch, seq, features]


def conv1d(x, w, b):
    """The original's width-1 convolution. x: [batch, seq, nx], w: [1, nx, nf], b: [nf] -> [batch, seq, nf]"""
    batch, seq, nx = shape_list(x)
    nf = w.shape[-1]
    flat = tf.matmul(tf.reshape(x, [-1, nx]), tf.reshape(w, [-1, nf])) + b  # [batch * seq, nf]
    return tf.reshape(flat, [batch, seq, nf])  # [batch, seq, nf]


def attention_mask(nd, ns, dtype=tf.float32):
    """[dst, src] of ones where the last nd of ns positions may look (at themselves and back), zeros elsewhere."""
    i = tf.range(nd)[:, None]
    j = tf.range(ns)
    return tf.cast(i >= j - ns + nd, dtype)  # [dst, src]


def mask_attn_weights(w, b):
    """w: [batch, heads, dst, src] float32, b: a mask of ones and zeros that broadcasts to it."""
    return w * b - MASKED * (1 - b)


def attn_weights(w, mask, head_features: int):
    """From the products of queries and keys to how much each position attends to each.

    w: [batch, heads, dst, src]; mask: ones and zeros that broadcast to it -> the same shape, float32, rows sum to 1.
    """
    w = tf.cast(w, tf.float32) * tf.math.rsqrt(tf.cast(head_features, tf.float32))
    return softmax(mask_attn_weights(w, mask))


def multihead_attn(q, k, v, mask, drop=lambda w: w):
    """q: [batch, heads, dst, head_features]; k, v: [batch, heads, src, head_features]; mask: [dst, src]; drop: what
    training does to the weights

    -> [batch, heads, dst, head_features], in the dtype of v.
    """
    w = drop(attn_weights(tf.matmul(q, k, transpose_b=True), mask, v.shape[-1]))  # [batch, heads, dst, src]
    return tf.matmul(tf.cast(w, v.dtype), v)  # [batch, heads, dst, head_features]


def attn(x, c_attn, attend, c_proj):
    """c_attn, c_proj: layers; attend: [..., 3 * features] -> ([..., features], present). Returns (x, present)."""
    a, present = attend(c_attn(x))
    return c_proj(a), present


def mlp(x, c_fc, c_proj):
    """c_fc, c_proj: layers, to four times the features and back."""
    return c_proj(gelu(c_fc(x)))


def block(x, ln_1, attn, ln_2, mlp):
    """The order of a block, whatever holds the weights: each argument after x is a function of a stream.

    x: [..., features]; attn returns (x, present), the others x. Returns (x, present).
    """
    a, present = attn(ln_1(x))
    x = x + a
    m = mlp(ln_2(x))
    return x + m, present


def cross_entropy(targets, logits):
    """How unlikely each target was, in nats; as a Keras loss it is averaged over all of them.

    targets: [batch, seq] ids, of which Keras makes floats; logits: [batch, seq, vocab] -> [batch, seq] float32
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), tf.cast(logits, tf.float32))


def positions_for(tokens, past_length):
    """tokens: [batch, seq] -> their positions, [batch, seq]"""
    batch, seq = shape_list(tokens)
    return tf.tile((past_length + tf.range(seq))[None, :], [batch, 1])  # [batch, seq]


def past_shape(hparams: HParams, batch_size=None, sequence=None):
    """Shape of `past` and `present`: [batch, layer, 2 (key, value), heads, seq, head_features]."""
    return [batch_size, hparams.n_layer, 2, hparams.n_head, sequence, hparams.n_embd // hparams.n_head]


def shape_list(x):
    """The shape as Python ints where they are known and scalars of the graph where they are not."""
    if None not in x.shape:
        return list(x.shape)
    return [known or size for known, size in zip(x.shape, tf.unstack(tf.shape(x)), strict=True)]
