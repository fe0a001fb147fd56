"""The network, in the original's order and with its words.

Mirrors openai/gpt-2 src/model.py:16-174. The functions hold the arithmetic; the Keras layers below
them hold the variables, each under the scope of the original, so that `v.path` is the variable's
name in the released checkpoints. Differences: softmax, norm and attention weights are computed in
float32 when the stream is narrower (in float32 nothing changes), and a sequence longer than the
window is refused in Python, where XLA and GPUs would have clamped the position in silence.

Axis words of the project: batch, seq (positions), dst and src (positions that attend and are
attended to), heads, features (n_embd), head_features (n_embd // n_head), layer, vocab.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from gpt2tf.hparams import HParams

NORM_EPSILON = 1e-5  # openai/gpt-2 src/model.py:28
MASKED = 1e10  # openai/gpt-2 src/model.py:88; subtracted from the attention weights to be masked
WPE_STDDEV = 0.01  # openai/gpt-2 src/model.py:153
WTE_STDDEV = W_STDDEV = 0.02  # openai/gpt-2 src/model.py:155 and :50; no 1/sqrt(n_layer) anywhere


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
    batch, seq, features = _shape_list(x)
    x = tf.reshape(x, [batch, seq, n_head, features // n_head])  # [batch, seq, heads, head_features]
    return tf.transpose(x, [0, 2, 1, 3])  # [batch, heads, seq, head_features]


def merge_heads(x):
    """[batch, heads, seq, head_features] -> [batch, seq, features]"""
    x = tf.transpose(x, [0, 2, 1, 3])  # [batch, seq, heads, head_features]
    batch, seq, n_head, head_features = _shape_list(x)
    return tf.reshape(x, [batch, seq, n_head * head_features])  # [batch, seq, features]


def conv1d(x, w, b):
    """The original's width-1 convolution. x: [batch, seq, nx], w: [1, nx, nf], b: [nf] -> [batch, seq, nf]"""
    batch, seq, nx = _shape_list(x)
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


def multihead_attn(q, k, v, mask):
    """q: [batch, heads, dst, head_features]; k, v: [batch, heads, src, head_features]; mask: [dst, src]

    -> [batch, heads, dst, head_features], in the dtype of v.
    """
    w = attn_weights(tf.matmul(q, k, transpose_b=True), mask, v.shape[-1])  # [batch, heads, dst, src]
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


def positions_for(tokens, past_length):
    """tokens: [batch, seq] -> their positions, [batch, seq]"""
    batch, seq = _shape_list(tokens)
    return tf.tile((past_length + tf.range(seq))[None, :], [batch, 1])  # [batch, seq]


def past_shape(hparams: HParams, batch_size=None, sequence=None):
    """Shape of `past` and `present`: [batch, layer, 2 (key, value), heads, seq, head_features]."""
    return [batch_size, hparams.n_layer, 2, hparams.n_head, sequence, hparams.n_embd // hparams.n_head]


def _shape_list(x):
    """The shape as Python ints where they are known and scalars of the graph where they are not."""
    if None not in x.shape:
        return list(x.shape)
    return [known or size for known, size in zip(x.shape, tf.unstack(tf.shape(x)), strict=True)]


def initial_value(path: str, shape: tuple[int, ...]):
    """The start of an untrained variable, by its name: the original's distributions.

    Drawn from Keras's global generator: `keras.utils.set_random_seed` makes it repeatable.
    """
    leaf = path.rsplit("/", 1)[-1]
    if leaf == "g":
        return tf.ones(shape)
    if leaf == "b":
        return tf.zeros(shape)
    return keras.random.normal(shape, stddev={"wpe": WPE_STDDEV, "wte": WTE_STDDEV}.get(leaf, W_STDDEV))


InitialValue = Callable[[str, tuple[int, ...]], tf.Tensor]


def get_variable(layer, name, shape):
    """Add a variable to a layer; to be called in its `build`, where `layer.path` is the scope."""
    path = f"{layer.path}/{name}"
    return layer.add_weight(
        name=name, shape=shape, initializer=lambda shape, dtype: tf.cast(layer.initial_value(path, shape), dtype)
    )


class Scope(keras.layers.Layer):
    """A layer that stands for a variable scope of the original."""

    def __init__(self, initial_value: InitialValue, name: str):
        super().__init__(name=name)
        self.initial_value = initial_value


class Norm(Scope):
    def build(self, shape):
        self.g = get_variable(self, "g", [shape[-1]])
        self.b = get_variable(self, "b", [shape[-1]])

    def call(self, x):
        return norm(x, self.g, self.b)


class Conv1D(Scope):
    def __init__(self, nf: int, initial_value: InitialValue, name: str):
        super().__init__(initial_value, name)
        self.nf = nf

    def build(self, shape):
        self.w = get_variable(self, "w", [1, shape[-1], self.nf])
        self.b = get_variable(self, "b", [self.nf])

    def call(self, x):
        return conv1d(x, tf.convert_to_tensor(self.w), self.b)


class Attn(Scope):
    def __init__(self, hparams: HParams, initial_value: InitialValue, name: str):
        super().__init__(initial_value, name)
        self.n_head = hparams.n_head
        self.c_attn = Conv1D(3 * hparams.n_embd, initial_value, name="c_attn")
        self.c_proj = Conv1D(hparams.n_embd, initial_value, name="c_proj")

    def build(self, shape):
        self.c_attn.build(shape)
        self.c_proj.build(shape)

    def call(self, x, past=None):
        """x: [batch, seq, features], past: [batch, 2, heads, src, head_features] or None -> (x, present)"""
        return attn(x, self.c_attn, functools.partial(self.attend, past=past), self.c_proj)

    def attend(self, c, past):
        """[batch, seq, 3 * features] -> ([batch, seq, features], present [batch, 2, heads, seq, head_features])"""
        q, k, v = (split_heads(part, self.n_head) for part in tf.split(c, 3, axis=2))  # [batch, heads, seq, ...]
        present = tf.stack([k, v], axis=1)  # [batch, 2, heads, seq, head_features]
        if past is not None:
            k, v = tf.unstack(tf.concat([past, present], axis=-2), axis=1)  # [batch, heads, src, head_features]
        mask = attention_mask(_shape_list(q)[-2], _shape_list(k)[-2])  # [dst, src]
        return merge_heads(multihead_attn(q, k, v, mask)), present


class MLP(Scope):
    def __init__(self, hparams: HParams, initial_value: InitialValue, name: str):
        super().__init__(initial_value, name)
        self.c_fc = Conv1D(4 * hparams.n_embd, initial_value, name="c_fc")
        self.c_proj = Conv1D(hparams.n_embd, initial_value, name="c_proj")

    def build(self, shape):
        self.c_fc.build(shape)
        self.c_proj.build([*shape[:-1], self.c_fc.nf])

    def call(self, x):
        return mlp(x, self.c_fc, self.c_proj)


class Block(Scope):
    def __init__(self, hparams: HParams, initial_value: InitialValue, name: str):
        super().__init__(initial_value, name)
        self.ln_1 = Norm(initial_value, name="ln_1")
        self.attn = Attn(hparams, initial_value, name="attn")
        self.ln_2 = Norm(initial_value, name="ln_2")
        self.mlp = MLP(hparams, initial_value, name="mlp")

    def build(self, shape):
        for layer in (self.ln_1, self.attn, self.ln_2, self.mlp):
            layer.build(shape)

    def call(self, x, past=None):
        """x: [batch, seq, features] -> (x, present [batch, 2, heads, seq, head_features])"""
        return block(x, self.ln_1, functools.partial(self.attn, past=past), self.ln_2, self.mlp)


class GPT2(keras.Model):
    """GPT-2 as a Keras model; `{v.path: v.shape for v in model.variables}` are the checkpoint's.

    hparams: the sizes. initial_value(path, shape): what each variable starts from; the original's
    random start when it is not given. `vocabulary` is the folder whose encoder.json and vocab.bpe
    belong to the weights, None for the released ones; `save_checkpoint` puts them beside the weights.
    """

    def __init__(self, hparams: HParams, *, initial_value: InitialValue = initial_value):
        super().__init__(name="model")
        self.hparams = hparams
        self.vocabulary: str | None = None
        self.initial_value = initial_value
        self.blocks = [Block(hparams, initial_value, name=f"h{i}") for i in range(hparams.n_layer)]
        self.ln_f = Norm(initial_value, name="ln_f")
        self.build(None)

    def build(self, _):
        self.wpe = get_variable(self, "wpe", [self.hparams.n_ctx, self.hparams.n_embd])
        self.wte = get_variable(self, "wte", [self.hparams.n_vocab, self.hparams.n_embd])
        for layer in (*self.blocks, self.ln_f):
            layer.build([None, None, self.hparams.n_embd])

    def call(self, tokens, past=None):
        """The original's `model`: logits for every position, and the keys and values to go on from.

        tokens: [batch, seq] ids. past: [batch, n_layer, 2, n_head, src, head_features], the `present`
        of what came before, concatenated on axis -2; None at the start.
        Returns {"logits": [batch, seq, n_vocab], "present": [batch, n_layer, 2, n_head, seq, head_features]}.
        Raises ValueError for other shapes, and when past and tokens together are longer than n_ctx.
        """
        self._check_shapes(tokens, past)
        past_length = 0 if past is None else _shape_list(past)[-2]
        h = tf.gather(self.wte, tokens) + tf.gather(self.wpe, positions_for(tokens, past_length))
        presents = []
        pasts = [None] * self.hparams.n_layer if past is None else tf.unstack(past, axis=1)
        for block, past_of_block in zip(self.blocks, pasts, strict=True):
            h, present = block(h, past=past_of_block)  # [batch, seq, features], [batch, 2, heads, seq, head_features]
            presents.append(present)
        h = self.ln_f(h)
        return {"logits": self.logits(h), "present": tf.stack(presents, axis=1)}

    def logits(self, h):
        """[batch, seq, features] -> [batch, seq, vocab]; the head is tied to wte."""
        batch, seq, features = _shape_list(h)
        flat = tf.matmul(tf.reshape(h, [-1, features]), self.wte, transpose_b=True)  # [batch * seq, vocab]
        return tf.reshape(flat, [batch, seq, self.hparams.n_vocab])  # [batch, seq, vocab]

    def _check_shapes(self, tokens, past):
        if len(tokens.shape) != 2:
            raise ValueError(f"tokens must be [batch, seq]; their shape is {tuple(tokens.shape)}")
        if past is None:
            return self._check_window(tokens.shape[1], 0)
        expected = past_shape(self.hparams, tokens.shape[0], past.shape[-2] if len(past.shape) == 6 else None)
        if not past.shape.is_compatible_with(expected):
            raise ValueError(f"past must be {expected}, as `present` is; its shape is {tuple(past.shape)}")
        self._check_window(tokens.shape[1], past.shape[-2])

    def _check_window(self, seq, past_length):
        if None not in (seq, past_length) and past_length + seq > self.hparams.n_ctx:
            raise ValueError(
                f"{past_length} past and {seq} new tokens are {past_length + seq}; n_ctx is {self.hparams.n_ctx}"
            )
