"""Makers of Hugging Face folders for the tests, by the library's own writer and none of gpt2tf's code."""

import json
import pathlib
import shutil

import numpy as np
from checkpoint_files import TINY, tiny_weights
from recorded import GOLDEN

HF = GOLDEN / "hf"  # written by transformers
CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 1000,
    "n_positions": 64,
    "n_embd": 48,
    "n_head": 4,
    "n_layer": 3,
}
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def tensors(scope: str = "transformer.", transposed: bool = False) -> dict[str, np.ndarray]:
    """tiny-a's variables as transformers names and lays them out; transposed: as those of a Linear."""
    found = {}
    for name, value in tiny_weights().items():
        *scopes, leaf = name.split("/")[1:]
        parts = [part for each in scopes for part in (["h", each[1:]] if each[0] == "h" else [each])]
        parts += [leaf, "weight"] if leaf in ("wte", "wpe") else ["bias" if leaf == "b" else "weight"]
        value = value[0] if leaf == "w" else value
        found[scope + ".".join(parts)] = np.ascontiguousarray(value.T) if transposed and leaf == "w" else value
    return found


def write_folder(folder: pathlib.Path, found: dict[str, np.ndarray] | None = None, **config) -> pathlib.Path:
    """A folder of tiny-a, or of other tensors, with settings beside or in place of its own."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors() if found is None else found, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copyfile(TINY / "encoder.json", folder / "vocab.json")
    shutil.copyfile(TINY / "vocab.bpe", folder / "merges.txt")
    return folder


def write_shards(folder: pathlib.Path) -> pathlib.Path:
    """The same in two files and their index."""
    from safetensors.numpy import save_file

    write_folder(folder)
    (folder / WEIGHTS).unlink()
    names, places = sorted(tensors()), {}
    for number in (1, 2):
        file = f"model-{number:05}-of-00002.safetensors"
        part = {name: tensors()[name] for name in names[number - 1 :: 2]}
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
