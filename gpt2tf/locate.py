"""Where a model is: from what the user calls it to the files on disk. Needs no TensorFlow.

Mirrors `tf.train.latest_checkpoint` as openai/gpt-2 uses it (src/interactive_conditional_samples.py:72).
Differences: a `checkpoint` file that is missing, or that names a folder of another machine, does not
matter; a checkpoint may be called by its prefix or by one of its files; what is missing is said.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import logging
import os
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpt2tf.files import refuse_pointer, warn_once
from gpt2tf.formats.hugging_face_config import Config, is_weights_file, parts, refuse_half, weights_file
from gpt2tf.hparams import FORMER_NAMES, PUBLISHED, HParams, read_hparams

if TYPE_CHECKING:  # the encoder takes a moment to import, which a command does after its flags
    from encoder import Encoder, Vocabulary

PREFIX = "model.ckpt"
VOCABULARY_FILES = ("encoder.json", "vocab.bpe")
SSTABLE = bytes.fromhex("57fb808b247547db")  # ends an .index, and a checkpoint in TensorFlow's V1 format
BUNDLED = os.path.join(os.path.dirname(__file__), "models")  # a small model of this project's own

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What lies on the disk of one model: its checkpoint, and its sizes and vocabulary beside that.

    path: as for `find_prefix`; prefix: of the checkpoint that it stood for when it was found, or the file with the
    weights in a Hugging Face folder.
    """

    path: str
    prefix: str

    @classmethod
    def find(cls, model_name: str, models_dir: str | os.PathLike = "models") -> ModelFiles:
        """As `find_model`. Raises FileNotFoundError for a model that is not there, or not all there."""
        return cls.at(find_model(model_name, models_dir))

    @classmethod
    def at(cls, path: str | os.PathLike) -> ModelFiles:
        """The files of a folder, prefix or file of a checkpoint. Raises FileNotFoundError unless all are there."""
        prefix = find_prefix(path)
        (parts if is_weights_file(prefix) else data_files)(prefix)
        return cls(os.fspath(path), prefix)

    @property
    def folder(self) -> str:
        return os.path.dirname(self.prefix) or "."

    @functools.cached_property
    def hparams(self) -> HParams | None:
        """What hparams.json or config.json says; None without, where the shapes of the weights have to tell."""
        if is_weights_file(self.prefix):
            return Config.read(self.folder).hparams
        path = os.path.join(self.folder, "hparams.json")
        return read_hparams(path) if os.path.exists(path) else None

    @functools.cached_property
    def vocabulary(self) -> Vocabulary | None:
        """What `encoder.read_vocabulary` finds in the folder."""
        from gpt2tf import encoder

        return encoder.read_vocabulary(self.folder)

    def encoder(self, n_vocab: int | None = None) -> Encoder:
        """The encoder of the folder's vocabulary; of the released one, with a note, where it has none.

        n_vocab: of the model, if that is known. Raises as `encoder.get_encoder` and `check_vocabulary` do.
        """
        from gpt2tf import encoder

        if self.vocabulary is None:
            enc = encoder.get_encoder()
        else:
            parent, name = os.path.split(os.path.abspath(self.folder))
            enc = encoder.get_encoder(name, parent)
        if n_vocab is not None:
            self.check_vocabulary(enc, n_vocab)
        if self.vocabulary is None:
            note_released(self.folder)
        return enc

    def check_vocabulary(self, enc: Encoder, n_vocab: int) -> None:
        """Raises ValueError unless `enc`, which `encoder` gave, may be that of a model with n_vocab rows in wte."""

        size = len(enc.encoder)
        if self.vocabulary is None and size != n_vocab:
            raise ValueError(
                f"{self.folder} has no {' and '.join(VOCABULARY_FILES)}, and the released vocabulary has {size} tokens "
                f"where its model has {n_vocab}; put the files of its own vocabulary there (of a Hugging Face model "
                "tokenizer.json, or vocab.json and merges.txt)"
            )
        if size > n_vocab:
            raise ValueError(
                f"the vocabulary of {self.folder} has {size} tokens, its model has {n_vocab}; "
                "put the files of one model together"
            )
        if size < n_vocab:
            log.info(
                "%s: its vocabulary has %d tokens; the %d rows of wte beyond are never sampled",
                *(self.folder, size, n_vocab - size),
            )

    def fingerprint(self) -> str:
        """SHA-256 of all that the model's numbers depend on. An .index stands for its data, whose checksums it has."""
        digest = hashlib.sha256(repr((self.hparams, self.vocabulary and vars(self.vocabulary))).encode())
        weights = [f"{self.prefix}.index"]
        if is_weights_file(self.prefix):
            weights = sorted({file or path for path, file in parts(self.prefix).items()})
        for path in weights:
            with open(path, "rb") as file:
                while chunk := file.read(2**20):
                    digest.update(chunk)
        return digest.hexdigest()

    def load(self, load: Callable[[str], Any]) -> Any:
        """load(prefix), or load(a newer prefix).

        A run that is training in the folder may save again, and remove the save that was found here, before it is
        read or while it is; then load() is called with the newer one.
        """
        prefix = self.prefix
        while True:
            try:
                return load(prefix)
            except (OSError, ValueError):
                newer = find_prefix(self.path)
                if newer == prefix:
                    raise
                prefix = newer


def note_released(folder: str) -> None:
    """To be said where the released vocabulary is taken for a folder's own."""
    warn_once(log, f"{folder} has no {' and '.join(VOCABULARY_FILES)}; using the released vocabulary")


def find_model(model_name: str, models_dir: str | os.PathLike = "models") -> str:
    """The path of a model: a folder in models_dir, any folder, prefix or file of a checkpoint, or a bundled model.

    Raises FileNotFoundError that lists the models that are there and says how to get a published one.
    """
    for path in (os.path.join(models_dir, model_name), model_name, os.path.join(BUNDLED, model_name)):
        if model_name and (os.path.exists(path) or os.path.exists(path + ".index")):
            return path
    near = _near(model_name, models_dir)
    if near:
        raise FileNotFoundError(f"there is no model {model_name!r} in {models_dir}; {near}")
    there = _models(models_dir)
    name = os.path.basename(model_name)
    published = FORMER_NAMES.get(name, name)
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


def _near(model_name: str, models_dir: str | os.PathLike) -> str | None:
    """What lies where a name that no model has points to: other checkpoints of its folder, or other models."""
    above, name = os.path.split(model_name)
    for folder in dict.fromkeys([os.path.join(models_dir, above) if above else os.fspath(models_dir), above]):
        prefixes = _prefixes(folder)
        if prefixes:
            newest = shlex.quote(os.path.join(above or folder, prefixes[-1]))
            return f"{_held(folder, prefixes)}: the newest is --model_name {newest}"
        if above and _models(folder) and name not in {*PUBLISHED, *FORMER_NAMES}:  # which could be downloaded
            return _held(folder, _models(folder))
    return None


def _held(folder: str, names: list[str], shown: int = 10) -> str:
    """A few words on the models or checkpoints in a folder, the last ones if they are many."""
    others = f"{len(names) - shown} others, " if len(names) > shown else ""
    return f"{folder} holds {others}{', '.join(names[-shown:])}"


def _folders(path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _models(path: str | os.PathLike) -> list[str]:
    """The folders in a folder that hold a model."""
    folders = {name: os.path.join(path, name) for name in _folders(path)}
    return sorted(name for name, at in folders.items() if glob.glob(glob.escape(at) + "/*.index") or weights_file(at))


def _prefixes(folder: str) -> list[str]:
    """The names of the checkpoints in a folder, the newest last; none where there is no such folder."""
    if not os.path.isdir(folder):
        return []
    names = {file[: -len(".index")] for file in os.listdir(folder) if file.endswith(".index")}
    return sorted(names, key=lambda name: (_step(name), name))


def find_prefix(path: str | os.PathLike) -> str:
    """The checkpoint prefix that a model folder, a prefix, or one of a checkpoint's files stands for.

    In a folder: what its `checkpoint` file names, if that is there; else the checkpoint with the
    highest step; else the file with the weights of a Hugging Face folder. Raises FileNotFoundError; ValueError for a
    checkpoint in TensorFlow's V1 format, a Keras file and a SavedModel.
    """
    path = os.fsdecode(path)
    if is_weights_file(path) and os.path.isfile(path):
        refuse_half(os.path.dirname(path))
        return path
    if path.endswith(".keras") and os.path.isfile(path):
        raise ValueError(f"{path} is a Keras file; keras.models.load_model opens it, gpt2tf.save_checkpoint saves it")
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        raise ValueError(f"{path} is a SavedModel, which is only to be run; name the model that it was made of")
    if not os.path.isdir(path):
        prefix = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path)
        if not (os.path.exists(prefix + ".index") or glob.glob(glob.escape(prefix) + ".data-*")):
            for file in (prefix, *glob.glob(glob.escape(prefix) + "-?????-of-?????")):
                _refuse_v1(file)
            folder = os.path.dirname(path) or "."
            near = f"; {_held(folder, _prefixes(folder))}" if _prefixes(folder) else ""
            raise FileNotFoundError(f"there is no checkpoint at {path}: no such folder, and no {prefix}.index{near}")
        return prefix
    prefixes = _prefixes(path)
    found = None if prefixes else weights_file(path)
    if found:
        return found
    if not prefixes:
        refuse_half(path)
        for file in (_named_in_state(path) or PREFIX, *sorted(os.listdir(path))):
            _refuse_v1(os.path.join(path, file))
        near = _held(path, _models(path)) + "; name one of them" if _models(path) else "download the model again"
        raise FileNotFoundError(f"{path} holds no checkpoint: no {PREFIX}.index in it; {near}")
    named = _named_in_state(path)
    if named in prefixes:
        return os.path.join(path, named)
    if len(prefixes) > 1:
        log.info("%s: %d checkpoints, taking %s", path, len(prefixes), prefixes[-1])
    return os.path.join(path, prefixes[-1])


def data_files(prefix: str) -> list[str]:
    """The shards of a checkpoint, one for a model that Saver wrote.

    Raises FileNotFoundError unless all are there; ValueError for what Git LFS has not fetched.
    """
    if not os.path.exists(prefix + ".index"):
        raise FileNotFoundError(f"{prefix}.index is missing; download the model again")
    files = sorted(glob.glob(glob.escape(prefix) + ".data-?????-of-?????"))
    for file in (prefix + ".index", *files):
        refuse_pointer(file)
    if not files:
        raise FileNotFoundError(f"{prefix}.data-00000-of-00001 is missing; download the model again")
    if len(files) != int(files[-1][-5:]):
        raise FileNotFoundError(
            f"{files[-1]} is one of {int(files[-1][-5:])} parts, {len(files)} are there; get the others"
        )
    return files


def _refuse_v1(path: str) -> None:
    """Raises ValueError, with the way to convert it, for a file that is a checkpoint in V1 format or a part of one."""
    if not os.path.isfile(path) or os.path.getsize(path) < len(SSTABLE):
        return
    with open(path, "rb") as file:
        file.seek(-len(SSTABLE), os.SEEK_END)
        if file.read() != SSTABLE:
            return
    path = os.path.abspath(path)
    prefix = re.sub(r"-\d{5}-of-\d{5}$", "", path)
    pattern = prefix + "-?????-of-?????" if prefix != path else path
    convert = (
        f"import tensorflow as tf; r = tf.train.load_checkpoint({pattern!r}); n = [*r.get_variable_to_shape_map()]; "
        f"tf.raw_ops.SaveV2(prefix={prefix!r}, tensor_names=n, shape_and_slices=len(n) * [''], "
        "tensors=[*map(r.get_tensor, n)])"
    )
    raise ValueError(
        f"{path} is a checkpoint in TensorFlow's V1 format; write one in the V2 format, an .index and a .data, beside "
        f"it: python -c {shlex.quote(convert)}"
    )


def _named_in_state(folder: str) -> str | None:
    """The prefix that the folder's `checkpoint` file names, without the folders of the machine that wrote it."""
    path = os.path.join(folder, "checkpoint")
    refuse_pointer(path)
    try:
        with open(path, "rb") as file:
            named = re.search(rb'^model_checkpoint_path: "(.*)"', file.read(), re.MULTILINE)
    except (FileNotFoundError, IsADirectoryError):
        return None
    if not named:
        return None
    # As protocol buffers are written as text, a backslash stands before another, a quote, or a byte in octal digits.
    path = re.sub(rb'\\([0-3][0-7]{2}|[\\"\'])', lambda m: bytes([int(m[1], 8)]) if m[1].isdigit() else m[1], named[1])
    return re.split(r"[/\\]", os.fsdecode(path))[-1]


def _step(prefix: str) -> int:
    """1000 of "model-1000"; -1 for a prefix without a step."""
    step = re.search(r"-(\d+)$", prefix)
    return int(step[1]) if step else -1
