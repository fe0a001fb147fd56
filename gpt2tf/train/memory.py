"""How much memory training takes, estimated from the hparams and the settings."""

from __future__ import annotations

from gpt2tf.hparams import HParams
from gpt2tf.names import parameter_count
from gpt2tf.train.settings import Settings

ACTIVATIONS = 36  # of a block, in features: what its gradient needs, and gradients beside it
ATTENTION_COPIES = 6  # of each pair of positions: before the softmax, after it, after dropout, and their gradients
# Of the weights, during an update: they and AdamW's two moments, each before and after it, since XLA writes the new
# ones beside the old, and the gradients. Adafactor's moments are small, but its step has two temporaries of the size.
UPDATE_COPIES = {"adamw": 7, "adafactor": 5}


def training_bytes(hparams: HParams, settings: Settings) -> int:
    """About how much memory training takes at its peak: weights, gradients, optimizer, activations, logits.

    Measured on a CPU with 124M, two windows of 256: 4.0 GB (said: 4.9), with recompute 4.2 (3.9), then with Adafactor
    3.4 (2.9).
    Of a token in a block: what its gradient needs of the stream, norms, queries, keys, values, and of the four times
    wider MLP before and after gelu; of each pair of positions in a head: its weight, before, in and after the softmax.
    """
    h, s = hparams, settings
    window = min(s.window or h.n_ctx, h.n_ctx)
    copies = UPDATE_COPIES[s.optimizer] + (s.accumulate > 1) + (s.sample_every > 0)  # a sum, packed weights
    tokens = window * s.batch_size
    width = 2 if s.dtype == "bfloat16" else 4
    block = tokens * (ACTIVATIONS * h.n_embd * width + ATTENTION_COPIES * h.n_head * window * 4)
    blocks = block + h.n_layer * tokens * h.n_embd * width if s.recompute else h.n_layer * block
    logits = 3 * 4 * tokens * h.n_vocab
    return 4 * copies * parameter_count(h) + blocks + logits
