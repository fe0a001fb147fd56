"""The network for scoring: from tokens to hidden states block by block, and from them to scores slab by slab.

The arithmetic is `gpt2tf.model`'s. Differences: no cache and no `present`; positions attend in slabs, to no more keys
than they can see; the logits are there for a slab of positions at a time. Of bfloat16 are the factors of products, and
what a product gives; the sums of the residual stream, norms, softmax and what is made of the logits are float32.

Blocks are compiled one at a time, for all layers alike. On a CPU without XLA: TensorFlow's own products reach 150 to
300 GFLOP/s in float32 and 600 to 1,600 in bfloat16 on two cores with AMX, where XLA's reach 110 to 170 and 80 to 150.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpt2tf import model
from gpt2tf.hparams import HParams
from gpt2tf.names import variable_shapes

ATTENDING = 128  # positions that attend at a time; a window of 1,024 takes a fifth of the time that it takes at once


class Score(NamedTuple):
    """Of one row of tokens."""

    log_probabilities: np.ndarray  # [tokens] float32, natural log; the first is NaN where nothing stands in front
    ranks: np.ndarray  # [tokens] int32; 1 is the likeliest token, ties count as less likely; 0 where there is a NaN
    alternatives: np.ndarray  # [tokens, n] int32, the n likeliest tokens, likeliest first
    alternative_log_probabilities: np.ndarray  # [tokens, n] float32


class Network:
    """GPT-2 over a model's weights.

    weights: by the original's names. tokens: the rows of wte that stand for a token; the others get no probability.
    dtype: of the factors of products.
    """

    def __init__(self, weights: Mapping, hparams: HParams, tokens: int, dtype: str, jit_compile: bool):
        self.hparams, self.dtype = hparams, tf.as_dtype(dtype)
        self.wpe = tf.convert_to_tensor(weights["model/wpe"])
        wte = tf.convert_to_tensor(weights["model/wte"])
        # Logits may lie far from 0, where 16 bits are coarse. Less the mean they are near it, and as likely.
        self.mean = tf.reduce_mean(wte, axis=0) if self.dtype != tf.float32 else tf.zeros([hparams.n_embd])
        self.wte = wte if self.dtype == tf.float32 else tf.cast(wte - self.mean, self.dtype)
        self.out = self.wte[:tokens]
        self.layers: list[dict] = [{} for _ in range(hparams.n_layer)]
        for name in variable_shapes(hparams):
            if block := re.fullmatch(r"model/h(\d+)/(.*)", name):
                dtype = tf.float32 if "/ln_" in name else self.dtype
                self.layers[int(block[1])][block[2]] = tf.cast(weights[name], dtype)
        self.ln_f = [tf.convert_to_tensor(weights[f"model/ln_f/{leaf}"]) for leaf in "gb"]
        options = {"jit_compile": jit_compile, "autograph": False, "reduce_retracing": True}
        self._blocks = collections.defaultdict(lambda: tf.function(self._block, **options))  # by sequence length
        self._heads = collections.defaultdict(lambda: tf.function(self._head, **options))  # by alternatives

    def hidden(self, tokens, begin: int = 0):
        """[batch, seq] int32 -> [batch, seq - begin, features] float32, of which the head makes scores

        begin: the first position that is asked for; those before it are only attended to.
        """
        seq, last = tokens.shape[1], len(self.layers) - 1
        h = tf.cast(tf.gather(self.wte, tokens), tf.float32) + self.mean + self.wpe[:seq]  # [batch, seq, features]
        for i, layer in enumerate(self.layers):
            h = self._blocks[seq](h, layer, begin if i == last else 0)
        return h

    def scores(self, h, targets, alternatives: int) -> Score:
        """h: [n, features], of the positions before the targets; targets: [n] int32 -> their score, as tensors"""
        return self._heads[alternatives](h, targets, alternatives)

    def _block(self, h, layer, begin):
        """h: [batch, seq, features] float32 -> the same, of the positions from begin on"""

        def norm(name):
            return lambda x: model.norm(x, layer[f"{name}/g"], layer[f"{name}/b"])

        def linear(name, dtype=self.dtype):
            w, b = layer[f"{name}/w"], layer[f"{name}/b"]
            return lambda x: tf.cast(model.conv1d(tf.cast(x, self.dtype), w, b), dtype)

        def attn(x):
            q, k, v = tf.split(linear("attn/c_attn")(x), 3, axis=2)  # [batch, seq, features]
            q, k, v = (model.split_heads(part, self.hparams.n_head) for part in (q, k, v))
            a = model.merge_heads(_attend(q[:, :, begin:], k, v))  # [batch, seq - begin, features]
            return linear("attn/c_proj", tf.float32)(a), None

        def mlp(x):
            """As `model.mlp`, in the form in which TensorFlow makes one operation of a product, its bias and GELU."""
            w, b = layer["mlp/c_fc/w"], layer["mlp/c_fc/b"]
            flat = tf.reshape(tf.cast(x, self.dtype), [-1, self.hparams.n_embd])  # [batch * seq, features]
            flat = tf.nn.gelu(tf.nn.bias_add(tf.matmul(flat, w[0]), b), approximate=True)  # [batch * seq, 4 * features]
            batch, seq, _ = model.shape_list(x)
            return linear("mlp/c_proj", tf.float32)(tf.reshape(flat, [batch, seq, -1]))

        whole = norm("ln_1")(h)  # of all positions, to which those from begin on attend
        return model.block(h[:, begin:], lambda x: whole, attn, norm("ln_2"), mlp)[0]

    def _head(self, h, targets, alternatives):
        """As `scores`."""
        h = tf.cast(model.norm(h, *self.ln_f), self.dtype)  # [n, features]
        logits = tf.cast(tf.matmul(h, self.out, transpose_b=True), tf.float32)  # [n, vocab]
        largest = tf.reduce_max(logits, axis=-1)  # [n]
        total = largest + tf.math.log(tf.reduce_sum(tf.exp(logits - largest[:, None]), axis=-1))  # [n]
        target = tf.gather(logits, targets, batch_dims=1)  # [n]
        ranks = 1 + tf.reduce_sum(tf.cast(logits > target[:, None], tf.int32), axis=-1)  # [n]
        best, tokens = tf.math.top_k(logits, alternatives)  # [n, alternatives]
        return Score(target - total, ranks, tokens, best - total[:, None])


def _attend(q, k, v):
    """As `model.multihead_attn` of the last positions, slab by slab, by TensorFlow's own operations: one is softmax,
    one a product with its scale and mask.
    """
    _, heads, dst, head_features = q.shape
    # All are heads of one row: where the mask broadcasts over rows as well, oneDNN's product is slow, and three rows of
    # 256 tokens take 27 times as long.
    q, k, v = (tf.reshape(part, [1, -1, part.shape[2], head_features]) for part in (q, k, v))
    scale, slabs = tf.cast(model.attn_scale(head_features), q.dtype), []
    before = k.shape[2] - dst
    for begin in range(0, dst, ATTENDING):
        slab = q[:, :, begin : begin + ATTENDING]
        end = before + begin + slab.shape[2]
        masked = tf.cast(model.MASKED * (model.attention_mask(slab.shape[2], end) - 1), q.dtype)  # [dst, src]
        w = tf.matmul(slab, k[:, :, :end], transpose_b=True) * scale + masked[None, None]
        w = tf.nn.softmax(tf.cast(w, tf.float32))  # [1, batch * heads, dst, src]
        slabs.append(tf.matmul(tf.cast(w, v.dtype), v[:, :, :end]))
    return tf.reshape(tf.concat(slabs, axis=2), [-1, heads, dst, head_features])  # [batch, heads, dst, head_features]
