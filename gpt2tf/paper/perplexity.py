"""The tasks that are texts: WikiText, Penn Treebank, One Billion Words, enwik8, text8, and any text of the user's.

The log-probability of the whole text, `<|endoftext|>` in front of it, is divided by the number of the set's own units
before it is exponentiated, as openai/gpt-2#78 says of the paper.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt2tf.paper.data import Data, lines_of, original_tokens
from gpt2tf.paper.detokenize import ONE_BILLION, PTB, WIKITEXT, Detokenizer
from gpt2tf.paper.score import Score, Window, windows
from gpt2tf.paper.task import DELTA, Figure, Loss, Setup, Task

if TYPE_CHECKING:
    from encoder import Encoder


class Kind(NamedTuple):
    """What is particular of a set."""

    column: str | None  # of Table 3
    unit: str  # of the number in the paper
    detokenizer: Detokenizer | None = None
    by_line: bool = False  # a line knows nothing of those before


KINDS = {
    "wikitext2": Kind("WikiText2 PPL", "original token", WIKITEXT),
    "wikitext103": Kind("WikiText103 PPL", "original token", WIKITEXT),
    "ptb": Kind("PTB PPL", "original token", PTB),
    "1bw": Kind("1BW PPL", "original token", ONE_BILLION, by_line=True),
    "enwik8": Kind("enwik8 BPB", "byte"),
    "text8": Kind("text8 BPC", "character"),
    "text": Kind(None, "byte"),
}


class Reading(NamedTuple):
    """A text as it is read: rows of ids, each without those before, and the windows in which they are scored."""

    rows: list[np.ndarray]
    windows: list[Window]


class Item(NamedTuple):
    """One window of a reading."""

    reading: int
    window: Window


class Text(Task):
    """A text: an item is a window, and its record [reading, loss in nats, tokens scored]."""

    def __init__(self, data: Data, setup: Setup, name: str):
        super().__init__(data, setup)
        self.kind = KINDS[name]
        joined = b"".join(data.items) if isinstance(data.items[0], bytes) else "".join(data.items)
        self.text = joined if isinstance(joined, str) else joined.decode("utf-8", "surrogateescape")
        self.bytes = len(self.text.encode("utf-8", "surrogateescape"))
        readings = [self._whole(name)]
        if self.kind.detokenizer:
            readings.append(self._raw())
        self.readings = readings
        self.items = [Item(at, window) for at, reading in enumerate(readings) for window in reading.windows]
        self.conventions = self._conventions()

    def _whole(self, name: str) -> Reading:
        """De-tokenized where it can be, `<|endoftext|>` in front, all tokens scored in windows that overlap."""
        detokenize = self.kind.detokenizer or str
        text = detokenize(self.text)
        if self.kind.detokenizer and self.kind.detokenizer.inverse(text) != self.text:
            raise ValueError(f"{self.data.path}: the de-tokenizer of {name} would lose something of this text")
        texts = lines_of(text) if self.kind.by_line else [text]
        rows = [np.array([self.setup.end_of_text, *encode(self.setup.enc, text)], np.int32) for text in texts]
        n_ctx, stride = self.setup.n_ctx, self.setup.stride
        return Reading(rows, [w for at, row in enumerate(rows) for w in windows(at, len(row), n_ctx, stride)])

    def _raw(self) -> Reading:
        """As others measured: the file's own text in windows side by side, whose first tokens are not scored."""
        text = self.text
        if self.kind.detokenizer is WIKITEXT:
            lines = lines_of(self.data.raw or text)[: len(self.data.items)]
            text = "\n\n".join(line if line.strip() else "" for line in lines)
        row, n_ctx = np.array(encode(self.setup.enc, text), np.int32), self.setup.n_ctx
        begins = range(0, len(row) - 1, n_ctx)
        return Reading([row], [Window(0, at, at + 1, min(at + n_ctx, len(row))) for at in begins])

    def rows(self, item: Item) -> list[list[int]]:
        window = item.window
        return [self.readings[item.reading].rows[window.row][window.begin : window.end]]

    def record(self, item: Item, scores: list[Score]) -> list:
        scored = scores[0].log_probabilities[item.window.first - item.window.begin :]
        return [item.reading, -float(np.sum(scored, dtype=np.float64)), len(scored)]

    def figures(self, records: list[list]) -> list[Figure]:
        losses = []
        for reading in range(len(self.readings)):
            chosen = [record for record in records if record[0] == reading]
            losses.append((Loss.of([r[1] for r in chosen], [r[2] for r in chosen]), sum(r[2] for r in chosen)))
        loss, tokens = losses[0]
        column, unit = self.kind.column, self.kind.unit
        if self.kind.detokenizer:
            total = original_tokens(self.data.items)
            rule = f"exp(loss of all {tokens:,} GPT-2 tokens of the de-tokenized text / {total:,} original tokens)"
            options = {"column": column, "chosen": True}
            found = [loss.scaled(tokens / total).perplexity("ppl per original token", rule, **options)]
            found.append(loss.perplexity("ppl per GPT-2 token", f"exp(the same loss / {tokens:,} GPT-2 tokens)"))
            rule = f"exp(mean loss of {losses[1][1]:,} GPT-2 tokens of the raw text, in windows side by side)"
            return [*found, losses[1][0].perplexity("raw, ppl per GPT-2 token", rule)]
        per_byte = loss.scaled(tokens / self.bytes)
        rule = f"loss of all {tokens:,} GPT-2 tokens / {self.bytes:,} {unit}s"
        per_token = loss.perplexity("ppl per GPT-2 token", f"exp(loss / {tokens:,} GPT-2 tokens)")
        if column:
            bits = per_byte.bits(f"bits per {unit}", f"{rule} / ln 2", column=column, chosen=True)
            return [bits, per_token]
        found = [per_token]
        if words := len(self.text.split()):
            rule_of_words = f"exp(loss / {words:,} words, which are what blanks part)"
            found.append(loss.scaled(tokens / words).perplexity("ppl per word", rule_of_words))
        found.append(per_byte.perplexity("ppl per byte", f"exp({rule})"))
        return [*found, per_byte.bits("bits per byte", f"{rule} / ln 2")]

    def _conventions(self) -> dict[str, str]:
        kind, setup = self.kind, self.setup
        found = {"split": self.data.split}
        if kind.detokenizer:
            found["de-tokenizer"] = f"{kind.detokenizer.name}, ours, inverted on this very text without a difference"
            found["original tokens"] = "the words of the file, and an end for each line, for which its newline stands"
        else:
            found["de-tokenizer"] = "none"
        found["in front"] = "<|endoftext|>, as context of the first token" + (
            "; each sentence by itself" if kind.by_line else "; the text is one document"
        )
        found["window"] = f"{setup.n_ctx:,} tokens"
        found["stride"] = f"{setup.stride:,} tokens: each later window scores its last {setup.stride:,}"
        if kind.detokenizer is WIKITEXT:
            edition = "wiki.test.raw" if self.data.raw else "the same file, as there is no wiki.test.raw beside it"
            found["raw text"] = f"{edition}, its lines joined by two newlines as in Hugging Face's guide to perplexity"
        if kind.detokenizer:
            found["raw windows"] = f"stride {setup.n_ctx:,}, nothing in front; the first token of each is not scored"
        found["interval"] = f"{DELTA}; an item is a window"
        return found


def encode(enc: Encoder, text: str) -> list[int]:
    """The ids of a text, in which a lone surrogate stands for a byte that is not UTF-8: a token by itself."""
    ids: list[int] = []
    for part in re.split("([\udc80-\udcff]+)", text):
        if re.match("[\udc80-\udcff]", part):
            ids += (enc.encoder[enc.byte_encoder[byte]] for byte in part.encode("utf-8", "surrogateescape"))
        else:
            ids += enc.encode(part)
    return ids
