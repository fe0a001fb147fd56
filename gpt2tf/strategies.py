"""Several devices and machines, through `tf.distribute`."""

from __future__ import annotations

import json
import os

import tensorflow as tf


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The strategy of a name in `settings.STRATEGIES`; to be made before any tensor is.

    one: a single device. mirrored: all GPUs of this machine, or the CPU devices where there is none.
    multiworker: the machines of the environment variable TF_CONFIG, with all their GPUs; every worker runs the same
    command with its own TF_CONFIG, and all see the same files.
    Raises ValueError for a TF_CONFIG that is not there or does not say who is who.
    """
    if name == "multiworker":
        _check_tf_config()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files and prints."""
    resolver = strategy.cluster_resolver
    return (
        resolver is None
        or resolver.task_type in (None, "", "chief")
        or (resolver.task_type == "worker" and not resolver.task_id and "chief" not in resolver.cluster_spec().jobs)
    )


def _check_tf_config() -> None:
    example = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
    try:
        config = json.loads(os.environ.get("TF_CONFIG", ""))
        config["cluster"], config["task"]["type"], config["task"]["index"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"multiworker needs the environment variable TF_CONFIG, such as {example}") from None
