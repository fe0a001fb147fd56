"""Where the work is done: the CPU or the first GPU, all GPUs of a machine, or several machines, by `tf.distribute`.

TensorFlow waits without end for a worker that never comes up, and reports one that is lost in a dozen ways; here both
end in one line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import zlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from gpt2tf import cluster

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
)


def use_device(device: str, tf32: bool = False, repeatable: bool = False) -> None:
    """Choose the device for the rest of the process; to be called before any tensor is made.

    device: one of `checks.DEVICES`; auto takes a GPU where there is one. A GPU's memory is taken as it is needed, so
    that two processes can share it. tf32: let a GPU round the factors of float32 products to 10 bits, which is faster
    and gives other text than a CPU. repeatable: let a GPU give the same bits each time, as a CPU does anyway; this is
    slower, and XLA tries out no kernels. Raises ValueError for a GPU that is not there.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        raise ValueError("TensorFlow sees no GPU; pip install 'gpt2tf[gpu]' brings what it needs, or use --device cpu")
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    if gpus and repeatable:
        tf.config.experimental.enable_op_determinism()


def platform() -> str:
    """For which kind of device programs are made: "GPU" where TensorFlow uses one, else "CPU"."""
    return "GPU" if tf.config.get_visible_devices("GPU") else "CPU"


def all_devices() -> list[str]:
    """The names of all GPUs of this machine, or of its CPU's devices where there is none."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device.name for device in devices]


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The strategy of a name in `settings.STRATEGIES`; to be made before any tensor is.

    one: a single device. mirrored: the devices of `all_devices`; several GPUs add up by NCCL.
    multiworker: the machines of the environment variable TF_CONFIG, with all their GPUs; every worker runs the same
    command with its own TF_CONFIG, and all see the same files.
    Raises ValueError for a TF_CONFIG that is not there or does not say who is who; ConnectionError where not all
    workers are there after `cluster.JOIN_SECONDS`.
    """
    if name == "multiworker":
        return _joined(cluster.read_cluster())
    if name == "mirrored":
        reduction = tf.distribute.NcclAllReduce() if len(tf.config.list_logical_devices("GPU")) > 1 else None
        return tf.distribute.MirroredStrategy(all_devices(), cross_device_ops=reduction)
    return tf.distribute.get_strategy()


def _joined(workers: cluster.Cluster) -> tf.distribute.Strategy:
    # TensorFlow waits very long and is deaf to everything meanwhile, as it holds Python's lock; so the waiting is
    # done before, and what remains, a worker that is lost between the two, is left to a clock outside of Python.
    workers.wait()
    faulthandler.dump_traceback_later(cluster.JOIN_SECONDS, exit=True)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except (tf.errors.OpError, RuntimeError) as error:
        raise ConnectionError(
            f"cannot join the other workers as {workers.addresses[workers.number]} ({_first_line(error)})"
        ) from None
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def losing_workers(strategy: tf.distribute.Strategy, remedy: str) -> Iterator[None]:
    """Turns TensorFlow's ways to report that another worker is gone into a ConnectionError with the remedy."""
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error)
        if strategy.cluster_resolver is None or not (isinstance(error, LOST) or "Collective ops is aborted" in text):
            raise
        raise ConnectionError(f"another worker is gone or cannot be reached; {remedy}") from None


@contextlib.contextmanager
def running_out_of_memory(remedy: str) -> Iterator[None]:
    """Turns TensorFlow's ways to report that there is no more memory into a MemoryError with the remedy."""
    try:
        yield
    except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
        if "memory" not in str(error).lower():
            raise
        raise MemoryError(f"out of memory; {remedy}") from None


def from_workers(strategy: tf.distribute.Strategy, values) -> np.ndarray:
    """What each worker has, for all of them. To be called by all, in the same order.

    values: an array of int64 or float64, of the same shape everywhere -> [workers, *shape]
    """
    values = np.asarray(values)[None]
    if strategy.cluster_resolver is None:
        return values
    gathered = strategy.experimental_local_results(_compiled_gather(strategy)(tf.constant(values)))
    devices = len(strategy.extended.worker_devices)  # of one worker; they all say the same
    return gathered[0].numpy()[::devices]


@functools.lru_cache(maxsize=1)
def _compiled_gather(strategy):
    """As strategy.gather, which compiles anew for each call."""

    def gather(values):  # made here, so that it is on this device  -> [devices, ...]
        return tf.distribute.get_replica_context().all_gather(tf.identity(values), axis=0)

    return tf.function(lambda values: strategy.run(gather, (values,)), autograph=False)


def check_same(strategy: tf.distribute.Strategy, **what) -> None:
    """Raises ValueError where another worker has another value of one of these, by its repr."""
    sums = from_workers(strategy, [zlib.crc32(repr(value).encode()) for value in what.values()])  # [workers, values]
    for name, column in zip(what, sums.T, strict=True):
        if len(set(column.tolist())) > 1:
            raise ValueError(f"the workers differ in their {name}; start all with the same flags and files")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", error)).splitlines()[0]
