"""The network over weights that are laid out for generation: prefill for prompts, decode steps for single tokens.

Mirrors openai/gpt-2 src/model.py by calling the functions of `gpt2tf.model` (block, mlp, norm, gelu, attention weights)
on the tensors of `gpt2tf.decode.weights`. The embedding's sum, norms, softmax and logits stay in float32. Differences:
the cache is preallocated, in float16 where weights are narrower than float32 and rows not few; keys are [layer, batch,
heads, src, head_features] and values [layer, batch, heads, head_features, src], because so one token's attention reads
both in place.

On a CPU a few rows of activations are multiplied by a layer's matrix where it is, through a switch over the layers; a
slice of the stack, which many rows and 16 bits take, is copied first. On a GPU each layer has matrices of its own, and
nothing depends on data, for which the host would have to wait: no switch, and no loop but that over the tokens.
"""

from __future__ import annotations

import functools
import math

import tensorflow as tf

from gpt2tf import model
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import Matrix, Weights, streams_for
from gpt2tf.hparams import HParams

CACHE_PARTS = 2  # a token's attention reads the first so many of them, up to its own; each takes 0.3 s to compile
FEW_ROWS = 64  # of activations, up to which a matrix product takes longer to copy its matrix than to multiply


class Network:
    """GPT-2 over packed weights. `layer` is None for what is outside of the layers, else the loop's index."""

    def __init__(self, weights: Weights, hparams: HParams, ops: Ops):
        self.weights = weights
        self.hparams = hparams
        self.ops = ops
        self.one = tf.constant(1.0)

    def dense(self, x, name: str, layer=None):
        """x: [rows, in] float32 -> [rows, out] float32, without a bias."""
        matrix = self.weights[name]
        if self.ops.on_gpu:
            y = self.ops.matmul(x, matrix.layers[layer] if matrix.layers else _rows(matrix.array))
        elif streams_for(x.shape[0], self.ops.platform) == 1:
            y = self._matmul(self._apart(x), matrix, layer)
        else:
            # [streams, groups, out / groups, in / streams], [rows, in]
            w, x = self.ops.barrier(_of_layer(matrix.array, layer), self._apart(x))
            y = tf.stack([self._matvec(row, tf.cast(w, tf.float32)) for row in tf.unstack(x)])  # [rows, out]
        return y if matrix.scale is None else y * _of_layer(matrix.scale, layer)

    def _apart(self, x):
        """x, kept out of the kernel of a product on a CPU, where it would be made again for each row of the weights."""
        return x / self.one

    def _matmul(self, x, matrix: Matrix, layer):
        """x: [rows, in] float32 -> [rows, out] float32, without the scale of int8"""
        if matrix.array.dtype != tf.int8:
            return self._product(x, matrix, layer)
        # The activations are quantized too, by row: products of bytes are three times as fast as casts.
        # Their largest is found among the bits: the maximum of floats passes over a NaN, which would be quantized away.
        largest = tf.reduce_max(tf.bitcast(tf.abs(x), tf.int32), axis=-1, keepdims=True)  # [rows, 1]
        step = tf.bitcast(largest, tf.float32) / 127.0 + 1e-30  # [rows, 1]
        q = self.ops.barrier(tf.cast(tf.round(x / step), tf.int8))  # [rows, in]
        return tf.cast(self._product(q, matrix, layer), tf.float32) * step

    def _product(self, x, matrix: Matrix, layer):
        """x: [rows, in] float32 or int8 -> its product with the matrix, [rows, out] float32 or int32"""
        if matrix.layers and self.ops.jit_compile and x.shape[0] <= FEW_ROWS:
            return self.ops.product(x, matrix.layers, layer)
        w, x = self.ops.barrier(_of_layer(matrix.array, layer), x)
        w = _rows(w)  # [out, in]
        if x.dtype == tf.int8:
            return tf.matmul(x, w, transpose_b=True, output_type=tf.int32)
        return tf.matmul(x, tf.cast(w, tf.float32), transpose_b=True)

    def _matvec(self, x, w):
        """x: [in], w: [streams, groups, out / groups, in / streams], float32 both -> [out]"""
        streams, *_, n = w.shape
        ones = self.ops.barrier(tf.ones([n]))
        wx = sum(w[i] * x[i * n : (i + 1) * n] for i in range(streams))  # [groups, out / groups, in / streams]
        return tf.reshape(tf.einsum("goi,i->go", wx, ones), [-1])  # [out]

    def linear(self, name: str, layer):
        return lambda x: self.dense(x, name, layer) + _of_layer(self.weights[f"{name}/b"], layer)

    def norm(self, name: str, layer=None):
        g, b = (_of_layer(self.weights[f"{name}/{leaf}"], layer) for leaf in "gb")
        return lambda x: model.norm(x, g, b)

    def embed(self, tokens, positions):
        """tokens, positions: [rows] -> [rows, features] float32"""
        wte, scale = self.weights["wte"].array, self.weights["wte"].scale
        wte = tf.reshape(wte, [wte.shape[0], -1, wte.shape[-1]])  # [streams, padded vocab, features / streams]
        h = tf.transpose(tf.gather(wte, tokens, axis=1), [1, 0, 2])  # [rows, streams, features / streams]
        h = tf.cast(tf.reshape(h, [tokens.shape[0], -1]), tf.float32)  # [rows, features]
        if scale is not None:
            h = h * tf.gather(scale, tokens)[:, None]
        return h + tf.gather(self.weights["wpe"], positions)

    def through_layers(self, h, attend, cache, n_layer=None):
        """Run h, [rows, features], through n_layer blocks (all). attend(c, layer, cache) -> (a, cache)."""

        def body(layer, h, *cache):
            c_attn, c_proj = self.linear("attn/c_attn", layer), self.linear("attn/c_proj", layer)
            mlp_layers = self.linear("mlp/c_fc", layer), self.linear("mlp/c_proj", layer)

            def attn(x):
                a, present = attend(c_attn(x), layer, cache)
                return c_proj(a), present

            def mlp(x):
                return model.mlp(x, *mlp_layers)

            h, cache = model.block(h, self.norm("ln_1", layer), attn, self.norm("ln_2", layer), mlp)
            return (h, *cache)

        n_layer = self.hparams.n_layer if n_layer is None or self.ops.on_gpu else n_layer
        h, *cache = self.ops.through_layers(n_layer, body, (h, *cache))
        return h, tuple(cache)

    def logits(self, h):
        """[batch, features] -> [batch, padded vocab]"""
        return self.dense(self.norm("ln_f")(h), "wte")

    def empty_cache(self, batch: int, src: int):
        """Keys [layer, batch, heads, src, head_features] and values [layer, batch, heads, head_features, src]."""
        h = self.hparams
        lead, head_features = [h.n_layer, batch, h.n_head], h.n_embd // h.n_head
        # float16 has three bits more than bfloat16, and a CPU has instructions for it; few rows are slower with it.
        narrow = self.weights["wte"].array.dtype != tf.float32 and streams_for(batch, self.ops.platform) == 1
        dtype = tf.float16 if narrow else tf.float32
        return tf.zeros([*lead, src, head_features], dtype), tf.zeros([*lead, head_features, src], dtype)

    def write(self, cache, part, at):
        """The cache with the keys or values of one layer written into it."""
        return self.ops.update(cache, tf.cast(part, cache.dtype)[None], at)

    def prefill(self, tokens, cache, n_layer=None):
        """tokens: [batch, seq], padded on the right -> (h [batch, seq, features], cache with them in front).

        n_layer: through how many layers; all, as always on a GPU. Padding lies behind what each position can see; in
        the cache it is for `decode_step` to mask.
        """
        batch, seq = tokens.shape
        n_head, n_embd = self.hparams.n_head, self.hparams.n_embd

        def attend(c, layer, cache):
            q, k, v = tf.split(tf.reshape(c, [batch, seq, 3 * n_embd]), 3, axis=-1)  # [batch, seq, features]
            q, k, v = (model.split_heads(part, n_head) for part in (q, k, v))  # [batch, heads, seq, head_features]
            keys = self.write(cache[0], k, [layer, 0, 0, 0, 0])
            values = self.write(cache[1], tf.transpose(v, [0, 1, 3, 2]), [layer, 0, 0, 0, 0])
            a = model.merge_heads(model.multihead_attn(q, k, v))  # [batch, seq, features]
            return tf.reshape(a, [batch * seq, n_embd]), (keys, values)

        positions = tf.tile(tf.range(seq), [batch])  # [batch * seq]
        h = self.embed(tf.reshape(tokens, [-1]), positions)  # [batch * seq, features]
        h, cache = self.through_layers(h, attend, cache, n_layer)
        return tf.reshape(h, [batch, seq, n_embd]), cache  # [batch, seq, features]

    def decode_step(self, tokens, positions, place, mask, cache):
        """One token a row. tokens, positions: [batch]; place: the cache position that takes it, one for all rows;
        mask: [batch, src], ones where it looks, at itself too -> (logits [batch, padded vocab], cache)
        """
        batch, src = mask.shape
        n_head, n_embd = self.hparams.n_head, self.hparams.n_embd
        head_features = n_embd // n_head
        parts = 1 if self.ops.on_gpu else math.gcd(CACHE_PARTS, src)

        def attend_first(n, q, layer, keys, values):
            """To the first n positions. Products with ones read the cache in place; a batched one would copy it."""
            k = tf.reshape(keys[layer, :, :, :n], [batch, n_head, n, head_features])
            v = tf.reshape(values[layer, ..., :n], [batch, n_head, head_features, n])
            k, v = tf.cast(k, tf.float32), tf.cast(v, tf.float32)
            w = self.ops.sums(k * q[:, :, None, :])  # [batch, heads, src]
            w = self.ops.barrier(model.attn_weights(w * model.attn_scale(head_features), mask[:, None, :n]))
            a = self.ops.sums(v * w[:, :, None, :])  # [batch, heads, head_features]
            return tf.reshape(a, [batch, n_embd])  # [batch, features]

        def attend(c, layer, cache):
            c = tf.reshape(self.ops.barrier(c), [batch, 3, n_head, head_features])
            q, k, v = tf.unstack(c, axis=1)  # [batch, heads, head_features]
            keys = self.write(cache[0], k[:, :, None, :], [layer, 0, 0, place, 0])
            values = self.write(cache[1], v[..., None], [layer, 0, 0, 0, place])
            sizes = [src * (part + 1) // parts for part in range(parts)]
            branches = [functools.partial(attend_first, n, q, layer, keys, values) for n in sizes]
            a = tf.switch_case(place * parts // src, branches) if parts > 1 else branches[0]()
            return a, (keys, values)

        h, cache = self.through_layers(self.embed(tokens, positions), attend, cache)
        return self.logits(h), cache


def _of_layer(w, layer):
    return w if layer is None else w[layer]


def _rows(w):
    """[streams, groups, out / groups, in / streams] -> [out, in]"""
    w = tf.transpose(w, [1, 2, 0, 3])  # [groups, out / groups, streams, in / streams]
    return tf.reshape(w, [w.shape[0] * w.shape[1], -1])  # [out, in]
