"""JSON lines in, and out a file that grows by whole parts: a run that was ended at any point goes on from there."""

from __future__ import annotations

import bisect
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from gpt2tf.files import clean, locked, naming
from gpt2tf.train.reader import text_reader


def read_rows(path: str, fields: Mapping[str, str], limit: int | None = None) -> list[dict]:
    """The first `limit` objects of a file with one JSON object a line, or all; .gz is unpacked, empty lines are none.

    fields: names that an object must have, and what they hold: "text"; "texts", a text or a list of some, which comes
    as a list; "optional", a text or nothing. Other names are left out. The texts have no lone surrogates.
    Raises ValueError that names the file and the line, OSError that names the file.
    """
    rows = []
    example = {name: {"text": "...", "texts": ["..."]}[kind] for name, kind in fields.items() if kind != "optional"}
    example = f"each line must be like {json.dumps(example)}"
    with open(path, "rb") as file, naming(path):
        for number, line in enumerate(text_reader(file, path), 1):
            if len(rows) == limit:
                break
            if line.strip():
                try:
                    rows.append(_row(clean(line), fields))
                except ValueError as error:
                    raise ValueError(f"{path}, line {number} {error}; {example}") from None
    if not rows:
        raise ValueError(f"{path} is empty; {example}")
    return rows


def _row(line: str, fields: Mapping[str, str]) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError("is not an object")
    texts = {}
    for name, kind in fields.items():
        value = row.get(name)
        if value is None and kind == "optional":
            continue
        values = value if kind == "texts" and isinstance(value, list) else [value]
        if not values or not all(isinstance(text, str) and text.strip() for text in values):
            raise ValueError(f"has no text as {name!r}")
        values = [clean(text) for text in values]
        texts[name] = values if kind == "texts" else values[0]
    return texts


def digest(value) -> str:
    """A hash of a value of JSON's types."""
    import hashlib  # takes a moment, which `sample.py --help` does without

    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class Growing:
    """A file that grows by parts, and beside it its record: the settings, then the file's size after each part.

    parts: how many there are.
    """

    def __init__(self, file: BinaryIO, record: BinaryIO, parts: int):
        self._file, self._record, self.parts = file, record, parts

    def append(self, part: str) -> None:
        """Add a part, which is safe on the disk before it counts."""
        self._file.write(part.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._record.write(b"%d\n" % self._file.tell())
        self._record.flush()
        self.parts += 1


@contextlib.contextmanager
def growing(path: str, settings: Mapping) -> Iterator[Growing]:
    """A file of a run with these settings (of JSON's types): a new one, or what there is of it, cut after whole parts.

    The record is a hidden file in the same folder, so that a pattern in the shell that names the files of many shards
    does not name it. Raises FileExistsError for a file that is none of such a run or of one with other settings, which
    are named; BlockingIOError where another process is at it.
    """
    target = os.path.realpath(path)
    if os.path.lexists(target) and not os.path.isfile(target):
        raise FileExistsError(f"{path} is no ordinary file, in which a run could go on; give another --output")
    record_path = record_of(target)
    header = json.dumps(settings).encode() + b"\n"
    new = not os.path.exists(target) or not os.path.getsize(target)
    if not new and not os.path.exists(record_path):
        raise FileExistsError(f"{path} is there already, and is not of such a run; remove it, or give another --output")

    def busy():
        raise BlockingIOError(f"another process is writing {path}; wait for it, or give another --output")

    with naming(path, record_path), open(record_path, "ab") as record, locked(record_path, busy):
        with open(record_path, "rb") as written:
            first, *lines = written.read().splitlines(keepends=True) or [b""]
        if first != header and not new:
            raise FileExistsError(f"{path} {_difference(first, header)}; give another --output, or remove the file")
        sizes = _sizes(lines) if first == header else []
        with open(target, "ab") as file:
            parts = bisect.bisect_right(sizes, file.tell())
            file.truncate(sizes[parts - 1] if parts else 0)
            file.seek(0, os.SEEK_END)
            record.truncate(0)
            record.write(header + b"".join(b"%d\n" % size for size in sizes[:parts]))
            record.flush()
            yield Growing(file, record, parts)


def record_of(path: str) -> str:
    """Where the record of a growing file is."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.run")


def _sizes(lines: list[bytes]) -> list[int]:
    """The sizes in a record, up to the first line that a power cut left as something else."""
    sizes = []
    for line in lines:
        if not (line.endswith(b"\n") and line[:-1].isdigit() and int(line) >= (sizes or [0])[-1]):
            break
        sizes.append(int(line))
    return sizes


def _difference(first: bytes, header: bytes) -> str:
    """How the settings of a record, its first line, differ from others."""
    try:
        before = json.loads(first) if first.endswith(b"\n") else None
    except (ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        return "cannot be gone on with, as its record is damaged"
    now = json.loads(header)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    values = [f"{name} {json.dumps(before.get(name))} and not {json.dumps(now.get(name))}" for name in names]
    return "was begun with " + ", ".join(values)
