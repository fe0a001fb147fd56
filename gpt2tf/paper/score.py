"""Scores: how likely a model finds each token of a text, by windows of n_ctx tokens.

The first window scores all its tokens. Each later one begins `stride` tokens further and scores only those that no
window did before, its last `stride`, with the tokens before them as context.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpt2tf import checks, encoder
from gpt2tf.checkpoint import load_model
from gpt2tf.model import GPT2

DTYPES = ("float32", "bfloat16")


class Score(NamedTuple):
    """Of one row of tokens."""

    log_probabilities: np.ndarray  # [tokens] float32, natural log; the first is NaN where nothing stands in front
    ranks: np.ndarray  # [tokens] int32; 1 is the likeliest token, ties count as less likely; 0 where there is a NaN
    alternatives: np.ndarray  # [tokens, n] int32, the n likeliest tokens, likeliest first
    alternative_log_probabilities: np.ndarray  # [tokens, n] float32


class Window(NamedTuple):
    """The tokens from `begin` to before `end` of a row, of which those from `first` on are scored."""

    begin: int
    first: int
    end: int


def windows(n: int, n_ctx: int, stride: int) -> Iterator[Window]:
    """The windows that score a row of n tokens, all but the first."""
    begin, first = 0, 1
    while first < n:
        end = min(begin + n_ctx, n)
        yield Window(begin, first, end)
        begin, first = begin + stride, end


class Scorer:
    """A model ready to score: compiled once, used for many rows.

    model: a GPT2, or the path of a model as `load_model` takes it. dtype: of the matrices, float32 or bfloat16.
    jit_compile: False runs the same graph without XLA. device: the name of TensorFlow's device to compute on.
    """

    def __init__(
        self,
        model: GPT2 | str | os.PathLike,
        dtype: str = "float32",
        jit_compile: bool = True,
        device: str | None = None,
    ):
        checks.one_of(DTYPES)("dtype", dtype)
        self._model = model if isinstance(model, GPT2) else load_model(model)
        self._device = device
        self.hparams = self._model.hparams
        self.vocabulary = self._model.vocabulary
        self._real_tokens = encoder.real_tokens(self.vocabulary, self.hparams.n_vocab)

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
        n_ctx, tokens = self.hparams.n_ctx, self._real_tokens
        stride = checks.between(1, n_ctx - 1)("stride", n_ctx // 2 if stride is None else stride)
        checks.between(0, tokens)("alternatives", alternatives)
        prefix = [self._end_of_text()] if start else []
        return self._scores(rows, prefix, stride, alternatives, progress)

    def _end_of_text(self) -> int:
        if self.vocabulary is None or self.vocabulary.table is None:
            raise ValueError("the model's vocabulary is not known, so there is no <|endoftext|> to start with")
        return self.vocabulary.tables()[0][encoder.END_OF_TEXT]

    def _scores(self, rows, prefix, stride, alternatives, progress):
        for row in rows:
            row = np.asarray(row)
            if row.ndim != 1:
                raise ValueError(f"a row must be a list of token ids; its shape is {row.shape}")
            checks.check_tokens(row, self._real_tokens)
            row = np.concatenate([prefix, row]).astype(np.int32)
            score = Score(
                np.full([len(row)], np.nan, np.float32),
                np.zeros([len(row)], np.int32),
                np.zeros([len(row), alternatives], np.int32),
                np.full([len(row), alternatives], np.nan, np.float32),
            )
            for begin, first, end in windows(len(row), self.hparams.n_ctx, stride):
                logits = self._model(row[None, begin : end - 1])["logits"][0, first - 1 - begin :, : self._real_tokens]
                found = score_logits(logits, tf.constant(row[first:end]), alternatives)
                for array, part in zip(score, found, strict=True):
                    array[first:end] = part.numpy()
                if not np.isfinite(score.log_probabilities[first:end]).all():
                    raise FloatingPointError("the model's logits are not finite; its weights are damaged or diverged")
                if progress:
                    progress(end - first)
            yield Score(*(array[len(prefix) :] for array in score))


def score_logits(logits, targets, alternatives: int) -> Score:
    """The score of each target by the logits of its position. logits: [n, vocab] float32, targets: [n] int32"""
    total = tf.reduce_logsumexp(logits, axis=-1)  # [n]
    target = tf.gather(logits, targets, batch_dims=1)  # [n]
    ranks = 1 + tf.reduce_sum(tf.cast(logits > target[:, None], tf.int32), axis=-1)  # [n]
    best, tokens = tf.math.top_k(logits, alternatives)  # [n, alternatives]
    return Score(target - total, ranks, tokens, best - total[:, None])


def score(model: GPT2 | str | os.PathLike, rows: Iterable[Sequence[int]], **options) -> list[Score]:
    """How likely the model finds each token of the rows: a `Score` for each.

    options: dtype, jit_compile and device as of `Scorer`, the others as of `Scorer.score`.
    """
    made = {name: options.pop(name) for name in ("dtype", "jit_compile", "device") if name in options}
    return list(Scorer(model, **made).score(rows, **options))
