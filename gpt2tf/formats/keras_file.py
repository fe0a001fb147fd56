"""A model as a .keras file, which `keras.models.load_model` opens once `gpt2tf.GPT2` has been named."""

from __future__ import annotations

import os

from gpt2tf.checkpoint import load_model
from gpt2tf.files import appearing, refuse_taken
from gpt2tf.model import GPT2


def write_keras(model: GPT2 | str | os.PathLike, path: str | os.PathLike) -> None:
    """Write a model, or what `load_model` takes, as one file, whole or not at all; `model.save` itself is neither.

    Raises ValueError for a path that does not end in .keras and FileExistsError if there is something at path, both
    before the model is loaded; else as `load_model` does, and OSError where the disk does.
    """
    if not os.fspath(path).endswith(".keras"):
        raise ValueError(f"{os.fspath(path)} must end in .keras, by which Keras tells its files")
    refuse_taken(path)
    with appearing(path) as part:
        net = model if isinstance(model, GPT2) else load_model(model)
        net.save(part)
