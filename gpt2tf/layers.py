"""The Keras layers that hold a GPT-2's variables, each under the scope of the original.

Mirrors openai/gpt-2 src/model.py:27-174, whose arithmetic is in `gpt2tf.model`. `v.path` is the variable's name in the
released checkpoints. Differences: a sequence longer than the window is refused in Python, where XLA and GPUs would
have clamped the position in silence; training has dropout in the places where GPT-2 was trained with it.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable

import keras
import tensorflow as tf

from gpt2tf import model
from gpt2tf.hparams import HParams
from gpt2tf.model import cross_entropy
from gpt2tf.train.dropout import Rates, dropout, keys_at, row_keys

WPE_STDDEV = 0.01  # openai/gpt-2 src/model.py:153
WTE_STDDEV = W_STDDEV = 0.02  # openai/gpt-2 src/model.py:155 and :50; no 1/sqrt(n_layer) anywhere


def initial_value(path: str, shape: tuple[int, ...], seed: int | None = None):
    """The start of an untrained variable, by its name: the original's distributions.

    seed: makes it repeatable; without one it is drawn from Keras's global generator, which
    `keras.utils.set_random_seed` does.
    """
    leaf = path.rsplit("/", 1)[-1]
    if leaf == "g":
        return tf.ones(shape)
    if leaf == "b":
        return tf.zeros(shape)
    if seed is not None:
        seed = zlib.crc32(f"{seed} {path}".encode())
    return keras.random.normal(shape, seed=seed, stddev={"wpe": WPE_STDDEV, "wte": WTE_STDDEV}.get(leaf, W_STDDEV))


# So that a model compiled with it can be saved and loaded; `gpt2tf.model` knows no Keras.
keras.saving.register_keras_serializable("gpt2tf")(cross_entropy)

InitialValue = Callable[[str, tuple[int, ...]], tf.Tensor]


def get_variable(layer, name, shape):
    """Add a variable to a layer; to be called in its `build`, where `layer.path` is the scope."""
    path = f"{layer.path}/{name}"
    return layer.add_weight(
        name=name, shape=shape, initializer=lambda shape, dtype: tf.cast(layer.initial_value(path, shape), dtype)
    )


class Scope(keras.layers.Layer):
    """A layer that stands for a variable scope of the original. `net` is the GPT2 that it is a part of."""

    def __init__(self, net: GPT2, name: str):
        super().__init__(name=name, dtype=net.dtype_policy)
        self.initial_value = net.initial_value


class Norm(Scope):
    def build(self, shape):
        self.g = get_variable(self, "g", [shape[-1]])
        self.b = get_variable(self, "b", [shape[-1]])

    def call(self, x):
        return model.norm(x, self.g, self.b)


class Conv1D(Scope):
    def __init__(self, nf: int, net: GPT2, name: str):
        super().__init__(net, name)
        self.nf = nf

    def build(self, shape):
        self.w = get_variable(self, "w", [1, shape[-1], self.nf])
        self.b = get_variable(self, "b", [self.nf])

    def call(self, x):
        return model.conv1d(x, tf.convert_to_tensor(self.w), self.b)


class Attn(Scope):
    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.n_head = net.hparams.n_head
        self.rates = net.dropout
        self.c_attn = Conv1D(3 * net.hparams.n_embd, net, name="c_attn")
        self.c_proj = Conv1D(net.hparams.n_embd, net, name="c_proj")

    def build(self, shape):
        self.c_attn.build(shape)
        self.c_proj.build(shape)

    def call(self, x, past=None, keys=None):
        """x: [batch, seq, features], past: [batch, 2, heads, src, head_features] or None -> (x, present)"""
        x, present = model.attn(x, self.c_attn, functools.partial(self.attend, past=past, keys=keys), self.c_proj)
        return dropout(x, self.rates.resid, keys_at(keys, 1)), present

    def attend(self, c, past, keys):
        """[batch, seq, 3 * features] -> ([batch, seq, features], present [batch, 2, heads, seq, head_features])"""
        q, k, v = (model.split_heads(part, self.n_head) for part in tf.split(c, 3, axis=2))  # [batch, heads, seq, ...]
        present = tf.stack([k, v], axis=1)  # [batch, 2, heads, seq, head_features]
        if past is not None:
            k, v = tf.unstack(tf.concat([past, present], axis=-2), axis=1)  # [batch, heads, src, head_features]
        mask = model.attention_mask(model.shape_list(q)[-2], model.shape_list(k)[-2])  # [dst, src]
        drop = functools.partial(dropout, rate=self.rates.attn, keys=keys_at(keys, 0))
        return model.merge_heads(model.multihead_attn(q, k, v, mask, drop)), present


class MLP(Scope):
    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.rates = net.dropout
        self.c_fc = Conv1D(4 * net.hparams.n_embd, net, name="c_fc")
        self.c_proj = Conv1D(net.hparams.n_embd, net, name="c_proj")

    def build(self, shape):
        self.c_fc.build(shape)
        self.c_proj.build([*shape[:-1], self.c_fc.nf])

    def call(self, x, keys=None):
        return dropout(model.mlp(x, self.c_fc, self.c_proj), self.rates.resid, keys_at(keys, 2))


class Block(Scope):
    def __init__(self, net: GPT2, name: str):
        super().__init__(net, name)
        self.ln_1 = Norm(net, name="ln_1")
        self.attn = Attn(net, name="attn")
        self.ln_2 = Norm(net, name="ln_2")
        self.mlp = MLP(net, name="mlp")

    def build(self, shape):
        for layer in (self.ln_1, self.attn, self.ln_2, self.mlp):
            layer.build(shape)

    def call(self, x, past=None, keys=None):
        """x: [batch, seq, features] -> (x, present [batch, 2, heads, seq, head_features])"""
        attn = functools.partial(self.attn, past=past, keys=keys)
        return model.block(x, self.ln_1, attn, self.ln_2, functools.partial(self.mlp, keys=keys))


def recomputed(call, h):
    """The first result of call(h), which is computed a second time when its gradient is. h: [batch, seq, features]

    As `tf.recompute_grad`, whose second computation XLA sees through and merges with the first.
    """

    @tf.custom_gradient
    def stream(h):
        def grad(dy, variables):
            again = h + 0 * dy[:1, :1, :1]  # XLA may not drop this sum, which would be NaN where dy is
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = call(again)[0]
            return tape.gradient(y, (again, variables), output_gradients=dy)

        return call(h)[0], grad

    return stream(h)


@keras.saving.register_keras_serializable("gpt2tf")
class GPT2(keras.Model):
    """GPT-2 as a Keras model; `{v.path: v.shape for v in model.variables}` are the checkpoint's.

    hparams: the sizes. initial_value(path, shape): what each variable starts from; the original's
    random start when it is not given. dropout: rates of training, one for all places or `Rates`.
    recompute: keep of each block only its input for the gradients and compute the rest a second time, which
    saves memory (on a CPU a sixth at best). dtype: as in any Keras model; "mixed_bfloat16" computes in bfloat16.
    `vocabulary` is the folder whose encoder.json and vocab.bpe belong to the weights, None for the
    released ones; `save_checkpoint` puts them beside the weights.

    To train it as any Keras model: `model.compile(optimizer, loss=gpt2tf.cross_entropy, jit_compile=True)` and
    `model.fit` on (tokens[:, :-1], tokens[:, 1:]); losses and metrics are given the logits. What `model.save` wrote is
    opened by `keras.models.load_model`, which finds the class once `gpt2tf.GPT2` has been named or imported.
    """

    def __init__(
        self,
        hparams: HParams,
        *,
        initial_value: InitialValue = initial_value,
        dropout: Rates | float = 0.1,
        recompute: bool = False,
        dtype=None,
    ):
        super().__init__(name="model", dtype=dtype)
        self.hparams = hparams
        self.dropout = dropout if isinstance(dropout, Rates) else Rates(dropout, dropout, dropout)
        self.recompute = recompute
        self.vocabulary: str | None = None
        self.initial_value = initial_value
        # A bound method is not tracked by Keras, so the generator's state is no variable of the model.
        self._next_seed = keras.random.SeedGenerator().next
        self.blocks = [Block(self, name=f"h{i}") for i in range(hparams.n_layer)]
        self.ln_f = Norm(self, name="ln_f")
        self.build(None)

    def build(self, _):
        self.wpe = get_variable(self, "wpe", [self.hparams.n_ctx, self.hparams.n_embd])
        self.wte = get_variable(self, "wte", [self.hparams.n_vocab, self.hparams.n_embd])
        for layer in (*self.blocks, self.ln_f):
            layer.build([None, None, self.hparams.n_embd])

    def get_config(self):
        """What `model.save` writes and `keras.models.load_model` reads; the weights are written beside it."""
        sizes, rates = dataclasses.asdict(self.hparams), dataclasses.asdict(self.dropout)
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        return {"hparams": sizes, "dropout": rates, "recompute": self.recompute, "dtype": dtype}

    @classmethod
    def from_config(cls, config):
        sizes, rates = HParams(**config["hparams"]), Rates(**config["dropout"])
        return cls(**config | {"hparams": sizes, "dropout": rates})

    def call(self, tokens, past=None, training=False, keys=None):
        """The original's `model`: logits for every position, and the keys and values to go on from.

        tokens: [batch, seq] ids. past: [batch, n_layer, 2, n_head, src, head_features], the `present`
        of what came before, concatenated on axis -2; None at the start. training: with dropout on the sum of the
        embeddings, on the attention weights and on the output of each c_proj, and without a `present`.
        keys: [batch] of `dropout.row_keys`, fresh ones if not given.
        Returns {"logits": [batch, seq, n_vocab], "present": [batch, n_layer, 2, n_head, seq, head_features]}.
        Raises ValueError for other shapes, and when past and tokens together are longer than n_ctx.
        """
        self._check_shapes(tokens, past)
        if not training:
            keys = None
        elif keys is None:
            keys = self._fresh_keys(model.shape_list(tokens)[0])
        past_length = 0 if past is None else model.shape_list(past)[-2]
        h = tf.gather(self.wte, tokens) + tf.gather(self.wpe, model.positions_for(tokens, past_length))
        h = dropout(h, self.dropout.embd, keys_at(keys, 0))
        presents = []
        pasts = [None] * self.hparams.n_layer if past is None else tf.unstack(past, axis=1)
        for layer, (block, past_of_block) in enumerate(zip(self.blocks, pasts, strict=True)):
            call = functools.partial(block, past=past_of_block, keys=keys_at(keys, 1 + layer))
            if training and self.recompute:
                h = recomputed(call, h)  # [batch, seq, features]
            else:
                h, present = call(h)  # [batch, seq, features], [batch, 2, heads, seq, head_features]
                presents.append(present)
        logits = self.logits(self.ln_f(h))
        return {"logits": logits} if training else {"logits": logits, "present": tf.stack(presents, axis=1)}

    def logits(self, h):
        """[batch, seq, features] -> [batch, seq, vocab]; the head is tied to wte."""
        batch, seq, features = model.shape_list(h)
        flat = tf.matmul(tf.reshape(h, [-1, features]), self.wte, transpose_b=True)  # [batch * seq, vocab]
        return tf.reshape(flat, [batch, seq, self.hparams.n_vocab])  # [batch, seq, vocab]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred["logits"], sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred["logits"], sample_weight)

    def _fresh_keys(self, batch):
        """Keys of a step that nobody numbers; replicas of tf.distribute have different rows of it."""
        seed, step = tf.unstack(tf.convert_to_tensor(self._next_seed()))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return row_keys(seed, step, replica * batch + tf.range(batch))

    def _check_shapes(self, tokens, past):
        if len(tokens.shape) != 2:
            raise ValueError(f"tokens must be [batch, seq]; their shape is {tuple(tokens.shape)}")
        if past is None:
            return self._check_window(tokens.shape[1], 0)
        expected = model.past_shape(self.hparams, tokens.shape[0], past.shape[-2] if len(past.shape) == 6 else None)
        if not past.shape.is_compatible_with(expected):
            raise ValueError(f"past must be {expected}, as `present` is; its shape is {tuple(past.shape)}")
        self._check_window(tokens.shape[1], past.shape[-2])

    def _check_window(self, seq, past_length):
        if None not in (seq, past_length) and past_length + seq > self.hparams.n_ctx:
            raise ValueError(
                f"{past_length} past and {seq} new tokens are {past_length + seq}; n_ctx is {self.hparams.n_ctx}"
            )
