"""The network: recorded outputs, an independent float64 forward pass, and each constant of the original."""

import functools

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import GOLDEN
from tolerances import R124M_FLOAT32, R124M_NLL, STDDEV, TINY_FLOAT32, relative

from gpt2tf import GPT2, HParams, load_model, model
from gpt2tf.names import variable_shapes

SMALL = HParams(n_vocab=31, n_ctx=12, n_embd=16, n_head=4, n_layer=2)


@functools.cache
def small_model():
    rng = np.random.default_rng(0)
    return GPT2(SMALL, initial_value=lambda path, shape: rng.normal(size=shape).astype(np.float32))


def test_variables_are_the_checkpoints():
    net = small_model()
    assert {v.path: tuple(v.shape) for v in net.variables} == variable_shapes(SMALL)
    assert [v.path for v in net.variables] == list(variable_shapes(SMALL))  # in the original's order too
    assert net.name == "model" and isinstance(net, keras.Model)


def test_tiny_equals_the_recorded_outputs(tiny):
    recorded = np.load(GOLDEN / "tiny-a" / "forward.npz")
    first = tiny(recorded["tokens"])
    assert relative(first["logits"], recorded["logits"]) <= TINY_FLOAT32
    assert relative(first["present"], recorded["present"]) <= TINY_FLOAT32
    then = tiny(recorded["next_tokens"], past=recorded["present"])
    assert relative(then["logits"], recorded["next_logits"]) <= TINY_FLOAT32
    assert relative(then["present"], recorded["next_present"]) <= TINY_FLOAT32
    full = tiny(recorded["full_tokens"])
    assert relative(full["logits"][:, -1], recorded["full_last_logits"]) <= TINY_FLOAT32


@pytest.mark.slow
def test_124m_equals_the_recorded_outputs(r124m_folder):
    recorded = np.load(GOLDEN / "r124m" / "forward.npz")
    net = load_model(r124m_folder)
    first = net(recorded["tokens"])
    logits = first["logits"].numpy()
    assert relative(logits[:, -1], recorded["last_logits"]) <= R124M_FLOAT32
    top10 = np.take_along_axis(logits, recorded["top10_ids"], axis=-1)
    assert relative(top10, recorded["top10_logits"]) <= R124M_FLOAT32
    then = net(recorded["next_tokens"], past=first["present"])
    assert relative(then["logits"][:, -1], recorded["next_last_logits"]) <= R124M_FLOAT32
    full = recorded["full_tokens"]
    log_probabilities = tf.nn.log_softmax(net(full)["logits"][0, :-1]).numpy()
    nll = -np.take_along_axis(log_probabilities, full[0, 1:, None], axis=-1)[:, 0]
    assert np.abs(nll - recorded["full_nll"]).max() <= R124M_NLL


@pytest.mark.parametrize("seq", range(1, SMALL.n_ctx + 1))
def test_equals_the_float64_oracle(seq):
    net = small_model()
    weights = {v.path: v.numpy().astype(np.float64) for v in net.variables}
    tokens = np.random.default_rng(seq).integers(0, SMALL.n_vocab, [2, seq])
    expected = np.stack([oracle.forward(weights, SMALL.n_head, row) for row in tokens])
    assert relative(net(tokens)["logits"], expected) <= TINY_FLOAT32


def in_chunks(net, tokens, sizes):
    """Feed tokens in pieces of these sizes; returns (logits, present) of all of them."""
    past, logits, start = None, [], 0
    for size in sizes:
        out = net(tokens[:, start : start + size], past=past)
        past = out["present"] if past is None else tf.concat([past, out["present"]], axis=-2)
        logits.append(out["logits"])
        start += size
    assert start == tokens.shape[1]
    return tf.concat(logits, axis=1), past


@pytest.mark.parametrize("seq", range(1, SMALL.n_ctx + 1))
def test_prompt_then_one_by_one_equals_one_pass(seq):
    net = small_model()
    tokens = np.random.default_rng(seq).integers(0, SMALL.n_vocab, [2, SMALL.n_ctx])
    whole = net(tokens)
    logits, present = in_chunks(net, tokens, [seq] + [1] * (SMALL.n_ctx - seq))
    assert relative(logits, whole["logits"]) <= TINY_FLOAT32
    assert relative(present, whole["present"]) <= TINY_FLOAT32
    assert np.array_equal(tf.argmax(logits, axis=-1), tf.argmax(whole["logits"], axis=-1))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, SMALL.n_ctx), min_size=1).filter(lambda sizes: sum(sizes) <= SMALL.n_ctx))
def test_any_chunking_equals_one_pass(sizes):
    net = small_model()
    tokens = np.random.default_rng(len(sizes)).integers(0, SMALL.n_vocab, [1, sum(sizes)])
    whole = net(tokens)
    logits, present = in_chunks(net, tokens, sizes)
    assert relative(logits, whole["logits"]) <= TINY_FLOAT32
    assert relative(present, whole["present"]) <= TINY_FLOAT32


def test_logits_of_the_last_position_alone(tiny):
    tokens = np.random.default_rng(0).integers(0, 1000, [2, 9])
    found, whole = tiny(tokens, last=True), tiny(tokens)
    assert relative(found["logits"], whole["logits"][:, -1:]) < TINY_FLOAT32
    assert np.array_equal(found["present"], whole["present"])


def test_a_position_sees_only_itself_and_what_is_before():
    net = small_model()
    tokens = np.arange(10)[None, :]
    changed = tokens.copy()
    changed[0, 6] = 30
    before, after = net(tokens)["logits"].numpy(), net(changed)["logits"].numpy()
    assert np.array_equal(before[:, :6], after[:, :6])
    assert not np.array_equal(before[:, 6:], after[:, 6:])


def test_longer_than_the_window_is_refused():
    net = small_model()
    with pytest.raises(ValueError, match="0 past and 13 new tokens are 13; n_ctx is 12"):
        net(np.zeros([1, 13], np.int32))
    present = net(np.zeros([1, 12], np.int32))["present"]
    with pytest.raises(ValueError, match="12 past and 1 new tokens are 13; n_ctx is 12"):
        net(np.zeros([1, 1], np.int32), past=present)


def test_initial_values_have_the_originals_distributions():
    keras.utils.set_random_seed(1)
    net = GPT2(HParams(n_vocab=300, n_ctx=120, n_embd=100, n_head=4, n_layer=3))
    expected = {"wpe": 0.01, "wte": 0.02, "w": 0.02}
    for v in net.variables:
        leaf, value = v.path.rsplit("/", 1)[-1], v.numpy()
        if leaf in expected:
            assert value.std() == pytest.approx(expected[leaf], rel=STDDEV), v.path
            assert abs(value.mean()) < expected[leaf] * STDDEV, v.path
        else:
            assert np.all(value == {"g": 1, "b": 0}[leaf]), v.path


def test_gelu_is_the_tanh_form():
    x = np.linspace(-6, 6, 1001)
    assert relative(model.gelu(tf.constant(x, tf.float32)), oracle.gelu(x)) <= TINY_FLOAT32
    exact_form = np.array([keras.ops.gelu(tf.constant(x, tf.float32), approximate=False)])[0]
    assert np.abs(oracle.gelu(x) - exact_form).max() > 4e-4  # so the two can be told apart


def test_norm_has_epsilon_1e_5_inside_the_root():
    x = 1e-3 * np.random.default_rng(0).normal(size=[3, 20])  # variance 1e-6, so that epsilon counts
    g, b = np.linspace(0.5, 2, 20), np.linspace(-1, 1, 20)
    as_float32 = [tf.constant(value, tf.float32) for value in (x, g, b)]
    assert relative(model.norm(*as_float32), oracle.norm(x, g, b)) <= TINY_FLOAT32


def test_attention_mask_is_aligned_to_the_end():
    assert model.attention_mask(2, 4).numpy().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert model.attention_mask(3, 3).numpy().tolist() == np.tril(np.ones([3, 3])).tolist()


def test_masked_weights_are_minus_1e10():
    w = tf.constant([[5.0, -3.0]])
    assert model.mask_attn_weights(w, tf.constant([[1.0, 0.0]])).numpy().tolist() == [[5.0, -1e10]]


def test_softmax_does_not_overflow():
    assert model.softmax(tf.constant([1e4, 1e4, -1e10])).numpy().tolist() == [0.5, 0.5, 0.0]


def test_heads_split_and_merge():
    x = np.random.default_rng(0).normal(size=[2, 3, 8]).astype(np.float32)
    split = model.split_heads(tf.constant(x), 4)
    assert np.array_equal(split[1, 2, 0], x[1, 0, 4:6])  # [batch, heads, seq, head_features]
    assert np.array_equal(model.merge_heads(split), x)


def test_other_shapes_are_refused():
    net = small_model()
    for tokens in (np.zeros([3], int), np.zeros([1, 2, 3], int)):
        with pytest.raises(ValueError, match=r"tokens must be \[batch, seq\]"):
            net(tokens)
    for shape in ([1, 3, 2, 4, 5, 4], [2, 2, 2, 4, 5, 4], [1, 2, 2, 4, 5]):
        with pytest.raises(ValueError, match="past must be"):
            net(np.zeros([1, 1], int), past=tf.zeros(shape))
