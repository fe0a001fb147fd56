"""A training run: update after update, with validation, samples and saves, until it is done or asked to stop.

The order within an update is that of nshepperd/gpt-2 train.py. Differences: the windows and the dropout of an update
depend only on the seed and the step, so that a run which is stopped and resumed ends with the weights of one which was
not, bit for bit; validation loss, early stop; the loop prints nothing and yields `Report`s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from gpt2tf import encoder
from gpt2tf.checkpoint import first_line, name_for_tensorflow
from gpt2tf.devices import from_workers, losing_workers, running_out_of_memory
from gpt2tf.generate import Generator
from gpt2tf.train import saves
from gpt2tf.train.tokens import Corpus, Windows, fixed_windows, split
from gpt2tf.train.update import Trainer

VALIDATION_BATCHES = 64  # at most, spread over the validation tokens; a small corpus has fewer
SAMPLE_TOP_K = 40
LESS = "give a smaller --batch_size, with more --accumulate, a smaller --window, --optimizer adafactor or --recompute"
AGAIN = "start all workers again with --resume"
DIVERGED = (
    "the {} at update {}: give a lower --learning_rate, more --warmup or a --clip; the last save, if any, is as it was"
)
LOGS = "logs"  # a folder in the folder of the run
SCALARS = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")  # what TensorBoard draws as curves
)

log = logging.getLogger(__name__)


@contextlib.contextmanager
def remedies(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns what TensorFlow raises into a MemoryError or a ConnectionError that says what to do."""
    with running_out_of_memory(LESS), losing_workers(strategy, AGAIN):
        yield


@dataclasses.dataclass(frozen=True)
class Report:
    """The figures of an update.

    step: updates of the run so far. loss: of this update in nats, with dropout. gradient_norm: before clipping.
    validation: mean loss in nats; sample: [sample_length] tokens; both are None where they are not due.
    saved: whether the folder holds this step now.
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
    """A model that is trained on a corpus, in a folder.

    saved: the save to go on from. chief: False for a worker that leaves saves and samples to the first one.
    Raises ValueError for a corpus that is too short for the settings, and for a save of another optimizer.
    """

    def __init__(
        self,
        trainer: Trainer,
        corpus: Corpus,
        folder: str | os.PathLike,
        saved: saves.Saved | None = None,
        chief: bool = True,
    ):
        self.trainer, self.settings = trainer, trainer.settings
        self.corpus, self.folder, self.chief = corpus, folder, chief
        window = self.settings.window or trainer.model.hparams.n_ctx
        train, self.held = split(corpus.tokens, window, self.settings.validation)
        rows = self.settings.batch_size * self.settings.accumulate
        self.windows = Windows(train, window, rows, self.settings.seed)
        self.step, self.best, self.best_step = 0, math.inf, 0
        self._generator: Generator | None = None  # of the samples, from the first one on
        if self.settings.early_stop and len(self.held) < 2:
            raise ValueError("early_stop looks at the validation loss, and the corpus is too short to have one")
        if saved:
            self.step, self.best, self.best_step = (saved.progress[name] for name in ("step", "best", "best_step"))
            trainer.restore(saved.state)
            if self.settings.early_stop and not saved.settings.early_stop:  # the save of the best step was not kept
                self.best, self.best_step = math.inf, self.step

    def validation_loss(self) -> float | None:
        """Mean loss in nats on the tokens for validation; None if there are none."""
        if len(self.held) < 2:
            return None
        size = self.settings.batch_size
        return self.trainer.loss(fixed_windows(self.held, self.windows.window, size, VALIDATION_BATCHES))

    def reports(self, stopping: threading.Event | None = None) -> Iterator[Report]:
        """Train to the end, or to the update after which `stopping` is set; both are saved. Yields after each update.

        Raises FloatingPointError when the loss is not finite; OSError where the disk does; MemoryError; ConnectionError
        when another worker is gone.
        """
        stopping, stop = stopping or threading.Event(), False
        with remedies(self.trainer.strategy):
            scalars = _Scalars(self.folder) if self.chief else None
            clock = _Clock()
            while self.step < self.settings.steps:
                report = self._update(clock)
                # All workers stop after the same update, or those that go on would wait for the others.
                stop = from_workers(self.trainer.strategy, int(stopping.is_set())).any()
                if stop:
                    stopping.set()
                report = self._after_update(report, stop)
                if scalars:
                    scalars.write(report)
                yield report
                if stop or self._stops_early():
                    break
        if self.settings.early_stop and self.chief and not stop:
            saves.settle(self.folder, self.best_step)

    def _update(self, clock: _Clock) -> Report:
        rate = float(self.trainer.optimizer.learning_rate)
        tokens = self.windows.batch(self.step)  # [batch, window + 1]
        start = time.perf_counter()
        loss, norm = self.trainer.update(self.step, tokens)
        clock.add(time.perf_counter() - start)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FloatingPointError(DIVERGED.format(f"loss is {loss} and the gradients' norm {norm}", self.step + 1))
        self.step += 1
        return Report(
            self.step,
            loss,
            norm,
            rate,
            tokens_per_s=tokens[:, 1:].size / clock.mean,
            seconds_left=(self.settings.steps - self.step) * clock.mean,
        )

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
            state = saves.Saved(settings, self.corpus.identity, progress, self.trainer.state())
            saves.save(self.folder, self.trainer.model, self.step, state, keep)
        return dataclasses.replace(report, validation=validation, sample=sample, saved=bool(saved))

    def _stops_early(self) -> bool:
        patience = self.settings.early_stop * self.settings.evaluate_every
        return bool(patience) and self.step - self.best_step >= patience

    def _sample(self) -> np.ndarray:
        hparams = self.trainer.model.hparams
        length = min(self.settings.sample_length, hparams.n_ctx)
        seed = (self.settings.seed + self.step) % 2**32
        start = [self.corpus.enc.encoder[encoder.END_OF_TEXT]]
        if self._generator is None:
            self._generator = Generator(self.trainer.model)
        else:  # a new one would be compiled again, and what is compiled is never freed
            self._generator.refresh(self.trainer.model)
        return self._generator.generate([start], length, top_k=SAMPLE_TOP_K, seed=seed)[0]


@dataclasses.dataclass
class _Clock:
    """The mean time of an update. The first one waits for its function to be compiled and counts only while alone."""

    updates: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.seconds = seconds if self.updates < 2 else self.seconds + seconds
        self.updates += 1

    @property
    def mean(self) -> float:
        return self.seconds / max(1, self.updates - 1)


class _Scalars:
    """The numbers of the reports, where TensorBoard looks for them.

    Raises OSError for a folder that cannot be written; a disk that fails later ends the writing, not the run.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = os.path.join(folder, LOGS)
        with self._naming():
            self.writer = tf.summary.create_file_writer(name_for_tensorflow(self.folder))

    def write(self, report: Report) -> None:
        if self.writer is None:
            return
        try:
            with self._naming(), self.writer.as_default():
                for name in ("loss", "gradient_norm", "learning_rate", "tokens_per_s", "validation"):
                    value = getattr(report, name)
                    if value is not None:
                        tf.summary.write(name, tf.constant(value, tf.float32), report.step, metadata=SCALARS)
                if report.saved:
                    self.writer.flush()
        except OSError as error:
            log.warning("%s; training goes on without it", error)
            self.writer = None

    @contextlib.contextmanager
    def _naming(self):
        try:
            yield
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            reason = first_line(error, os.path.abspath(self.folder))
            raise OSError(f"cannot write {self.folder}: {reason}") from None
