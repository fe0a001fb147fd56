"""What the scores of a text come to: perplexities and bits, for tokens, words and bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from encoder import Encoder
    from gpt2tf.paper.network import Score


@dataclasses.dataclass(frozen=True)
class Totals:
    """Of the tokens that have a log-probability, and of the text that they spell."""

    tokens: int
    words: int  # as white space separates them
    bytes: int
    log_probability: float  # in nats, of all of them together

    @classmethod
    def of(cls, tokens: Sequence[int], score: Score, enc: Encoder) -> Totals:
        """tokens: a row, score: its score, enc: the encoder of the model."""
        scored = ~np.isnan(score.log_probabilities)
        raw = enc.decode_bytes(np.asarray(tokens, np.int64)[scored].tolist())
        total = float(score.log_probabilities[scored].sum(dtype=np.float64))
        return cls(int(scored.sum()), len(raw.decode("utf-8", "replace").split()), len(raw), total)

    def perplexity(self, unit: str = "tokens") -> float | None:
        """For each of the tokens, words or bytes; None where there are none of them."""
        return self._for_each(unit, lambda nats: math.exp(nats) if nats < 700 else math.inf)

    def bits(self, unit: str) -> float | None:
        """Bits for each of the tokens, words or bytes; None where there are none of them."""
        return self._for_each(unit, lambda nats: nats / math.log(2))

    @property
    def mean(self) -> float | None:
        """The mean log-probability of a token; None where there is none."""
        return self._for_each("tokens", lambda nats: -nats)

    def _for_each(self, unit, function):
        count = getattr(self, unit)
        return function(-self.log_probability / count) if count else None
