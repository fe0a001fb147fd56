"""Token ids and targets, from every way in: of any integer dtype, and refused by name where they are out of range."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training import ONE_LAYER, assert_same, initial_value, values

from gpt2tf import GPT2, cross_entropy

INTEGERS = "uint8 int8 uint16 int16 uint32 int32 uint64 int64".split()
X = np.arange(32).reshape(4, 8) % 100  # so that every integer dtype holds them
Y = (X + 1) % 100
LOSSES = {"ours": cross_entropy, "keras": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}


def make(loss=cross_entropy, **options):
    model = GPT2(ONE_LAYER, dropout=0.0, initial_value=initial_value)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, **{"jit_compile": True} | options)
    return model


@pytest.fixture(scope="module")
def compiled():
    """A model whose steps XLA compiles, for unknown dimensions."""
    return make()


@pytest.fixture(scope="module")
def eager():
    return make(run_eagerly=True, jit_compile=False)


def restart(model):
    for variable in model.variables:
        variable.assign(initial_value(variable.path, variable.shape))
    return model


def batches(x, y):
    """A dataset whose batches have no known dimension."""
    spec = tf.TensorSpec([None, None], x.dtype), tf.TensorSpec([None, None], y.dtype)
    return tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_signature=spec)


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_every_integer_dtype_gives_the_same_logits(eager, dtype):
    restart(eager)
    assert np.array_equal(eager(X.astype(dtype))["logits"], eager(X.astype(np.int32))["logits"])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_floats_are_no_less_exact_in_half_precision(policy):
    """257 is no bfloat16."""
    model = GPT2(ONE_LAYER, dtype=policy, initial_value=initial_value)
    assert np.array_equal(model(np.array([[257.0]]))["logits"], model(np.array([[257]]))["logits"])


@pytest.mark.parametrize("name", ["compiled", "eager"])
def test_keras_loops_take_the_dtype_of_a_corpus(request, name):
    model = restart(request.getfixturevalue(name))
    outcomes = []
    for dtype in (np.uint16, np.int32):
        x, y = X.astype(dtype), Y.astype(dtype)
        restart(model)
        fitted = model.fit(x, y, shuffle=False, verbose=0).history["loss"]
        outcomes.append((fitted, values(model), model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)["logits"]))
    assert outcomes[0][0] == outcomes[1][0] and outcomes[0][2] == outcomes[1][2]
    assert_same(outcomes[0][1], outcomes[1][1])
    assert np.array_equal(outcomes[0][3], outcomes[1][3])


def entries(model):
    """Every way to give a model a batch."""
    graph = tf.function(lambda tokens: model(tokens)["logits"], input_signature=[tf.TensorSpec([None, None], tf.int64)])
    return {
        "call": lambda x, y: model(x),
        "graph": lambda x, y: graph(x),
        "fit": lambda x, y: model.fit(x, y, verbose=0),
        "fit a dataset": lambda x, y: model.fit(batches(x, y), verbose=0),
        "train_on_batch": lambda x, y: model.train_on_batch(x, y),
        "evaluate": lambda x, y: model.evaluate(x, y, verbose=0),
        "predict": lambda x, y: model.predict(x, verbose=0),
    }


WAYS = ["call", "graph", "fit", "fit a dataset", "train_on_batch", "evaluate", "predict"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["compiled", "eager"])
@pytest.mark.parametrize("wrong", [300, -1, 2**40])
def test_an_id_outside_the_vocabulary_is_named_and_changes_nothing(request, name, way, wrong):
    model = restart(request.getfixturevalue(name))
    x = X.astype(np.int64)
    x[2, 3] = wrong
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=rf"token.*{wrong}.*vocabulary has 300"):
        entries(model)[way](x, Y.astype(np.int64))
    assert_same(values(model), values(restart(model)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["compiled", "eager"])
def test_a_sequence_beyond_the_window_is_named_and_changes_nothing(request, name, way):
    model = restart(request.getfixturevalue(name))
    x = np.zeros([2, 17], np.int64)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="17.*n_ctx"):
        entries(model)[way](x, x)
    assert_same(values(model), values(restart(model)))


@pytest.mark.parametrize("way", ["fit", "fit a dataset", "train_on_batch", "evaluate"])
@pytest.mark.parametrize("name", ["compiled", "eager"])
@pytest.mark.parametrize("wrong", [300, -1])
def test_a_target_outside_the_vocabulary_is_named_and_changes_nothing(request, name, way, wrong):
    model = restart(request.getfixturevalue(name))
    y = Y.astype(np.int64)
    y[2, 3] = wrong
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=rf"target.*{wrong}.*vocabulary has 300"):
        entries(model)[way](X.astype(np.int64), y)
    assert_same(values(model), values(restart(model)))


def test_kerass_own_loss_is_looked_after_too():
    model = make(LOSSES["keras"], run_eagerly=True, jit_compile=False)
    with pytest.raises(ValueError, match="target -100 .*vocabulary has 300"):
        model.fit(X, np.full_like(Y, -100), verbose=0)


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
def test_no_tokens_are_no_error_in_a_graph(eager, shape):
    graph = entries(eager)["graph"]
    assert graph(np.zeros(shape, np.int64), None).shape == (*shape, 300)


def test_what_is_no_whole_number_is_refused(eager):
    with pytest.raises(ValueError, match="token 1.5 is not a whole number"):
        eager(np.array([[1.0, 1.5]]))
    with pytest.raises(ValueError, match="token nan is not a whole number"):
        eager(np.array([[np.nan]]))
    with pytest.raises(ValueError, match="these are bool"):
        eager(np.array([[True]]))


def test_a_function_of_xla_shows_nan_and_trains_nothing():
    """XLA can raise nothing, so what it clamps must not pass for a result."""
    model = GPT2(ONE_LAYER, initial_value=initial_value)

    @tf.function(jit_compile=True)
    def step(tokens, targets):
        with tf.GradientTape() as tape:
            logits = model(tokens)["logits"]
            loss = tf.reduce_mean(cross_entropy(targets, logits))
        return logits, loss, tape.gradient(loss, [v.value for v in model.variables])

    wrong = X.copy()
    wrong[2, 3] = 300
    for x, y in ((wrong, Y), (X, wrong)):
        logits, loss, gradients = step(tf.constant(x), tf.constant(y))
        assert np.isnan(logits).all() == (x is wrong) and np.isnan(loss)
        assert not any(np.any(gradient) for gradient in gradients)
    logits, loss, gradients = step(tf.constant(X), tf.constant(Y))
    assert np.isfinite(logits).all() and np.isfinite(loss) and all(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("name", ["compiled", "eager"])
def test_minus_100_does_not_count(request, name):
    """The loss is the mean over the targets that count, and so is its gradient: that of them alone."""
    model = request.getfixturevalue(name)
    y = Y.copy()
    y[2:] = -100
    outcomes = []
    for targets, rows in ((y, slice(0, 4)), (Y, slice(0, 2))):
        restart(model)
        outcomes.append(
            (model.evaluate(X[rows], targets[rows], verbose=0), model.train_on_batch(X[rows], targets[rows]))
        )
        outcomes[-1] += (values(model),)
    assert outcomes[0][:2] == pytest.approx(outcomes[1][:2], rel=1e-6)
    for path, value in outcomes[1][2].items():
        assert np.abs(outcomes[0][2][path] - value).max() < 1e-6, path
    restart(model)
    assert model.evaluate(X, np.full_like(Y, -100), verbose=0) == 0
