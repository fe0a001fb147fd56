"""A trigram model with back-off, to compare a trained model with: `python tests/trigram.py tokens.npy [share]`.

Interpolated Kneser-Ney (Chen and Goodman 1999, section 2.7), each order with the discount n1 / (n1 + 2 n2) of its
own counts; the lowest order backs off to all tokens being equally likely. It learns from the tokens that
training sees and is judged on those kept for validation, split as `gpt2tf train` splits them.
"""

import sys

import numpy as np

from gpt2tf.train.tokens import split


def trigram_loss(train, held, n_vocab: int) -> float:
    """Mean of -log p of each held token but the first, in nats; train, held: [tokens] ids."""
    train, held = np.asarray(train, np.int64), np.asarray(held, np.int64)
    bigrams = np.unique(_keys(train, 2, n_vocab))
    trigrams = np.unique(_keys(train, 3, n_vocab))
    p = np.full(len(held), 1 / n_vocab)  # [tokens]
    p = _interpolated(bigrams % n_vocab, held, 0, p, n_vocab)
    p = _interpolated(trigrams % n_vocab**2, held, 1, p, n_vocab)
    p = _interpolated(_keys(train, 3, n_vocab), held, 2, p, n_vocab)
    return float(-np.log(p[1:]).mean())


def _keys(tokens, order, n_vocab):
    """The runs of `order` tokens, each as one number."""
    return sum(tokens[i : len(tokens) - order + 1 + i] * n_vocab ** (order - 1 - i) for i in range(order))


def _interpolated(grams, held, context, lower, n_vocab):
    """p of each held token after `context` others, from grams of context + 1 tokens (as often as they count) and the
    p of one token less of context; where held has no such context yet, the lower p stays."""
    kinds, counts = np.unique(grams, return_counts=True)
    discount = (counts == 1).sum() / ((counts == 1).sum() + 2 * (counts == 2).sum())
    contexts, first = np.unique(kinds // n_vocab, return_index=True)
    totals, distinct = np.add.reduceat(counts, first), np.diff(np.append(first, len(kinds)))
    asked = _keys(held, context + 1, n_vocab)
    count = _look_up(kinds, counts, asked)
    total = _look_up(contexts, totals, asked // n_vocab)
    types = _look_up(contexts, distinct, asked // n_vocab)
    below = lower[context:]
    known = np.maximum(total, 1)
    mixed = np.maximum(count - discount, 0) / known + discount * types / known * below
    return np.concatenate([lower[:context], np.where(total > 0, mixed, below)])


def _look_up(keys, values, asked):
    """The values of the asked keys, 0 for those that are not there; keys are sorted."""
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0)


if __name__ == "__main__":
    tokens = np.load(sys.argv[1], mmap_mode="r")
    train, held = split(tokens, 256, float(sys.argv[2]) if len(sys.argv) > 2 else 0.05)
    n_vocab = int(tokens.max()) + 1
    sys.stdout.write(f"{trigram_loss(train, held, n_vocab):.4f} nats on {len(held):,} tokens\n")
