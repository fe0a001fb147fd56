"""A model as a .keras file, which `keras.models.load_model` opens once `gpt2tf.GPT2` has been named or imported."""

from __future__ import annotations

import os

import keras

from gpt2tf.files import appearing, refuse_taken


def write_keras(model: keras.Model, path: str | os.PathLike) -> None:
    """Write a GPT2, or a model around one, as one file, whole or not at all; `model.save` replaces what is there.

    Raises ValueError for a path that does not end in .keras, FileExistsError if there is something at path, OSError
    where the disk does.
    """
    if not os.fspath(path).endswith(".keras"):
        raise ValueError(f"{os.fspath(path)} must end in .keras, by which Keras knows the format")
    refuse_taken(path)
    with appearing(path) as part:
        model.save(part)
