"""Scores: how likely a model finds each token of a text, by windows of n_ctx tokens.

The first window scores all its tokens. Each later one begins `stride` tokens further and scores only those that no
window did before, its last `stride`, with the tokens before them as context.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpt2tf import checks, devices, encoder
from gpt2tf.checkpoint import load_weights
from gpt2tf.locate import note_released
from gpt2tf.model import GPT2
from gpt2tf.paper.network import Network, Score

BUCKETS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # lengths that windows are padded to
TOKENS = {"CPU": 1024, "GPU": 8192}  # in a batch; on a CPU more would take more memory and no less time
AHEAD = 8  # batches of windows are found before the first is scored, so that they can be sorted by length
SLAB = 256  # positions of which there are logits at a time: 51 MB of them, and as much again twice in what is computed


class Window(NamedTuple):
    """The tokens from `begin` to before `end` of a row, of which those from `first` on are scored."""

    row: int
    begin: int
    first: int
    end: int

    @property
    def context(self) -> int:
        """The positions before that of which the first score is made."""
        return self.first - 1 - self.begin

    @property
    def bucket(self) -> int:
        """The length that its tokens but the last, after which nothing is asked for, are padded to."""
        n = self.end - 1 - self.begin
        return next((bucket for bucket in BUCKETS if bucket >= n), n)


def windows(row: int, n: int, n_ctx: int, stride: int) -> Iterator[Window]:
    """The windows that score a row of n tokens, all but the first."""
    begin, first = 0, 1
    while first < n:
        end = min(begin + n_ctx, n)
        yield Window(row, begin, first, end)
        begin, first = begin + stride, end


class Scorer:
    """A model ready to score: compiled once, used for many rows.

    model: a GPT2, or the path of a model as `load_model` takes it. dtype: of the factors of matrix products, float32 or
    bfloat16. jit_compile: whether XLA compiles it; if not given, where it runs on a GPU. device: the name of
    TensorFlow's device to compute on; its own choice if not given.

    Rows of wte that stand for no token have no probability, as in sampling.
    """

    def __init__(
        self,
        model: GPT2 | str | os.PathLike,
        dtype: str = "float32",
        jit_compile: bool | None = None,
        device: str | None = None,
    ):
        checks.one_of(checks.SCORING_DTYPES)("dtype", dtype)
        if isinstance(model, GPT2):
            self.hparams, self.vocabulary = model.hparams, model.vocabulary
            weights = {v.path: v.value for v in model.variables}
        else:
            self.hparams, weights, self.vocabulary = load_weights(model)
            if self.vocabulary is None and self.hparams.n_vocab == encoder.RELEASED_SIZE:
                note_released(os.path.dirname(weights.prefix) or ".")
                self.vocabulary = encoder.released()
        platform = devices.platform()
        self._tokens, self._device = TOKENS[platform], device
        self._real_tokens = encoder.real_tokens(self.vocabulary, self.hparams.n_vocab)
        with tf.device(device):
            jit_compile = platform == "GPU" if jit_compile is None else jit_compile
            self._network = Network(weights, self.hparams, self._real_tokens, dtype, jit_compile)

    def score(
        self,
        rows: Iterable[Sequence[int]],
        *,
        stride: int | None = None,
        start: bool = False,
        alternatives: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Score]:
        """Yields the score of each row, in order.

        rows: lists of token ids, of any length. stride: tokens from one window to the next, from 1 to n_ctx - 1; the
        more, the faster and the less context: half of n_ctx if not given. start: put `<|endoftext|>` in front of each
        row, as context of its first token. alternatives: how many of the likeliest tokens to give for each position.
        progress: called with the number of tokens that were scored since the last call.
        Raises ValueError for what is out of range or no token, FloatingPointError when the model's logits are not
        finite.
        """
        n_ctx = self.hparams.n_ctx
        stride = checks.between(1, n_ctx - 1)("stride", n_ctx // 2 if stride is None else operator.index(stride))
        alternatives = checks.between(0, self._real_tokens)("alternatives", operator.index(alternatives))
        prefix = [self._end_of_text()] if start else []
        return self._scores(rows, prefix, (stride, alternatives), progress or (lambda n: None))

    def _end_of_text(self) -> int:
        if self.vocabulary is None or self.vocabulary.table is None:
            raise ValueError("the model's vocabulary is not known, so there is no <|endoftext|> to start with")
        return self.vocabulary.tables()[0][encoder.END_OF_TEXT]

    def _scores(self, rows, prefix, options, progress):
        stride, alternatives = options
        for group in self._groups(rows, prefix):
            scores = [_unknown(len(row), alternatives) for row in group]
            todo = [w for i, row in enumerate(group) for w in windows(i, len(row), self.hparams.n_ctx, stride)]
            for batch in self._batches(todo):
                self._score_batch(batch, group, scores, alternatives)
                progress(sum(w.end - w.first for w in batch))
            yield from (Score(*(array[len(prefix) :] for array in score)) for score in scores)

    def _groups(self, rows, prefix) -> Iterator[list[np.ndarray]]:
        """The rows, each with its prefix, in lists of so many tokens that batches can be made of them."""
        group, size = [], 0
        for row in rows:
            row = np.asarray(row)
            if row.ndim != 1:
                raise ValueError(f"a row must be a list of token ids; its shape is {row.shape}")
            checks.check_tokens(row, self._real_tokens)
            group.append(np.concatenate([prefix, row]).astype(np.int32))
            size += len(row)
            if size >= AHEAD * self._tokens:
                yield group
                group, size = [], 0
        yield group

    def _batches(self, todo: list[Window]) -> Iterator[list[Window]]:
        """The windows in batches of one bucket."""
        todo = sorted(todo, key=lambda window: (window.bucket, window.context))
        while todo:
            bucket = todo[-1].bucket
            n = max(1, self._tokens // bucket)
            batch = [window for window in todo[-n:] if window.bucket == bucket]
            del todo[-len(batch) :]
            yield batch

    def _score_batch(self, batch: list[Window], rows, scores, alternatives: int) -> None:
        """Fill in what the windows of a batch score."""
        tokens = np.zeros([len(batch), batch[0].bucket], np.int32)
        for padded, window in zip(tokens, batch, strict=True):
            padded[: window.end - 1 - window.begin] = rows[window.row][window.begin : window.end - 1]
        begin = min(window.context for window in batch)
        seq = tokens.shape[1] - begin
        at = [b * seq + np.arange(w.first - 1, w.end - 1) - w.begin - begin for b, w in enumerate(batch)]
        at = np.concatenate(at)  # [n], the positions before those that are scored
        targets = np.concatenate([rows[w.row][w.first : w.end] for w in batch])  # [n]
        with tf.device(self._device):
            h = self._network.hidden(tf.constant(tokens), begin)
            h = tf.reshape(h, [-1, h.shape[-1]])
            found = []
            for i in range(0, len(at), SLAB):
                part = at[i : i + SLAB]
                rest = -len(part) % min(SLAB, 16)
                part, target = np.pad(part, (0, rest)), np.pad(targets[i : i + SLAB], (0, rest))
                score = self._network.scores(tf.gather(h, part), tf.constant(target), alternatives)
                found.append([array.numpy()[: len(part) - rest] for array in score])
        found = [np.concatenate(arrays) for arrays in zip(*found, strict=True)]
        if not np.isfinite(found[0]).all():
            raise FloatingPointError("the model's logits are not finite; its weights are damaged or diverged")
        done = 0
        for window in batch:
            n = window.end - window.first
            for array, values in zip(scores[window.row], found, strict=True):
                array[window.first : window.end] = values[done : done + n]
            done += n


def _unknown(n: int, alternatives: int) -> Score:
    """The score of n tokens before anything is known of them."""
    lead = np.full([n], np.nan, np.float32), np.zeros([n], np.int32)
    shape = [n, alternatives]
    return Score(*lead, np.zeros(shape, np.int32), np.full(shape, np.nan, np.float32))


def score(model: GPT2 | str | os.PathLike, rows: Iterable[Sequence[int]], **options) -> list[Score]:
    """How likely the model finds each token of the rows: a `Score` for each.

    options: dtype, jit_compile and device as of `Scorer`, the others as of `Scorer.score`.
    """
    made = {name: options.pop(name) for name in ("dtype", "jit_compile", "device") if name in options}
    return list(Scorer(model, **made).score(rows, **options))
