"""The weights laid out for generation, as float32, 16 bits or int8: the original's dict in, a `Network`'s tensors out.

Variables are stacked over the layers, so that one loop runs through them and what is compiled does not grow with their
number; matrices are cast to 16 bits or quantized to 8 by output row, and read by several threads straight into their
place. Names are the original's without `model/`, `h<layer>/` and `/w`: "wte", "ln_1/g", "attn/c_attn", "attn/c_attn/b".
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix of `out` rows by `in` columns, or one of each layer. NumPy arrays or, in a `Network`, tensors.

    array: [(layer,) streams, GROUPS, out / GROUPS, in / streams]. For few rows of activations streams is STREAMS: each
    group is a kernel's share of a matrix-vector product, with the cast of the weights inside, which reads all streams
    at a time. For more rows, and on a GPU, it is 1, so that matrices are whole.
    scale: [(layer,) out] float32, what int8 is to be multiplied by.
    layers: array as [out, in] of each layer, for products that read a layer where it is: on a CPU in the same memory,
    on a GPU in place of array.
    """

    array: Any
    scale: Any = None
    layers: tuple = ()


Weights = dict[str, Any]  # a Matrix, or an array of what is no matrix


def pack(weights: Mapping[str, np.ndarray], hparams: HParams, dtype: str, platform: str, batch: int = 1) -> Weights:
    """The weights of a model as the tensors of a `Network`.

    weights: by the original's names, each read once, from several threads. dtype: one of `checks.DTYPES`, of the
    matrices and wte; int8: each output row w is round(w / scale) with scale = max |w| / 127. platform, batch: "CPU" or
    "GPU" and the rows that the layout is for; on a CPU it works for others too.
    """
    arrays = allocate(hparams, dtype, streams_for(batch, platform))
    fill(arrays, weights, hparams)
    return as_tensors(arrays, platform)


def streams_for(batch: int, platform: str) -> int:
    """The streams of the layout that is best for so many rows."""
    return 1 if batch >= MATMUL_FROM or platform == "GPU" else STREAMS


def allocate(hparams: HParams, dtype: str, streams: int) -> Weights:
    """The arrays of a `pack` to be: zeros, without memory until they are filled."""
    arrays: Weights = {}
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
        array = _zeros([*lead, parts, groups, out // groups, n_in // parts], tf.as_dtype(dtype).as_numpy_dtype)
        arrays[key] = Matrix(array, _zeros([*lead, out], np.float32) if dtype == "int8" else None)
    return arrays


def fill(arrays: Weights, weights: Mapping[str, np.ndarray], hparams: HParams) -> None:
    """Read the weights into the arrays of `allocate`, a few variables at a time. Raises what reading them raises."""
    by_size = sorted(variable_shapes(hparams).items(), key=lambda item: -math.prod(item[1]))
    with concurrent.futures.ThreadPoolExecutor(min(READERS, os.cpu_count())) as pool:
        done = [pool.submit(_fill_one, arrays, name, weights) for name, _ in by_size]
        try:
            for each in done:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fill_one(arrays: Weights, name: str, weights: Mapping[str, np.ndarray]) -> None:
    key, layer = _place(name)
    at = ... if layer is None else layer
    value = np.asarray(weights[name])
    if is_matrix(name):
        _fill_matrix(arrays[key], at, value, transposed=key != "wte")
    else:
        arrays[key][at] = value


def _fill_matrix(matrix: Matrix, at, value: np.ndarray, transposed: bool) -> None:
    """value: [out, in], or [1, in, out] if it is transposed"""
    array, dtype = _bits(matrix.array[at]), matrix.array.dtype  # [streams, groups, out / groups, in / streams]
    if dtype.itemsize == 2:
        value = _bits(np.asarray(tf.cast(value, dtype)))
    w = value[0].T if transposed else value  # [out, in]
    rows = array.reshape(len(array), -1, array.shape[-1])[:, : len(w)]  # [streams, out, in / streams], no padding
    if dtype == np.int8:
        largest = np.maximum(w.max(axis=1), -w.min(axis=1))  # [out]
        scale = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)  # [out]
        matrix.scale[at][: len(w)] = scale
    # In strips, since NumPy's transposition of a whole matrix takes five times as long.
    for rows_of, part in zip(rows, np.split(w, len(rows), axis=1), strict=True):
        for start in range(0, part.shape[1], STRIP):
            strip = part[:, start : start + STRIP]
            if dtype == np.int8:
                with np.errstate(invalid="ignore"):  # a row that is not finite has such a scale, which is enough
                    strip = np.rint(strip / scale[:, None]).astype(np.int8)
            rows_of[:, start : start + STRIP] = strip


def in_streams(arrays: Weights, streams: int) -> Weights:
    """Filled arrays in another layout. What has no streams is shared."""
    others = dict(arrays)
    for key, matrix in arrays.items():
        if isinstance(matrix, Matrix):
            *lead, old, groups, rows, n = matrix.array.shape
            new = math.gcd(streams, old * n)
            array = _zeros([*lead, new, groups, rows, old * n // new], matrix.array.dtype)
            others[key] = dataclasses.replace(matrix, array=array)
    copy_streams(arrays, others)
    return others


def copy_streams(arrays: Weights, others: Weights) -> None:
    """Fill the matrices of another layout."""
    for key, matrix in arrays.items():
        if isinstance(matrix, Matrix):
            array = _bits(others[key].array)
            *lead, new, groups, rows, _ = array.shape
            whole = np.moveaxis(_bits(matrix.array), -4, -2).reshape(*lead, groups, rows, new, -1)
            np.copyto(array, np.moveaxis(whole, -2, -4))


def as_tensors(arrays: Weights, platform: str) -> Weights:
    """The tensors of a `Network`: for a CPU the same memory; for a GPU variables, where TensorFlow then is.

    On a CPU matrices of float32 and int8 that are whole are there a second time, as `Matrix.layers`.
    """
    if platform == "GPU":
        return {key: _variables(array) for key, array in arrays.items()}
    tensors: Weights = {}
    for key, array in arrays.items():
        if not isinstance(array, Matrix):
            tensors[key] = _tensor(array)
            continue
        scale, array = array.scale, array.array
        whole = array.ndim == 5 and array.shape[1] == 1 and array.dtype.itemsize != 2
        layers = ()
        if whole and array[0].nbytes % ALIGNMENT == 0:
            layers = tuple(map(_tensor, _layers(array)))
        tensors[key] = Matrix(_tensor(array), None if scale is None else _tensor(scale), layers)
    return tensors


def _layers(array: np.ndarray) -> np.ndarray:
    """[layer, 1, groups, out / groups, in] -> [layer, out, in]"""
    return array.reshape(len(array), -1, array.shape[-1])


def _variables(array: Matrix | np.ndarray) -> Matrix | tf.Variable:
    if not isinstance(array, Matrix):
        return tf.Variable(_tensor(array), trainable=False)
    scale = None if array.scale is None else _variables(array.scale)
    if array.array.ndim == 4:  # wte
        return Matrix(_variables(array.array), scale)
    return Matrix(None, scale, tuple(map(_variables, _layers(array.array))))


def assign(tensors: Weights, arrays: Weights) -> None:
    """Give the variables of a GPU the values of the arrays that they were made of. Other tensors share their memory."""
    for key, tensor in tensors.items():
        array, pairs = arrays[key], [(tensor, arrays[key])]
        if isinstance(tensor, Matrix):
            pairs = [(tensor.array, array.array), (tensor.scale, array.scale)]
            pairs += zip(tensor.layers, _layers(array.array), strict=True) if tensor.array is None else []
        for variable, array in pairs:
            if isinstance(variable, tf.Variable):
                variable.assign(_tensor(array))


def _tensor(array: np.ndarray) -> tf.Tensor:
    """The same memory."""
    tensor = tf.experimental.dlpack.from_dlpack(_bits(array).__dlpack__())
    return tf.bitcast(tensor, array.dtype) if array.dtype.itemsize == 2 else tensor


def _bits(array: np.ndarray) -> np.ndarray:
    """The same memory; 16 bits of any kind as uint16, which NumPy copies faster and DLPack knows."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


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
