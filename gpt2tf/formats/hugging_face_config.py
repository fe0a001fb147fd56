"""What says of a Hugging Face GPT-2 folder what is in it: which file has the weights, and config.json. No TensorFlow.

Mirrors `GPT2Config` of transformers: its names and its defaults. Difference: a setting that this model does not honour
is refused by its name. What differs in nothing but rounding, as `reorder_and_upcast_attn` of a model that computes in
float32, is none.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from gpt2tf.files import DAMAGED, refuse_pointer
from gpt2tf.hparams import HParams

CONFIG = "config.json"
PICKLE = "pytorch_model.bin"
WEIGHTS_FILES = ("model.safetensors", "model.safetensors.index.json", PICKLE, f"{PICKLE}.index.json")

# Names of a size in config.json, the one that transformers writes first.
SIZES = {
    "n_vocab": ("vocab_size",),
    "n_ctx": ("n_positions", "max_position_embeddings", "n_ctx"),
    "n_embd": ("n_embd", "hidden_size"),
    "n_head": ("n_head", "num_attention_heads"),
    "n_layer": ("n_layer", "num_hidden_layers"),
}
N_HEAD = 12  # transformers' own default; of the other sizes the tensors tell
# What a setting must be, the default first.
HONOURED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),  # one function, written in three ways
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
}
ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")


def weights_file(folder: str | os.PathLike) -> str | None:
    """The file that has the weights, or the index of their parts; None for what is not a Hugging Face folder."""
    if os.path.exists(os.path.join(folder, CONFIG)):
        for file in WEIGHTS_FILES:
            if os.path.exists(os.path.join(folder, file)):
                return os.path.join(folder, file)
    return None


def refuse_half(folder: str | os.PathLike) -> None:
    """Raises FileNotFoundError for a folder with a config.json and no weights, or with weights and no config.json."""
    held = [file for file in (CONFIG, *WEIGHTS_FILES) if os.path.exists(os.path.join(folder, file))]
    if held == [CONFIG]:
        raise FileNotFoundError(f"{folder} has a {CONFIG} and no weights: none of {', '.join(WEIGHTS_FILES)}")
    if held and CONFIG not in held:
        raise FileNotFoundError(f"{os.path.join(folder, held[0])} has no {CONFIG} beside it; get the whole folder")


def is_weights_file(path: str | os.PathLike) -> bool:
    """Whether a path is that of such a file."""
    return os.path.basename(path) in WEIGHTS_FILES


def parts(path: str) -> dict[str, str | None]:
    """{file: None} of a file with weights; of an index {tensor: file}, as the index says.

    Raises FileNotFoundError for a file that is missing, ValueError for a damaged index, one that names files outside of
    its folder, and a pointer of Git LFS.
    """
    folder = os.path.dirname(path)
    if not path.endswith(".index.json"):
        refuse_pointer(path)
        return {path: None}
    places = _read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise ValueError(f"{path} has no weight_map from tensors to files; {DAMAGED}")
    for file in sorted(set(places.values())):
        if file != os.path.basename(file) or "\\" in file or file in ("", ".", ".."):
            raise ValueError(f"{path} names {file!r}, which is not a file in its folder; do not use it")
        if not os.path.exists(os.path.join(folder, file)):
            raise FileNotFoundError(f"{os.path.join(folder, file)} is missing, which {path} names; get the file")
        refuse_pointer(os.path.join(folder, file))
    return {name: os.path.join(folder, file) for name, file in places.items()}


@dataclasses.dataclass(frozen=True)
class Config:
    """config.json of a model that this one can be. sizes: those of the five that it states. tied: whether the head is.

    Raises FileNotFoundError; ValueError for a damaged file, and for a setting that is not honoured.
    """

    path: str
    sizes: dict[str, int]
    tied: bool

    @classmethod
    def read(cls, folder: str) -> Config:
        path = os.path.join(folder, CONFIG)
        found = _read_json(path)
        for name, honoured in HONOURED.items():
            if found.get(name, honoured[0]) not in honoured:
                wanted = " or ".join(map(json.dumps, honoured))
                raise ValueError(f"{path}: {name} is {json.dumps(found[name])}; gpt2tf has GPT-2, where it is {wanted}")
        for architecture in found.get("architectures") or ():
            if architecture not in ARCHITECTURES:
                raise ValueError(f"{path}: architectures has {architecture!r}; gpt2tf has only {ARCHITECTURES[0]}")
        sizes = {}
        for ours, theirs in SIZES.items():
            name = next((name for name in theirs if name in found), None)
            if name is not None:
                if type(found[name]) is not int or found[name] < 1:
                    raise ValueError(f"{path}: {name} is {found[name]!r}; it must be a positive whole number")
                sizes[ours] = found[name]
        inner = found.get("n_inner")
        if inner is not None and "n_embd" in sizes and inner != 4 * sizes["n_embd"]:
            raise ValueError(f"{path}: n_inner is {inner!r}; gpt2tf has GPT-2, where it is 4 times n_embd")
        return cls(path, sizes, found.get("tie_word_embeddings", True))

    @property
    def hparams(self) -> HParams | None:
        """The sizes; None where the tensors have to tell. Raises ValueError where they do not go together."""
        sizes = {"n_head": N_HEAD} | self.sizes
        return self._hparams(sizes) if len(sizes) == len(SIZES) else None

    def checked(self, found: dict[str, int], path: str) -> HParams:
        """The hparams of a model whose tensors, in the file at path, have the sizes found."""
        for name, size in found.items():
            if self.sizes.get(name, size) != size:
                raise ValueError(
                    f"{self.path}: {SIZES[name][0]} is {self.sizes[name]}, the tensors of {path} have {size}; "
                    "put the files of one model together"
                )
        return self._hparams({"n_head": N_HEAD} | self.sizes | found)

    def _hparams(self, sizes: dict[str, int]) -> HParams:
        try:
            return HParams(**sizes)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None


def write_config(folder: str, hparams: HParams, end_of_text: int | None) -> None:
    """Write config.json and generation_config.json of GPT-2.

    end_of_text: the id of `<|endoftext|>`, at which generation stops; None where no vocabulary is known.
    """
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[0]]}
    config |= {name: honoured[0] for name, honoured in HONOURED.items() if honoured[0] is not None}
    config |= {theirs[0]: getattr(hparams, ours) for ours, theirs in SIZES.items()}
    config |= {"n_inner": None, "initializer_range": 0.02, "tie_word_embeddings": True, **ends}
    config |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1)
    write_json(os.path.join(folder, CONFIG), config)
    write_json(os.path.join(folder, "generation_config.json"), ends | {"pad_token_id": end_of_text})


def write_json(path: str, value: dict) -> None:
    """Write an object as JSON, as transformers lays it out."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(value, indent=2) + "\n")


def _read_json(path: str) -> dict:
    refuse_pointer(path)
    with open(path, encoding="utf-8-sig") as file:
        try:
            found = json.load(file)
        except (ValueError, RecursionError) as error:  # ValueError: JSONDecodeError and UnicodeDecodeError
            raise ValueError(f"{path} is not JSON ({error}); {DAMAGED}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not hold an object; {DAMAGED}")
    return found
