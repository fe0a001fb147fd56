"""A model as a SavedModel: what TensorFlow Serving and `tf.saved_model.load` open, without Python and without gpt2tf.

Signatures: `logits` of all positions, and `generate`, the loop of openai/gpt-2 src/sample.py:43-95 as one graph. The
network is `gpt2tf.model` with its `past`, the choice `gpt2tf.decode.choose`; the tokens are those of `gpt2tf.Generator`
for the same noise. Any batch, length and lengths of prompts within the window go; what does not fit is an error of the
graph, in the words of `gpt2tf.checks`. The graph is an ordinary one: TensorFlow Serving runs no XLA on a CPU unless it
is told to, and XLA would compile again for each size.

Prompts of different lengths need no mask: all rows are at the same position, and a row that is still in its prompt
takes the prompt's token. So a batch takes as many steps as its length and the difference of its prompts together.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import tensorflow as tf

from gpt2tf import encoder
from gpt2tf.checks import MAX_TEMPERATURE, MIN_TEMPERATURE
from gpt2tf.decode.choose import Options, choose_token
from gpt2tf.decode.ops import BLOCK, Ops
from gpt2tf.files import appearing, refuse_taken
from gpt2tf.model import GPT2, past_shape
from gpt2tf.train.ids import as_ids

NO_TOKEN = -1  # behind a row's last token; as `stop`, no stop
SIGNATURE = {
    "tokens": tf.TensorSpec([None, None], tf.int32),
    "lengths": tf.TensorSpec([None], tf.int32),
    "noise": tf.TensorSpec([None, None], tf.float64),
    "temperature": tf.TensorSpec([], tf.float32),
    "top_k": tf.TensorSpec([], tf.int32),
    "top_p": tf.TensorSpec([], tf.float32),
    "stop": tf.TensorSpec([], tf.int32),
}


def write_saved_model(model: GPT2, path: str | os.PathLike) -> None:
    """Write a model as the folder of a SavedModel, whole or not at all.

    Signature logits: tokens [batch, seq] int32 -> logits [batch, seq, n_vocab] float32.
    Signature generate: tokens [batch, seq] int32, padded on the right with anything; lengths [batch] int32, of the
    prompts; noise [length, batch] float64 in [0, 1); temperature float32 (0: arg-max), top_k int32 (0: off), top_p
    float32 (1: off), stop int32 (a token that ends its row, -1: none), scalars -> tokens [batch, length] int32, the new
    ones, -1 behind a stop; lengths [batch] int32, how many each row has.
    Raises FileExistsError if there is something at path, OSError where the disk does.
    """
    refuse_taken(path)
    with appearing(path) as part:
        module = tf.Module()
        module.variables_by_name = {v.path: v.value for v in model.variables}
        tokens = SIGNATURE["tokens"]
        logits = tf.function(lambda tokens: {"logits": model(tokens)["logits"]}, [tokens], autograph=False)
        generate = tf.function(lambda **request: _generate(model, Request(**request)), autograph=False)
        signatures = {"logits": logits, "generate": generate.get_concrete_function(**SIGNATURE)}
        try:
            tf.saved_model.save(module, part, signatures)
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0].split("; ")[-1].removesuffix(" [Op:SaveV2]")
            raise OSError(f"cannot write {os.fspath(path)}: {reason}") from None


class Request(NamedTuple):
    """The arguments of the signature generate, as tensors."""

    tokens: tf.Tensor
    lengths: tf.Tensor
    noise: tf.Tensor
    temperature: tf.Tensor
    top_k: tf.Tensor
    top_p: tf.Tensor
    stop: tf.Tensor


def _generate(net: GPT2, request: Request):
    text, lengths, noise, options, stop = _checked(net, request)
    length, batch = tf.unstack(tf.shape(noise))
    slots = tf.range(tf.shape(text)[1])
    n_vocab = net.hparams.n_vocab
    real = encoder.real_tokens(net.vocabulary, n_vocab)  # beyond them nothing is sampled

    def body(place, text, counts, done, finite, past):
        """Runs the tokens in front of `place` that are not in `past` yet, and chooses those at `place`."""
        lm_output = net(text[:, tf.shape(past)[-2] : place], past=past, last=True)
        logits = tf.pad(lm_output["logits"][:, 0], [[0, 0], [0, -n_vocab % BLOCK]])  # [batch, padded vocab]
        sampling = (place >= lengths) & ~done  # [batch]
        u = tf.gather(tf.transpose(noise), tf.where(sampling, counts, 0), batch_dims=1)  # [batch]
        token, fine = choose_token(Ops(jit_compile=False, platform="CPU"), logits, u, real, options)
        text = tf.where(sampling[:, None] & (slots == place), token[:, None], text)  # [batch, seq + length]
        counts += tf.cast(sampling, tf.int32)
        done |= sampling & ((token == stop) | (counts == length))
        past = tf.concat([past, lm_output["present"]], axis=-2)  # [batch, layer, 2, heads, place, head_features]
        return place + 1, text, counts, done, finite & tf.reduce_all(fine | ~sampling), past

    done = tf.fill([batch], length == 0)
    past = tf.zeros(past_shape(net.hparams, batch, 0), net.compute_dtype)  # of no positions yet
    state = tf.reduce_min(lengths), text, tf.zeros_like(lengths), done, tf.constant(True), past
    shapes = *(x.shape for x in state[:-1]), tf.TensorShape(past_shape(net.hparams))
    _, text, counts, _, finite, _ = tf.while_loop(
        lambda place, text, counts, done, finite, past: finite & ~tf.reduce_all(done), body, state, shapes
    )
    damaged = "the model's logits are not finite; its weights are damaged or training diverged"
    with tf.control_dependencies([tf.debugging.Assert(finite, [damaged])]):
        new = tf.gather(text, lengths[:, None] + tf.range(length), batch_dims=1)  # [batch, length]
        return {"tokens": tf.where(tf.sequence_mask(counts, length), new, NO_TOKEN), "lengths": counts}


def _checked(net: GPT2, request: Request):
    """(text [batch, seq + length], zeros where there are no tokens yet; lengths; noise; options; stop), in range."""
    tokens, lengths, noise, temperature, top_k, top_p, stop = request
    batch, seq = tf.unstack(tf.shape(tokens))
    length = tf.shape(noise)[0]
    shapes = [
        _must(batch > 0, "there are no prompts; give at least one"),
        _must(tf.size(lengths) == batch, "lengths has", tf.size(lengths), "numbers and tokens has rows:", batch),
        _must(tf.shape(noise)[1] == batch, "noise is [length, batch]:", tf.shape(noise), "; tokens has rows:", batch),
    ]
    with tf.control_dependencies(shapes):
        lengths, noise = tf.identity(lengths), tf.identity(noise)
    n_vocab, n_ctx, longest = net.hparams.n_vocab, net.hparams.n_ctx, tf.reduce_max(lengths)
    most = tf.minimum(seq, n_ctx)
    fits = (lengths >= 1) & (lengths <= most)  # [batch]
    drawn = (noise >= 0) & (noise < 1)  # [length, batch]
    warm = (temperature == 0) | (temperature >= MIN_TEMPERATURE) & (temperature <= MAX_TEMPERATURE)
    values = [
        _must(fits, "a prompt's length is", _first_not(fits, lengths), "; it must be from 1 to", most),
        _must(
            longest + length <= n_ctx + 1,
            *("the prompt has", longest, "tokens and length is", length, "; together they may be at most", n_ctx + 1),
        ),
        _must(drawn, "noise is", _first_not(drawn, noise), "; it must be from 0 to below 1"),
        _must(
            warm,
            *("temperature is", temperature, f"; it must be 0 (arg-max) or from {MIN_TEMPERATURE} to"),
            f"{MAX_TEMPERATURE:.0e}",
        ),
        _must(top_k >= 0, "top_k is", top_k, "; it must be 0 (off) or more"),
        _must((top_p >= 0) & (top_p <= 1), "top_p is", top_p, "; it must be from 0 to 1 (off)"),
        _must((stop >= -1) & (stop < n_vocab), "stop is", stop, "; it must be -1 (none) or a token below", n_vocab),
    ]
    with tf.control_dependencies(values):
        text = tf.where(tf.sequence_mask(lengths, seq), tokens, 0)  # [batch, seq]
    text, _ = as_ids(text, n_vocab)
    text = tf.pad(text, [[0, 0], [0, length]])  # [batch, seq + length]
    return text, lengths, noise, Options(temperature, top_k, top_p), stop


def _must(holds, *words) -> tf.Operation:
    """An error of the graph, of words and numbers, unless all holds."""
    return tf.debugging.Assert(tf.reduce_all(holds), list(words))


def _first_not(holds, values):
    """The first value that does not hold, [1], or none, [0]."""
    return tf.boolean_mask(values, ~holds)[:1]
