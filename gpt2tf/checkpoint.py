"""The original's checkpoint files, both ways, and the models in them.

Mirrors what `tf.train.Saver` and `tf.train.latest_checkpoint` did for openai/gpt-2
(src/interactive_conditional_samples.py:71-73): the same two files, `.index` and `.data-00000-of-00001`,
the same names. Differences: checksums, shapes and lengths are checked, and what is wrong is said in one
line; optimizer slots, counters and a foreign leading scope are passed over; a `checkpoint` file that is
missing or points elsewhere does not matter.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from gpt2tf import encoder, names
from gpt2tf.files import DAMAGED, refuse_pointer
from gpt2tf.formats import hugging_face
from gpt2tf.formats.hugging_face_config import is_weights_file
from gpt2tf.hparams import HParams, read_hparams, write_hparams
from gpt2tf.locate import PREFIX, data_files, find_prefix, note_released
from gpt2tf.model import GPT2

CHECKPOINT_STATE = 'model_checkpoint_path: "{0}"\nall_model_checkpoint_paths: "{0}"\n'
SCRATCH = ".saving-"  # starts the name of the folder in which a model is written before it takes its place

log = logging.getLogger(__name__)


class Weights(Mapping):
    """The model's variables in a checkpoint, read one at a time: {"model/wpe": [n_ctx, n_embd] float32, ...}.

    prefix: the path without `.index`. Names come out as the original's, whatever scope the file puts
    in front; `ignored` counts the file's other variables. Each read verifies the variable's checksum.
    index_only: the data files may be missing, and only names and shapes are to be had.
    Raises FileNotFoundError for a missing file; ValueError for a damaged, shortened or padded one.
    """

    def __init__(self, prefix: str, *, index_only: bool = False):
        self.prefix = prefix
        self.index = prefix + ".index"
        self.data = [] if index_only else data_files(prefix)
        refuse_pointer(self.index)
        self._readable = _readable_prefix(self, prefix, [self.index, *self.data])
        with _damage_in(self.index):
            reader = tf.compat.v1.train.NewCheckpointReader(self._readable)
            dtypes = reader.get_variable_to_dtype_map()
            shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        if not index_only:
            with _damage_in(*self.data):
                expected = sum(_bytes_in_data(reader, name, dtypes[name], shapes[name]) for name in shapes)
            self._check_length(expected)
        self._scope = names.leading_scope(shapes)
        if self._scope is None:
            held = ", ".join(sorted(shapes)[:3]) or "nothing"
            raise ValueError(
                f"{self.index} is not a GPT-2 in the original's format: it has no variable `wte`, but {held}; "
                "a model of this project is saved with gpt2tf.save_checkpoint"
            )
        self._dtypes = {
            re.sub(f"^{re.escape(self._scope)}", "model/", name): dtype
            for name, dtype in dtypes.items()
            if self._is_of_the_model(name)
        }
        self.shapes = {name: shapes[self._original(name)] for name in self._dtypes}
        self.ignored = len(shapes) - len(self.shapes)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(memoryview(self.tensor(name)))  # read-only, and the tensor's own memory

    def __iter__(self) -> Iterator[str]:
        return iter(self._dtypes)

    def __len__(self) -> int:
        return len(self._dtypes)

    def tensor(self, name: str) -> tf.Tensor:
        """As weights[name], for who wants a tensor."""
        with _damage_in(*self.data, reading=f"{name} cannot be read, "), tf.device("CPU"):
            (tensor,) = tf.raw_ops.RestoreV2(
                prefix=self._readable,
                tensor_names=[self._original(name)],
                shape_and_slices=[""],
                dtypes=[self._dtypes[name]],
            )
        return tf.cast(tensor, tf.float32)

    def _original(self, name: str) -> str:
        return self._scope + name[len("model/") :]

    def _is_of_the_model(self, name: str) -> bool:
        """Names of the model's own kind: not `beta1_power`, `global_step`, `model/wte/Adam`."""
        leaf = r"(wte|wpe|(h\d+/(ln_1|ln_2|attn/c_attn|attn/c_proj|mlp/c_fc|mlp/c_proj)|ln_f)/[gbw])"
        return re.fullmatch(re.escape(self._scope) + leaf, name) is not None

    def _check_length(self, expected: int):
        """Refuse data files that are shorter or longer than the index says; TensorFlow accepts the longer."""
        found = sum(map(os.path.getsize, self.data))
        if found != expected:
            raise ValueError(
                f"{', '.join(self.data)} has {found:,} bytes, its index says {expected:,}; "
                + ("it belongs to another index or has something appended" if found > expected else DAMAGED)
            )


def verify(prefix: str, hparams: HParams) -> None:
    """Read a whole checkpoint: names and shapes against hparams, lengths, the checksum of every variable.

    Raises as `Weights` does, and ValueError where the variables are not those of hparams.
    """
    weights = Weights(prefix)
    _check_names(weights, hparams)
    for name in weights:
        weights.tensor(name)


def verify_index(prefix: str, hparams: HParams) -> None:
    """As `verify`, for an index whose data is not there yet: names and shapes, and the index's own checksums."""
    _check_names(Weights(prefix, index_only=True), hparams)


def load_weights(path: str | os.PathLike) -> tuple[HParams, Weights | hugging_face.Weights, encoder.Vocabulary | None]:
    """What `load_model` makes a model of: the sizes, the weights, not read yet, and the vocabulary beside them.

    Raises as it does.
    """
    prefix = find_prefix(path)
    folder = os.path.dirname(prefix) or "."
    if is_weights_file(prefix):
        weights = hugging_face.Weights(prefix)
        hparams = weights.hparams
    else:
        weights = Weights(prefix)
        hparams = _hparams(folder, weights)
    log.info("loading %s", weights.prefix)
    if weights.ignored:
        log.info("%s: ignoring %d variables that are not the model's", weights.index, weights.ignored)
    return hparams, weights, encoder.read_vocabulary(folder)


def load_model(path: str | os.PathLike, **options) -> GPT2:
    """The model of a folder (released, fine-tuned or of Hugging Face), of a checkpoint prefix, or of an `.index` file.

    hparams come from the `hparams.json` beside the checkpoint; without one they are read off the shapes. The vocabulary
    comes from the files beside it, or is the released one, with a warning, if there are none and n_vocab is 50,257.
    options: of `GPT2`, for training.
    Raises FileNotFoundError or ValueError with one line that says which file, what is wrong, what to do.
    """
    hparams, weights, vocabulary = load_weights(path)
    if vocabulary is None and hparams.n_vocab == encoder.RELEASED_SIZE:
        note_released(os.path.dirname(weights.prefix) or ".")
        vocabulary = encoder.released()
    options = {"vocabulary": vocabulary} | options
    return GPT2(hparams, initial_value=lambda name, shape: weights.tensor(name), **options)


def save_checkpoint(model: GPT2, folder: str | os.PathLike, step: int | None = None) -> None:
    """Write a complete model folder that `sample.py` and the original's `Saver.restore` open.

    Files: checkpoint, hparams.json, model.ckpt.index, model.ckpt.data-00000-of-00001, encoder.json and
    vocab.bpe, as they are in `model.vocabulary`; of a model without one they are left out, with a warning.
    The two checkpoint files are byte for byte those of TensorFlow 1's Saver. With a step they are `model-<step>.*`,
    as in training. A new folder appears whole; in an existing one finished files take the place of old ones, and other
    files stay.
    Raises OSError where the disk does, ValueError for weights that are not finite; then all is as it was.
    """
    folder = os.fsdecode(folder)
    if not folder:
        raise ValueError("the folder to save to has no name")
    model.check_finite()
    folder = os.path.realpath(folder)
    exists = os.path.isdir(folder)
    if os.path.exists(folder) and not exists:
        raise NotADirectoryError(f"{folder} is a file; a model is saved to a folder")
    if model.vocabulary is None:
        held = exists and encoder.read_vocabulary(folder) is not None
        log.warning(
            "%s %s, because the vocabulary of the model is not known; put its files there, or set model.vocabulary, "
            "for example to encoder.read_vocabulary(FOLDER)",
            *(folder, "keeps the vocabulary that is there" if held else "gets no encoder.json and vocab.bpe"),
        )
    there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=there) as scratch:
        complete = os.path.join(scratch, "model")
        os.mkdir(complete)
        _write_files(model, complete, PREFIX if step is None else f"model-{step}")
        if not exists:
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            os.rename(complete, folder)
            return
        # The data first and the index last: cut short in between, the checksums tell, and no mix is read as a model.
        # After them the file that names a step's save, which until then is another one.
        order = {"index": 2, "checkpoint": 3}
        for file in sorted(os.listdir(complete), key=lambda f: ".data-" not in f and order.get(f.split(".")[-1], 1)):
            os.replace(os.path.join(complete, file), os.path.join(folder, file))


def _write_files(model: GPT2, folder: str, prefix: str) -> None:
    write_hparams(model.hparams, os.path.join(folder, "hparams.json"))
    if model.vocabulary is not None:
        model.vocabulary.write(folder)
    _write_variables({v.path: v.value for v in model.variables}, os.path.join(folder, prefix))
    write_state(os.path.join(folder, "checkpoint"), prefix)
    for file in os.listdir(folder):
        with open(os.path.join(folder, file), "rb+") as written:
            os.fsync(written)


def write_state(path: str | os.PathLike, prefix: str) -> None:
    """Write the file `checkpoint`, which says what prefix a folder stands for, to a path."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(CHECKPOINT_STATE.format(prefix))


def _write_variables(variables: dict[str, tf.Tensor], prefix: str) -> None:
    """Write `.index` and `.data-00000-of-00001` as Saver does: sorted by name, one part, merged."""
    order = sorted(variables)
    part = prefix + "_part"
    try:
        with tf.device("CPU"):
            tf.raw_ops.SaveV2(
                prefix=name_for_tensorflow(part),
                tensor_names=order,
                shape_and_slices=[""] * len(order),
                tensors=[tf.cast(variables[name], tf.float32) for name in order],
            )
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[name_for_tensorflow(part)],
                destination_prefix=name_for_tensorflow(prefix),
                delete_old_dirs=False,
            )
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise OSError(f"cannot write {prefix}: {first_line(error, os.path.dirname(part))}") from None


def name_for_tensorflow(path: str) -> bytes:
    """A path as TensorFlow takes it: in the bytes of this system, where a str would become UTF-8.

    It is absolute, so that no name is one of TensorFlow's own file systems, as "ram://x" would be.
    """
    return os.fsencode(os.path.abspath(path))


def _readable_prefix(owner: Weights, prefix: str, files: list[str]) -> bytes:
    """The prefix, or links to it that live as long as owner where TensorFlow's readers would not find its name."""
    name = name_for_tensorflow(prefix)
    if _is_plain(name):
        return name
    links = tempfile.mkdtemp(prefix="gpt2tf-")
    weakref.finalize(owner, shutil.rmtree, links, ignore_errors=True)
    plain = name_for_tensorflow(os.path.join(links, PREFIX))
    if not _is_plain(plain):
        raise OSError(f"neither {prefix} nor {links} has a name that TensorFlow reads; set TMPDIR to one without []*?")
    for file in files:
        os.symlink(os.path.abspath(file), os.path.join(links, PREFIX + file[len(prefix) :]))
    return plain


def _is_plain(name: bytes) -> bool:
    """Whether TensorFlow's readers find a file of that name: it is no pattern, and can stand in a message of theirs."""
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not re.search(rb"[][*?\\]", name.replace(os.fsencode(os.sep), b"/"))


def _bytes_in_data(reader, name: str, dtype: tf.DType, shape: tuple[int, ...]) -> int:
    """The bytes that a variable takes in the data file; of strings: lengths as varints, a checksum, the texts."""
    if dtype != tf.string:
        return math.prod(shape) * dtype.size
    texts = np.ravel(reader.get_tensor(name)).tolist()
    return 4 + sum(max(1, math.ceil(len(text).bit_length() / 7)) + len(text) for text in texts)


def _hparams(folder: str, weights: Weights) -> HParams:
    path = os.path.join(folder, "hparams.json")
    if os.path.exists(path):
        hparams = read_hparams(path)
        _check_names(weights, hparams)
        return hparams
    hparams = names.infer_hparams(weights.shapes)
    if hparams is None:
        raise FileNotFoundError(
            f"{path} is missing, and the shapes in {weights.index} do not tell n_head; "
            "put the model's hparams.json there"
        )
    _check_names(weights, hparams)
    log.info("%s is missing; the shapes say %s", path, hparams)
    return hparams


def _check_names(weights: Weights, hparams: HParams) -> None:
    difference = names.difference(hparams, weights.shapes)
    if difference:
        raise ValueError(f"{weights.index}: {difference}; put the files of one model together, or download it again")


@contextlib.contextmanager
def _damage_in(*files: str, reading: str = ""):
    """Turn what TensorFlow's readers raise into one line about the files."""
    try:
        yield
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise ValueError(f"{', '.join(files)}: {reading}{first_line(error)}; {DAMAGED}") from None


def first_line(error: Exception, folder: str | None = None) -> str:
    """What TensorFlow says, without the names of its own machinery and of a folder that has been named already."""
    message = getattr(error, "message", error)
    if isinstance(error, UnicodeDecodeError):  # what TensorFlow wanted to say, with the name of a file in it
        message = os.fsdecode(error.object)
    message = str(message).replace(f"{folder}{os.sep}", "")
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]( name: .*)?$", "", message.splitlines()[0])
