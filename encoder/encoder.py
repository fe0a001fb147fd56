"""Byte pair encoding: text to token ids and back.

Mirrors openai/gpt-2 src/encoder.py (the whole file, at 9b63575): same names, same ids, same texts. The
quirks stay: contractions are split in lower case and after an ASCII apostrophe only, and the text
`<|endoftext|>` is seven ordinary tokens. Deliberate differences:

- a piece of n bytes takes O(n log n), not O(n^2);
- the cache of pieces is bounded;
- `decode` takes any flat array of integers, and an id outside the vocabulary is a ValueError that names it;
- `get_encoder` reads UTF-8 whatever the locale, refuses a damaged or incomplete vocabulary, keeps a last
  merge that lost its newline, and without a model's name reads the released vocabulary packaged here.
"""

import json
import re
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import regex

PATTERN = (  # openai/gpt-2 src/encoder.py:53
    r"'(?:[sdmt]|ll|re|ve)"
    r"| ?\p{L}+"
    r"| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)"  # leaves the last blank of a run to the word that follows
    r"|\s+"
)
END_OF_TEXT = "<|endoftext|>"
CACHED_PIECES = 2**16  # the distinct pieces of some megabytes of English; about 10 MB of memory
CACHED_LENGTH = 32  # characters; longer pieces hardly ever come back, and the cache must not hold a whole file


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


def get_pairs(word: tuple[str, ...]) -> set[tuple[str, str]]:
    """Returns the set of neighbouring symbols of `word`. Source: openai/gpt-2 src/encoder.py:30-40.

    Kept as one of the original's public names; `Encoder.bpe` needs the places of the pairs too.
    """
    return set(pairwise(word))


class Encoder:
    """The byte pair encoder. Source: openai/gpt-2 src/encoder.py:42-106.

    Args:
        encoder: token id by token, the token written in the characters of `bytes_to_unicode`.
        bpe_merges: pairs of symbols, in the order in which the training merged them.
        errors: what `decode` does with bytes that are not UTF-8, as in `bytes.decode`.

    The tables are taken as they are; `get_encoder` checks those that it reads.
    """

    def __init__(self, encoder: dict[str, int], bpe_merges: Iterable[tuple[str, str]], errors: str = "replace"):
        self.encoder = encoder
        self.decoder = {token_id: token for token, token_id in encoder.items()}
        self.errors = errors
        self.byte_encoder = bytes_to_unicode()
        self.byte_decoder = {char: byte for byte, char in self.byte_encoder.items()}
        self.bpe_ranks = {pair: rank for rank, pair in enumerate(bpe_merges)}
        self.cache: dict[str, list[int]] = {}  # piece of text: its ids
        self.pat = regex.compile(PATTERN)

    def bpe(self, token: str) -> str:
        """Returns the symbols that `token` (characters of `bytes_to_unicode`) is merged into, joined by spaces.

        Source: openai/gpt-2 src/encoder.py:55-94.
        """
        return " ".join(self._merge(token))

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of `text`.

        Raises UnicodeEncodeError (a ValueError) for a lone surrogate, which has no UTF-8.
        Source: openai/gpt-2 src/encoder.py:96-101.
        """
        cache = self.cache
        bpe_tokens = []
        for piece in self.pat.findall(text):
            ids = cache.get(piece)
            if ids is None:
                # Latin-1 gives each byte a character with its own number, which is what translate looks up.
                token = piece.encode("utf-8").decode("latin-1").translate(self.byte_encoder)
                ids = [self.encoder[symbol] for symbol in self._merge(token)]
                if len(piece) <= CACHED_LENGTH:
                    if len(cache) >= CACHED_PIECES:
                        cache.clear()  # the frequent pieces are back at once; cheaper than keeping an order
                    cache[piece] = ids
            bpe_tokens += ids
        return bpe_tokens

    def decode(self, tokens: Any) -> str:
        """Returns the text of token ids.

        Args:
            tokens: integers of shape [seq]: a list, tuple, array or tensor; may be empty.

        Raises ValueError for another rank or an id outside the vocabulary, TypeError for anything but integers.
        Bytes that are not UTF-8 (a character cut in two) become U+FFFD unless `errors` says otherwise.
        Source: openai/gpt-2 src/encoder.py:103-106.
        """
        ids = np.asarray(tokens)  # [seq]
        if ids.ndim != 1:
            raise ValueError(
                f"decode takes token ids of shape [seq], not a {type(tokens).__name__} of shape {list(ids.shape)}"
            )
        if ids.size and ids.dtype.kind not in "iu":  # an empty list has no integers to tell it from floats
            raise TypeError(f"decode takes integer token ids, not {ids.dtype}")
        try:
            text = "".join([self.decoder[token_id] for token_id in ids.tolist()])
        except KeyError as error:
            raise ValueError(
                f"token id {error.args[0]} is outside the vocabulary of {len(self.decoder)} tokens"
            ) from None
        return bytes(map(self.byte_decoder.__getitem__, text)).decode("utf-8", errors=self.errors)

    def _merge(self, token: str) -> list[str]:
        """Merges the characters of `token` until none of its pairs has a rank.

        The original looks for the lowest ranked pair, merges all its places from left to right, and starts over:
        n rounds of n steps. Here a heap hands out the places of pairs, by rank and then from left to right, and a
        merge touches only the two pairs beside it. The result is the same for any table of merges, because a round
        takes every place of one pair before the pairs that it made are pushed. (In a trained table those always
        rank later and could be pushed at once, but a line out of order must not change the algorithm.)
        """
        rank_of = self.bpe_ranks.get
        size = len(token)
        # A ring of symbols. A None, which is in no pair, closes it (as index `size` and as -1) and marks the merged.
        symbols: list[Any] = [*token, None]
        left = list(range(-1, size))
        right = [*range(1, size + 1), 0]

        heap = [(rank, place) for place, pair in enumerate(pairwise(token)) if (rank := rank_of(pair)) is not None]
        heapify(heap)
        while heap:
            lowest = heap[0][0]
            changed = []
            while heap and heap[0][0] == lowest:
                place = heappop(heap)[1]
                other = right[place]
                if rank_of((symbols[place], symbols[other])) != lowest:
                    continue  # an earlier merge took one of the two
                symbols[place] += symbols[other]
                symbols[other] = None
                right[place] = right[other]
                left[right[other]] = place
                changed += (left[place], place)
            for place in changed:
                rank = rank_of((symbols[place], symbols[right[place]]))
                if rank is not None:
                    heappush(heap, (rank, place))
        return [symbol for symbol in symbols if symbol is not None]


def get_encoder(model_name: str | None = None, models_dir: str | PathLike[str] = "models") -> Encoder:
    """Returns the encoder of `models_dir/model_name`, or of the released models if no name is given.

    Raises FileNotFoundError if encoder.json or vocab.bpe is missing, ValueError if one is damaged or the two
    do not belong together; the message names the file and the remedy. Source: openai/gpt-2 src/encoder.py:108-117.
    """
    if model_name is None:
        folder, remedy = Path(__file__).parent, "install gpt2tf again"
    else:
        folder, remedy = Path(models_dir, model_name), "get the file again"
    encoder_path, merges_path = folder / "encoder.json", folder / "vocab.bpe"
    try:
        encoder = _read_encoder(encoder_path)
        bpe_merges = _read_merges(merges_path)
        _check_same_tokens(encoder, bpe_merges, encoder_path, merges_path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is missing; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    return Encoder(encoder, bpe_merges)


def write_vocabulary(folder: str | PathLike[str], n_vocab: int) -> None:
    """Writes encoder.json and vocab.bpe for the released vocabulary, cut to its first n_vocab - 1 tokens.

    `<|endoftext|>` comes last, as in the release; n_vocab 50,257 writes the released files byte for byte.
    Raises ValueError for a size that has no room for the 256 bytes or that the release does not have.
    """
    released = get_encoder()
    smallest, largest = 257, len(released.encoder)
    if not smallest <= n_vocab <= largest:
        raise ValueError(f"n_vocab is {n_vocab}; the released vocabulary can be cut to {smallest} up to {largest}")
    tokens = [*list(released.encoder)[: n_vocab - 1], END_OF_TEXT]
    merges = list(released.bpe_ranks)[: n_vocab - smallest]
    table = json.dumps({token: token_id for token_id, token in enumerate(tokens)})
    Path(folder, "encoder.json").write_text(table, encoding="utf-8", newline="\n")
    lines = ["#version: 0.2", *map(" ".join, merges)]
    Path(folder, "vocab.bpe").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")  # newlines of any system become "\n"
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: byte {error.start} is not UTF-8") from None


def _read_encoder(path: Path) -> dict[str, int]:
    """Reads token ids and checks that they are 0 to n-1."""
    text = _read_text(path)
    try:
        encoder = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or incomplete, not JSON: {error}") from None
    if not isinstance(encoder, dict) or not all(type(token_id) is int for token_id in encoder.values()):
        raise ValueError(f"{path} is not a table of token ids")
    if sorted(encoder.values()) != list(range(len(encoder))):
        raise ValueError(f"{path} is damaged: its {len(encoder)} ids are not the numbers 0 to {len(encoder) - 1}")
    return encoder


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Reads merges and checks that each is new, and its parts are bytes or made by the lines above."""
    header, *lines = _read_text(path).split("\n")
    if not header.startswith("#version"):
        raise ValueError(f"{path} is not a table of merges: it starts with {header[:40]!r}, not with '#version'")
    if lines and not lines[-1]:
        lines.pop()
    known = set(bytes_to_unicode().values())
    bpe_merges: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, start=2):
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not known.issuperset(pair) or pair in bpe_merges:
            raise ValueError(f"{path} is damaged: line {number}, {line[:40]!r}, is not a new merge of two known parts")
        bpe_merges[pair] = None
        known.add("".join(pair))
    return list(bpe_merges)


def _check_same_tokens(
    encoder: dict[str, int], bpe_merges: list[tuple[str, str]], encoder_path: Path, merges_path: Path
) -> None:
    """Checks that the bytes, the products of the merges and the special tokens are the tokens of encoder.json."""
    alphabet = set(bytes_to_unicode().values())
    made = alphabet.union(map("".join, bpe_merges))
    missing = [token for token in [*made, END_OF_TEXT] if token not in encoder]
    if missing:
        raise ValueError(
            f"{encoder_path} is damaged or does not belong to {merges_path}: it lacks {len(missing)} tokens, "
            f"{min(missing)[:40]!r} among them"
        )
    extra = [
        token
        for token in encoder.keys() - made
        if not (re.fullmatch(r"<\|.+\|>", token) and alphabet.issuperset(token))  # not a special token
    ]
    if extra:
        raise ValueError(
            f"{merges_path} is incomplete or does not belong to {encoder_path}: no merge makes {len(extra)} of the "
            f"tokens, {min(extra)[:40]!r} among them"
        )
