"""How fast an update of the weights is, and how far from what the machine allows.

There is nothing like it in openai/gpt-2. An update is what `trainer.Trainer` does with a batch: forward and backward
pass with dropout, gradients cut to a norm of 1, AdamW. The peer does the same to the same weights, in turns with us.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from gpt2tf.bench import peers as engines
from gpt2tf.bench.costs import training_operations
from gpt2tf.bench.speed import OURS, PAUSE, Limits, timed
from gpt2tf.checkpoint import load_model, load_weights
from gpt2tf.train.settings import Settings
from gpt2tf.train.update import Trainer


@dataclasses.dataclass(frozen=True)
class TrainingRow:
    """One engine's figures. first_call_s: the first update, compilation included. update_s: median of the later ones.

    arithmetic_share: of `Limits`. ratio: gpt2tf's speed over this engine's, for the others.
    """

    engine: str
    batch_size: int
    window: int
    first_call_s: float
    update_s: float
    tokens_per_s: float
    operations_per_s: float
    arithmetic_share: float
    ratio: float | None = None


def measure_training(
    path: str | os.PathLike,
    batch_size: int,
    window: int,
    limits: Limits,
    *,
    peers: Sequence[str] = (),
    runs: int = 5,
) -> list[TrainingRow]:
    """The rows of gpt2tf and of transformers, if it is among the peers and installed; the others do not train."""
    hparams, weights = load_weights(path)
    shape = [batch_size, window + 1]
    tokens = np.random.default_rng(0).integers(0, hparams.n_vocab, shape).astype(np.int32)  # [batch, window + 1]
    trainer = Trainer(load_model(path), Settings(batch_size=batch_size), tf.distribute.get_strategy())
    updates = {OURS: lambda: trainer.update(0, tokens)}
    if "transformers" in peers and not engines.missing_modules("transformers"):
        updates["transformers"] = engines.transformers_update(hparams, weights, tokens)
    first = {name: timed(update) for name, update in updates.items()}
    times = {name: [] for name in updates}
    for _ in range(runs):
        for name, update in updates.items():
            time.sleep(PAUSE)
            times[name].append(timed(update))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    operations = training_operations(hparams, batch_size, window)
    return [
        TrainingRow(
            name,
            batch_size,
            window,
            first[name],
            seconds,
            batch_size * window / seconds,
            operations / seconds,
            operations / seconds / limits.operations_per_s,
            None if name == OURS else seconds / medians[OURS],
        )
        for name, seconds in medians.items()
    ]
