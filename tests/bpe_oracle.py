"""The byte pair encoding as one would write it down from its description. Shares no merging with the port."""

from itertools import pairwise

import regex

from encoder import bytes_to_unicode


class Oracle:
    """The encoder as one would write it down from its description: rounds over the whole word, strings, a cache."""

    def __init__(self, encoder: dict, bpe_merges: list):
        self.encoder = encoder
        self.ranks = {pair: rank for rank, pair in enumerate(bpe_merges)}
        self.cache = {}
        self.byte_encoder = bytes_to_unicode()
        self.pat = regex.compile(
            r"'s|'t|'d|'m|'re|'ve|'ll| ?[\p{L}]+| ?[\p{N}]+| ?(?:(?![\s\p{L}\p{N}]).)+|\s+(?!\S)|\s+", regex.DOTALL
        )

    def bpe(self, token: str) -> str:
        if token in self.cache:
            return self.cache[token]
        word = list(token)
        while len(word) > 1:
            best = min(pairwise(word), key=lambda pair: self.ranks.get(pair, float("inf")))
            if best not in self.ranks:
                break
            merged = []
            for symbol in word:
                if merged and (merged[-1], symbol) == best:
                    merged[-1] += symbol
                else:
                    merged.append(symbol)
            word = merged
        self.cache[token] = " ".join(word)
        return self.cache[token]

    def encode(self, text: str) -> list:
        ids = []
        for piece in self.pat.findall(text):
            token = "".join(self.byte_encoder[byte] for byte in piece.encode("utf-8"))
            ids.extend(self.encoder[symbol] for symbol in self.bpe(token).split(" "))
        return ids
