"""What an update moves: every Keras optimizer as on dense gradients, AdamW as in torch's formula; half precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tolerances import ADAMW
from training import ONE_LAYER, SMALL, initial_value, values

from gpt2tf import GPT2, cross_entropy, sample_sequence

ROWS = np.tile(np.arange(17) % 9, [8, 1])  # equal rows, so that every id and position comes up again and again
OPTIMIZERS = [
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam", "SGD"),
    "RMSprop",
]
MORE = [
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"clipnorm": 0.5, "use_ema": True}),
    ("Adam", {"global_clipnorm": 0.1, "gradient_accumulation_steps": 2}),
]


def net(hparams=ONE_LAYER, **options):
    return GPT2(hparams, initial_value=initial_value, dropout=0.0, **options)


def dense_gradients(model, tokens):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(cross_entropy(tokens[:, 1:], model(tokens[:, :-1])["logits"]))
    return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]


@pytest.mark.parametrize("name, options", [*((name, {}) for name in OPTIMIZERS), *MORE])
def test_fit_is_the_optimizer_on_dense_gradients(name, options):
    model, expected = net(), net()
    model.compile(getattr(keras.optimizers, name)(1e-2, **options), loss=cross_entropy, run_eagerly=True)
    by_hand = getattr(keras.optimizers, name)(1e-2, **options)
    for step in range(3):
        tokens = np.roll(ROWS, step, axis=1)
        model.train_on_batch(tokens[:, :-1], tokens[:, 1:])
        by_hand.apply(dense_gradients(expected, tokens), expected.trainable_variables)
    for path, value in values(expected).items():
        np.testing.assert_allclose(values(model)[path], value, rtol=0, atol=1e-6, err_msg=path)
        assert np.any(value != initial_value(path, value.shape)), path


def test_gradients_of_lookups_are_dense_however_wte_is_used():
    """Also of an embedding alone, without the logits that multiply by it."""
    model = net()
    with tf.GradientTape() as tape:
        h = model(ROWS[:, :-1])["present"]
    gradients = tape.gradient(h, [model.wte.value, model.wpe.value])
    assert all(isinstance(gradient, tf.Tensor) for gradient in gradients)
    assert np.any(gradients[0][:9]) and not np.any(gradients[0][9:])


@pytest.mark.parametrize("jit_compile", [True, False])
def test_one_step_of_adam_moves_nothing_by_more_than_the_learning_rate(jit_compile):
    """By exactly that, of what has a gradient: 32 equal rows in a batch are one row."""
    model = net()
    model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-12), loss=cross_entropy, jit_compile=jit_compile)
    tokens = np.tile(ROWS[:1], [32, 1])
    model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=32, verbose=0)
    for path, value in values(model).items():
        moved = np.abs(value - initial_value(path, value.shape))
        assert moved.max() == pytest.approx(1e-3, rel=1e-3), path


def test_twenty_steps_of_adamw_are_those_of_the_formula():
    """torch.optim.AdamW's: decay first, then a step of the bias-corrected moments.

    Where gradients are above epsilon and rounding, which Adam would scale up; Keras and TensorFlow 1 add epsilon before
    they correct the bias, torch after.
    """
    rate, beta_1, beta_2, epsilon, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    model, expected = net(SMALL), net(SMALL)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=decay, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
    model.compile(optimizer, loss=cross_entropy, run_eagerly=True)
    weights = {v.path: v.numpy().astype(np.float64) for v in expected.trainable_variables}
    moments = {path: [np.zeros_like(w), np.zeros_like(w)] for path, w in weights.items()}
    smallest = {path: np.full_like(w, np.inf) for path, w in weights.items()}
    for step in range(1, 21):
        tokens = np.random.default_rng(step).integers(0, 300, [4, 17])
        model.train_on_batch(tokens[:, :-1], tokens[:, 1:])
        for v in expected.trainable_variables:
            v.assign(weights[v.path])
        for v, gradient in zip(expected.trainable_variables, dense_gradients(expected, tokens), strict=True):
            gradient, (m, s) = gradient.numpy().astype(np.float64), moments[v.path]
            m += (1 - beta_1) * (gradient - m)
            s += (1 - beta_2) * (gradient**2 - s)
            weights[v.path] *= 1 - rate * decay
            weights[v.path] -= rate * (m / (1 - beta_1**step)) / (np.sqrt(s / (1 - beta_2**step)) + epsilon)
            np.minimum(smallest[v.path], np.abs(gradient), out=smallest[v.path])
    clear = {path: value > 1e-4 for path, value in smallest.items()}
    assert sum(map(np.count_nonzero, clear.values())) > sum(w.size for w in weights.values()) / 2
    assert clear["model/wpe"].any() and clear["model/wte"].any()
    for path, w in weights.items():
        assert np.abs(values(model)[path] - w)[clear[path]].max(initial=0) < ADAMW, path


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
def test_losses_and_metrics_see_float32_logits(policy):
    """In bfloat16 labels above 256 would lose their lowest bit, and a label that is off by one would count as hit."""
    model = net(dtype=policy)
    model.compile("sgd", loss=cross_entropy, metrics=["accuracy"], run_eagerly=True)
    x = np.arange(256, 296).reshape(4, 10)
    logits = model(x)["logits"]
    assert logits.dtype == tf.float32
    best = np.argmax(logits, axis=-1)
    assert model.evaluate(x, best, verbose=0)[1] == 1
    off_by_one = np.where(best % 2, best - 1, np.minimum(best + 1, 299))
    assert model.evaluate(x, off_by_one, verbose=0)[1] == np.mean(best == off_by_one)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64"])
def test_sample_sequence_of_any_dtype(policy):
    found = sample_sequence(net(dtype=policy), context=[1, 2], length=6, temperature=0, noise=np.zeros([6, 1]))
    expected = sample_sequence(net(), context=[1, 2], length=6, temperature=0, noise=np.zeros([6, 1]))
    assert found.shape == (1, 8)
    if policy == "float64":
        assert np.array_equal(found, expected)


def test_float16_holds_queries_and_keys_of_64_features():
    """Of 40 each: their product, 102,400, is beyond float16 before it is scaled."""
    from gpt2tf import HParams

    hparams = HParams(n_vocab=50, n_ctx=8, n_embd=64, n_head=1, n_layer=1)

    def biased(path, shape):
        value = initial_value(path, shape)
        return np.where(np.arange(shape[0]) < 128, 40, 0) if path.endswith("c_attn/b") else value

    x = np.arange(8)[None, :]
    narrow, wide = (GPT2(hparams, initial_value=biased, dtype=policy) for policy in ("mixed_float16", "float32"))
    assert np.isfinite(narrow(x)["logits"]).all()
    assert np.abs(narrow(x)["logits"] - wide(x)["logits"]).max() < 0.1 * np.abs(wide(x)["logits"]).max()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gelu_and_its_gradient_are_finite_up_to_the_ends_of_the_dtype(dtype):
    from gpt2tf.model import gelu

    x = tf.constant([-6e4, -256.0, -1.0, 0.0, 1.0, 256.0, 6e4], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == x.dtype
    np.testing.assert_allclose(
        tf.cast(y, tf.float32), [0, 0, -0.1588, 0, 0.8412, 256, tf.cast(x[-1], tf.float32)], rtol=1e-2
    )
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), [0, 0, -0.083, 0.5, 1.083, 1, 1], rtol=2e-2)
