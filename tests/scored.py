"""Made scores of tokens, for pages."""

from typing import NamedTuple

import numpy as np

import encoder
from gpt2tf.paper.page import Text

ENCODER = encoder.get_encoder()


class MadeScore(NamedTuple):
    log_probabilities: np.ndarray
    ranks: np.ndarray
    alternatives: np.ndarray
    alternative_log_probabilities: np.ndarray


def made_score(tokens, n=5):
    """A score of tokens as a model could give it: the token of rank k is the k-th alternative."""
    rng = np.random.default_rng(len(tokens))
    count = len(tokens)
    theirs = -np.sort(rng.gamma(2, 1.5, [count, n]), axis=1).astype(np.float32)  # [tokens, n]
    others = rng.integers(0, 50257, [count, n]).astype(np.int32)  # [tokens, n]
    ranks = rng.integers(1, 2 * n + 2, count).astype(np.int32)
    own = -rng.gamma(4, 2, count).astype(np.float32)
    likely = ranks <= n
    own[likely] = theirs[likely, ranks[likely] - 1]
    others[likely, ranks[likely] - 1] = np.asarray(tokens)[likely]
    own[:1], ranks[:1] = np.nan, 0
    return MadeScore(own, ranks, others, theirs)


def made_text(text, heading=None, n=5):
    """A text, or ids of tokens, with a made score."""
    tokens = ENCODER.encode(text) if isinstance(text, str) else list(text)
    return Text(heading, tokens, made_score(tokens, n))
