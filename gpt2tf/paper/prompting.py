"""Summaries, translations and answers from a language model that was trained for none of them, by prompts.

As in sections 3.5 to 3.8 of "Language Models are Unsupervised Multitask Learners". What the paper leaves open is in
each task's `assumed`, to be shown beside the scores.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpt2tf.paper import metrics
from gpt2tf.paper.rows import digest
from gpt2tf.paper.sentences import sentences

if TYPE_CHECKING:
    from encoder import Encoder
    from gpt2tf.generate import Generator

Row = Mapping[str, "str | list[str]"]
GREEDY = {"temperature": 0}
RULE = "after . ! ? with what closes there, but not after a single letter and its dot, or at the end of its line"
# The names of the fields are those of the sets as they are published for Hugging Face's datasets: cnn_dailymail, the
# pairs inside of wmt14, nq_open.
ARTICLES = {"article": "text", "highlights": "text"}
PAIRS = {"en": "text", "fr": "text"}
QUESTIONS = {"question": "text", "answer": "texts", "context": "optional"}


@dataclasses.dataclass(frozen=True)
class Task:
    """What is asked of the model for a row of the data, and what of its answer counts.

    fields: of a row, as of `read_rows`. prompt: from a row to a text that may be cut at its end and the text behind it.
    length: tokens that are generated; options: how, as of Generator. line: whether only the first line of them counts.
    reply: from the text that was generated to what counts of it. reference: the field that holds what it should be.
    scores: from replies and references to the paper's metrics, in per cent; package: what computes them, for `require`.
    paper: the figures of the paper's largest model, of 1542M. assumed: what the paper does not say. variant: what tells
    two tasks of one name apart, in JSON's types.
    """

    name: str
    fields: Mapping[str, str]
    prompt: Callable[[Row], tuple[str, str]]
    length: int
    options: Mapping
    line: bool
    reply: Callable[[str], str]
    reference: str
    scores: Callable[[Sequence[str], Sequence], dict[str, float]]
    package: str | None
    paper: Mapping[str, float]
    assumed: Sequence[str]
    variant: Mapping

    def tokens(self, row: Row, enc: Encoder, n_ctx: int) -> list[int]:
        """The prompt, encoded, which leaves room for `length` tokens in a window of n_ctx, the last beyond its end.

        Raises ValueError where it cannot.
        """
        before, behind = self.prompt(row)
        return enc.encode(before)[: self.room(row, enc, n_ctx)] + enc.encode(behind)

    def room(self, row: Row, enc: Encoder, n_ctx: int) -> int:
        """How many tokens the part of the prompt that may be cut can have. Raises as `tokens` does."""
        before, behind = self.prompt(row)
        behind = enc.encode(behind)
        room = n_ctx + 1 - self.length - len(behind)
        if room < bool(before):
            what = f"a prompt needs {len(behind) + bool(before)} tokens, and {self.length} are to follow"
            remedy = "fewer or shorter examples" if not before else "a model with a larger window"
            raise ValueError(f"{what}; together they may be at most {n_ctx + 1}, so give {remedy}: {dict(row)}"[:400])
        return room


def summaries(hint: bool = True) -> Task:
    """Section 3.6: TL;DR: after an article, 100 tokens by top-k 2, and the first three sentences of them.

    hint: False leaves TL;DR: out, as the last row of table 4.
    """
    behind = "\nTL;DR:" if hint else ""
    figures = (29.34, 8.27, 26.58, 21.40) if hint else (21.58, 4.03, 19.47, 15.03)  # table 4
    return Task(
        name="summaries",
        fields=ARTICLES,
        prompt=lambda row: (row["article"].strip(), behind),
        length=100,
        options={"temperature": 1, "top_k": 2},
        line=False,
        reply=lambda text: "\n".join(sentences(text, 3)),
        reference="highlights",
        scores=metrics.rouge,
        package="rouge_score",
        paper=dict(zip(("ROUGE-1", "ROUGE-2", "ROUGE-L", "average"), figures, strict=True)),
        assumed=(
            f"the prompt is the article and {json.dumps(behind)}; a long article is cut at its end, to fit the window",
            "temperature 1",
            f"a sentence ends {RULE}",
            "F1 by rouge-score with Porter's stemmer, ROUGE-L of whole summaries, of which a line is a sentence",
        ),
        variant={"hint": hint},
    )


def translations(examples: Sequence[Row], direction: str = "en-fr") -> Task:
    """Section 3.7: pairs "english sentence = french sentence", a last "english sentence =", greedy, one sentence.

    examples: rows as those of the data. direction: or fr-en, where the pairs are the other way round.
    """
    source, target = direction.split("-")
    start = "".join(f"{_line(row[source])} = {_line(row[target])}\n" for row in examples)
    return Task(
        name="translations",
        fields=PAIRS,
        prompt=lambda row: ("", f"{start}{_line(row[source])} ="),
        length=200,
        options=GREEDY,
        line=True,
        reply=lambda text: "".join(sentences(text.split("\n", 1)[0], 1)),
        reference=target,
        scores=metrics.bleu,
        package="sacrebleu",
        paper={"BLEU": {"en-fr": 5, "fr-en": 11.5}[direction]},  # on WMT-14's test sets
        assumed=(
            "which pairs, and how many; each pair, and the last sentence with its =, is a line",
            "at most 200 tokens are generated",
            f"the sentence ends {RULE}",
            "BLEU by sacrebleu, with its own settings (13a, mixed case)",
        ),
        variant={"direction": direction, "examples": digest(examples)},
    )


def answers(examples: Sequence[Row]) -> Task:
    """Section 3.8: example questions and answers, a last question, greedy.

    examples: rows as those of the data, of which the first answer is given. Where a row has a context, that is what
    stands in front of its question instead: with a document and the conversation so far it is section 3.5.
    """
    start = "".join(f"Q: {_line(row['question'])}\nA: {_line(row['answer'][0])}\n" for row in examples)

    def prompt(row: Row) -> tuple[str, str]:
        if "context" not in row and not examples:
            raise ValueError(
                f"the question {row['question']!r} has no context, and there are no examples; give --examples"
            )
        before = f"{row['context'].strip()}\n" if "context" in row else start
        return "", f"{before}Q: {_line(row['question'])}\nA:"

    return Task(
        name="answers",
        fields=QUESTIONS,
        prompt=prompt,
        length=32,
        options=GREEDY,
        line=True,
        reply=lambda text: text.split("\n", 1)[0].strip(),
        reference="answer",
        scores=metrics.exact_match_and_f1,
        package=None,
        paper={"exact match": 4.1, "F1": 55},  # Natural Questions, and CoQA
        assumed=(
            "which examples, and how many",
            'the prompt is "Q: question", a newline, "A: answer", a newline for each, and "A:" at its end',
            "at most 32 tokens are generated, and the answer is the first line of them",
            "exact match and F1 as SQuAD's; the paper's exact match is of Natural Questions, its F1 of CoQA",
        ),
        variant={"examples": digest(examples)},
    )


def _line(text: str) -> str:
    return " ".join(text.split())


@dataclasses.dataclass(frozen=True)
class Prompted:
    """A task and its rows: what decides every byte of what comes out, together with the model.

    The interface is that of `samples.SampleSet`; a line of the file is an object with prompt, generated (up to
    <|endoftext|>), reply and reference.
    """

    task: Task
    rows: Sequence[Row]
    batch_size: int = 1
    seed: int = 0

    def settings(self) -> dict:
        """What tells two runs apart, in JSON's types; instead of the rows a hash."""
        settings = {"task": self.task.name, "batch_size": self.batch_size, "seed": self.seed, **self.task.variant}
        return settings | {"rows": len(self.rows), "data": digest(self.rows)}

    def check(self, enc: Encoder, n_ctx: int) -> int:
        """The tokens of the first prompt. Raises ValueError where a prompt does not fit a window of n_ctx tokens."""
        for row in self.rows:
            self.task.room(row, enc, n_ctx)
        return len(self.task.tokens(self.rows[0], enc, n_ctx))

    def batches(self) -> range:
        """The numbers of the batches, from 0."""
        return range(-(-len(self.rows) // self.batch_size))

    def made(self, generator: Generator, enc: Encoder, batches: range) -> Iterator[str]:
        """Yields the lines of each batch, as they stand in the file."""
        from gpt2tf import encoder
        from gpt2tf.noise import RandomStream

        task, hparams, end = self.task, generator.hparams, enc.encoder[encoder.END_OF_TEXT]
        newline = enc.encode("\n")
        stop = newline[0] if task.line and len(newline) == 1 else end  # the rest would be cut off
        draw = task.options["temperature"], task.options.get("top_k", 0)
        stream = RandomStream(self.seed, hparams.n_layer, True, *draw)
        for batch in batches:
            rows = self.rows[batch * self.batch_size :][: self.batch_size]
            prompts = [task.tokens(row, enc, hparams.n_ctx) for row in rows]
            prompts += prompts[-1:] * (self.batch_size - len(rows))  # another size would be compiled anew
            noise = stream.noise(task.length, self.batch_size, batch)
            made = generator.generate(prompts, task.length, noise=noise, stop=stop, **task.options)
            lines = []
            for row, prompt, tokens in zip(rows, prompts, (tokens.tolist() for tokens in made), strict=False):
                generated = enc.decode(tokens[: tokens.index(end)] if end in tokens else tokens)
                line = {"prompt": enc.decode(prompt), "generated": generated, "reply": task.reply(generated)}
                lines.append(json.dumps(line | {"reference": row[task.reference]}) + "\n")
            yield "".join(lines)

    def results(self, path: str) -> dict:
        """The scores of the file with all lines, beside the paper's, and what is assumed."""
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        scores = self.task.scores([line["reply"] for line in lines], [line["reference"] for line in lines])
        figures = {"scores": scores, "paper": dict(self.task.paper), "assumed": list(self.task.assumed)}
        return {"task": self.task.name, "rows": len(lines), **self.task.variant, **figures}
