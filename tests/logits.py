"""The logits of the network that generation is compiled from, as an array."""

import numpy as np
import tensorflow as tf

from gpt2tf.decode.network import Network
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import pack


class Logits:
    """Logits of right-padded prompts and of tokens that follow them, from one Network."""

    def __init__(self, net, weights, dtype, jit_compile, batch=1, platform="CPU"):
        packed = pack(weights, net.hparams, dtype, platform, batch)
        self.network = Network(packed, net.hparams, Ops(jit_compile, platform))
        self.first = tf.function(self.network.prefill, jit_compile=jit_compile, autograph=False)
        self.next = tf.function(self.network.decode_step, jit_compile=jit_compile, autograph=False)
        self.n_vocab = net.hparams.n_vocab

    def __call__(self, tokens, lengths, n_next, src=32):
        """tokens: [batch, seq]. The first lengths[row] of each row are the prompt, the next n_next go in one by one.

        Returns [batch, 1 + n_next, vocab]: the logits after the prompt and after each token.
        """
        lengths = np.array(lengths, np.int32) - 1  # without the last token, with which the token pass begins
        width = lengths.max()
        cache = self.network.empty_cache(len(lengths), src)
        if width:
            prompt = np.where(np.arange(width) < lengths[:, None], tokens[:, :width], 0)
            _, cache = self.first(tf.constant(prompt), cache)
        found = []
        slots = np.arange(src)
        for i in range(1 + n_next):
            mask = (slots < lengths[:, None]) | ((slots >= width) & (slots <= width + i))
            token = tokens[np.arange(len(tokens)), lengths + i]
            logits, cache = self.next(
                *map(tf.constant, (token, lengths + i, np.int32(width + i), mask.astype(np.float32))), cache
            )
            found.append(logits)
        found = np.stack(found, axis=1)  # [batch, 1 + n_next, padded vocab]
        assert not found[..., self.n_vocab :].any()
        return found[..., : self.n_vocab]


def quantized(w):
    """[out, in] float32 -> (int8 values, scale [out]): each row by itself, halves to the even side."""
    scale = np.abs(w).max(axis=-1) / np.float32(127)
    return np.rint(w / scale[..., None]), scale
