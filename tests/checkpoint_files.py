"""Writers of checkpoint files for the tests, none of them gpt2tf's own; and the recorded tiny model's weights."""

import functools
import pathlib
import shutil

import numpy as np
import tensorflow as tf

TINY = pathlib.Path(__file__).parent / "golden" / "tiny-a"
MODEL_FILES = (
    "checkpoint",
    "hparams.json",
    "model.ckpt.index",
    "model.ckpt.data-00000-of-00001",
    "encoder.json",
    "vocab.bpe",
)


@functools.cache
def tiny_weights() -> dict[str, np.ndarray]:
    """The variables of tiny-a, by TensorFlow's own reader."""
    reader = tf.train.load_checkpoint(str(TINY / "model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def copy_tiny(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the six files of tiny-a."""
    folder.mkdir(parents=True)
    for file in MODEL_FILES:
        shutil.copyfile(TINY / file, folder / file)
    return folder


def write_checkpoint(prefix, variables: dict, shards: int = 1) -> None:
    """Write variables (arrays, tensors, bytes) with TensorFlow's ops, spread over some data files."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(variables)
    parts = []
    for shard in range(shards):
        mine = names[shard::shards]
        parts.append(f"{prefix}_part{shard}")
        tf.raw_ops.SaveV2(
            prefix=parts[-1],
            tensor_names=mine,
            shape_and_slices=[""] * len(mine),
            tensors=[tf.convert_to_tensor(variables[name]) for name in mine],
        )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=False)


def assert_is_tiny(model) -> None:
    """Every variable of the model is bit for bit tiny-a's."""
    found = {variable.path: variable.numpy() for variable in model.variables}
    assert found.keys() == tiny_weights().keys()
    for name, value in tiny_weights().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)
