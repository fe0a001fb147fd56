"""The network over weights that are laid out for generation.

Mirrors openai/gpt-2 src/model.py by calling the functions of `gpt2tf.model` (block, attn, mlp, norm, gelu,
attention weights) on the tensors of `gpt2tf.decode.weights`. The embedding's sum, norms, softmax and logits stay in
float32. Differences: the cache is preallocated; keys are [layer, batch, heads, src, head_features] and values [layer,
batch, heads, head_features, src], because so one token's attention reads both in place.

A few rows of activations are multiplied by a layer's matrix where it is, through a switch over the layers; a slice of
the stack, which many rows and 16 bits take, is copied first.

What was tried on two cores with 124M, and what it gave:
- Barriers keep a cast in the loop but do not keep norm and gelu out of a product's kernel, where they are computed
  again for each row of the weights; a division by a variable 1.0 in between does.
- A reshape between heads and features inside of c_proj's kernel made it four times as slow (517 us, 135 without): the
  attention weights are normalized before the product with the values, not after.
- Sums as products with a vector of ones behind a barrier: 5 us, where XLA's own reduction takes 20 to 30.
- Bytes times bytes for int8 from four rows on: 7.1 G weights/s at 8 rows and 5.8 at 32, against 2.4 and 1.35 of a cast
  to float32; at one row it is slower than the cast (1.3).
- One row, 2, 4, 8 streams: 5.9, 6.7, 7.3 to 7.6 G weights/s of float32 where one gave 4.7; int8 (at 4 and 8) 13.5 and
  13.2 for 10.3, float16 10.1 and 9.8 for 6.4. 16: 2.3. Streams that lie in one row side by side: 3.9 to 4.4. 2, 16 or
  32 groups for 8: the same.
- A layer's slice of the stack is copied before a matrix product: 1.9 G weights/s of float32 at 8 rows, where 3.5 are
  read in place from tensors of the layers. tf.switch_case over these is as fast, but takes 25 ms a branch to trace and
  compile, more with more of them; the same switch as StableHLO in xla.call_module 5 ms.
- That product at 8 and 32 rows: weights on the left 4.4 and 1.7, on the right 3.3 and 1.7; int8 the other way round,
  7.4 and 6.0, 10.0 and 7.4; [in, out] 2.4 and 1.2. By streams, on the left, 2.6 at 8 rows where whole rows gave 3.8;
  a step of batch 8 that multiplies by streams took 75 ms in float32 and 43 in int8, where copies took 82 and 30.
- At 32 rows float32 products at 1.7 G weights/s are 73 ms of a step of 104; writing values into the transposed cache
  takes 0.5 to 0.7 ms a layer.
- A matrix in 4 or 8 tiles, so that a copy stays in a core's cache: 1.8 to 2.4 at 8 rows, a loop over tiles 1.6. All
  rows in one kernel as products with ones: 2.0 at 4 rows, 0.8 at 8; as sums 0.7 and 0.2.
- Eigen's products in place of YNNPACK's, and [out, in] by [in, seq] for the prompt: no faster. Not used.
- GFLOP/s of float32 products of 512 tokens: XLA 137 to 196 with [in, out], 111 to 203 with [out, in]; TensorFlow
  without XLA 181 to 202, torch 115 to 244. Three bfloat16 products in place of one, by which float32's digits nearly
  come back: XLA has 437 to 649 of those, so 146 to 216. Not used.
- A prompt of 512 tokens, 584 ms at best: attention in blocks of 128 positions without what is masked 570, a product by
  streams 617, all streams as one batched product 715, whole matrices 593. Not used.
- XLA_FLAGS=--xla_cpu_prefer_vector_width=512: int8 products 20% faster, a token of int8 5%. Not set.
"""

from __future__ import annotations

import functools
import math

import tensorflow as tf

from gpt2tf import model
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import streams_for
from gpt2tf.hparams import HParams

CACHE_PARTS = 2  # a token's attention reads the first so many of them, up to its slot; each takes 0.3 s to compile
FEW_ROWS = 64  # of activations, up to which a matrix product takes longer to copy its matrix than to multiply


def _rows(w):
    """[streams, groups, out / groups, in / streams] -> [out, in]"""
    w = tf.transpose(w, [1, 2, 0, 3])  # [groups, out / groups, streams, in / streams]
    return tf.reshape(w, [w.shape[0] * w.shape[1], -1])  # [out, in]


class Packed:
    """The network over packed weights. `layer` is None for what is outside of the layers, else the loop's index."""

    def __init__(self, weights: dict[str, tf.Tensor], hparams: HParams, ops: Ops):
        self.weights = weights
        self.hparams = hparams
        self.ops = ops
        self.one = tf.constant(1.0)

    def weight(self, name, layer):
        w = self.weights[name]
        return w if layer is None else w[layer]

    def dense(self, x, name: str, layer=None):
        """x: [rows, in] float32 -> [rows, out] float32, without a bias."""
        # The division keeps what made x out of the product's kernel, where it would be made again for each row.
        x = x / self.one
        if streams_for(x.shape[0]) == 1:
            y = self._matmul(x, name, layer)
        else:
            # [streams, groups, out / groups, in / streams], [rows, in]
            w, x = self.ops.barrier(self.weight(name, layer), x)
            y = tf.stack([self._matvec(row, tf.cast(w, tf.float32)) for row in tf.unstack(x)])  # [rows, out]
        scale = f"{name}/scale"
        return y * self.weight(scale, layer) if scale in self.weights else y

    def _matmul(self, x, name, layer):
        """x: [rows, in] float32 -> [rows, out] float32, without the scale of int8"""
        if self.weights[name].dtype != tf.int8:
            return self._product(x, name, layer)
        # The activations are quantized too, by row: products of bytes are three times as fast as casts.
        # Their largest is found among the bits: the maximum of floats passes over a NaN, which would be quantized away.
        largest = tf.reduce_max(tf.bitcast(tf.abs(x), tf.int32), axis=-1, keepdims=True)  # [rows, 1]
        step = tf.bitcast(largest, tf.float32) / 127.0 + 1e-30  # [rows, 1]
        q = self.ops.barrier(tf.cast(tf.round(x / step), tf.int8))  # [rows, in]
        return tf.cast(self._product(q, name, layer), tf.float32) * step

    def _product(self, x, name, layer):
        """x: [rows, in] float32 or int8 -> its product with the matrix, [rows, out] float32 or int32"""
        ws = self.weights.get(f"{name}/layers")
        if ws and self.ops.jit_compile and x.shape[0] <= FEW_ROWS:
            return self.ops.product(x, ws, layer)
        w, x = self.ops.barrier(self.weight(name, layer), x)
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

    def linear(self, name, layer):
        return lambda x: self.dense(x, name, layer) + self.weight(f"{name}/b", layer)

    def norm(self, name, layer=None):
        return lambda x: model.norm(x, self.weight(f"{name}/g", layer), self.weight(f"{name}/b", layer))

    def embed(self, tokens, positions):
        """tokens, positions: [rows] -> [rows, features] float32"""
        wte = self.weights["wte"]  # [streams, groups, padded vocab / groups, features / streams]
        wte = tf.reshape(wte, [wte.shape[0], -1, wte.shape[-1]])  # [streams, padded vocab, features / streams]
        h = tf.transpose(tf.gather(wte, tokens, axis=1), [1, 0, 2])  # [rows, streams, features / streams]
        h = tf.cast(tf.reshape(h, [tokens.shape[0], -1]), tf.float32)  # [rows, features]
        if "wte/scale" in self.weights:
            h = h * tf.gather(self.weights["wte/scale"], tokens)[:, None]
        return h + tf.gather(self.weights["wpe"], positions)

    def through_layers(self, h, attend, cache, n_layer=None):
        """Run h, [rows, features], through n_layer blocks (all). attend(c, layer, cache) -> (a, cache)."""

        def body(layer, h, *cache):
            attn = functools.partial(
                model.attn,
                c_attn=self.linear("attn/c_attn", layer),
                attend=lambda c: attend(c, layer, cache),
                c_proj=self.linear("attn/c_proj", layer),
            )
            mlp = functools.partial(
                model.mlp, c_fc=self.linear("mlp/c_fc", layer), c_proj=self.linear("mlp/c_proj", layer)
            )
            h, cache = model.block(h, self.norm("ln_1", layer), attn, self.norm("ln_2", layer), mlp)
            return (layer + 1, h, *cache)

        n_layer = self.hparams.n_layer if n_layer is None else n_layer
        _, h, *cache = tf.while_loop(lambda layer, *_: layer < n_layer, body, (0, h, *cache))
        return h, tuple(cache)

    def logits(self, h):
        """[rows, features] -> [rows, padded vocab]"""
        return self.dense(self.norm("ln_f")(h), "wte")

    def empty_cache(self, batch: int, src: int):
        """Keys [layer, batch, heads, src, head_features] and values [layer, batch, heads, head_features, src]."""
        h = self.hparams
        lead, head_features = [h.n_layer, batch, h.n_head], h.n_embd // h.n_head
        return tf.zeros([*lead, src, head_features]), tf.zeros([*lead, head_features, src])

    def prompt_pass(self, tokens, src: int, n_layer=None):
        """tokens: [batch, seq], padded on the right -> (h [batch, seq, features], cache for src positions).

        n_layer: through how many layers; all.

        Padding lies behind what each position can see; in the cache it is for `token_pass` to mask.
        """
        batch, seq = tokens.shape
        n_head, n_embd = self.hparams.n_head, self.hparams.n_embd

        def attend(c, layer, cache):
            q, k, v = tf.split(tf.reshape(c, [batch, seq, 3 * n_embd]), 3, axis=-1)  # [batch, seq, features]
            q, k, v = (model.split_heads(part, n_head) for part in (q, k, v))  # [batch, heads, seq, head_features]
            keys = self.ops.update(cache[0], k[None], [layer, 0, 0, 0, 0])
            values = self.ops.update(cache[1], tf.transpose(v, [0, 1, 3, 2])[None], [layer, 0, 0, 0, 0])
            a = model.merge_heads(model.multihead_attn(q, k, v))  # [batch, seq, features]
            return tf.reshape(a, [batch * seq, n_embd]), (keys, values)

        positions = tf.tile(tf.range(seq), [batch])  # [batch * seq]
        h = self.embed(tf.reshape(tokens, [-1]), positions)  # [batch * seq, features]
        h, cache = self.through_layers(h, attend, self.empty_cache(batch, src), n_layer)
        return tf.reshape(h, [batch, seq, n_embd]), cache

    def token_pass(self, tokens, positions, slot, mask, cache):
        """One token a row. tokens, positions: [batch]; slot: where in the cache it goes; mask: [batch, src], ones
        where it looks, its slot among them -> (logits [batch, padded vocab], cache)
        """
        batch, src = mask.shape
        n_head, n_embd = self.hparams.n_head, self.hparams.n_embd
        head_features = n_embd // n_head
        parts = math.gcd(CACHE_PARTS, src)

        def attend_first(n, q, layer, keys, values):
            """To the first n slots. Products with ones read the cache in place, where a batched one would copy it."""
            ones = self.ops.barrier(tf.ones([head_features])), self.ops.barrier(tf.ones([n]))
            qk = tf.reshape(keys[layer, :, :, :n] * q[:, :, None, :], [-1, head_features])
            w = tf.reshape(tf.linalg.matvec(qk, ones[0]), [batch, n_head, n])  # [batch, heads, src]
            w = self.ops.barrier(model.attn_weights(w, mask[:, None, :n], head_features))
            wv = tf.reshape(values[layer, ..., :n] * w[:, :, None, :], [-1, n])
            return tf.reshape(tf.linalg.matvec(wv, ones[1]), [batch, n_embd])  # [batch, features]

        def attend(c, layer, cache):
            c = tf.reshape(self.ops.barrier(c), [batch, 3, n_head, head_features])
            q, k, v = tf.unstack(c, axis=1)  # [batch, heads, head_features]
            keys = self.ops.update(cache[0], k[None, :, :, None, :], [layer, 0, 0, slot, 0])
            values = self.ops.update(cache[1], v[None, :, :, :, None], [layer, 0, 0, 0, slot])
            sizes = [src * (part + 1) // parts for part in range(parts)]
            branches = [functools.partial(attend_first, n, q, layer, keys, values) for n in sizes]
            return tf.switch_case(slot * parts // src, branches), (keys, values)

        h, cache = self.through_layers(self.embed(tokens, positions), attend, cache)
        return self.logits(h), cache
