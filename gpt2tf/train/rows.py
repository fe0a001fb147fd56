"""The texts in a file of a corpus: that of each row of .jsonl, .csv and their kin, or the file as a whole."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterator

from gpt2tf.files import naming
from gpt2tf.train.reader import PACKED, text_reader

CHUNK = 2**16  # characters read at a time
OTHER_COLUMN = "name another text_column"
LONGEST_FIELD = 2**31 - 1  # characters in a field of a csv file; as much as a C long takes everywhere
LONGEST_WORD = len("-Infinity")  # of JSON; of all that may be cut at the end of what was read, strings alone are longer
BLANKS = re.compile(r"[ \t\n\r]*")


def has_rows(path: str) -> bool:
    """Whether a file has rows with columns, by its name: .jsonl, .ndjson, .json, .csv, .tsv, or .gz of them."""
    return _ending(path) in READERS


def _ending(path: str) -> str:
    return os.path.splitext(path.lower().removesuffix(PACKED))[1]


class _Counted(io.FileIO):
    """A file that tells how many bytes were read from it."""

    def __init__(self, path: str, advance: Callable[[int], object]):
        super().__init__(path)
        self.advance = advance

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.advance(count)
        return count


def texts(
    path: str, text_column: str = "text", advance: Callable[[int], object] = lambda count: None
) -> Iterator[Iterator[str]]:
    """The texts of a file, each in chunks: those of the rows in `text_column`, or that of the file.

    Each is to be read before the next one is asked for. advance: called with the number of bytes of each read.
    Raises ValueError for what `text_reader` refuses, a missing column and a broken row, with its line; OSError.
    """
    with naming(path), io.BufferedReader(_Counted(path, advance)) as stream, text_reader(stream, path) as file:
        read = READERS.get(_ending(path))
        if read is None:
            yield _chunks(file, path)
            return
        for row in read(file, path, text_column):
            yield (row[first : first + CHUNK] for first in range(0, len(row), CHUNK))


def _chunks(file: io.TextIOWrapper, path: str) -> Iterator[str]:
    with naming(path):
        while chunk := file.read(CHUNK):
            yield chunk


def _read_jsonl(file: io.TextIOWrapper, path: str, text_column: str) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from None
        yield _column(row, f"{path}, line {number},", text_column)


def _column(row, place: str, text_column: str) -> str:
    if not isinstance(row, dict):
        raise ValueError(f"{place} is no object with a {text_column!r}, but {json.dumps(row)[:40]!r}")
    if not isinstance(row.get(text_column), str):
        there = ", ".join(f"{name!r}: {type(value).__name__}" for name, value in row.items())[:200]
        raise ValueError(f"{place} has no text {text_column!r} (there: {there}); {OTHER_COLUMN}")
    return row[text_column].replace("\r\n", "\n").replace("\r", "\n")


def _read_json(file: io.TextIOWrapper, path: str, text_column: str) -> Iterator[str]:
    """The rows of an array of objects, or of objects one after the other, on one line or many; one of them is held."""
    values = _Values(file, path)
    array = values.sign() == "["
    if array:
        values.skip()
    if array and values.sign() == "]":
        return
    while values.sign() or array:
        row = values.read()
        yield _column(row, f"{path}, line {values.line},", text_column)
        if array and values.sign() == "]":
            break
        if array and values.sign() != ",":
            raise ValueError(f"{path}, line {values.line}, is not JSON: there is no , or ] after an object")
        if array:
            values.skip()


class _Values:
    """JSON, value by value. line: of the last one, or of the sign that comes next."""

    def __init__(self, file: io.TextIOWrapper, path: str):
        self.file, self.path = file, path
        self.held, self.place, self.line = "", 0, 1  # what was read, how far it was used, and in which line that is
        self.decode = json.JSONDecoder().raw_decode

    def sign(self) -> str:
        """The next character that is not blank; "" at the end."""
        while True:
            self.skip(BLANKS.match(self.held, self.place).end() - self.place)
            if self.place < len(self.held):
                return self.held[self.place]
            self.held, self.place = self.file.read(CHUNK), 0
            if not self.held:
                return ""

    def skip(self, size: int = 1) -> None:
        self.line += self.held.count("\n", self.place, self.place + size)
        self.place += size

    def read(self):
        """The value that comes next."""
        self.sign()
        while True:
            try:
                value, end = self.decode(self.held, self.place)
            except (ValueError, RecursionError) as error:
                place = getattr(error, "pos", 0)
                cut = str(error).startswith("Unterminated string") or place >= len(self.held) - LONGEST_WORD
                # Twice as much each time, so that a long value is not tried often.
                more = self.file.read(max(CHUNK, len(self.held))) if cut else ""
                if not more:
                    line = self.line + self.held.count("\n", self.place, place)
                    what = getattr(error, "msg", error)
                    raise ValueError(f"{self.path}, line {line}, is not JSON: {what}") from None
                self.held, self.place = self.held[self.place :] + more, 0
            else:
                self.skip(end - self.place)
                return value


def _read_csv(file: io.TextIOWrapper, path: str, text_column: str, delimiter: str = ",") -> Iterator[str]:
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        rows = csv.reader(file, strict=True, delimiter=delimiter)
        header = next(rows, [])
        if text_column not in header:
            there = ", ".join(repr(name[:40]) for name in header)[:200] or "empty"
            raise ValueError(f"{path} has no column {text_column!r} (its first line: {there}); {OTHER_COLUMN}")
        column = header.index(text_column)
        for row in rows:
            if row and len(row) <= column:
                raise ValueError(f"{path}, line {rows.line_num}, has {len(row)} of {len(header)} columns; complete it")
            if row:
                yield row[column]
    except csv.Error as error:
        kind = "CSV" if delimiter == "," else "TSV with quotes as in CSV"
        raise ValueError(f"{path}, line {rows.line_num}, is not {kind}: {error}") from None
    finally:
        csv.field_size_limit(limit)  # it holds for the whole process


READERS = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": functools.partial(_read_csv, delimiter="\t"),
}
