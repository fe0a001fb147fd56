"""The tasks in which one of several words or texts is right: LAMBADA, the Children's Book Test, HellaSwag."""

from __future__ import annotations

import os

import numpy as np

from gpt2tf.paper.data import BLANK, Data, Passage, Question
from gpt2tf.paper.detokenize import CBT
from gpt2tf.paper.score import Score
from gpt2tf.paper.task import DELTA, WILSON, Figure, Loss, Setup, Task, accuracy, at_most

# The paper bars "stop words" and does not list them. These are the 127 of NLTK's older English list, which the
# measurement of transformers#491 bars too.
STOP_WORDS = frozenset(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself "
    "it its itself they them their theirs themselves what which who whom this that these those am is are was were be "
    "been being have has had having do does did doing a an the and but if or because as until while of at by for with "
    "about against between into through during before after above below to from up down in out on off over under again "
    "further then once here there when where why how all any both each few more most other some such no nor not only "
    "own same so than too very s t can will just don should now".split()
)
# Of quotation marks; believed to be the paper's clean-up, by openai/gpt-2#131.
STRAIGHT = str.maketrans({"“": '"', "”": '"'})


class Lambada(Task):
    """LAMBADA: a passage with a newline in front and without. A record has a list for each of the two:

    [loss of the last word, its tokens, loss of its last token, word right, token right, both with stop words barred]
    """

    fronts = ("\n", "")

    def __init__(self, data: Data, setup: Setup):
        super().__init__(data, setup)
        self.items = data.items
        words = {id: setup.enc.decode([id]) for id in range(len(setup.enc.decoder))}
        self.barred = np.array([id for id, text in words.items() if text[:1] == " " and text[1:].lower() in STOP_WORDS])
        self.alternatives = len(self.barred) + 1  # of which one at least is no stop word
        self.conventions = {
            "split": data.split,
            "de-tokenizer": "none; curly quotation marks made straight, which were in "
            f"{sum(_straight(passage) != passage for passage in data.items):,} of the passages",
            "last word": "what follows the last blank; its tokens are those of a blank and the word",
            "in front": "a newline, or nothing",
            "right": "each of its tokens is the likeliest, given all before it; of the last token, that one is",
            "stop words": f"where they are barred, none of {len(self.barred)} tokens, a blank and one of "
            f"{len(STOP_WORDS)} stop words (NLTK's older English list), is taken; greedily, token by token",
            "window": f"the last {setup.n_ctx:,} tokens of a passage that has more",
            "normalizer": "passages (a last word has one or more tokens), and for the token the same",
            "interval": f"{WILSON}; of perplexities {DELTA}",
        }

    def rows(self, item: Passage) -> list[list[int]]:
        return [self._ids(item, front)[0] for front in self.fronts]

    def _ids(self, passage: Passage, front: str) -> tuple[list[int], int]:
        """(the tokens, how many of them are the last word's)"""
        context, word = _straight(passage)
        last = self.setup.enc.encode(f" {word}")
        return at_most(self.setup.n_ctx, self.setup.enc.encode(front + context), last), len(last)

    def record(self, item: Passage, scores: list[Score]) -> list:
        return [self._of_one(*self._ids(item, front), score) for front, score in zip(self.fronts, scores, strict=True)]

    def _of_one(self, ids: list[int], n: int, score: Score) -> list:
        losses = -score.log_probabilities[-n:].astype(np.float64)
        best = score.ranks[-n:] == 1
        free = ~np.isin(score.alternatives[-n:], self.barred)  # [n, alternatives]
        found = score.alternatives[-n:][np.arange(n), free.argmax(-1)]  # the first of them that is free
        best_free = found == np.array(ids[-n:])
        hits = [best.all(), best[-1], best_free.all(), best_free[-1]]
        return [float(losses.sum()), n, float(losses[-1]), *map(bool, hits)]

    def figures(self, records: list[list]) -> list[Figure]:
        with_newline, without = (self._figures(variant) for variant in zip(*records, strict=True))
        found = [figure._replace(rule=f"{figure.rule}; newline in front") for figure in with_newline]
        for figure in without:
            name, rule = f"{figure.name}, no newline", f"{figure.rule}; no newline"
            found.append(figure._replace(name=name, rule=rule, chosen=False))
        return found

    def _figures(self, records: list[list]) -> list[Figure]:
        """Of one of the two variants."""
        loss, tokens, last, word, token, word_free, token_free = zip(*records, strict=True)
        ones, ppl, acc = [1] * len(records), {"column": "LAMBADA PPL"}, {"column": "LAMBADA ACC"}
        of_word, of_last, of_tokens = Loss.of(loss, ones), Loss.of(last, ones), Loss.of(loss, tokens)
        rule = "the likeliest that is no stop word"
        return [
            of_word.perplexity("ppl of the last word", "exp(mean loss of all tokens of the word)", **ppl, chosen=True),
            of_last.perplexity("ppl of the last token", "exp(mean loss of the word's last token)", **ppl),
            of_tokens.perplexity("ppl per token of the last word", "exp(loss of the words / their tokens)", **ppl),
            accuracy("last word", word, "all tokens of the word are right", **acc),
            accuracy("last token", token, "the word's last token is right", **acc),
            accuracy("last word, stop words barred", word_free, f"each token is {rule}", **acc, chosen=True),
            accuracy("last token, stop words barred", token_free, f"the last token is {rule}", **acc),
        ]


def _straight(passage: Passage) -> Passage:
    return Passage(passage.context.translate(STRAIGHT), passage.word.translate(STRAIGHT))


class ClozeTest(Task):
    """The Children's Book Test: a record is [right by candidate and rest of the sentence, right by candidate alone]."""

    def __init__(self, data: Data, setup: Setup, name: str):
        super().__init__(data, setup)
        self.items, self.column = data.items, f"{name.upper()} ACC"
        self.conventions = {
            "split": data.split,
            "de-tokenizer": f"{CBT.name}, ours; spaces beside the blank are the same for all candidates",
            "in front": "<|endoftext|>; then 20 sentences and the 21st, with blanks between them",
            "right": "the candidate is the likeliest, by the sum of log-probabilities from it on; ties: the first",
            "window": f"{setup.n_ctx:,} tokens: of a question that has more, the same beginning is dropped for all",
            "normalizer": "none: neither tokens nor characters",
            "interval": WILSON,
        }

    def rows(self, item: Question) -> list[list[int]]:
        return self._candidates(item)[0]

    def _candidates(self, question: Question) -> tuple[list[list[int]], int, list[int]]:
        """(a row for each, where they begin to differ, where the token behind each candidate is)"""
        enc, before_ids = self.setup.enc, [self.setup.end_of_text]
        before, _, after = CBT(question.text).partition(BLANK)
        before = " ".join([*map(CBT, question.context), before])
        rows, ends = [], []
        for choice in question.choices:
            ids = enc.encode(before + choice + after.replace(BLANK, choice))
            starts = np.cumsum([0, *(len(enc.decode_bytes([id])) for id in ids)])[:-1]
            rows.append(before_ids + ids)
            ends.append(1 + int(np.searchsorted(starts, len((before + choice).encode()))))
        common = len(os.path.commonprefix(rows))
        cut = min(max(0, max(map(len, rows)) - self.setup.n_ctx), common - 1)
        return [row[cut:] for row in rows], common - cut, [end - cut for end in ends]

    def record(self, item: Question, scores: list[Score]) -> list:
        _, common, ends = self._candidates(item)
        logs = [score.log_probabilities.astype(np.float64) for score in scores]
        together = [float(log[common:].sum()) for log in logs]
        alone = [float(log[common:end].sum()) for log, end in zip(logs, ends, strict=True)]
        return [int(np.argmax(sums)) == item.answer for sums in (together, alone)]

    def figures(self, records: list[list]) -> list[Figure]:
        together, alone = zip(*records, strict=True)
        rule = "the candidate and the rest of the sentence, given what is before"
        options = {"column": self.column}
        return [
            accuracy("candidate and rest of the sentence", together, rule, **options, chosen=True),
            accuracy("candidate alone", alone, "the tokens of the candidate, given what is before", **options),
        ]


class HellaSwag(Task):
    """HellaSwag in completion style, as karpathy/llm.c has it: a record is [right by sums, right by means]."""

    def __init__(self, data: Data, setup: Setup):
        super().__init__(data, setup)
        self.items = data.items
        self.conventions = {
            "split": data.split,
            "de-tokenizer": "none",
            "in front": "nothing: ctx, and behind it a blank and an ending",
            "right": "the ending is the likeliest of four, by the log-probabilities of its tokens; ties: the first",
            "window": f"the last {setup.n_ctx:,} tokens",
            "normalizer": "acc: none; acc_norm: the GPT-2 tokens of the ending (the harness: its characters)",
            "interval": WILSON,
        }

    def rows(self, item: Question) -> list[list[int]]:
        context, endings = self.setup.enc.encode(item.context), self._endings(item)
        return [at_most(self.setup.n_ctx, context, ending) for ending in endings]

    def _endings(self, question: Question) -> list[list[int]]:
        return [self.setup.enc.encode(f" {choice}") for choice in question.choices]

    def record(self, item: Question, scores: list[Score]) -> list:
        sums, means = [], []
        for ending, score in zip(self._endings(item), scores, strict=True):
            logs = score.log_probabilities[-len(ending) :].astype(np.float64)
            sums.append(logs.sum())
            means.append(logs.mean())
        return [int(np.argmax(sums)) == item.answer, int(np.argmax(means)) == item.answer]

    def figures(self, records: list[list]) -> list[Figure]:
        acc, acc_norm = zip(*records, strict=True)
        rule = "highest {} of the log-probabilities of the ending's tokens"
        return [accuracy("acc", acc, rule.format("sum")), accuracy("acc_norm", acc_norm, rule.format("mean"))]
