"""GPT2 is a Keras model as any other: compile, fit, evaluate, predict, save, load."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tolerances import TINY_FLOAT32, relative
from training import ONE_LAYER, assert_same, batch, initial_value, values

import gpt2tf
from gpt2tf import GPT2
from gpt2tf.names import variable_shapes
from gpt2tf.train.dropout import Rates
from gpt2tf.train.fit import cross_entropy

TOKENS = np.tile(np.arange(40) % 9, 4).reshape(16, 10)  # counting to nine, which is soon learnt
X, Y = TOKENS[:, :-1], TOKENS[:, 1:]


def assert_variables_are_the_checkpoints(model):
    assert {v.path: tuple(v.shape) for v in model.variables} == variable_shapes(ONE_LAYER)


def compiled(seed=1, loss=cross_entropy, **options):
    keras.utils.set_random_seed(seed)
    model = GPT2(ONE_LAYER, dropout=options.pop("dropout", 0.1))
    options = {"run_eagerly": True} | options
    model.compile(keras.optimizers.AdamW(2e-2), loss=loss, metrics=["accuracy"], **options)
    return model


@pytest.fixture(scope="module")
def fitted():
    """A model after a fit under XLA from arrays, and what came of it."""
    model = compiled(run_eagerly=False, jit_compile=True)
    assert_variables_are_the_checkpoints(model)
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])))
    data = {"batch_size": 8, "validation_data": (X[:8], Y[:8]), "callbacks": [callback], "verbose": 0}
    return model, model.fit(X, Y, epochs=8, **data).history, seen


def test_fit_learns_under_xla(fitted):
    model, history, seen = fitted
    assert history["loss"][0] == pytest.approx(np.log(300), rel=0.2)  # an untrained model knows nothing
    assert history["val_loss"][-1] < history["loss"][0] / 2
    assert history["val_accuracy"][-1] > 2 * history["accuracy"][0]
    assert seen == list(enumerate(history["loss"]))  # callbacks
    assert_variables_are_the_checkpoints(model)


def test_evaluate_and_predict(fitted):
    model, history, _ = fitted
    logits = model(X[:8])["logits"]
    loss, accuracy = model.evaluate(X[:8], Y[:8], batch_size=8, verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=TINY_FLOAT32)
    assert loss == pytest.approx(float(tf.reduce_mean(cross_entropy(Y[:8], logits))), rel=TINY_FLOAT32)
    assert accuracy == pytest.approx(np.mean(np.argmax(logits, -1) == Y[:8]))
    predicted = model.predict(X[:8], batch_size=8, verbose=0)
    assert relative(predicted["logits"], logits) <= TINY_FLOAT32
    assert predicted["present"].shape == (8, 1, 2, 2, 9, 8)


def test_summary_counts_the_parameters(fitted):
    lines = []
    fitted[0].summary(print_fn=lambda line, **_: lines.append(line))
    size = sum(np.prod(shape) for shape in variable_shapes(ONE_LAYER).values())
    assert f"Trainable params: {size:,}" in "\n".join(lines)


def test_save_and_load(fitted, tmp_path):
    model = fitted[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is GPT2 and loaded.loss is cross_entropy
    assert_variables_are_the_checkpoints(loaded)
    assert_same(values(loaded), values(model))
    assert np.array_equal(loaded(X)["logits"], model(X)["logits"])
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 16
    assert_same({v.path: v.numpy() for v in loaded.optimizer.variables},
                {v.path: v.numpy() for v in model.optimizer.variables})  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_config_goes_round(tmp_path, dtype):
    rates = Rates(0.1, 0.0, 0.3)
    model = GPT2(ONE_LAYER, dropout=rates, recompute=True, dtype=dtype, initial_value=initial_value)
    model.save(tmp_path / "model.keras")
    config = model.get_config()
    copies = [keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)]
    copies += [GPT2.from_config(config), GPT2.from_config(config)]  # which leaves the config as it is
    for copy in copies:
        assert (copy.hparams, copy.dropout, copy.recompute) == (ONE_LAYER, rates, True)
        assert copy.dtype_policy.name == copy.blocks[0].mlp.c_fc.dtype_policy.name == dtype
        assert copy.get_config() == config
        assert_variables_are_the_checkpoints(copy)
    assert_same(values(copies[0]), values(model))
    assert not np.array_equal(copies[1].wte.numpy(), copies[2].wte.numpy())  # other starts


def test_fit_is_the_same_again_after_set_random_seed():
    def losses(seed):
        model = compiled(seed, dropout=0.3)
        data = tf.data.Dataset.from_tensor_slices((X[:8], Y[:8])).batch(4)
        return model.fit(data, shuffle=False, verbose=0).history["loss"], values(model)

    first, again, other = losses(1), losses(1), losses(2)
    assert first[0] == again[0] != other[0]
    assert_same(first[1], again[1])


def test_kerass_own_loss_is_the_same():
    model = compiled(dropout=0.0)
    named = compiled(dropout=0.0, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    histories = [some.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"] for some in (model, named)]
    assert histories[0] == pytest.approx(histories[1], rel=1e-6)
    assert gpt2tf.cross_entropy is cross_entropy


def test_sample_weights_and_train_on_batch():
    """Of which the gradients of half a batch, weighted, are those of that half."""
    outcomes = []
    for rows, weights in ((slice(0, 2), None), (slice(0, 4), np.repeat([[2.0], [0.0]], [2, 2], axis=0))):
        model = compiled(dropout=0.0)
        outcomes.append((model.train_on_batch(X[rows], Y[rows], sample_weight=weights)[0], values(model)))
    assert outcomes[0][0] == pytest.approx(outcomes[1][0], rel=1e-6)
    for name, value in outcomes[0][1].items():
        assert np.abs(outcomes[1][1][name] - value).max() < 1e-4, name


def test_fit_drops_anew_at_every_step():
    model = compiled(dropout=0.5)
    model.optimizer.learning_rate = 0.0
    losses = [model.train_on_batch(X, Y)[0] for _ in range(2)]
    assert losses[0] != losses[1]
    assert model.evaluate(X, Y, verbose=0)[0] == model.evaluate(X, Y, verbose=0)[0]


def test_cross_entropy_is_float32_of_any_logits():
    logits = np.random.default_rng(0).normal(size=[2, 8, 300]).astype(np.float32)
    targets = batch()[:, 1:]
    expected = -np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(expected, targets[..., None], -1)[..., 0]  # [batch, seq]
    found = cross_entropy(targets, tf.constant(logits))
    assert relative(found, expected) <= TINY_FLOAT32
    narrow = cross_entropy(targets, tf.cast(logits, tf.bfloat16))
    assert narrow.dtype == tf.float32 and np.abs(narrow - expected).max() < 0.05
