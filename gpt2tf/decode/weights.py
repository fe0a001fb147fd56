"""The weights laid out for generation: the original's dict of variables in, the tensors of a `Packed` out.

Variables are stacked over the layers, so that one loop runs through them and the program does not grow with their
number; matrices are cast to 16 bits or quantized to 8 by output row, and read by several threads straight into their
place. There is nothing like it in openai/gpt-2.

A matrix of `out` rows by `in` columns is [layer, streams, GROUPS, out / GROUPS, in / streams]. For few rows of
activations streams is STREAMS: each group is a kernel's share of a matrix-vector product, with the cast of the weights
inside, which reads all streams at a time. For more rows, and on a GPU, it is 1, so that matrices are whole.

What was tried for packing on two cores with 124M, and what it gave: NumPy transposes [3072, 768] whole in 12 ms, in
strips of 64 columns in 2.3; TensorFlow's own takes 1.7 on both cores, and 3.6 with the copy into place. Rows of 64
outputs at a time: 11 ms.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from gpt2tf.decode.ops import BLOCK
from gpt2tf.hparams import HParams
from gpt2tf.names import is_matrix, variable_shapes

STREAMS = 4  # places of memory that a matrix-vector product reads at a time: 6.7 G weights/s of float32, 4.7 from one
GROUPS = 8  # a matrix-vector product in this many parts keeps two threads busy: 15 G weights/s, 11 in one
MATMUL_FROM = 4  # rows of activations from which one matrix product beats as many matrix-vector products
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
        if not is_matrix(name):
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
    if not is_matrix(name):
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


def _zeros(shape, dtype) -> np.ndarray:
    """Aligned as XLA wants its arguments."""
    n = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n].view(dtype).reshape(shape)
