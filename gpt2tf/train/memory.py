"""How much memory training takes, estimated from the hparams and the settings."""

from __future__ import annotations

from gpt2tf.hparams import HParams
from gpt2tf.names import parameter_count
from gpt2tf.train.settings import Settings

TENSORFLOW = 5e8  # bytes of the process before there is a model
ACTIVATIONS = 22  # of a block, in features: the stream, norms, queries, keys, values, and the MLP before and after gelu
RECOMPUTED_ON_CPU = 12  # of these with recompute, as XLA computes much of it long before it is needed there
ATTENTION_COPIES = 4  # of the attention weights of a row, which are computed again for their gradients
LOGIT_COPIES = 3  # of the logits of a slab: themselves, their softmax and gradients
LOGITS = 2**25  # in a slab, see `loss.SLAB`
# Of the weights, during an update: they and AdamW's two moments, each before and after it, since XLA writes the new
# ones beside the old, and the gradients. Adafactor's moments are small, but its step has temporaries of the size.
UPDATE_COPIES = {"adamw": 7, "adafactor": 6}


def training_bytes(hparams: HParams, settings: Settings, gpu: bool = False) -> int:
    """About how much memory training takes at its peak: weights, gradients, optimizer, activations, logits.

    gpu: where bfloat16 takes half the memory of activations and recompute leaves those of one block. On a CPU XLA
    computes in float32 what is bfloat16.
    """
    h, s = hparams, settings
    window = min(s.window or h.n_ctx, h.n_ctx)
    copies = UPDATE_COPIES[s.optimizer] + (s.accumulate > 1) + (s.sample_every > 0)  # a sum, packed weights
    tokens = window * s.batch_size
    features = tokens * h.n_embd * (2 if s.dtype == "bfloat16" and gpu else 4)
    if s.recompute and gpu:
        blocks = features * (ACTIVATIONS + h.n_layer)
    else:
        blocks = features * h.n_layer * (RECOMPUTED_ON_CPU if s.recompute else ACTIVATIONS)
    attention = ATTENTION_COPIES * 4 * h.n_head * window * window
    logits = LOGIT_COPIES * 4 * min(tokens * h.n_vocab, LOGITS)
    return int(TENSORFLOW + 4 * copies * parameter_count(h) + blocks + attention + logits)
