"""What the machine can do, measured: how fast it reads memory and how fast it multiplies matrices."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

READ_BYTES = 2**29  # of the array that measures bandwidth: more than a large cache holds
MATMUL_SIZE = {"cpu": 2048, "gpu": 8192}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the machine does: bytes read from memory a second, float32 operations of a matrix product a second."""

    bytes_per_s: float
    operations_per_s: float


def measure_limits(device: str = "cpu", read_bytes: int = READ_BYTES, matmul_size: int = 0, runs: int = 5) -> Limits:
    """The best of several ways and tries. device: cpu or gpu."""
    n, columns = matmul_size or MATMUL_SIZE[device], 2048
    w, v = tf.ones([8, read_bytes // (32 * columns), columns]), tf.ones([columns])
    products = tf.function(lambda w, v: tf.einsum("goi,i->go", w, v), jit_compile=True)
    total = tf.function(lambda w: tf.reduce_sum(w), jit_compile=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        readers = [lambda: products(w, v).numpy(), lambda: total(w).numpy()]
        if device == "cpu":
            parts = np.array_split(w.numpy().reshape(-1, columns), os.cpu_count())
            readers.append(lambda: list(pool.map(np.max, parts)))
        fastest_read = min(timed(reader) for reader in readers * (runs + 1))
    a = tf.ones([n, n])
    matmul = tf.function(lambda a: tf.matmul(a, a)[0, 0] if device == "cpu" else tf.reduce_sum(tf.matmul(a, a)))
    fastest_matmul = min(timed(lambda: matmul(a).numpy()) for _ in range(runs + 1))
    return Limits(read_bytes / fastest_read, 2 * n**3 / fastest_matmul)


def timed(function: Callable, *args) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start
