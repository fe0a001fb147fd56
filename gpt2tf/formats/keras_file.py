"""A model as a .keras file, which `keras.models.load_model` opens once `gpt2tf.GPT2` has been named or imported."""

from __future__ import annotations

import os

from gpt2tf.files import appearing, refuse_taken
from gpt2tf.model import GPT2


def write_keras(model: GPT2, path: str | os.PathLike) -> None:
    """Write a model as one file, whole or not at all, where `model.save` puts it in the place of another.

    Raises ValueError for a path that does not end in .keras, FileExistsError if there is something at path, OSError
    where the disk does.
    """
    if not os.fspath(path).endswith(".keras"):
        raise ValueError(f"{os.fspath(path)} must end in .keras, by which Keras knows the format")
    refuse_taken(path)
    with appearing(path) as part:
        model.save(part)
