"""Where the work is done: on the first GPU that TensorFlow sees, or on the CPU."""

from __future__ import annotations

import tensorflow as tf


def use_device(device: str, tf32: bool = False) -> None:
    """Choose the device for the rest of the process; to be called before any tensor is made.

    device: one of `limits.DEVICES`; auto takes a GPU where there is one. A GPU's memory is taken as it is needed, so
    that two processes can share it. tf32: let a GPU round the factors of float32 products to 10 bits, which is faster
    and gives other text than a CPU. Raises ValueError for a GPU that is not there.
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
