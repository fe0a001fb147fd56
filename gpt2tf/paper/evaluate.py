"""Evaluation of a model on a task, item by item, with a journal by which an interrupted one goes on."""

from __future__ import annotations

import collections
import itertools
import json
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gpt2tf.files import naming
from gpt2tf.hparams import HParams, size_name
from gpt2tf.paper.data import Data
from gpt2tf.paper.tables import MEASURED, SAID, TABLE_3

if TYPE_CHECKING:
    from encoder import Encoder
    from gpt2tf.paper.score import Scorer
    from gpt2tf.paper.task import Figure, Setup, Task

FORMAT = 1  # of journals; another where a record, or what is scored, changes


class Settings(NamedTuple):
    """What a record depends on beside the model and the data."""

    dtype: str
    stride: int | None  # None is half of the window
    limit: int | None


class Model(NamedTuple):
    """Which model it is."""

    name: str
    hparams: HParams


class Result(NamedTuple):
    """The figures of a task, and all that they depend on."""

    task: str
    model: Model
    data: Data  # less what --limit left out
    part: bool  # whether --limit left something out
    settings: Settings
    figures: list[Figure]
    conventions: dict[str, str]

    @property
    def size(self) -> str | None:
        """The published size of the model: "124M"."""
        return size_name(self.model.hparams)

    def paper(self, figure: Figure) -> float | None:
        """The paper's number for the model's size, of the kind of the figure."""
        return TABLE_3.get(figure.column, {}).get(self.size)

    def others(self, figure: Figure) -> list:
        """What others measured of the same, for the same weights."""
        return [m for m in MEASURED.get(self.task, ()) if (m.figure, m.size) == (figure.name, self.size)]

    def as_json(self) -> dict:
        """All of it as plain JSON."""
        found = {
            "task": self.task,
            "model_name": self.model.name,
            "size": self.size,
            "hparams": vars(self.model.hparams),
            "data": {"file": self.data.path, "sha256": self.data.sha256, "whole": self.data.whole},
            "items": len(self.data.items),
            "unit": self.data.unit,
            "part": self.part,
            **self.settings._asdict(),
            "conventions": self.conventions,
            "the_paper": SAID.get(self.task),
        }
        found["figures"] = [
            {
                "name": figure.name,
                "value": _finite(figure.value),
                "interval": list(map(_finite, figure.interval)),
                "rule": figure.rule,
                "column": figure.column,
                "paper": self.paper(figure),
                "measured_by_others": [other._asdict() for other in self.others(figure)],
            }
            for figure in self.figures
        ]
        return found


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no others


def make_task(name: str, data: Data, setup: Setup) -> Task:
    """The task of that name on some data."""
    from gpt2tf.paper.choice import ClozeTest, HellaSwag, Lambada
    from gpt2tf.paper.perplexity import Text

    if name == "lambada":
        return Lambada(data, setup)
    if name == "hellaswag":
        return HellaSwag(data, setup)
    return (ClozeTest if name.startswith("cbt-") else Text)(data, setup, name)


def make_setup(enc: Encoder, hparams: HParams, stride: int | None) -> Setup:
    """What tasks are run with; the stride is half of the window if it is not given."""
    from gpt2tf import encoder
    from gpt2tf.paper.task import Setup

    stride = max(1, hparams.n_ctx // 2) if stride is None else stride
    return Setup(enc, hparams.n_ctx, stride, enc.encoder[encoder.END_OF_TEXT])


def limited(data: Data, limit: int | None) -> tuple[Data, bool]:
    """(the first `limit` items, whether there are more)"""
    return data._replace(items=data.items[:limit]), limit is not None and limit < len(data.items)


def evaluate(
    task: Task, scorer: Scorer, journal: Journal | None = None, progress: Callable[[int], object] | None = None
) -> list[Figure]:
    """Score what the journal lacks, and make the figures of all. progress: called with the number of items done."""
    records = list(journal.records) if journal else []
    progress = progress or (lambda n: None)
    progress(len(records))
    left, counts = task.items[len(records) :], collections.deque()

    def rows():
        for item in left:
            found = task.rows(item)
            counts.append(len(found))
            yield from found

    scores = scorer.score(rows(), alternatives=task.alternatives)
    for item in left:
        first = next(scores)
        record = task.record(item, [first, *itertools.islice(scores, counts.popleft() - 1)])
        if journal:
            journal.add(record)
        records.append(record)
        progress(1)
    return task.figures(records)


class Journal:
    """The records of a task, in a file that grows by a line with each.

    Its first line says what they depend on. Raises ValueError, with the difference, for a file that begins otherwise.
    """

    def __init__(self, path: str, depends: dict):
        self.path, self.records = path, []
        head = json.dumps({"format": FORMAT, **depends}) + "\n"
        with naming(path), open(path, "ab+") as file:
            file.seek(0)
            raw = file.read()
            if len(raw) < len(head) and head.encode().startswith(raw):  # new, or the process was killed as it began
                file.truncate(0)
                file.write(head.encode())
                return
        self._read(raw, json.loads(head))

    def _read(self, raw: bytes, depends: dict) -> None:
        lines = raw.split(b"\n")
        try:
            found = json.loads(lines[0])
            self.records = [json.loads(line) for line in lines[1:-1]]
            differing = [name for name in depends.keys() | found.keys() if depends.get(name) != found.get(name)]
            if not all(isinstance(record, list) for record in self.records):
                raise ValueError
        except (ValueError, AttributeError):
            raise ValueError(f"{self.path} is no journal of an evaluation; name another folder with --output") from None
        if differing:
            name = sorted(differing)[0]
            there, here = (str(it.get(name))[:12] for it in (found, depends))  # of a hash the beginning will do
            raise ValueError(
                f"{self.path} is of another evaluation ({name}: {there} there, {here} here); "
                "name another folder with --output, or remove the file"
            )
        if lines[-1]:  # the process was killed while it wrote
            os.truncate(self.path, os.path.getsize(self.path) - len(lines[-1]))

    def add(self, record: list) -> None:
        """Append a record; it is in the file when this returns."""
        with naming(self.path), open(self.path, "a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)
