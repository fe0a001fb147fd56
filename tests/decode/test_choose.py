"""The choice of a token in all its forms: the tokens of `gpt2tf.sample`, of the NumPy oracle, with XLA and without."""

import functools

import numpy as np
import oracle
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from gpt2tf.decode.choose import Options, choose_token, float_key
from gpt2tf.decode.ops import Ops
from gpt2tf.sample import next_token

PADDED = 384  # three blocks
VOCABULARIES = (1, 40, 300)
BELOW_1 = 1 - 2.0**-52  # the largest number that a recorded random stream can hold
US = (0.0, 0.13, 0.5, 0.77, BELOW_1)  # each row is tried with all of them
FORMS = [Ops(jit_compile, platform) for platform in ("CPU", "GPU") for jit_compile in (True, False)]
LAST_BIT = 1e-5  # a running float32 sum this near to top_p hinges on rounding


@functools.cache
def compiled(n_vocab, ops):
    """choose_token for [10, PADDED] logits, compiled once for all options."""
    rows = 2 * len(US)

    @tf.function(
        jit_compile=ops.jit_compile,
        autograph=False,
        input_signature=[
            tf.TensorSpec([rows, PADDED], tf.float32),
            tf.TensorSpec([rows], tf.float64),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
        ],
    )
    def choose(logits, u, temperature, top_k, top_p):
        return choose_token(ops, logits, u, n_vocab, Options(temperature, top_k, top_p))

    return choose


def chosen(pair, ops, *, temperature=1.0, top_k=0, top_p=1.0, padding=1e9, us=US):
    """pair: [2, n_vocab] -> (tokens [2, us], whether all logits were finite). Padding is large, to tempt."""
    n_vocab = pair.shape[1]
    logits = np.full([2, PADDED], padding, np.float32)
    logits[:, :n_vocab] = pair
    options = tf.constant(temperature, tf.float32), tf.constant(top_k), tf.constant(top_p, tf.float32)
    tokens, finite = compiled(n_vocab, ops)(
        tf.constant(np.repeat(logits, len(us), axis=0)), tf.constant(np.tile(us, 2), tf.float64), *options
    )
    return tokens.numpy().reshape(2, len(us)), finite.numpy().all()


def expected(row, u, *, temperature, top_k, top_p):
    """What NumPy picks in float64, or None where a last bit of float32 would decide."""
    if temperature == 0:
        return int(np.argmax(row))
    wide = (row / np.float32(temperature)).astype(np.float64)
    kept = oracle.top_k_kept(wide, top_k)
    if top_p < 1:
        left = np.where(np.isin(np.arange(len(wide)), list(kept)), wide, -1e10)
        kept, nearest = oracle.top_p_kept(left, top_p)
        if nearest < LAST_BIT:
            return None
    index = sorted(kept)
    cdf = np.cumsum(oracle.softmax(wide[index]))
    if np.abs(cdf - u * cdf[-1]).min() < 1e-12 and 0 < u < BELOW_1:
        return None
    return oracle.pick(wide, kept, u)


def numbers():
    # Those so small that a quotient is flushed to zero are zero from the start.
    ordinary = st.floats(-30, 30, width=32, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-30 else 0.0)
    ties = st.integers(-2, 2).map(float)
    odd = st.sampled_from([0.0, -0.0, -1e10, 1e9, -1e9, 1e30, -1e30, 1e-30, -1e-30])
    return st.one_of(ordinary, ties), st.one_of(ties, odd), st.one_of(ordinary, odd)


pairs = st.sampled_from(VOCABULARIES).flatmap(
    lambda n_vocab: st.one_of(
        *(st_numpy.arrays(np.float32, [2, n_vocab], elements=elements, fill=elements) for elements in numbers()),
        st.integers(0, 2**32).map(
            lambda seed: (3 * np.random.default_rng(seed).normal(size=[2, n_vocab])).astype(np.float32)
        ),
    )
)
options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 0.1, 0.7, 1, 1.3, 100.0]),
        "top_k": st.sampled_from([0, 1, 2, 5, 39, 40, 41, 200, 2**31 - 1]),
        "top_p": st.one_of(st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0]), st.floats(0, 1, width=32)),
    }
)


@pytest.mark.parametrize("ops", FORMS, ids=str)
@settings(max_examples=100, deadline=None)
@given(pairs, options)
def test_chooses_what_the_oracle_picks(ops, pair, options):
    tokens, finite = chosen(pair, ops, **options)
    assert finite
    for row, found in zip(pair, tokens, strict=True):
        for u, token in zip(US, found, strict=True):
            if u == BELOW_1:  # which of the last tokens' shares are above 2**-52 of the sum is a matter of rounding
                assert 0 <= token < len(row)
            elif (want := expected(row, u, **options)) is not None:
                assert token == want, (u, want)


@pytest.mark.parametrize("ops", FORMS, ids=str)
def test_a_row_whose_search_is_done_waits_for_the_others(ops):
    pair = np.zeros([2, 40], np.float32)
    pair[0, 1], pair[1, 0] = 1e9, 1
    tokens, _ = chosen(pair, ops, top_p=0.5)
    assert tokens[0].tolist() == [1] * len(US)
    assert tokens[1].tolist() == [expected(pair[1], u, temperature=1, top_k=0, top_p=0.5) for u in US]


@pytest.mark.parametrize("ops", FORMS, ids=str)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_chooses_what_next_token_picks(ops, n_vocab):
    """Two readings of the same float32 numbers: away from the last bit of top-p they are equal."""
    rng = np.random.default_rng(n_vocab)
    compared = 0
    for temperature in (0, 0.7, 1):
        for top_k in (0, 1, 7, 40, 1000):
            for top_p in (0, 0.3, 0.9, 1):
                how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
                pair = (2 * rng.normal(size=[2, n_vocab])).astype(np.float32)
                us = tuple(rng.random(len(US)))
                tokens, _ = chosen(pair, ops, us=us, **how)
                for row, found in zip(pair, tokens, strict=True):
                    if expected(row, 0.5, **how) is None and top_p < 1:
                        continue
                    compared += 1
                    rows = tf.constant(np.tile(row, [len(us), 1]))
                    assert found.tolist() == next_token(rows, np.array(us), **how).numpy().tolist(), how
    assert compared > 100


def kept(row, ops, **options):
    """The tokens that are picked for some of many u."""
    us = (np.arange(50) + 0.5) / 50
    pair = np.stack([row, row]).astype(np.float32)
    return {int(t) for part in us.reshape(-1, len(US)) for t in chosen(pair, ops, us=part, **options)[0].ravel()}


@pytest.mark.parametrize("ops", FORMS, ids=str)
def test_ties_stay_and_negative_zero_ties_with_zero(ops):
    row = np.full(40, -50)
    row[[3, 7, 11, 20]] = 1
    assert kept(row, ops, top_k=2) == {3, 7, 11, 20}
    assert kept(row, ops, top_p=0.3) == {3, 7, 11, 20}  # one fits, the others tie with it
    assert kept(row, ops, top_p=0.1) == {3, 7, 11, 20}  # none fits, one has to stay
    zeros = np.where(row == 1, 0, row).astype(np.float32)
    zeros[[7, 20]] = -0.0
    assert kept(zeros, ops, top_k=1) == {3, 7, 11, 20}
    assert kept(zeros, ops, top_p=0.3) == {3, 7, 11, 20}
    for first in (0.0, -0.0):  # arg-max is the first of equals
        zeros[3] = first
        assert chosen(np.stack([zeros, zeros]), ops, temperature=0)[0].tolist() == [[3] * len(US)] * 2


@pytest.mark.parametrize("ops", FORMS, ids=str)
def test_top_p_drops_the_token_that_crosses_p(ops):
    row = np.full(40, -50.0)
    row[[5, 6, 7, 8]] = np.log([0.5, 0.3, 0.1, 0.1])
    for top_p, count in [(0, 1), (0.3, 1), (0.51, 1), (0.79, 1), (0.81, 2), (0.89, 2), (0.91, 4), (1, 4)]:
        assert kept(row, ops, top_p=top_p) == set(range(5, 5 + count)), top_p
    assert kept(row, ops, top_k=2, top_p=0.6) == {5}  # of the top two alone, 0.625 and 0.375


@pytest.mark.parametrize("ops", FORMS, ids=str)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("padding", [1e9, 0.0, -1e9, np.inf, np.nan])
def test_padding_is_never_chosen(ops, n_vocab, padding):
    flat = np.zeros([2, n_vocab], np.float32)
    tokens, finite = chosen(flat, ops, temperature=1e9, padding=padding)
    assert finite
    assert tokens[:, 0].tolist() == [0, 0]
    assert tokens[:, -1].tolist() == [n_vocab - 1] * 2
    for top_p in (0.0, 0.999):
        assert chosen(flat, ops, top_p=top_p, padding=padding)[0].max() < n_vocab


@pytest.mark.parametrize("ops", FORMS, ids=str)
def test_filtered_tokens_are_never_chosen_at_the_ends(ops):
    rng = np.random.default_rng(0)
    for _ in range(20):
        pair = rng.normal(size=[2, 300]).astype(np.float32)
        tokens, _ = chosen(pair, ops, top_k=3, us=(0.0, BELOW_1, 1 - 2.0**-53, 0.0, 0.0))
        for row, found in zip(pair, tokens, strict=True):
            best = np.sort(np.argsort(row)[-3:])
            assert found.tolist() == [best[0], best[-1], best[-1], best[0], best[0]]


@pytest.mark.parametrize("ops", FORMS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_are_told(ops, bad, temperature):
    pair = np.zeros([2, 40], np.float32)
    assert chosen(pair, ops, temperature=temperature)[1]
    pair[1, 39] = bad
    assert not chosen(pair, ops, temperature=temperature)[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=2, max_size=20))
def test_float_key_orders_as_the_floats(xs):
    xs = np.array(xs, np.float32)
    keys = float_key(tf.constant(xs)).numpy()
    assert np.array_equal(keys[:, None] < keys, xs[:, None] < xs)
    assert np.array_equal(keys[:, None] == keys, xs[:, None] == xs)
