"""A training run: update after update, with validation, samples and saves, until it is done or asked to stop.

There is nothing like it in openai/gpt-2; the order of things is that of nshepperd/gpt-2 train.py. Differences: what a
step sees and drops is a function of the seed and the step, so that a run which is stopped and resumed ends with the
weights of one which was not, bit for bit on a CPU; validation loss, early stop; the loop prints nothing and yields
`Report`s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from gpt2tf.devices import from_workers
from gpt2tf.generate import Generator
from gpt2tf.train import saves
from gpt2tf.train.tokens import Windows, fixed_windows, split
from gpt2tf.train.update import Trainer

VALIDATION_BATCHES = 64  # spread over the validation tokens; of a small corpus they are all of them
SAMPLE_TOP_K = 40  # of the samples on the way
DIVERGED = (
    "the {} at update {}: give a lower --learning_rate, more --warmup or a --clip; the last save, if any, is as it was"
)
LOGS = "logs"  # a folder in that of the run
SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")  # what TensorBoard draws as curves
)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Report:
    """What an update came to. loss: of this update in nats, with dropout; None: not due after it.

    validation: mean loss in nats. sample: [sample_length] tokens. saved: whether the folder holds this step now.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens_per_s: float
    seconds_left: float
    validation: float | None = None
    sample: np.ndarray | None = None
    saved: bool = False


class Run:
    """A model that is being trained on a corpus, in a folder.

    tokens: [tokens] ids of the corpus; corpus: what tells it from others. end_of_text: the id that samples start from.
    saved: what to go on from. chief: False for the workers that leave saving and sampling to the first one.
    """

    def __init__(
        self,
        trainer: Trainer,
        tokens: np.ndarray,
        folder: str | os.PathLike,
        *,
        corpus: Mapping[str, Any],
        end_of_text: int,
        saved: saves.Saved | None = None,
        chief: bool = True,
    ):
        self.trainer, self.settings = trainer, trainer.settings
        self.folder, self.corpus, self.end_of_text, self.chief = folder, corpus, end_of_text, chief
        window = self.settings.window or trainer.model.hparams.n_ctx
        train, self.held = split(tokens, window, self.settings.validation)
        rows = self.settings.batch_size * self.settings.accumulate
        self.windows = Windows(train, window, rows, self.settings.seed)
        self.step, self.best, self.best_step = 0, math.inf, 0
        if self.settings.early_stop and len(self.held) < 2:
            raise ValueError("early_stop looks at the validation loss, and the corpus is too short to have one")
        if saved:
            self.step, self.best, self.best_step = (saved.progress[name] for name in ("step", "best", "best_step"))
            trainer.restore(saved.state)
            if self.settings.early_stop and not saved.settings.early_stop:  # the save of the best step was not kept
                self.best, self.best_step = math.inf, self.step

    def validation_loss(self) -> float | None:
        """Mean loss in nats on the part of the corpus that is kept for it; None if there is none."""
        if len(self.held) < 2:
            return None
        size = self.settings.batch_size
        return self.trainer.loss(fixed_windows(self.held, self.windows.window, size, VALIDATION_BATCHES))

    def reports(self, stopping: threading.Event) -> Iterator[Report]:
        """Train to the end, or to the update after which `stopping` is set; both are saved. Yields after each update.

        Raises FloatingPointError when the loss is not finite; OSError where the disk does.
        """
        settings, seconds, first = self.settings, 0.0, self.step
        targets = self.windows.batch_size * self.windows.window  # of an update
        logs = self._make_log() if self.chief else None
        for tokens in self._batches():
            rate = float(self.trainer.optimizer.learning_rate)
            start = time.perf_counter()
            loss, norm = self.trainer.update(self.step, tokens.numpy())
            took = time.perf_counter() - start
            if not (math.isfinite(loss) and math.isfinite(norm)):
                found = f"loss is {loss} and the gradients' norm {norm}"
                raise FloatingPointError(DIVERGED.format(found, self.step + 1))
            self.step += 1
            # All workers stop after the same update, or those that go on would wait for the others.
            stop = from_workers(self.trainer.strategy, int(stopping.is_set())).any()
            if stop:
                stopping.set()
            # The first update waits for its program to be compiled, which says nothing about the others.
            done = max(1, self.step - first - 1)
            seconds = took if done == 1 else seconds + took
            report = Report(
                self.step,
                loss,
                norm,
                rate,
                tokens_per_s=done * targets / seconds,
                seconds_left=(settings.steps - self.step) * seconds / done,
            )
            report = self._after_update(report, stop)
            try:
                if logs:
                    self._log(logs, report)
            except OSError as error:  # what a run is for is its saves
                log.warning("%s; training goes on without it", error)
                logs = None
            yield report
            if stop or self._stops_early():
                break
        else:
            stop = False
        if settings.early_stop and self.chief and not stop:
            saves.settle(self.folder, self.best_step)

    def _batches(self):
        """The windows of the steps to come, made while the one before is trained on."""

        def windows(step):
            return self.windows.batch(int(step))

        def tensor(step):
            tokens = tf.numpy_function(windows, [step], tf.int32)
            tokens.set_shape([self.windows.batch_size, self.windows.window + 1])
            return tokens

        return tf.data.Dataset.range(self.step, self.settings.steps).map(tensor).prefetch(2)

    def _after_update(self, report: Report, stopping: bool) -> Report:
        """Validate, sample and save as far as it is due."""
        settings = self.settings
        last = self.step == settings.steps
        validation = sample = None
        if settings.evaluate_every and (last or self.step % settings.evaluate_every == 0):
            validation = self.validation_loss()
            if validation is not None:  # the chief's, so that no rounding makes one worker stop earlier than another
                validation = float(from_workers(self.trainer.strategy, validation)[0])
            if validation is not None and validation < self.best:
                self.best, self.best_step = validation, self.step
        if self.chief and settings.sample_every and self.step % settings.sample_every == 0:
            sample = self._sample()
        best = settings.early_stop and self.best_step == self.step
        saved = last or stopping or best or self.step % settings.save_every == 0 or self._stops_early()
        if saved and not all(np.isfinite(np.asarray(v)).all() for v in self.trainer.variables):
            raise FloatingPointError(DIVERGED.format("weights are not finite", self.step))
        if saved and self.chief:
            progress = {"step": self.step, "best": self.best, "best_step": self.best_step}
            keep = self.best_step if settings.early_stop else None
            state = saves.Saved(settings, self.corpus, progress, self.trainer.state())
            saves.save(self.folder, self.trainer.model, self.step, state, keep)
        return dataclasses.replace(report, validation=validation, sample=sample, saved=bool(saved))

    def _stops_early(self) -> bool:
        patience = self.settings.early_stop * self.settings.evaluate_every
        return bool(patience) and self.step - self.best_step >= patience

    def _sample(self) -> np.ndarray:
        hparams = self.trainer.model.hparams
        length = min(self.settings.sample_length, hparams.n_ctx)
        seed = (self.settings.seed + self.step) % 2**32
        return Generator(self.trainer.model).generate([[self.end_of_text]], length, top_k=SAMPLE_TOP_K, seed=seed)[0]

    def _make_log(self):
        with self._naming_logs():
            return tf.summary.create_file_writer(os.path.join(self.folder, LOGS))

    @contextlib.contextmanager
    def _naming_logs(self):
        try:
            yield
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].split("}} ")[-1]
            raise OSError(f"cannot write {os.path.join(self.folder, LOGS)}: {reason}") from None

    def _log(self, logs, report: Report) -> None:
        """Write the numbers of a report where TensorBoard looks for them."""
        names = ("loss", "gradient_norm", "learning_rate", "tokens_per_s", "validation")
        with self._naming_logs(), logs.as_default():
            for name in names:
                value = getattr(report, name)
                if value is not None:
                    tf.summary.write(name, tf.constant(value, tf.float32), report.step, metadata=SCALARS)
            if report.saved:
                logs.flush()
