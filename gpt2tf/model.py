"""GPT-2 as Keras layers, in the order and with the words of openai/gpt-2 src/model.py: to be read beside it.

First the functions of tensors, which `gpt2tf.decode` calls too, then a layer for each variable scope of the original:
`v.path` is the variable's name in the released checkpoints. Differences: softmax, norm and attention weights are
computed in float32 when the stream is narrower; a sequence longer than the window is refused in Python, where XLA and
GPUs would have clamped the position in silence; training has dropout in the places where GPT-2 was trained with it.

Axis words of the project: batch, seq (positions), dst and src (positions that attend and are attended to), heads,
features (n_embd), head_features (n_embd // n_head), layer, vocab.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable

import keras
import tensorflow as tf

from gpt2tf import encoder
from gpt2tf.hparams import HParams
from gpt2tf.train.dropout import Rates, dropout, keys_at
from gpt2tf.train.fit import KerasModel
from gpt2tf.train.recompute import recomputed, recomputed_by_rows

NORM_EPSILON = 1e-5  # openai/gpt-2 src/model.py:28
MASKED = 1e10  # openai/gpt-2 src/model.py:88; subtracted from the attention weights to be masked
WPE_STDDEV = 0.01  # openai/gpt-2 src/model.py:153
WTE_STDDEV = W_STDDEV = 0.02  # openai/gpt-2 src/model.py:155 and :50; no 1/sqrt(n_layer) anywhere

InitialValue = Callable[[str, tuple[int, ...]], tf.Tensor]


def shape_list(x):
    """The shape as Python ints where they are known and scalars of the graph where they are not."""
    if None not in x.shape:
        return list(x.shape)
    return [known or size for known, size in zip(x.shape, tf.unstack(tf.shape(x)), strict=True)]


def softmax(x):
    """Softmax over the last axis, in float32."""
    x = tf.cast(x, tf.float32)
    ex = tf.exp(x - tf.stop_gradient(tf.reduce_max(x, axis=-1, keepdims=True)))  # which the result does not depend on
    return ex / tf.reduce_sum(ex, axis=-1, keepdims=True)


def gelu(x):
    """The tanh form of GELU, in float32; the result has the dtype of x. Keras's default is the exact form."""
    wide = tf.cast(x, tf.float32)
    wide = 0.5 * wide * (1 + tf.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * tf.pow(wide, 3))))
    return tf.cast(wide, x.dtype)


def norm(x, g, b):
    """Layer norm over the last axis, in float32; the result has the dtype of x.

    x: [..., features]; g, b: [features].
    """
    wide = tf.cast(x, tf.float32)
    u = tf.reduce_mean(wide, axis=-1, keepdims=True)
    s = tf.reduce_mean(tf.square(wide - u), axis=-1, keepdims=True)
    wide = (wide - u) * tf.math.rsqrt(s + NORM_EPSILON)
    return tf.cast(wide * tf.cast(g, tf.float32) + tf.cast(b, tf.float32), x.dtype)


def split_heads(x, n_head: int):
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


def attn_scale(head_features: int):
    """What the products of queries and keys are multiplied by, float32."""
    return tf.math.rsqrt(tf.cast(head_features, tf.float32))


def attn_weights(w, mask):
    """From the scaled products of queries and keys to how much each position attends to each.

    w: [batch, heads, dst, src] float32; mask: ones and zeros that broadcast to it -> the same shape; rows sum to 1.
    """
    return softmax(mask_attn_weights(w, mask))


def multihead_attn(q, k, v, dropout_keys=None, rate: float = 0.0):
    """q: [batch, heads, dst, head_features], of the last positions; k, v: [batch, heads, src, head_features]

    dropout_keys, rate: of the dropout of the weights. -> [batch, heads, dst, head_features], in the dtype of v.
    """
    mask = attention_mask(shape_list(q)[-2], shape_list(k)[-2])  # [dst, src]
    scale = attn_scale(v.shape[-1])
    if q.dtype == tf.float32:
        w = tf.matmul(q, k, transpose_b=True) * scale  # [batch, heads, dst, src]
    else:  # scaled before, since the product may pass the range of float16
        w = tf.cast(tf.matmul(q * tf.cast(scale, q.dtype), k, transpose_b=True), tf.float32)
    w = attn_weights(w, mask)  # [batch, heads, dst, src]
    w = dropout(w, rate, dropout_keys)
    return tf.matmul(tf.cast(w, v.dtype), v)  # [batch, heads, dst, head_features]


def mlp(x, c_fc, c_proj):
    """c_fc, c_proj: functions of a stream, to four times the features and back."""
    return c_proj(gelu(c_fc(x)))


def block(x, ln_1, attn, ln_2, mlp):
    """The order of a block, whatever holds the weights: each argument after x is a function of a stream.

    x: [..., features]; attn returns (x, present), the others x. Returns (x, present).
    """
    a, present = attn(ln_1(x))
    x = x + a
    m = mlp(ln_2(x))
    return x + m, present


def past_shape(hparams: HParams, batch_size=None, sequence=None):
    """Shape of `past` and `present`: [batch, layer, 2 (key, value), heads, seq, head_features]."""
    return [batch_size, hparams.n_layer, 2, hparams.n_head, sequence, hparams.n_embd // hparams.n_head]


def positions_for(seq, past_length):
    """The positions of seq tokens after past_length others: [seq], the same for every row."""
    return past_length + tf.range(seq)


@tf.custom_gradient
def gather(w, ids):
    """w: [rows, features], ids: int32 of any shape -> [*ids, features]; a gradient of w as dense as w is.

    Of a sparse one Keras's optimizers square each part by itself where a row is looked up twice.
    """

    def grad(dy):
        dy, flat = tf.reshape(dy, [-1, w.shape[-1]]), tf.reshape(ids, [-1])
        return tf.math.unsorted_segment_sum(dy, flat, w.shape[0]), None

    return tf.gather(w, ids), grad


def head(h, wte):
    """[batch, seq, features], [vocab, features] -> [batch, seq, vocab] float32; the head is tied to wte."""
    batch, seq, features = shape_list(h)
    flat = tf.matmul(tf.reshape(h, [-1, features]), tf.cast(wte, h.dtype), transpose_b=True)  # [batch * seq, vocab]
    return tf.cast(tf.reshape(flat, [batch, seq, wte.shape[0]]), tf.float32)  # [batch, seq, vocab]


def initial_value(path: str, shape: tuple[int, ...], seed: int | None = None):
    """The start of an untrained variable, by its name: the original's distributions.

    seed: makes it repeatable; without one it is drawn from Keras's global generator, which
    `keras.utils.set_random_seed` does.
    """
    leaf = path.rsplit("/", 1)[-1]
    if leaf == "g":
        return tf.ones(shape)
    if leaf == "b":
        return tf.zeros(shape)
    if seed is not None:
        seed = zlib.crc32(f"{seed} {path}".encode())
    return keras.random.normal(shape, seed=seed, stddev={"wpe": WPE_STDDEV, "wte": WTE_STDDEV}.get(leaf, W_STDDEV))


def get_variable(layer, name: str, shape):
    """Add a variable to a layer; to be called in its `build`, where `layer.path` is the scope."""
    path = f"{layer.path}/{name}"
    return layer.add_weight(
        name=name, shape=shape, initializer=lambda shape, dtype: tf.cast(layer.initial_value(path, shape), dtype)
    )


class Scope(keras.layers.Layer):
    """A layer that stands for a variable scope of the original. `net` is the GPT2 that it is a part of."""

    def __init__(self, net: GPT2, name: str):
        super().__init__(name=name, dtype=net.dtype_policy)
        self.initial_value = net.initial_value


class Norm(Scope):
    """[batch, seq, features] -> the same; g, b: [features]"""

    def build(self, shape):
        self.g = get_variable(self, "g", [shape[-1]])
        self.b = get_variable(self, "b", [shape[-1]])

    def call(self, x):
        return norm(x, self.g, self.b)


class Conv1D(Scope):
    """[batch, seq, nx] -> [batch, seq, nf]; w: [1, nx, nf], b: [nf]"""

    def __init__(self, nf: int, net: GPT2, name: str):
        super().__init__(net, name)
        self.nf = nf

    def build(self, shape):
        self.w = get_variable(self, "w", [1, shape[-1], self.nf])
        self.b = get_variable(self, "b", [self.nf])

    def call(self, x):
        return conv1d(x, tf.convert_to_tensor(self.w), self.b)


class Attn(Scope):
    """[batch, seq, features], past [batch, 2, heads, src, head_features] -> the same, present (seq in place of src)"""

    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.n_head = net.hparams.n_head
        self.rates = net.dropout
        self.c_attn = Conv1D(3 * net.hparams.n_embd, net, name="c_attn")
        self.c_proj = Conv1D(net.hparams.n_embd, net, name="c_proj")

    def build(self, shape):
        self.c_attn.build(shape)
        self.c_proj.build(shape)

    def call(self, x, past=None, dropout_keys=None):
        c = self.c_attn(x)  # [batch, seq, 3 * features]
        q, k, v = tf.split(c, 3, axis=2)  # [batch, seq, features]
        q, k, v = (split_heads(part, self.n_head) for part in (q, k, v))  # [batch, heads, seq, head_features]
        present = tf.stack([k, v], axis=1)  # [batch, 2, heads, seq, head_features]
        if past is not None:
            pk, pv = tf.unstack(past, axis=1)  # [batch, heads, src, head_features]
            k = tf.concat([pk, k], axis=-2)  # [batch, heads, src + seq, head_features]
            v = tf.concat([pv, v], axis=-2)  # [batch, heads, src + seq, head_features]
        attend = functools.partial(multihead_attn, rate=self.rates.attn)
        size = self.n_head * (k.shape[-2] or 0) ** 2  # of the weights
        a = recomputed_by_rows(attend, (q, k, v), keys_at(dropout_keys, 0), size)  # [batch, heads, seq, head_features]
        a = merge_heads(a)  # [batch, seq, features]
        a = self.c_proj(a)
        return dropout(a, self.rates.resid, keys_at(dropout_keys, 1)), present


class MLP(Scope):
    """[batch, seq, features] -> the same"""

    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.rates = net.dropout
        self.c_fc = Conv1D(4 * net.hparams.n_embd, net, name="c_fc")
        self.c_proj = Conv1D(net.hparams.n_embd, net, name="c_proj")

    def build(self, shape):
        self.c_fc.build(shape)
        self.c_proj.build([*shape[:-1], self.c_fc.nf])

    def call(self, x, dropout_keys=None):
        return dropout(mlp(x, self.c_fc, self.c_proj), self.rates.resid, keys_at(dropout_keys, 2))


class Block(Scope):
    """[batch, seq, features] -> the same, present [batch, 2, heads, seq, head_features]"""

    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.ln_1 = Norm(net, name="ln_1")
        self.attn = Attn(net, name="attn")
        self.ln_2 = Norm(net, name="ln_2")
        self.mlp = MLP(net, name="mlp")

    def build(self, shape):
        for layer in (self.ln_1, self.attn, self.ln_2, self.mlp):
            layer.build(shape)

    def call(self, x, past=None, dropout_keys=None):
        return block(
            x,
            self.ln_1,
            lambda x: self.attn(x, past=past, dropout_keys=dropout_keys),
            self.ln_2,
            lambda x: self.mlp(x, dropout_keys=dropout_keys),
        )


@keras.saving.register_keras_serializable("gpt2tf")
class GPT2(KerasModel):
    """GPT-2 as a Keras model; `{v.path: v.shape for v in model.variables}` are the checkpoint's.

    hparams: the sizes. initial_value(path, shape): what each variable starts from; by default the original's random
    start. dropout: rates of training, one for all places or `Rates`. recompute: keep of each block only its input for
    the gradients and compute the rest a second time. dtype: as in any Keras model; "mixed_bfloat16" computes in
    bfloat16. vocabulary: the tokens that the ids stand for, None if not known; rows of wte beyond them are never
    sampled, and `save_checkpoint` writes its files.

    To train it as any Keras model: `model.compile(optimizer, loss=gpt2tf.cross_entropy, jit_compile=True)` and
    `model.fit` on (tokens[:, :-1], tokens[:, 1:]); losses and metrics are given the logits. What `model.save` wrote is
    opened by `keras.models.load_model`, which finds the class once `gpt2tf.GPT2` has been named or imported.
    """

    def __init__(
        self,
        hparams: HParams,
        *,
        initial_value: InitialValue = initial_value,
        dropout: Rates | float = 0.1,
        recompute: bool = False,
        dtype=None,
        vocabulary: encoder.Vocabulary | None = None,
    ):
        rates = dropout if isinstance(dropout, Rates) else Rates(dropout, dropout, dropout)
        super().__init__(hparams, rates, recompute, dtype, vocabulary)
        self.initial_value = initial_value
        for i in range(hparams.n_layer):  # attributes, because tf.train.Checkpoint does not look into Keras's lists
            setattr(self, f"h{i}", Block(self, name=f"h{i}"))
        self.ln_f = Norm(self, name="ln_f")
        with keras.name_scope("model", caller=self, override_parent=""):  # whatever scope is open where it is made
            self.build([None, None])

    @property
    def blocks(self) -> list[Block]:
        return [getattr(self, f"h{i}") for i in range(self.hparams.n_layer)]

    def build(self, tokens_shape):
        self.wpe = get_variable(self, "wpe", [self.hparams.n_ctx, self.hparams.n_embd])
        self.wte = get_variable(self, "wte", [self.hparams.n_vocab, self.hparams.n_embd])
        for layer in (*self.blocks, self.ln_f):
            layer.build([None, None, self.hparams.n_embd])

    def call(self, tokens, past=None, training=False, dropout_keys=None, last=False):
        """The original's `model`: logits for every position, and the keys and values to go on from.

        tokens: [batch, seq] ids, of any integer dtype. past: [batch, n_layer, 2, n_head, src, head_features], the
        `present` of what came before, concatenated on axis -2; None at the start. training: with dropout on the sum of
        the embeddings, on the attention weights and on the output of each c_proj, and without a `present`.
        dropout_keys: [batch] of `dropout.row_keys`, fresh ones if not given. last: logits of the last position alone.
        Returns {"logits": [batch, seq, n_vocab], "present": [batch, n_layer, 2, n_head, seq, head_features]}, logits in
        float32. Raises ValueError for other shapes, for what is no id, and when past and tokens together are longer
        than n_ctx; in a graph these are assertions, in what XLA compiles logits of NaN without a gradient.
        """
        h, present, ok = self.hidden(tokens, past, training, dropout_keys)
        logits = head(h[:, -1:] if last else h, tf.convert_to_tensor(self.wte))  # [batch, seq, vocab]
        logits = logits if ok is True else tf.where(ok, logits, float("nan"))
        return {"logits": logits} if training else {"logits": logits, "present": present}

    def hidden(self, tokens, past=None, training=False, dropout_keys=None):
        """What comes before the logits; arguments and errors as of `call`.

        Returns (h, `present`, ok). h: [batch, seq, features] behind ln_f. present: None in training. ok: True, or in a
        graph a scalar; where it is False, what is made of h has to become NaN.
        """
        if len(tokens.shape) != 2:
            raise ValueError(f"tokens must be [batch, seq]; their shape is {tuple(tokens.shape)}")
        if past is not None:
            expected = past_shape(self.hparams, tokens.shape[0], past.shape[-2] if len(past.shape) == 6 else None)
            if not past.shape.is_compatible_with(expected):
                raise ValueError(f"past must be {expected}, as `present` is; its shape is {tuple(past.shape)}")
        past_length = 0 if past is None else shape_list(past)[-2]
        tokens, ok = self.ids(tokens, past_length)  # [batch, seq]
        if not training:
            dropout_keys = None
        elif dropout_keys is None:
            dropout_keys = self.fresh_keys(shape_list(tokens)[0])
        positions = positions_for(shape_list(tokens)[1], past_length)  # [seq]
        h = gather(tf.convert_to_tensor(self.wte), tokens) + gather(tf.convert_to_tensor(self.wpe), positions)
        h = tf.cast(h, self.compute_dtype)  # [batch, seq, features]
        h = dropout(h, self.dropout.embd, keys_at(dropout_keys, 0))
        presents = []
        pasts = [None] * self.hparams.n_layer if past is None else tf.unstack(past, axis=1)
        for layer, (block, past) in enumerate(zip(self.blocks, pasts, strict=True)):
            block_keys = keys_at(dropout_keys, 1 + layer)
            if training and self.recompute:
                h = recomputed(lambda h, block=block, keys=block_keys: block(h, dropout_keys=keys)[0], h)
            else:
                h, present = block(h, past=past, dropout_keys=block_keys)
                presents.append(present)  # [batch, 2, heads, seq, head_features]
        return self.ln_f(h), None if training else tf.stack(presents, axis=1), ok
