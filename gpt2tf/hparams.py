"""The five numbers that fix a GPT-2, and the file `hparams.json` that carries them.

Mirrors `default_hparams` of openai/gpt-2 src/model.py:7-14 and the reading of `hparams.json` in
src/interactive_conditional_samples.py:48-50. Differences: a frozen dataclass in place of
`tf.contrib.training.HParams`, and every field is required and checked, where the original silently
kept its defaults for a field that the file lacked.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os

from gpt2tf.files import refuse_pointer, warn_once

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class HParams:
    """Sizes of a model, with the original's names.

    n_vocab: entries of the vocabulary; n_ctx: positions of the window; n_embd: features of the
    residual stream; n_head: attention heads, a divisor of n_embd; n_layer: blocks.
    Raises ValueError for anything but positive ints that fit together.
    """

    n_vocab: int
    n_ctx: int
    n_embd: int
    n_head: int
    n_layer: int

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a positive whole number")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd is {self.n_embd}, which n_head {self.n_head} does not divide")


PUBLISHED = {
    "124M": HParams(n_vocab=50257, n_ctx=1024, n_embd=768, n_head=12, n_layer=12),
    "355M": HParams(n_vocab=50257, n_ctx=1024, n_embd=1024, n_head=16, n_layer=24),
    "774M": HParams(n_vocab=50257, n_ctx=1024, n_embd=1280, n_head=20, n_layer=36),
    "1558M": HParams(n_vocab=50257, n_ctx=1024, n_embd=1600, n_head=25, n_layer=48),
}
FORMER_NAMES = {"117M": "124M", "345M": "355M", "762M": "774M", "1542M": "1558M"}
OTHER_NAMES = FORMER_NAMES | {"335M": "355M", "1.5B": "1558M", "1.5GB": "1558M", "1500M": "1558M"}
OTHER_NAMES |= {"GPT2": "124M", "GPT2-MEDIUM": "355M", "GPT2-LARGE": "774M", "GPT2-XL": "1558M"}


def size_name(hparams: HParams) -> str | None:
    """The published name ("124M") of these hparams, or None."""
    return next((name for name, published in PUBLISHED.items() if published == hparams), None)


def check_name(model_name: str) -> str:
    """The name itself, if a model of that name was published.

    Raises ValueError that lists the published names, and says which of them a former or mistaken name means.
    """
    if model_name in PUBLISHED:
        return model_name
    meant = OTHER_NAMES.get(model_name.upper())
    asked = "it is now called" if model_name.upper() in FORMER_NAMES else "did you mean"
    hint = f"{asked} {meant}; " if meant else ""
    raise ValueError(f"there is no model {model_name!r}: {hint}the models are {', '.join(PUBLISHED)}")


def read_hparams(path: str | os.PathLike) -> HParams:
    """Read `hparams.json`.

    Raises FileNotFoundError, or ValueError that names the file and what is wrong with it. Fields
    other than the five, which forks of the original add, are named in a warning and ignored.
    """
    refuse_pointer(path)
    fields = [field.name for field in dataclasses.fields(HParams)]
    with open(path, encoding="utf-8-sig") as file:
        try:
            found = json.load(file)
        except (ValueError, RecursionError) as error:  # ValueError: JSONDecodeError and UnicodeDecodeError
            raise ValueError(f"{path} is damaged, it is not JSON ({error}); download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object with {', '.join(fields)}; download it again")
    missing = [name for name in fields if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; add what is missing, or download it again")
    try:
        hparams = HParams(**{name: found[name] for name in fields})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    unknown = [repr(name[:40]) for name in found if name not in fields]
    if unknown:
        warn_once(log, f"{path}: ignoring {', '.join(unknown)}, which this GPT-2 does not have")
    return hparams


def write_hparams(hparams: HParams, path: str | os.PathLike) -> None:
    """Write `hparams.json` with the fields, order and indentation of the released files."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(dataclasses.asdict(hparams), file, indent=2)
