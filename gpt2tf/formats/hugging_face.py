"""The weights of a Hugging Face GPT-2 folder, in and out, under the original's names.

Mirrors `GPT2LMHeadModel` of transformers, whose Conv1D has the original's w without its first axis. Differences: the
tensors may lack the scope `transformer.`, come in half precision, and be transposed as those of a Linear are; what
follows from other tensors (`lm_head.weight`, masks) is compared or passed over; anything else is refused by its name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpt2tf import encoder, names
from gpt2tf.files import DAMAGED, appearing, refuse_taken
from gpt2tf.formats.hugging_face_config import WEIGHTS_FILES, Config, parts, write_config, write_json

if TYPE_CHECKING:
    from gpt2tf.model import GPT2

SCOPE = "transformer."
HEAD = "lm_head.weight"  # tied to wte.weight
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # constants that old versions saved
DTYPES = ("F32", "F16", "BF16")

log = logging.getLogger(__name__)


def their_name(name: str) -> str:
    """h.0.attn.c_attn.weight of model/h0/attn/c_attn/w."""
    scope, _, leaf = re.sub(r"^model/(h(?=\d))?", lambda start: "h." if start[1] else "", name).rpartition("/")
    kind = "bias" if leaf == "b" else "weight"
    return f"{scope.replace('/', '.')}.{kind}" if scope else f"{leaf}.{kind}"


class Weights(Mapping):
    """The model's variables in such a folder, read one at a time: {"model/wpe": [n_ctx, n_embd] float32, ...}.

    path: of the file that has the weights, or of the index of their parts; config.json is beside it. Each is checked to
    be finite when it is read.
    Raises FileNotFoundError for a missing file; ValueError for a damaged one, and for a model that is not GPT-2.
    """

    ignored = 0  # what is passed over has no weights in it

    def __init__(self, path: str):
        self.prefix = self.index = path
        config = Config.read(os.path.dirname(path))
        self._tensors = _tensors(path)
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        if not all(len(shapes.get(name, ())) == 2 for name in ("wte.weight", "wpe.weight")):
            held = ", ".join(sorted(shapes)[:3]) or "nothing"
            raise ValueError(f"{path} is not a GPT-2: it has no matrices wte.weight and wpe.weight, but {held}")
        n_vocab, n_embd = shapes["wte.weight"]
        layers = {name.split(".")[1] for name in shapes if re.match(r"h\.\d+\.", name)}
        sizes = {"n_vocab": n_vocab, "n_ctx": shapes["wpe.weight"][0], "n_embd": n_embd, "n_layer": len(layers)}
        self.hparams = config.checked(sizes, path)
        self.shapes = names.variable_shapes(self.hparams)
        self._transposed = self._check_shapes(shapes)
        head = self._read(HEAD) if HEAD in self._tensors else None
        if not (config.tied if head is None else np.array_equal(head, self._read("wte.weight"), equal_nan=True)):
            raise ValueError(f"{path}: {HEAD} is not wte.weight; gpt2tf has GPT-2, whose head is tied to wte")

    def __getitem__(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        value = self._read(their_name(name))
        if not _is_finite(value):
            raise ValueError(f"{self.prefix}: {their_name(name)} has numbers that are not finite; get another model")
        if self._transposed and name.endswith("/w"):
            value = np.ascontiguousarray(value.T)
        return value.reshape(shape)

    tensor = __getitem__  # TensorFlow takes the array for one

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def _read(self, name: str) -> np.ndarray:
        return self._tensors[name].read()

    def _check_shapes(self, found: names.Shapes) -> bool:
        """Whether the matrices are transposed. Raises ValueError where names or shapes are not the model's.

        A square matrix does not tell, so all of them must be of one kind.
        """
        expected = {their_name(name): shape[-2:] for name, shape in self.shapes.items()}
        lacking = [name for name in expected if name not in found]
        beyond = [name for name in found if name not in expected and name != HEAD and not MASKS.fullmatch(name)]
        if lacking or beyond:
            raise ValueError(
                f"{self.prefix} is not a GPT-2 alone: "
                + "; ".join(
                    f"it {word} {names.some(some)}" for word, some in (("lacks", lacking), ("has", beyond)) if some
                )
            )
        matrices = {their_name(name) for name in self.shapes if name.endswith("/w")}
        transposed = any(found[name] != expected[name] == found[name][::-1] for name in matrices)
        for name, shape in expected.items():
            wanted = shape[::-1] if transposed and name in matrices else shape
            if found[name] != wanted:
                raise ValueError(f"{self.prefix}: {name} is {list(found[name])}, and must be {list(wanted)}")
        return transposed


def _is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are: the sum of float32 numbers in float64 cannot overflow, and needs no second array."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return math.isfinite(array.sum(dtype=np.float64))


class _Tensor:
    """One tensor of a .safetensors file."""

    def __init__(self, path: str, name: str, shape: tuple[int, ...]):
        self.path, self.name, self.shape = path, name, shape

    def read(self) -> np.ndarray:
        with _opened(self.path) as file:  # anew for each: what was read would stay in memory as long as it is open
            return file.get_tensor(self.name).astype(np.float32, copy=False)


class _Pickled:
    """One tensor of a file that torch wrote, which stays on the disk until it is read."""

    def __init__(self, tensor):
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    def read(self) -> np.ndarray:
        return self.tensor.float().numpy()


def _tensors(path: str) -> dict[str, _Tensor | _Pickled]:
    """All tensors of a model, by their names without the scope."""
    found = {}
    places = parts(path)
    if list(places) == [path]:
        held = _tensors_of(path)
    else:
        files = {file: _tensors_of(file) for file in sorted(set(places.values()))}
        missing = [name for name, file in places.items() if name not in files[file]]
        if missing:
            raise ValueError(f"{places[missing[0]]} lacks {names.some(missing)}, which {path} says it has; {DAMAGED}")
        held = {name: files[file][name] for name, file in places.items()}
    for name, tensor in held.items():
        if name.removeprefix(SCOPE) in found:
            raise ValueError(f"{path} has {name.removeprefix(SCOPE)} twice, with and without {SCOPE}")
        found[name.removeprefix(SCOPE)] = tensor
    return found


def _tensors_of(file: str) -> dict[str, _Tensor | _Pickled]:
    if file.endswith(".bin"):
        return {name: _Pickled(tensor) for name, tensor in _unpickled(file).items()}
    tensors = {}
    with _opened(file) as opened:
        for name in opened.keys():
            tensor = opened.get_slice(name)
            if tensor.get_dtype() not in DTYPES and not MASKS.fullmatch(name.removeprefix(SCOPE)):
                raise ValueError(f"{file}: {name} is {tensor.get_dtype()}; gpt2tf reads {', '.join(DTYPES)}")
            tensors[name] = _Tensor(file, name, tuple(tensor.get_shape()))
    return tensors


@contextlib.contextmanager
def _opened(path: str):
    """A .safetensors file, open. Raises ValueError with one line about a damaged one."""
    import safetensors

    try:
        with safetensors.safe_open(path, framework="np") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: {error}; {DAMAGED}") from None
    except OSError as error:
        raise OSError(f"{path}: {error}") from None


def _unpickled(path: str) -> dict:
    """The tensors of a pickle, by torch's reader that runs nothing of what is in it."""
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a pickle, which is read by torch alone; install torch, or where torch and transformers are "
            f"convert it: AutoModelForCausalLM.from_pretrained({os.path.dirname(path)!r}).save_pretrained(FOLDER)"
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # whatever a damaged or hostile pickle leads to
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read as weights alone ({line}); {DAMAGED}") from None
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"{path} holds more than tensors; save the model's state_dict alone")
    return found


def write_hugging_face(model: GPT2, folder: str | os.PathLike) -> None:
    """Write a model as a folder that transformers opens, whole or not at all.

    Files: config.json, generation_config.json, model.safetensors in float32; of `model.vocabulary` vocab.json and
    merges.txt, which are encoder.json and vocab.bpe byte for byte, and tokenizer_config.json.
    Raises FileExistsError if there is something at folder, OSError where the disk does, ValueError for weights that are
    not finite.
    """
    refuse_taken(folder)
    if model.vocabulary is None or None in (model.vocabulary.table, model.vocabulary.merges):
        log.warning("%s gets no tokenizer, because the vocabulary of the model is not known", folder)
    with appearing(os.fspath(folder)) as part:
        os.mkdir(part)
        write_config(part, model.hparams, _write_vocabulary(model, part))
        write_safetensors(os.path.join(part, WEIGHTS_FILES[0]), {v.path: v.value for v in model.variables})


def _write_vocabulary(model: GPT2, folder: str) -> int | None:
    """Write the files of a tokenizer. Returns the id of `<|endoftext|>`, None without a whole vocabulary."""
    vocabulary = model.vocabulary
    if vocabulary is None or None in (vocabulary.table, vocabulary.merges):
        return None
    for text, name in (vocabulary.table, "vocab.json"), (vocabulary.merges, "merges.txt"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(text.encode("utf-8"))
    settings = {"add_prefix_space": False, "model_max_length": model.hparams.n_ctx}
    settings["split_special_tokens"] = True  # typed text never makes `<|endoftext|>`, as in the original
    settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), encoder.END_OF_TEXT)
    write_json(os.path.join(folder, "tokenizer_config.json"), {"tokenizer_class": "GPT2Tokenizer"} | settings)
    return vocabulary.tables()[0][encoder.END_OF_TEXT]


def write_safetensors(path: str, weights: Mapping[str, np.ndarray]) -> None:
    """Write weights by the original's names under their names in transformers, one at a time.

    The format is a length of 8 bytes, a header in JSON, and the numbers; safetensors itself writes only what is all in
    memory.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0  # transformers asks for the format
    for name, value in weights.items():
        shape = list(value.shape[1:] if name.endswith("/w") else value.shape)
        start, end = end, end + 4 * math.prod(shape)
        header[SCOPE + their_name(name)] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, value in weights.items():
            array = np.ascontiguousarray(value, "<f4")
            if not _is_finite(array):
                raise ValueError(f"{name} has numbers that are not finite; the model is not written")
            file.write(array.data)
