"""What training computes in parts, or a second time, to save memory: value and gradients of the plain computation."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tolerances import GRADIENT, relative
from training import ONE_LAYER, initial_value

from gpt2tf import GPT2
from gpt2tf.model import head, multihead_attn
from gpt2tf.train import loss, recompute
from gpt2tf.train.dropout import row_keys
from gpt2tf.train.recompute import recomputed_by_rows

BATCH, SEQ, FEATURES, VOCAB, HEADS = 6, 5, 8, 23, 2


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng([seed, *shape]).normal(size=shape), tf.float32)


def value_and_gradients(call, *inputs, compiled=False):
    """Of call(*inputs), a tensor, whose parts all weigh differently."""

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = call(*inputs)
            total = tf.reduce_sum(y * normal(*y.shape, seed=9))
        return [y, *tape.gradient(total, inputs)]

    return tf.function(run, jit_compile=True)(*inputs) if compiled else run(*inputs)


def assert_equal_but_for_rounding(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) <= GRADIENT


# Of 30 positions: most of these leave a last slab that is not full.
@pytest.mark.parametrize("rows, compiled", [(1, False), (7, False), (29, False), (30, False), (31, False), (7, True)])
def test_the_loss_in_slabs_is_that_of_all_logits(monkeypatch, rows, compiled):
    made = []

    def counted(h, wte):
        made.append(h.shape[1])
        return head(h, wte)

    h, wte = normal(BATCH, SEQ, FEATURES), normal(VOCAB, FEATURES)
    targets = tf.constant(np.random.default_rng(1).integers(0, VOCAB, [BATCH, SEQ]), tf.int32)

    def plain(h, wte):
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.einsum("bsf,vf->bsv", h, wte))
        return tf.reduce_mean(nats)

    monkeypatch.setattr(loss, "SLAB", rows * VOCAB)
    found = value_and_gradients(lambda h, wte: loss.mean_nats(counted, h, wte, targets), h, wte, compiled=compiled)
    slabs = -(-30 // rows)
    assert set(made) == {-(-30 // slabs)} and (compiled or len(made) == slabs)
    assert_equal_but_for_rounding(found, value_and_gradients(plain, h, wte))


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(
    "fit, rows, compiled",  # rows that fit, and the largest divisor of the 6 of the batch
    [(0, 1, False), (1, 1, False), (2, 2, False), (5, 3, False), (6, 6, False), (2, 2, True)],
)
def test_attention_by_rows_is_that_of_the_batch(monkeypatch, fit, rows, rate, compiled):
    called = []

    def attend(q, k, v, keys):
        called.append(q.shape[0])
        return multihead_attn(q, k, v, keys, rate)

    qkv = [normal(BATCH, HEADS, SEQ, FEATURES // HEADS, seed=seed) for seed in range(3)]
    keys, size = row_keys(1, 2, range(BATCH)), HEADS * SEQ**2
    monkeypatch.setattr(recompute, "SLAB", fit * size)
    found = value_and_gradients(lambda *qkv: recomputed_by_rows(attend, qkv, keys, size), *qkv, compiled=compiled)
    assert set(called) == {rows}
    assert compiled or len(called) == 2 * BATCH // rows  # once more for the gradients
    assert_equal_but_for_rounding(found, value_and_gradients(lambda *qkv: multihead_attn(*qkv, keys, rate), *qkv))
    assert (relative(found[0], multihead_attn(*qkv)) > 0.01) == (rate > 0)


def squares(model, tokens):
    """A loss of the logits, and its gradients."""
    with tf.GradientTape() as tape:
        logits = model(tokens, training=True, dropout_keys=row_keys(1, 2, tf.range(tf.shape(tokens)[0])))["logits"]
        total = tf.reduce_sum(tf.square(logits))
    return total, tape.gradient(total, model.trainable_weights)


@pytest.mark.parametrize(
    "compiled, recompute", [(None, False), (None, True), (False, False), (False, True), (True, True)]
)
def test_batches_of_all_sizes(compiled, recompute):
    """Also one without rows, which a device has where the last batch is too small for all of them."""
    model = GPT2(ONE_LAYER, initial_value=initial_value, recompute=recompute)
    step = functools.partial(squares, model)
    if compiled is not None:
        step = tf.function(step, input_signature=[tf.TensorSpec([None, None], tf.int32)], jit_compile=compiled)
    for shape in ([0, 5], [2, 0], [3, 5])[: 1 if compiled else None]:  # others compiled are in other tests
        tokens = np.random.default_rng(0).integers(0, ONE_LAYER.n_vocab, shape, np.int32)
        total, gradients = step(tokens)
        assert all(gradient is not None for gradient in gradients)
        if tokens.size:
            expected, expected_gradients = squares(model, tokens)
            assert float(total) == pytest.approx(float(expected), rel=GRADIENT)
            for variable, one, other in zip(model.trainable_weights, gradients, expected_gradients, strict=True):
                if not variable.path.endswith("c_attn/b"):  # the keys' third is rounding
                    assert relative(one, other) <= GRADIENT, variable.path
        else:
            assert float(total) == 0 and not any(gradient.numpy().any() for gradient in gradients)
