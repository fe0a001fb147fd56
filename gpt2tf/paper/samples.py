"""The sample sets that were published beside the paper, made anew.

Mirrors the folder gpt-2-samples of openai/gpt-2 (its files unconditional, unconditional-t07, conditional, ..., which
were looked at for what is said here) and the JSON lines of openai/gpt-2-output-dataset. Difference: the published
contexts are pieces from inside of WebText's test set, and how they were chosen is not known; here they are the
beginnings of the texts that are given.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gpt2tf.paper.rows import digest, read_rows

if TYPE_CHECKING:
    from encoder import Encoder
    from gpt2tf.generate import Generator


class Setting(NamedTuple):
    """How the tokens of a set are drawn."""

    temperature: float
    top_k: int


# openai/gpt-2 README.md, "GPT-2 samples": temperature 1 and no truncation, temperature 0.7, truncation with top_k 40.
SETTINGS = {"default": Setting(1, 0), "t07": Setting(0.7, 0), "topk40": Setting(1, 40)}
PUBLISHED = 500  # samples in each of the files of gpt-2-samples
COMPLETIONS = 4  # of each context there: samples 1 to 4 have the first one, 5 to 8 the second, ...
CONTEXT_SHARE = 4  # 256 tokens of a context there, a quarter of the window; the completions fill it, with 769
FORMATS = ("text", "jsonl")


def heading(word: str, number: int, width: int = 40) -> str:
    """A line as the original prints above a sample: a word and a number between `width` signs on both sides."""
    return f"{'=' * width} {word} {number} {'=' * width}\n"


def read_contexts(path: str, nsamples: int, n_ctx: int, enc: Encoder) -> list[list[int]]:
    """The contexts of nsamples conditional samples: of each text its first n_ctx / 4 tokens, or all if it has fewer.

    path: JSON lines with a field `text`, as webtext.test.jsonl of gpt-2-output-dataset. n_ctx: the model's window.
    Raises ValueError for a file that is not such, or has too few lines.
    """
    needed = -(-nsamples // COMPLETIONS)
    rows = read_rows(path, {"text": "text"}, needed)
    if len(rows) < needed:
        raise ValueError(
            f"{path} has {len(rows)} contexts, which make {COMPLETIONS} samples each; "
            f"give --nsamples {COMPLETIONS * len(rows)} or fewer"
        )
    return [enc.encode(row["text"])[: n_ctx // CONTEXT_SHARE] for row in rows]


@dataclasses.dataclass(frozen=True)
class SampleSet:
    """One set of samples: what it is made of, which decides every byte of it.

    contexts: None, or the tokens of those of the first four samples, of the next four, ...
    """

    setting: str
    nsamples: int = PUBLISHED
    batch_size: int = 1
    seed: int = 0
    format: str = FORMATS[0]
    contexts: list[list[int]] | None = None

    def settings(self) -> dict:
        """What tells two sets apart, in JSON's types; instead of the contexts a hash."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return settings | {"contexts": self.contexts and digest(self.contexts)}

    def length(self, n_ctx: int) -> int:
        """Tokens of a sample. The last one is never fed back, so that it may stand behind the window."""
        return n_ctx if self.contexts is None else n_ctx + 1 - n_ctx // CONTEXT_SHARE

    def batches(self, part: int = 1, parts: int = 1) -> range:
        """The numbers, from 0, of the batches in one of so many parts, which are the whole set one after the other."""
        total = -(-self.nsamples // self.batch_size)
        return range(total * (part - 1) // parts, total * part // parts)

    def made(self, generator: Generator, enc: Encoder, batches: range) -> Iterator[str]:
        """Yields the text of each batch as it stands in the file."""
        for batch in batches:
            yield "".join(self._batch(generator, enc, batch))

    def _batch(self, generator: Generator, enc: Encoder, batch: int) -> Iterator[str]:
        from gpt2tf import encoder
        from gpt2tf.noise import RandomStream

        hparams, size, conditional = generator.hparams, self.batch_size, self.contexts is not None
        (temperature, top_k), length = SETTINGS[self.setting], self.length(hparams.n_ctx)
        end = enc.encoder[encoder.END_OF_TEXT]
        noise = RandomStream(self.seed, hparams.n_layer, conditional, temperature, top_k).noise(length, size, batch)
        numbers = [batch * size + row for row in range(size)]  # from 0
        # The last batch is made whole, so that a sample does not depend on how many are asked for.
        contexts = []
        if conditional:
            contexts = [self.contexts[min(n // COMPLETIONS, len(self.contexts) - 1)] for n in numbers]
        stop = end if self.format == "jsonl" else None
        options = {"temperature": temperature, "top_k": top_k, "noise": noise, "stop": stop}
        made = generator.generate(contexts or [[end]] * size, length, **options)
        for row, number in enumerate(numbers):
            if number < self.nsamples:
                context = enc.decode(contexts[row]) if conditional else None
                tokens = made[row].tolist()
                if self.format == "jsonl":
                    yield _line(number, context, tokens, enc, end)
                else:
                    yield heading("SAMPLE", number + 1)
                    yield "" if context is None else f"{context}\n{heading('COMPLETION', number + 1, 20)}"
                    yield enc.decode(tokens) + "\n"


def _line(number: int, context: str | None, tokens: list[int], enc: Encoder, end: int) -> str:
    """A line as of gpt-2-output-dataset, with the context if there is one. number: from 0.

    The length is in tokens, without that of the end, and the text goes up to it.
    """
    ended = end in tokens
    tokens = tokens[: tokens.index(end)] if ended else tokens
    record = {"id": number, "ended": ended, "length": len(tokens), "text": enc.decode(tokens)}
    return json.dumps(record if context is None else record | {"context": context}) + "\n"
