"""Where a model is: from what the user calls it to the files on disk. Needs no TensorFlow.

Mirrors `tf.train.latest_checkpoint` as openai/gpt-2 uses it (src/interactive_conditional_samples.py:72).
Differences: a `checkpoint` file that is missing, or that names a folder of another machine, does not
matter; a checkpoint may be called by its prefix or by one of its files; what is missing is said.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import shlex
from collections.abc import Callable
from typing import Any

from gpt2tf.hparams import FORMER_NAMES, PUBLISHED

PREFIX = "model.ckpt"
VOCABULARY_FILES = ("encoder.json", "vocab.bpe")
BUNDLED = os.path.join(os.path.dirname(__file__), "models")  # a small model of this project's own

log = logging.getLogger(__name__)


def find_model(model_name: str, models_dir: str | os.PathLike = "models") -> str:
    """The path of a model: a folder in models_dir, any folder, prefix or file of a checkpoint, or a bundled model.

    Raises FileNotFoundError that lists the models that are there and says how to get a published one.
    """
    for path in (os.path.join(models_dir, model_name), model_name, os.path.join(BUNDLED, model_name)):
        if model_name and (os.path.exists(path) or os.path.exists(path + ".index")):
            return path
    there = sorted(
        name for name in _folders(models_dir) if glob.glob(os.path.join(models_dir, glob.escape(name), "*.index"))
    )
    published = FORMER_NAMES.get(model_name, model_name)
    wanted = published if published in PUBLISHED else "124M"
    if published in there:
        remedy = f"it is now called {published}: --model_name {published}"
    else:
        folder = shlex.quote(os.fspath(models_dir))
        bundled = " or ".join(sorted(_folders(BUNDLED)))
        remedy = f"--model_name {bundled} needs no download; to download {wanted}: "
        remedy += f"gpt2tf download {wanted} --models_dir {folder}"
    raise FileNotFoundError(
        f"there is no model {model_name!r} in {models_dir} (there: {', '.join(there) or 'none'}); {remedy}"
    )


def _folders(path):
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def find_prefix(path: str | os.PathLike) -> str:
    """The checkpoint prefix that a model folder, a prefix, or one of a checkpoint's files stands for.

    In a folder: what its `checkpoint` file names, if that is there; else the checkpoint with the
    highest step. Raises FileNotFoundError.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path)
        if not (os.path.exists(prefix + ".index") or glob.glob(glob.escape(prefix) + ".data-*")):
            raise FileNotFoundError(f"there is no checkpoint at {path}: no such folder, and no {prefix}.index")
        return prefix
    prefixes = {file[: -len(".index")] for file in os.listdir(path) if file.endswith(".index")}
    named = _named_in_state(path)
    if named in prefixes:
        return os.path.join(path, named)
    if not prefixes:
        raise FileNotFoundError(f"{path} holds no checkpoint: no {PREFIX}.index in it; download the model again")
    newest = max(prefixes, key=lambda prefix: (_step(prefix), prefix))
    if len(prefixes) > 1:
        log.info("%s: %d checkpoints, taking %s", path, len(prefixes), newest)
    return os.path.join(path, newest)


def load_newest(path: str | os.PathLike, prefix: str, load: Callable[[str], Any]) -> Any:
    """load(prefix), the prefix being what `find_prefix(path)` gave some time ago.

    A run that is training there may have saved again, and removed that save, before it is read or while it is; then
    load() is called with the newer one.
    """
    while True:
        try:
            return load(prefix)
        except (OSError, ValueError):
            newer = find_prefix(path)
            if newer == prefix:
                raise
            prefix = newer


def data_files(prefix: str) -> list[str]:
    """The shards of a checkpoint, all of them there; one for a model that Saver wrote."""
    if not os.path.exists(prefix + ".index"):
        raise FileNotFoundError(f"{prefix}.index is missing; download the model again")
    files = sorted(glob.glob(glob.escape(prefix) + ".data-?????-of-?????"))
    if not files:
        raise FileNotFoundError(f"{prefix}.data-00000-of-00001 is missing; download the model again")
    if len(files) != int(files[-1][-5:]):
        raise FileNotFoundError(
            f"{files[-1]} is one of {int(files[-1][-5:])} parts, {len(files)} are there; get the others"
        )
    return files


def _named_in_state(folder: str) -> str | None:
    """The prefix that the folder's `checkpoint` file names, without the folders of the machine that wrote it."""
    try:
        with open(os.path.join(folder, "checkpoint"), encoding="utf-8", errors="replace") as file:
            named = re.search(r'^model_checkpoint_path: "(.*)"', file.read(), re.MULTILINE)
    except (FileNotFoundError, IsADirectoryError):
        return None
    return named and re.split(r"[/\\]", named[1])[-1]


def _step(prefix: str) -> int:
    """1000 of "model-1000"; -1 for a prefix without a step."""
    step = re.search(r"-(\d+)$", prefix)
    return int(step[1]) if step else -1
