"""What the tasks have in common: items that are scored one by one, records of them, and figures made of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt2tf.paper.data import Data
from gpt2tf.paper.score import Score

if TYPE_CHECKING:
    from encoder import Encoder

Z = 1.959964  # standard deviations on either side of the mean that hold 95 % of a normal distribution
WILSON = "95 %, Wilson's for a share of independent items"
DELTA = "95 %, delta method: items are taken as independent draws, and the loss per token as a ratio of two means"


class Setup(NamedTuple):
    """What a task is to be run with."""

    enc: Encoder
    n_ctx: int
    stride: int  # tokens from one window to the next, where a text is longer than a window
    end_of_text: int  # the id of <|endoftext|>


class Figure(NamedTuple):
    """One number of a task."""

    name: str
    value: float
    interval: tuple[float, float]
    rule: str  # how it is made
    column: str | None = None  # of the paper's Table 3, where it is of that kind
    chosen: bool = False  # whether it stands in that column of the row, of several of the kind


class Task:
    """A task on some data. Items are what `--limit` and a journal count; a record is plain JSON."""

    alternatives = 0  # that are needed of each token
    items: Sequence[Any]
    conventions: dict[str, str]  # {"split": ...}, printed beside the figures

    def __init__(self, data: Data, setup: Setup):
        self.data, self.setup = data, setup

    def rows(self, item) -> list[list[int]]:
        """The rows of ids that are to be scored for an item, each from its second token on."""
        raise NotImplementedError

    def record(self, item, scores: list[Score]) -> list:
        """What is kept of an item. scores: of its rows."""
        raise NotImplementedError

    def figures(self, records: list[list]) -> list[Figure]:
        """The numbers of the task. records: of all items, in order."""
        raise NotImplementedError


def at_most(n_ctx: int, context: list[int], end: list[int]) -> list[int]:
    """The last n_ctx tokens of context and end; but all of the end, and one token in front of it."""
    ids = [*context, *end]
    return ids[max(0, min(len(ids) - n_ctx, len(context) - 1)) :]


def accuracy(name: str, hits: Sequence[bool], rule: str, **options) -> Figure:
    """The share of hits in percent, with Wilson's interval."""
    n, share = len(hits), float(np.mean(hits))
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    low, high = max(0.0, centre - half), min(centre + half, 1.0)  # rounding may go beyond
    return Figure(name, 100 * share, (100 * low, 100 * high), rule, **options)


class Loss(NamedTuple):
    """The mean of a loss, and how far its interval reaches on either side; nats."""

    mean: float
    half: float

    @classmethod
    def of(cls, losses: Sequence[float], counts: Sequence[float]) -> Loss:
        """Of items with so much loss and so many units each. One item has an interval of nan, none have all of nan."""
        losses, counts = np.asarray(losses, np.float64), np.asarray(counts, np.float64)
        if not len(losses):
            return cls(math.nan, math.nan)
        mean, n = losses.sum() / counts.sum(), len(losses)
        if n < 2:
            return cls(float(mean), math.nan)
        variance = n / (n - 1) * np.sum((losses - mean * counts) ** 2) / counts.sum() ** 2
        return cls(float(mean), Z * math.sqrt(variance))

    def scaled(self, factor: float) -> Loss:
        """For another unit, of which there are 1 / factor as many."""
        return Loss(self.mean * factor, self.half * factor)

    def perplexity(self, name: str, rule: str, **options) -> Figure:
        low, high = _exp(self.mean - self.half), _exp(self.mean + self.half)
        return Figure(name, _exp(self.mean), (low, high), rule, **options)

    def bits(self, name: str, rule: str, **options) -> Figure:
        mean, half = self.mean / math.log(2), self.half / math.log(2)
        return Figure(name, mean, (mean - half, mean + half), rule, **options)


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)  # of a model that knows nothing of such text
