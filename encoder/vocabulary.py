"""A vocabulary as files: encoder.json, the ids of the tokens, and vocab.bpe, the merges that make them of bytes.

Mirrors the reading in openai/gpt-2 src/encoder.py:108-117. Differences: UTF-8 whatever the locale; Hugging Face's names
of the same files, vocab.json and merges.txt; a damaged or incomplete vocabulary is refused, a last merge that lost its
newline is kept; tokens that no merge makes may have been added, of any spelling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from itertools import count
from os import PathLike
from pathlib import Path

from .tokenizer import ADDED, TOKENIZER, added_tokens, read_tokenizer, with_added

PACKAGE = Path(__file__).parent  # where the released files are
RELEASED_SIZE = 50257
TABLE_NAMES = ("encoder.json", "vocab.json")  # the original's, Hugging Face's
MERGES_NAMES = ("vocab.bpe", "merges.txt")
END_OF_TEXT = "<|endoftext|>"
LFS_POINTER = "version https://git-lfs.github.com/spec/v1"  # how the note begins that Git LFS leaves in place of a file


def bytes_to_unicode() -> dict[int, str]:
    """Returns the visible character that stands for each of the 256 bytes in the vocabulary files.

    A byte that is printable in Latin-1 stands for itself; the others (blanks, controls, the soft hyphen)
    take the code points from 256 on. So a space can separate tokens in a file, and never is part of one.
    Source: openai/gpt-2 src/encoder.py:9-28.
    """
    stand_ins = map(chr, count(256))
    return {
        byte: chr(byte) if chr(byte).isprintable() and not chr(byte).isspace() else next(stand_ins)
        for byte in range(256)
    }


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What the files of a vocabulary hold, to the letter, so that they are written as they were read.

    table: the text of encoder.json; merges: of vocab.bpe. Either is None where there is no such file: without merges
    ids can be decoded, and no text encoded.
    """

    table: str | None = dataclasses.field(default=None, repr=False)
    merges: str | None = dataclasses.field(default=None, repr=False)

    @functools.cached_property
    def size(self) -> int | None:
        """The number of tokens; None without a table."""
        return None if self.table is None else len(_parse_table(self.table, TABLE_NAMES[0]))

    def tables(self, *names) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Returns (token ids by token, pairs in the order of the merges), as `Encoder` takes them.

        names: what errors call the two files. Raises FileNotFoundError without one of them, ValueError if one is
        damaged or the two do not belong together.
        """
        table_name, merges_name = names or (TABLE_NAMES[0], MERGES_NAMES[0])
        for text, name in (self.table, table_name), (self.merges, merges_name):
            if text is None:
                raise FileNotFoundError(f"{name} is missing")
        encoder, bpe_merges = _parse_table(self.table, table_name), _parse_merges(self.merges, merges_name)
        _check_same_tokens(encoder, bpe_merges, table_name, merges_name)
        return encoder, bpe_merges

    def write(self, folder: str | PathLike[str]) -> None:
        """Writes the files that there are, under the original's names."""
        for text, (name, _) in (self.table, TABLE_NAMES), (self.merges, MERGES_NAMES):
            if text is not None:
                Path(folder, name).write_bytes(text.encode("utf-8"))


def read_vocabulary(folder: str | PathLike[str]) -> Vocabulary | None:
    """Returns the vocabulary in a model's folder, of which one file may be missing; None without both: it is unknown.

    Raises ValueError for a file that is not UTF-8 or was not fetched by Git LFS, and for a table that is damaged; the
    message names the file and the remedy. Raises FileNotFoundError for a folder that is not there.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}, so no vocabulary in it")
    paths = _paths(folder)
    more = [path for path in (Path(folder, TOKENIZER), Path(folder, ADDED)) if path.exists()]
    for path in [*paths, *more]:
        if path.exists() and path.read_bytes().startswith(LFS_POINTER.encode()):
            raise ValueError(f"{path} is not the file itself but a pointer of Git LFS to it; get it with: git lfs pull")
    with _remedy(folder):
        texts = [_read_text(path) if path.exists() else None for path in paths]
        if paths[0].name == TOKENIZER:
            texts = read_tokenizer(paths[0], texts[0], bytes_to_unicode())
        elif texts[0] is not None:
            _parse_table(texts[0], paths[0])
            if paths[0].name == TABLE_NAMES[1]:
                for path in more:
                    texts[0] = with_added(texts[0], added_tokens(path, _read_text(path)), bytes_to_unicode())
        if texts[0] is not None:
            _parse_table(texts[0], paths[0])
    return None if texts == [None, None] else Vocabulary(*texts)


def read_tables(folder: str | PathLike[str] | None = None) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The `tables` of the vocabulary in a folder, or of the released one. Raises as they and `read_vocabulary` do."""
    folder = PACKAGE if folder is None else folder
    vocabulary = read_vocabulary(folder) or Vocabulary()
    with _remedy(folder):
        return vocabulary.tables(*_paths(folder))


def released(n_vocab: int = RELEASED_SIZE) -> Vocabulary:
    """Returns the released vocabulary, cut to its first n_vocab - 1 tokens.

    `<|endoftext|>` comes last, as in the release; n_vocab 50,257 is the released files byte for byte.
    Raises ValueError for a size that has no room for the 256 bytes or that the release does not have.
    """
    encoder, bpe_merges = read_tables()
    smallest, largest = 257, len(encoder)
    if not smallest <= n_vocab <= largest:
        raise ValueError(f"n_vocab is {n_vocab}; the released vocabulary can be cut to {smallest} up to {largest}")
    if n_vocab == largest:
        return read_vocabulary(PACKAGE)
    tokens = [*list(encoder)[: n_vocab - 1], END_OF_TEXT]
    lines = ["#version: 0.2", *map(" ".join, bpe_merges[: n_vocab - smallest])]
    return Vocabulary(json.dumps({token: token_id for token_id, token in enumerate(tokens)}), "\n".join(lines) + "\n")


def write_vocabulary(folder: str | PathLike[str], n_vocab: int) -> None:
    """Writes encoder.json and vocab.bpe for the released vocabulary, cut as by `released`."""
    released(n_vocab).write(folder)


def real_tokens(vocabulary: Vocabulary | None, n_vocab: int) -> int:
    """How many of the n_vocab rows of wte stand for a token: those in the table; all where it is not known.

    The others were added to make n_vocab a round number, and are not to be sampled.
    """
    size = vocabulary and vocabulary.size
    return min(size or n_vocab, n_vocab)


def _paths(folder: str | PathLike[str]) -> list[Path]:
    """Where the two files are: under the original's names, or else Hugging Face's; or the one file that is both."""
    found = []
    for original, other in (TABLE_NAMES, MERGES_NAMES):
        path = Path(folder, original)
        found.append(Path(folder, other) if not path.exists() and Path(folder, other).exists() else path)
    tokenizer = Path(folder, TOKENIZER)
    return [tokenizer, tokenizer] if tokenizer.exists() and not all(path.exists() for path in found) else found


@contextlib.contextmanager
def _remedy(folder: str | PathLike[str]) -> Iterator[None]:
    """Puts what to do behind the errors of reading the files of a folder."""
    remedy = "install gpt2tf again" if Path(folder) == PACKAGE else "get the file again"
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: byte {error.start} is not UTF-8") from None


def _parse_table(text: str, name) -> dict[str, int]:
    """Token ids, which are checked to be 0 to n-1."""
    try:
        encoder = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is damaged or incomplete, not JSON: {error}") from None
    if not isinstance(encoder, dict) or not all(type(token_id) is int for token_id in encoder.values()):
        raise ValueError(f"{name} is not a table of token ids")
    if sorted(encoder.values()) != list(range(len(encoder))):
        raise ValueError(f"{name} is damaged: its {len(encoder)} ids are not the numbers 0 to {len(encoder) - 1}")
    return encoder


def _parse_merges(text: str, name) -> list[tuple[str, str]]:
    """The merges, each checked to be new, of parts that are bytes or made by the lines above."""
    lines_of_any_system = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    header, *lines = lines_of_any_system.split("\n")
    if not header.startswith("#version"):
        raise ValueError(f"{name} is not a table of merges: it starts with {header[:40]!r}, not with '#version'")
    if lines and not lines[-1]:
        lines.pop()
    known = set(bytes_to_unicode().values())
    bpe_merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, start=2):
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not known.issuperset(pair) or pair in bpe_merges:
            raise ValueError(f"{name} is damaged: line {number}, {line[:40]!r}, is not a new merge of two known parts")
        bpe_merges[pair] = None
        known.add("".join(pair))
    return list(bpe_merges)


def _check_same_tokens(encoder: dict[str, int], bpe_merges: list[tuple[str, str]], table_name, merges_name) -> None:
    """Checks that the bytes and the products of the merges are tokens, and that no merge is missing.

    The other tokens are added ones. What the last merges of a file that was cut made are no such: they join two tokens.
    Only behind an `<|endoftext|>` that ends the made ones, as in the release, may an added token be spelt so, too.
    """
    made = {*bytes_to_unicode().values(), *map("".join, bpe_merges)}
    missing = [token for token in [*made, END_OF_TEXT] if token not in encoder]
    if missing:
        raise ValueError(
            f"{table_name} is damaged or does not belong to {merges_name}: it lacks {len(missing)} tokens, "
            f"{min(missing)[:40]!r} among them"
            + (", which other vocabularies spell otherwise: give it that name" if missing == [END_OF_TEXT] else "")
        )
    end = encoder[END_OF_TEXT]
    closes = end > max(encoder[token] for token in made)
    lost = [
        token
        for token in encoder.keys() - made - {END_OF_TEXT}
        if not (closes and encoder[token] > end)
        and any(token[:cut] in encoder and token[cut:] in encoder for cut in range(1, len(token)))
    ]
    if lost:
        raise ValueError(
            f"{merges_name} is incomplete or does not belong to {table_name}: no merge makes {len(lost)} of the "
            f"tokens, {min(lost)[:40]!r} among them"
        )
