"""The weights laid out for generation, and the network over them.

Mirrors openai/gpt-2 src/model.py by calling the functions of `gpt2tf.model` (block, attn, mlp, norm, gelu,
attention weights) on other weights: stacked over the layers, so that one loop runs through them and the
program does not grow with their number; matrices cast to 16 bits or quantized to 8 by output row. The
embedding's sum, norms, softmax and logits stay in float32. Differences: the cache is preallocated; keys are
[layer, batch, heads, src, head_features] and values [layer, batch, heads, head_features, src], because so
one token's attention reads both in place.

Layout of a matrix of `out` rows by `in` columns: [layer, STREAMS, GROUPS, out / GROUPS, in / STREAMS]. For one row of
activations each group is a kernel's share of a matrix-vector product, with the cast of the weights inside, which reads
all streams at a time. For a few rows the streams are multiplied apart, in place; for many, and for 16 bits, the matrix
is put together again first.

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
  compile, more with more of them; the same switch as StableHLO in xla.call_module 5 ms. Not used yet.
- That product at 8 and 32 rows: weights on the left 4.4 and 1.7, on the right 3.3 and 1.7; int8 the other way round,
  7.4 and 6.0, 10.0 and 7.4; [in, out] 2.4 and 1.2. By streams, on the left, 2.6 at 8 rows where whole rows gave 3.8;
  a step of batch 8 that multiplies by streams took 75 ms in float32 and 43 in int8, where copies took 82 and 30.
- A matrix in 4 or 8 tiles, so that a copy stays in a core's cache: 1.8 to 2.4 at 8 rows, a loop over tiles 1.6. All
  rows in one kernel as products with ones: 2.0 at 4 rows, 0.8 at 8; as sums 0.7 and 0.2.
- Eigen's products in place of YNNPACK's, and [out, in] by [in, seq] for the prompt: no faster. Not used.
- GFLOP/s of float32 products of 512 tokens: XLA 137 to 196 with [in, out], 111 to 203 with [out, in]; TensorFlow
  without XLA 181 to 202, torch 115 to 244. Three bfloat16 products in place of one, by which float32's digits nearly
  come back: XLA has 437 to 649 of those, so 146 to 216. Not used.
- Packing a matrix: NumPy transposes [3072, 768] whole in 12 ms, in strips of 64 columns in 2.3; TensorFlow's own takes
  1.7 on both cores, and 3.6 with the copy into place. Rows of 64 outputs at a time: 11 ms.
- XLA_FLAGS=--xla_cpu_prefer_vector_width=512: int8 products 20% faster, a token of int8 5%. Not set.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from gpt2tf import model
from gpt2tf.hparams import HParams
from gpt2tf.names import variable_shapes
from gpt2tf.xla_ops import BLOCK, Ops

STREAMS = 4  # places of memory that a matrix-vector product reads at a time: 6.7 G weights/s of float32, 4.7 from one
GROUPS = 8  # a matrix-vector product in this many parts keeps two threads busy: 15 G weights/s, 11 in one
CACHE_PARTS = 4  # a token's attention reads the first so many of them, up to its slot
MATMUL_FROM = 4  # rows of activations from which one matrix product beats as many matrix-vector products
FEW_ROWS = 64  # of activations, up to which a matrix product takes longer to copy its matrix than to multiply
READERS = 4  # threads that read and pack, each of which holds a variable
STRIP = 64  # columns of a matrix that are transposed at a time
ALIGNMENT = 64  # bytes
STORED = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.uint16, "int8": np.int8}


def pack(weights: Mapping[str, np.ndarray], hparams: HParams, dtype: str, batch: int = 1) -> dict[str, tf.Tensor]:
    """The weights of a model as the tensors of a `Packed`.

    weights: by the original's names, each read once, from several threads. dtype: one of `limits.DTYPES`, of the
    matrices and wte. int8: each output row w is round(w / scale) with scale = max |w| / 127, float32, under
    name + "/scale". batch: the rows that the layout is for; it works for others too.
    """
    arrays = allocate(hparams, dtype, streams_for(batch))
    fill(arrays, weights, hparams, dtype)
    return as_tensors(arrays, dtype)


def streams_for(batch: int) -> int:
    """The streams of the layout that is best for so many rows."""
    return 1 if batch >= MATMUL_FROM or tf.config.get_visible_devices("GPU") else STREAMS


def allocate(hparams: HParams, dtype: str, streams: int) -> dict[str, np.ndarray]:
    """The arrays of a `pack` to be: zeros, without memory until they are filled. 16 bits of any kind are uint16."""
    arrays = {}
    for name, shape in variable_shapes(hparams).items():
        key, layer = _place(name)
        if layer:  # in the array of the first
            continue
        lead = [] if layer is None else [hparams.n_layer]
        if not _is_matrix(name):
            arrays[key] = _zeros([*lead, *shape], np.float32)
            continue
        out, n_in = (shape[0] + -shape[0] % (BLOCK * GROUPS), shape[1]) if key == "wte" else shape[:0:-1]
        groups, parts = math.gcd(GROUPS, out), math.gcd(streams, n_in)  # GROUPS and streams for all published sizes
        arrays[key] = _zeros([*lead, parts, groups, out // groups, n_in // parts], STORED[dtype])
        if dtype == "int8":
            arrays[f"{key}/scale"] = _zeros([*lead, out], np.float32)
    return arrays


def fill(arrays: dict[str, np.ndarray], weights: Mapping[str, np.ndarray], hparams: HParams, dtype: str) -> None:
    """Read the weights into the arrays of `allocate`, a few variables at a time. Raises what the reading does."""
    by_size = sorted(variable_shapes(hparams).items(), key=lambda item: -math.prod(item[1]))
    with concurrent.futures.ThreadPoolExecutor(min(READERS, os.cpu_count())) as pool:
        done = [pool.submit(_fill_one, arrays, name, weights, dtype) for name, _ in by_size]
        try:
            for each in done:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fill_one(arrays: dict[str, np.ndarray], name: str, weights: Mapping[str, np.ndarray], dtype: str) -> None:
    key, layer = _place(name)
    at = ... if layer is None else layer
    value = np.asarray(weights[name])
    if not _is_matrix(name):
        arrays[key][at] = value
        return
    w = value if key == "wte" else value[0].T  # [out, in]
    target = arrays[key][at]  # [streams, groups, out / groups, in / streams]
    rows = target.reshape(len(target), -1, target.shape[-1])[:, : len(w)]  # [streams, out, in / streams], no padding
    if dtype == "int8":
        largest = np.maximum(w.max(axis=1), -w.min(axis=1))  # [out]
        scale = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)  # [out]
        arrays[f"{key}/scale"][at][: len(w)] = scale
    elif dtype != "float32":
        narrow = np.asarray(tf.bitcast(tf.cast(value, dtype), tf.uint16))
        w = narrow if key == "wte" else narrow[0].T  # [out, in]
    # In strips, since NumPy's transposition of a whole matrix takes five times as long.
    for rows_of, part in zip(rows, np.split(w, len(rows), axis=1), strict=True):
        for start in range(0, part.shape[1], STRIP):
            strip = part[:, start : start + STRIP]
            if dtype == "int8":
                with np.errstate(invalid="ignore"):  # a row that is not finite has such a scale, which is enough
                    strip = np.rint(strip / scale[:, None]).astype(np.int8)
            rows_of[:, start : start + STRIP] = strip


def in_streams(arrays: dict[str, np.ndarray], streams: int) -> dict[str, np.ndarray]:
    """Filled arrays in another layout. What has no streams is shared."""
    others = {}
    for key, array in arrays.items():
        others[key] = array
        if array.ndim >= 4:
            *lead, old, groups, rows, n = array.shape
            new = math.gcd(streams, old * n)
            others[key] = _zeros([*lead, new, groups, rows, old * n // new], array.dtype)
            whole = np.moveaxis(array, -4, -2).reshape(*lead, groups, rows, new, -1)
            np.copyto(others[key], np.moveaxis(whole, -2, -4))
    return others


def as_tensors(arrays: dict[str, np.ndarray], dtype: str) -> dict[str, tf.Tensor | list[tf.Tensor]]:
    """The same memory as tensors; on a GPU, copies of it.

    Matrices of float32 and int8 that are in one stream are there a second time, layer by layer: name + "/layers".
    """
    tensors = {}
    for key, array in arrays.items():
        tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        tensor = tf.bitcast(tensor, dtype) if array.dtype == np.uint16 else tensor
        if tf.config.get_visible_devices("GPU"):
            tensors[key] = tf.identity(tensor)
            continue
        tensors[key] = tensor
        if array.ndim == 5 and array.shape[1] == 1 and array.dtype != np.uint16 and array[0].nbytes % ALIGNMENT == 0:
            layers = array.reshape(len(array), -1, array.shape[-1])  # [layer, out, in]
            tensors[f"{key}/layers"] = [tf.experimental.dlpack.from_dlpack(w.__dlpack__()) for w in layers]
    return tensors


def _place(name: str) -> tuple[str, int | None]:
    """The key of a variable among the packed weights, and its layer, or None for what is outside of the layers."""
    name = name.removeprefix("model/")
    scope, _, rest = name.partition("/")
    return (rest.removesuffix("/w"), int(scope[1:])) if re.fullmatch(r"h\d+", scope) else (name, None)


def _is_matrix(name: str) -> bool:
    return name.endswith(("/w", "/wte"))


def _zeros(shape, dtype) -> np.ndarray:
    """Aligned as XLA wants its arguments."""
    n = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n].view(dtype).reshape(shape)


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
        if x.shape[0] >= MATMUL_FROM or tf.config.get_visible_devices("GPU"):
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
        mask = model.attention_mask(seq, seq)  # [dst, src]

        def attend(c, layer, cache):
            q, k, v = tf.split(tf.reshape(c, [batch, seq, 3 * n_embd]), 3, axis=-1)  # [batch, seq, features]
            q, k, v = (model.split_heads(part, n_head) for part in (q, k, v))  # [batch, heads, seq, head_features]
            keys = self.ops.update(cache[0], k[None], [layer, 0, 0, 0, 0])
            values = self.ops.update(cache[1], tf.transpose(v, [0, 1, 3, 2])[None], [layer, 0, 0, 0, 0])
            a = model.merge_heads(model.multihead_attn(q, k, v, mask))  # [batch, seq, features]
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
