"""Byte pair encoding: text to token ids and back.

Mirrors openai/gpt-2 src/encoder.py (the whole file, at 9b63575): same names, same ids, same texts. The
quirks stay: contractions are split in lower case and after an ASCII apostrophe only, and the text
`<|endoftext|>` is seven ordinary tokens. Deliberate differences:

- a piece of n bytes takes O(n log n), not O(n^2);
- the cache of pieces is bounded;
- `decode` takes any flat array of integers, and an id outside the vocabulary is a ValueError that names it;
- tokens that no merge makes, such as `[PAD]`, may be spelt in any characters, and decode to them;
- `get_encoder` reads what `vocabulary.py` says, and without a model's name the released vocabulary packaged here.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import regex

from .vocabulary import END_OF_TEXT, Vocabulary, bytes_to_unicode, read_tables

__all__ = ["END_OF_TEXT", "Encoder", "bytes_to_unicode", "get_encoder", "get_pairs"]

PATTERN = (  # openai/gpt-2 src/encoder.py:53
    r"'(?:[sdmt]|ll|re|ve)"
    r"| ?\p{L}+"
    r"| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)"  # leaves the last blank of a run to the word that follows
    r"|\s+"
)
CACHED_PIECES = 2**16  # the distinct pieces of some megabytes of English; about 10 MB of memory
CACHED_LENGTH = 32  # characters; longer pieces hardly ever come back, and the cache must not hold a whole file


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
        made = {*self.byte_decoder, *map("".join, self.bpe_ranks)}
        self.added = {token: self._bytes_of_added(token) for token in encoder.keys() - made}
        self.cache: dict[str, list[int]] = {}  # piece of text: its ids
        self.pat = regex.compile(PATTERN)

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Encoder":
        """The encoder of what a model carries. Raises FileNotFoundError without merges, ValueError for damage."""
        return cls(*vocabulary.tables())

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
            raw = self.decode_bytes(ids.tolist())
        except KeyError as error:
            raise ValueError(
                f"token id {error.args[0]} is outside the vocabulary of {len(self.decoder)} tokens"
            ) from None
        return raw.decode("utf-8", errors=self.errors)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Returns the bytes of token ids, which may begin and end inside of a character. Raises KeyError for others."""
        return b"".join(map(self._bytes_of, map(self.decoder.__getitem__, tokens)))

    def _bytes_of(self, token: str) -> bytes:
        raw = self.added.get(token)
        return bytes(map(self.byte_decoder.__getitem__, token)) if raw is None else raw

    def _bytes_of_added(self, token: str) -> bytes:
        """An added token is written as the others are, or as its plain text. Without merges none is told apart."""
        try:
            raw = bytes(map(self.byte_decoder.__getitem__, token))
            raw.decode("utf-8", errors="strict" if self.bpe_ranks else "replace")
        except (KeyError, UnicodeDecodeError):
            raw = token.encode("utf-8", "replace")
        return raw

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
    return Encoder(*read_tables(None if model_name is None else Path(models_dir, model_name)))
