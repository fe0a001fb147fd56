"""How fast an update of the weights is, and how far from what the machine allows.

An update is what `Trainer` does with a batch: forward and backward pass with dropout, gradients cut to a norm of 1,
AdamW. The peer does the same to the same weights, in turns with us.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from gpt2tf.bench.costs import training_operations
from gpt2tf.bench.machine import Limits
from gpt2tf.bench.peers import OURS, Own, Peer, Turns, installed, write_model
from gpt2tf.bench.plan import Plan
from gpt2tf.checkpoint import load_model, load_weights
from gpt2tf.train.settings import Settings
from gpt2tf.train.update import Trainer

TRAINING = {"transformers": "transformers_update"}  # engines of the peers that train

log = logging.getLogger(__name__)


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


class Ours(Own):
    """Our trainer, with the default settings."""

    def __init__(self, path: str | os.PathLike, tokens: np.ndarray):
        """tokens: [batch, window + 1] int32"""
        self.path, self.tokens = path, tokens

    def load(self) -> None:
        settings = Settings(batch_size=len(self.tokens))
        self.trainer = Trainer(load_model(self.path), settings, tf.distribute.get_strategy())

    def update(self) -> None:
        self.trainer.update(0, self.tokens)


def measure_training(
    path: str | os.PathLike, batch_sizes: Sequence[int], window: int, limits: Limits, plan: Plan
) -> Iterator[TrainingRow]:
    """Yields the rows of each batch size, ours first, once it is done; the only peer that trains is transformers.

    A peer that is not installed, or cannot, is logged and left out.
    """
    hparams, weights, _ = load_weights(path)
    for name in plan.peers:
        if name not in TRAINING:
            log.info("%s is left out: it does not train", name)
    plan = dataclasses.replace(plan, peers=tuple(name for name in plan.peers if name in TRAINING))
    with tempfile.TemporaryDirectory(prefix="gpt2tf-peers-") as folder:
        plan = installed(plan, folder)
        if plan.peers:
            write_model(folder, hparams, weights)
        for batch_size in batch_sizes:
            tokens = np.random.default_rng(0).integers(0, hparams.n_vocab, [batch_size, window + 1])
            times = _measure_batch(path, tokens.astype(np.int32), plan, folder)
            operations = training_operations(hparams, batch_size, window)
            for name, (first_call_s, update_s) in times.items():
                yield TrainingRow(
                    engine=name,
                    batch_size=batch_size,
                    window=window,
                    first_call_s=first_call_s,
                    update_s=update_s,
                    tokens_per_s=batch_size * window / update_s,
                    operations_per_s=operations / update_s,
                    arithmetic_share=operations / update_s / limits.operations_per_s,
                    ratio=None if name == OURS else update_s / times[OURS][1],
                )


def _measure_batch(path, tokens, plan, folder) -> dict[str, tuple[float, float]]:
    """{engine: seconds of the first update, and of a later one}

    tokens: [batch, window + 1]; folder: of `write_model`
    """
    gc.collect()
    with Turns(Ours(path, tokens), f"in training, batch size {len(tokens)}") as turns:
        for name in plan.peers:
            turns.add(name, Peer(TRAINING[name], plan.peer_python, folder), tokens.tolist(), plan.device)
        begun = turns.take(("load",), ("update",))
        runs = [turns.take(("update",)) for _ in range(plan.runs)]
    return {name: (begun[name][1], statistics.median(run[name][0] for run in runs)) for name in turns.engines}
