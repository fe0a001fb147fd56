"""Dropout: where it is, which numbers it takes, and how good they are."""

import json

import numpy as np
import oracle
import pytest
import tensorflow as tf
from tolerances import TINY_FLOAT32, relative
from training import SMALL, initial_value

from gpt2tf import GPT2, save_checkpoint
from gpt2tf.train.dropout import Rates, dropout, keys_at, row_keys

SEED, STEP, ROWS = 5, 7, [3, 0]
FIVE_SIGMA = 5
CASES = [Rates(0, 0, 0), Rates(0.4, 0, 0), Rates(0, 0.4, 0), Rates(0, 0, 0.4), Rates(0.1, 0.2, 0.3)]


def net(rates, **options):
    return GPT2(SMALL, initial_value=initial_value, dropout=rates, **options)


def by_place(rates):
    return {"embd": rates.embd, "attn": rates.attn, "attn/c_proj": rates.resid, "mlp/c_proj": rates.resid}


def kept(rate, keys, *shape):
    """Which numbers stay, as 0 and 1: [batch, *shape]"""
    return (dropout(tf.ones([len(keys), *shape]), rate, keys).numpy() > 0).astype(float)


@pytest.mark.parametrize("rates", CASES, ids=str)
def test_drops_in_its_places_and_nowhere_else(rates):
    model = net(rates)
    weights = {v.path: v.numpy().astype(np.float64) for v in model.variables}
    tokens = np.random.default_rng(0).integers(0, SMALL.n_vocab, [2, 11])
    drops = [oracle.dropper(by_place(rates), SEED, STEP, row) for row in ROWS]
    expected = [oracle.forward(weights, SMALL.n_head, *pair) for pair in zip(tokens, drops, strict=True)]
    found = model(tokens, training=True, dropout_keys=row_keys(SEED, STEP, ROWS))
    assert relative(found["logits"], np.stack(expected)) <= TINY_FLOAT32
    assert set(found) == {"logits"}  # a present with holes in it is of no use
    plain = model(tokens)["logits"]
    assert (relative(found["logits"], plain) > 0.01) == (rates != CASES[0])


def test_rates_of_0_are_the_plain_forward_pass():
    tokens = np.arange(10)[None]
    model = net(0.0)
    assert np.array_equal(model(tokens, training=True)["logits"], model(tokens)["logits"])


def test_without_training_nothing_is_dropped():
    tokens = np.arange(10)[None]
    expected, found = net(0.0)(tokens), net(0.5)(tokens, dropout_keys=row_keys(SEED, STEP, [0]))
    assert np.array_equal(found["logits"], expected["logits"])
    assert np.array_equal(found["present"], expected["present"])


def test_a_row_has_its_masks_in_any_batch_and_for_any_shape():
    keys = row_keys(SEED, STEP, range(4))
    whole = kept(0.3, keys, 3, 50)
    for rows in ([2], [3, 1], [0, 1, 2, 3]):
        assert np.array_equal(kept(0.3, row_keys(SEED, STEP, rows), 3, 50), whole[rows])
    dynamic = tf.function(lambda x: dropout(x, 0.3, keys), input_signature=[tf.TensorSpec([None, 3, None])])
    assert np.array_equal(dynamic(tf.ones([4, 3, 50])).numpy() > 0, whole > 0)
    compiled = tf.function(lambda x: dropout(x, 0.3, keys), jit_compile=True)
    assert np.array_equal(compiled(tf.ones([4, 3, 50])).numpy() > 0, whole > 0)


def test_share_and_independence():
    """Keep shares, and correlations of neighbours, rows, places, steps and seeds, within five standard deviations."""
    rate, size = 0.1, 40_000
    keys = {
        (seed, step, place): keys_at(row_keys(seed, step, range(4)), place)
        for seed in (0, 1)
        for step in (0, 1)
        for place in (0, 1, 2)
    }
    masks = np.concatenate([kept(rate, some, size) for some in keys.values()])  # [seed, step, place, row | size]
    sigma = np.sqrt(rate * (1 - rate))
    assert np.abs(masks.mean(axis=1) - (1 - rate)).max() < FIVE_SIGMA * sigma / np.sqrt(size)
    assert abs(masks.mean() - (1 - rate)) < FIVE_SIGMA * sigma / np.sqrt(masks.size)
    z = (masks - (1 - rate)) / sigma  # mean 0, variance 1
    between = z @ z.T / size  # correlations of all pairs of masks
    assert np.abs(between - np.diag(np.diag(between))).max() < FIVE_SIGMA / np.sqrt(size)
    for apart in (1, 2, 7, 64, 1024):  # neighbours in a row of features, a head, a window
        lagged = (z[:, apart:] * z[:, :-apart]).mean(axis=1)
        assert np.abs(lagged).max() < FIVE_SIGMA / np.sqrt(size - apart)


def test_every_place_of_the_network_has_its_own_masks(monkeypatch):
    """Seven of two blocks, though the keys of the blocks are derived in one way."""
    import gpt2tf.model

    seen = []
    monkeypatch.setattr(gpt2tf.model, "dropout", lambda x, rate, keys: seen.append(tuple(keys.numpy())) or x)
    net(0.1)(np.zeros([3, 4], int), training=True)
    assert len(seen) == 7
    assert len(set(sum(seen, ()))) == 7 * 3


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_mean_is_kept(rate, dtype):
    size = 200_000
    dropped = dropout(tf.ones([1, size], dtype), rate, row_keys(1, 2, [3])).numpy().astype(float)
    scale = float(tf.cast(1 / (1 - rate), dtype))  # bfloat16 rounds it
    assert set(np.unique(dropped)) == {0, scale}
    sigma = np.sqrt(rate / (1 - rate) / size)
    assert abs(dropped.mean() * (1 / (1 - rate)) / scale - 1) < FIVE_SIGMA * sigma


def test_off_is_off():
    x = tf.ones([2, 3])
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, row_keys(0, 0, [0, 1])) is x
    assert keys_at(None, 3) is None
    assert not dropout(x, 1 - 1e-12, row_keys(0, 0, [0, 1])).numpy().any()


@pytest.mark.parametrize("place", ["embd", "attn", "resid"])
@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, float("nan")])
def test_rates_out_of_range_are_refused(place, rate):
    with pytest.raises(ValueError, match=f"dropout {place} is {rate}; it must be from 0"):
        Rates(**{place: rate})


def test_rates_are_not_written_to_hparams(tmp_path):
    save_checkpoint(net(0.3), tmp_path / "model")
    assert set(json.loads((tmp_path / "model" / "hparams.json").read_text())) == {
        "n_vocab", "n_ctx", "n_embd", "n_head", "n_layer",
    }  # fmt: skip


def test_keys_that_nobody_gives_are_fresh_ones():
    model = net(0.3)
    first, second = (model(np.arange(8)[None], training=True)["logits"].numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    two = model(np.tile(np.arange(8), [2, 1]), training=True)["logits"].numpy()
    assert not np.array_equal(two[0], two[1])
