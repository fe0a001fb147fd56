"""The text of a training corpus: files and folders in, documents out, in pieces. Needs no TensorFlow.

Takes the place of src/load_dataset.py in nshepperd/gpt-2, the best known fork of openai/gpt-2. Differences: no file is
read as a whole, and the pieces have the tokens of the whole; `<|endoftext|>`, as users of that fork type it, ends a
document.
"""

from __future__ import annotations

import collections
import csv
import io
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator

import regex

from gpt2tf import encoder
from gpt2tf.files import naming
from gpt2tf.locate import VOCABULARY_FILES

CHUNK = 2**16  # characters read at a time, which is also about the size of a piece
LONGEST_PIECE = 2**20  # characters; the encoder takes some 300 bytes of memory for each of a single word's
OTHER_COLUMN = "name another text_column"
LONGEST_FIELD = 2**31 - 1  # characters in a field of a csv file; as much as a C long takes everywhere
HEAD = 2**13  # bytes in which a zero shows that a file is not text

# The last place where text can be cut without changing a token. Encoder.pat matches from left to right, never looks
# back, looks ahead only from white space, and its tokens end where letters, digits or signs end.
# One place is doubtful: an apostrophe before a letter is either the last of some signs or starts a contraction.
LAST_CUT = regex.compile(r"(?r)\p{L}(?=\P{L})|\p{N}(?=\P{N})|[^\s\p{L}\p{N}'](?=[\s\p{L}\p{N}])")
BLANK = regex.compile(r"\s*")
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that was not UTF-8, or half of an escaped pair in JSON

log = logging.getLogger(__name__)


def find_files(path: str | os.PathLike) -> list[str]:
    """The text files that DATA stands for.

    path: a file of any name, or a folder: all files in it and in its folders, in the order of their names. Hidden files
    and, with a note, files that are not text and folders of models are left out of a folder.
    Raises ValueError for a file that is not text, and a folder without any; OSError for what cannot be read.
    """
    path = os.fspath(path)
    if not os.path.isdir(path):
        if os.path.isfile(path) and not _is_text(path):  # from a pipe, whatever comes is text
            raise ValueError(f"{path} is not UTF-8 text, it holds zero bytes; unpack it, or save it as UTF-8")
        return [path]
    there = list(_walk(path, ()))
    files = [file for file in there if os.path.isfile(file) and _is_text(file)]
    skipped = sorted(set(there).difference(files))
    if not files:
        raise ValueError(f"no file in {path} is text, of {len(there)}; name a folder of text, .jsonl or .csv files")
    if skipped:
        log.warning("%s: %d files that are not text are left out, %s the first", path, len(skipped), skipped[0])
    return files


def _walk(path: str, above: tuple[str, ...]) -> Iterator[str]:
    """All files in a folder that are not hidden, by name; links are followed, but not back into a folder above."""
    if not os.path.isdir(path):
        yield path
    elif os.path.realpath(path) not in above:
        names = sorted(os.listdir(path))
        if all(name in names for name in VOCABULARY_FILES):  # it may be the folder of this very run
            log.info("%s holds a model and is left out", path)
            return
        for name in names:
            if not name.startswith("."):
                yield from _walk(os.path.join(path, name), (*above, os.path.realpath(path)))


def _is_text(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" not in file.read(HEAD)


def documents(
    files: list[str], text_column: str = "text", advance: Callable[[int], object] = lambda count: None
) -> Iterator[Iterator[str]]:
    """The documents of files, each as pieces of text that are encoded one by one to the tokens of the whole.

    files: text, or .jsonl and .csv, each of whose rows has a document in `text_column`. In all of them:

    - the text `<|endoftext|>` ends a document, too; documents of nothing but white space are left out;
    - a byte order mark is dropped, "\\r\\n" and "\\r" become "\\n", and a byte that is not UTF-8 becomes U+FFFD,
      with one note;
    - a piece has at most LONGEST_PIECE + CHUNK characters. A longer sequence of only letters, only digits, only signs
      or only white space is cut all the same, at the cost of a token or two.

    Each document is to be read before the next one is asked for; what is left of it is skipped.
    advance: called with the number of bytes of each read.
    Raises ValueError for files without text, a missing column or a broken line (with file and line); OSError for what
    cannot be read.
    """
    replaced = collections.Counter()  # file: characters
    empty = True
    for file in files:
        for chunks in _texts(file, text_column, advance):
            pieces = _pieces(_replace_surrogates(chunks, file, replaced))
            for piece in pieces:
                # A piece ends in a character that is no white space, unless it is the last one.
                if piece is not None and not BLANK.fullmatch(piece):
                    document = itertools.chain([piece], iter(pieces.__next__, None))
                    yield document
                    collections.deque(document, maxlen=0)
                    empty = False
    if replaced:
        log.info(
            "note: %d bytes that are not UTF-8 were replaced by U+FFFD, in %d files, %s the first",
            *(replaced.total(), len(replaced), next(iter(replaced))),
        )
    if empty:
        others = f" and {len(files) - 1} other files" if len(files) > 1 else ""
        raise ValueError(f"there is no text in {files[0]}{others}; name a file or folder that holds some")


def _pieces(chunks: Iterable[str]) -> Iterator[str | None]:
    """Text in pieces that can be encoded one by one, with None for each `<|endoftext|>` and for the end."""
    held = ""
    for chunk in chunks:
        *ended, held = (held + chunk).split(encoder.END_OF_TEXT)
        for text in ended:
            yield text
            yield None
        known = max(0, len(held) - len(encoder.END_OF_TEXT))  # the rest may be half of an <|endoftext|>
        cut = LAST_CUT.search(held, 0, known)
        size = cut.end() if cut else known if known >= LONGEST_PIECE else 0
        if size:
            yield held[:size]
            held = held[size:]
    yield held
    yield None


def _replace_surrogates(chunks: Iterable[str], file: str, replaced: collections.Counter) -> Iterator[str]:
    for chunk in chunks:
        chunk, count = SURROGATE.subn("\ufffd", chunk)
        if count:
            replaced[file] += count
        yield chunk


class _Counted(io.FileIO):
    """A file that tells how many bytes were read from it."""

    def __init__(self, path: str, advance: Callable[[int], object]):
        super().__init__(path)
        self.advance = advance

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.advance(count)
        return count


def _texts(path: str, text_column: str, advance: Callable[[int], object]) -> Iterator[Iterator[str]]:
    """The texts of a file, each in chunks: that of each row, or the file as a whole."""
    kind = os.path.splitext(path)[1].lower()
    raw = io.BufferedReader(_Counted(path, advance), CHUNK)
    with naming(path), io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape") as file:
        if kind == ".jsonl":
            rows = _read_jsonl(file, path, text_column)
        elif kind == ".csv":
            rows = _read_csv(file, path, text_column)
        else:
            yield _read_text(file, path)
            return
        for row in rows:
            yield (row[first : first + CHUNK] for first in range(0, len(row), CHUNK))


def _read_text(file: io.TextIOWrapper, path: str) -> Iterator[str]:
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
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}, is no object with a {text_column!r}, but {line.strip()[:40]!r}")
        if not isinstance(row.get(text_column), str):
            there = ", ".join(f"{name!r}: {type(value).__name__}" for name, value in row.items())[:200]
            raise ValueError(f"{path}, line {number}, has no text {text_column!r} (there: {there}); {OTHER_COLUMN}")
        yield row[text_column].replace("\r\n", "\n").replace("\r", "\n")


def _read_csv(file: io.TextIOWrapper, path: str, text_column: str) -> Iterator[str]:
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        rows = csv.reader(file, strict=True)
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
        raise ValueError(f"{path}, line {rows.line_num}, is not CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)  # it holds for the whole process
