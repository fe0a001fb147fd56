"""What may be set about training: one dataclass, which is the signature, the flags and the record of a run at once.

There is nothing like it in openai/gpt-2. Names are those of nshepperd/gpt-2 and gpt-2-simple where those have one.
No TensorFlow is imported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from gpt2tf import checks

OPTIMIZERS = ("adamw", "adafactor")
PRECISIONS = ("float32", "bfloat16")
STRATEGIES = ("one", "mirrored", "multiworker")
EMBEDDINGS = "embeddings"  # wte and wpe
MOST = (checks.MAX_INT32, 1e30)  # of whole numbers, and of others: far above any use, where float32 has room


def _at_least(least, below=None):
    def check(name, value):
        most = MOST[type(value) is float]
        if not (value >= least and (value <= most if below is None else value < below)):
            end = f"to below {below}" if below is not None else f"to {most}" if value > most else "or more"
            raise ValueError(f"{name} is {value}; it must be {least} {end}")

    return check


def _above(bound):
    def check(name, value):
        most = MOST[type(value) is float]
        if not bound < value <= most:
            end = f" and at most {most}" if value > most else ""
            raise ValueError(f"{name} is {value}; it must be above {bound}{end}")

    return check


def _one_of(values):
    def check(name, value):
        if value not in values:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(values)}")

    return check


def _seed(name, value):
    checks.check_seed(value)


def _freeze(name, value):
    parse_freeze(value)


def freeze_words(text: str) -> list[str]:
    """`embeddings, h0-h5` -> ["embeddings", "h0-h5"]"""
    return [word for word in text.replace(" ", "").split(",") if word]


def parse_freeze(text: str) -> Callable[[str], bool]:
    """From `embeddings,h0-h5` to whether a variable, by its name, stays as it is.

    Words: embeddings (wte and wpe), wte, wpe, ln_f, h3, h0-h5. Raises ValueError for others.
    """
    scopes, blocks = set(), []
    for word in freeze_words(text):
        found = re.fullmatch(r"h(\d{1,9})(?:-h?(\d{1,9}))?", word, re.ASCII)
        if found and int(found[1]) <= int(found[2] or found[1]):
            blocks.append(range(int(found[1]), int(found[2] or found[1]) + 1))
        elif word == EMBEDDINGS:
            scopes |= {"wte", "wpe"}
        elif word in ("wte", "wpe", "ln_f"):
            scopes.add(word)
        else:
            raise ValueError(f"freeze has {word!r}; give some of {EMBEDDINGS}, wte, wpe, ln_f, h0, h0-h5")

    def frozen(name):
        scope = name.split("/")[1]
        return scope in scopes or (scope[1:].isdecimal() and any(int(scope[1:]) in block for block in blocks))

    return frozen


def setting(default, help, check=None):
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train. Each field is a flag of `gpt2tf train` and `gpt2tf finetune`, where its help is shown.

    Raises ValueError that names what is out of range.
    """

    steps: int = setting(1000, "updates of the weights, all runs of this name together", _at_least(1))
    batch_size: int = setting(1, "windows in a batch, on all devices together", _at_least(1))
    accumulate: int = setting(1, "batches whose gradients make one update", _at_least(1))
    window: int | None = setting(None, "tokens that a prediction may look back to (the model's n_ctx)", _at_least(1))
    learning_rate: float = setting(1e-4, "at its highest", _above(0))
    warmup: int = setting(0, "updates over which the learning rate rises from 0", _at_least(0))
    final_rate: float = setting(0.1, "share of learning_rate that a cosine comes down to; 1: no fall", _at_least(0))
    optimizer: str = setting("adamw", "adafactor keeps almost no state, for the large models", _one_of(OPTIMIZERS))
    beta_1: float = setting(0.9, "of AdamW", _at_least(0, 1))
    beta_2: float = setting(0.999, "of AdamW", _at_least(0, 1))
    weight_decay: float = setting(0.01, "of the matrices, times the learning rate", _at_least(0))
    clip: float = setting(1.0, "norm that all gradients together are cut down to; 0 is off", _at_least(0))
    dropout: float = setting(0.1, "share that is dropped where GPT-2 was trained so; 0 is off", _at_least(0, 1))
    freeze: str = setting("", "what stays as it is: embeddings, h0-h5, ...", _freeze)
    dtype: str = setting("float32", "bfloat16: mixed precision, float32 weights", _one_of(PRECISIONS))
    recompute: bool = setting(False, "compute activations twice, which saves memory: little on a CPU")
    strategy: str = setting("one", "mirrored: all GPUs; multiworker: as TF_CONFIG says", _one_of(STRATEGIES))
    seed: int = setting(0, "of the order of the data, dropout, samples, and untrained weights", _seed)
    validation: float = setting(0.05, "share of the data, at its end, that is only for validation", _at_least(0, 1))
    evaluate_every: int = setting(100, "updates between two validation losses; 0 is off", _at_least(0))
    sample_every: int = setting(0, "updates between two samples; 0 is off", _at_least(0))
    sample_length: int = setting(100, "tokens of such a sample", _above(0))
    save_every: int = setting(500, "updates between two saves; the last one is always saved", _at_least(1))
    early_stop: int = setting(0, "stop after so many validation losses without a new best; 0 is off", _at_least(0))

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata["check"]
            if check and value is not None:
                check(field.name, value)
        if self.early_stop and not (self.evaluate_every and self.validation):
            raise ValueError("early_stop looks at the validation loss; give evaluate_every and validation above 0")
