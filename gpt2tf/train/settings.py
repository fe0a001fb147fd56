"""The settings of a training run: one dataclass, which is the signature, the flags and the record of a save at once.

Names are those of nshepperd/gpt-2 and gpt-2-simple where those have one. No TensorFlow is imported.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from gpt2tf import checks
from gpt2tf.checks import above, at_least, between, fraction, one_of

OPTIMIZERS = ("adamw", "adafactor")
PRECISIONS = ("float32", "bfloat16")
STRATEGIES = ("one", "mirrored", "multiworker")
EMBEDDINGS = "embeddings"  # wte and wpe
ALL_BUT_LAYERS = f"{EMBEDDINGS},ln_f"  # what --only_train_transformer_layers freezes, as in nshepperd/gpt-2
LARGEST = 1e30  # far above any use, and float32 still has room above it
SMALLEST = 1e-30  # far below any use, and above what float32 rounds to 0, which would divide 0 by 0

count = at_least(0, checks.MAX_INT32)
positive = at_least(1, checks.MAX_INT32)
amount = at_least(0, LARGEST)


def _freeze(name, value):
    parse_freeze(value)
    return value


def freeze_words(text: str) -> list[str]:
    """`embeddings, h0-h5` -> ["embeddings", "h0-h5"]"""
    return [word for word in text.replace(" ", "").split(",") if word]


def parse_freeze(text: str) -> Callable[[str], bool]:
    """From `embeddings,h0-h5` to a function that says of a variable's name whether it is frozen.

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

    steps: int = setting(1000, "updates of the weights in all, those before --resume included", positive)
    batch_size: int = setting(1, "windows in a batch, on all devices together", positive)
    accumulate: int = setting(1, "batches whose gradients make one update", positive)
    window: int | None = setting(None, "tokens in a window (the model's n_ctx)", positive)
    learning_rate: float = setting(1e-4, "at its highest", above(0, LARGEST))
    warmup: int = setting(0, "updates over which the learning rate rises from 0", count)
    final_rate: float = setting(0.1, "share of learning_rate at the end of its cosine; 1 is constant", amount)
    optimizer: str = setting("adamw", "adafactor keeps almost no state, for the large models", one_of(OPTIMIZERS))
    beta_1: float = setting(0.9, "of AdamW", fraction)
    beta_2: float = setting(0.999, "of AdamW", fraction)
    epsilon: float = setting(1e-8, "of AdamW, beside the root of the second moments", at_least(SMALLEST, LARGEST))
    weight_decay: float = setting(0.01, "of the matrices, times the learning rate", amount)
    clip: float = setting(1.0, "largest norm of all gradients together; 0 is off", amount)
    dropout: float = setting(0.1, "share that is dropped where GPT-2 was trained so; 0 is off", fraction)
    freeze: str = setting("", "what is not trained: embeddings, h0-h5, ...", _freeze)
    dtype: str = setting("float32", "bfloat16: mixed precision, float32 weights", one_of(PRECISIONS))
    recompute: bool = setting(False, "compute activations twice, which saves most of their memory; on a CPU a third")
    strategy: str = setting("one", "mirrored: all GPUs; multiworker: as TF_CONFIG says", one_of(STRATEGIES))
    seed: int = setting(0, "of the data's order, dropout, samples, a new model's weights", between(0, checks.MAX_SEED))
    validation: float = setting(0.05, "share of the data, at its end, that is only for validation", fraction)
    evaluate_every: int = setting(100, "updates between two validation losses; 0 is off", count)
    sample_every: int = setting(0, "updates between two samples; 0 is off", count)
    sample_length: int = setting(100, "tokens of such a sample", positive)
    save_every: int = setting(500, "updates between two saves; the last update is always saved", positive)
    early_stop: int = setting(0, "stop after so many validation losses without a new best; 0 is off", count)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata["check"]
            if check and value is not None:
                check(field.name, value)
        if self.early_stop and not (self.evaluate_every and self.validation):
            raise ValueError("early_stop looks at the validation loss; give evaluate_every and validation above 0")
