"""From logits to a token: the original's rules and quirks, against NumPy float64 readings of them."""

import numpy as np
import oracle
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from gpt2tf.sample import FILTERED, NOT_FINITE, next_token, pick_token, top_k_logits, top_p_logits

PROBABILITIES = np.array([0.5, 0.3, 0.1, 0.1])
LOGITS = np.log(PROBABILITIES).astype(np.float32)[None, :]

float_rows = st_numpy.arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=32))
tied_rows = st_numpy.arrays(np.float32, st.integers(1, 40), elements=st.integers(-3, 3))


def kept(filtered, logits):
    """The indices that a filter kept; the others must be FILTERED, the kept ones as they were."""
    filtered, logits = np.asarray(filtered), np.asarray(logits)
    changed = filtered != logits
    assert np.all(filtered[changed] == np.float32(FILTERED))
    return set(np.flatnonzero(~changed))


@pytest.mark.parametrize(("k", "count"), [(0, 4), (1, 1), (2, 2), (3, 4), (4, 4), (5, 4), (10**9, 4)])
def test_top_k_keeps_ties_and_0_is_off(k, count):
    assert len(kept(top_k_logits(LOGITS, k)[0], LOGITS[0])) == count


@settings(max_examples=100, deadline=None)
@given(st.one_of(float_rows, tied_rows), st.integers(0, 45))
def test_top_k_equals_the_oracle(row, k):
    assert kept(top_k_logits(row[None, :], k)[0], row) == oracle.top_k_kept(row.astype(np.float64), k)


@pytest.mark.parametrize(
    ("p", "count"), [(0, 1), (0.3, 1), (0.5, 1), (0.79, 1), (0.81, 2), (0.85, 2), (0.9, 4), (1, 4)]
)
def test_top_p_drops_the_token_that_crosses_p(p, count):
    assert len(kept(top_p_logits(LOGITS, p)[0], LOGITS[0])) == count


@settings(max_examples=100, deadline=None)
@given(st.one_of(float_rows, tied_rows), st.floats(0, 0.9999))
def test_top_p_equals_the_oracle(row, p):
    expected, nearest = oracle.top_p_kept(row.astype(np.float64), p)
    assume(nearest > 1e-5)  # a running sum this near to p hinges on float32 rounding
    assert kept(top_p_logits(row[None, :], p)[0], row) == expected


@given(st.one_of(float_rows, tied_rows))
@settings(max_examples=50, deadline=None)
def test_top_p_1_is_off(row):
    assert np.array_equal(top_p_logits(row[None, :], 1)[0], row)


def test_top_p_1_is_off_where_float32_sums_pass_1():
    logits = np.random.default_rng(0).normal(size=[20, 50257]).astype(np.float32)
    sums = tf.cumsum(tf.nn.softmax(tf.sort(logits, direction="DESCENDING")), axis=-1).numpy()
    assert sums.max() > 1  # the original drops tokens here
    assert np.array_equal(top_p_logits(logits, 1), logits)


@pytest.mark.parametrize("filtered", [lambda x: top_k_logits(x, 2), lambda x: top_p_logits(x, 0.6)])
def test_filters_treat_each_row_by_itself(filtered):
    logits = np.random.default_rng(0).normal(size=[7, 7]).astype(np.float32)  # batch == vocab hid a bug once
    one_by_one = np.concatenate([filtered(row[None, :]) for row in logits])
    assert np.array_equal(filtered(logits), one_by_one)


@settings(max_examples=100, deadline=None)
@given(float_rows, st.floats(0, 1, exclude_max=True))
def test_pick_equals_the_oracle(row, u):
    wide = row.astype(np.float64)
    cdf = np.cumsum(oracle.softmax(wide))
    assume(np.abs(cdf - u * cdf[-1]).min() > 1e-12)
    assert pick_token(row[None, :], np.array([u]))[0] == oracle.pick(wide, range(len(row)), u)


def test_pick_at_the_ends_skips_filtered_tokens():
    row = np.array([[FILTERED, 0.0, FILTERED, 0.0, FILTERED]], np.float32)
    assert pick_token(row, np.array([0.0]))[0] == 1
    assert pick_token(row, np.array([0.5]))[0] == 3  # the first index whose sum is above u, not equal to it
    assert pick_token(row, np.array([1 - 2**-53]))[0] == 3


def token(logits, u=0.5, temperature=1, top_k=0, top_p=1):
    return next_token(
        tf.constant(logits, tf.float32), np.full(len(logits), u), temperature=temperature, top_k=top_k, top_p=top_p
    ).numpy()


def test_temperature_0_is_arg_max():
    assert token([[1, 3, 2], [5, 5, 0]], u=0.999, temperature=0).tolist() == [1, 0]


def test_temperature_divides_before_top_p():
    logits = np.log([[0.6, 0.4]])
    assert token(logits, u=0.99, top_p=0.7).tolist() == [0]
    assert token(logits, u=0.99, top_p=0.7, temperature=0.1).tolist() == [0]
    assert token(logits, u=0.99, temperature=100, top_p=1).tolist() == [1]
    # divided by 0.1, the first token has 0.983: it alone is within 0.99; undivided, both are not
    assert token(np.log([[0.6, 0.3, 0.1]]), u=0.95, top_p=0.95, temperature=1).tolist() == [1]
    assert token(np.log([[0.6, 0.3, 0.1]]), u=0.95, top_p=0.95, temperature=0.2).tolist() == [0]


def test_top_p_sees_what_top_k_left():
    # Of four tokens of 0.4 0.3 0.2 0.1, two are within 0.75; of the top two alone, 0.57 and 0.43, one is.
    logits = np.log([[0.4, 0.3, 0.2, 0.1]])
    assert token(logits, u=0.99, top_p=0.75).tolist() == [1]
    assert token(logits, u=0.99, top_k=2, top_p=0.75).tolist() == [0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_give_no_token(bad, temperature):
    assert token([[0, 1, bad], [0, 9, 1]], temperature=temperature).tolist() == [NOT_FINITE, 1]
