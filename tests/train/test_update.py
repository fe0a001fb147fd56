"""An update of the weights: its loss and gradients against independent implementations, and each setting's effect.

All of it eager, where a small model takes milliseconds; test_loop.py compares the compiled functions with that.
"""

import dataclasses
import json

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from recorded import GOLDEN
from tolerances import BFLOAT16_LOSS, BFLOAT16_NORM, CURVE, CURVE_WEIGHTS, GRADIENT, UPDATE, relative
from training import SMALL, assert_same, batch, initial_value, make_trainer, values

from gpt2tf import GPT2, HParams, load_model
from gpt2tf.hparams import PUBLISHED
from gpt2tf.train.dropout import row_keys
from gpt2tf.train.memory import training_bytes
from gpt2tf.train.settings import Settings
from gpt2tf.train.update import Trainer, make_optimizer

NARROW = HParams(n_vocab=23, n_ctx=8, n_embd=8, n_head=2, n_layer=2)
RATES = {"embd": 0.2, "attn": 0.2, "attn/c_proj": 0.2, "mlp/c_proj": 0.2}

pytestmark = pytest.mark.usefixtures("eagerly")


def gradients(trainer, tokens, step=0):
    """(loss, {name: gradient}) of a step, before the optimizer has them."""
    loss, found = trainer._gradients(tf.constant(tokens), tf.range(len(tokens)), tf.constant(step))
    return float(loss), {v.path: g.numpy() for v, g in zip(trainer.variables, found, strict=True)}


def without_keys(name, change):
    """The change of a variable, without the keys' third of c_attn/b: it has no effect, its gradient is rounding."""
    return np.delete(change.reshape(3, -1), 1, axis=0) if name.endswith("c_attn/b") else change


@pytest.mark.parametrize("dropout", [0, 0.2])
@pytest.mark.parametrize("accumulate, recompute", [(1, False), (2, True)])
def test_loss_and_gradients_are_those_of_float64(dropout, accumulate, recompute):
    """Each variable's gradient along a random direction is the central difference of the oracle's loss."""
    options = {"dropout": dropout, "accumulate": accumulate, "batch_size": 4 // accumulate, "recompute": recompute}
    trainer = make_trainer(NARROW, window=6, **options)
    tokens, seed = batch(4, hparams=NARROW, window=6), trainer.settings.seed
    loss, found = gradients(trainer, tokens, step=9)
    weights = {name: value.astype(np.float64) for name, value in values(trainer.model).items()}
    drops = [oracle.dropper(RATES, seed, 9, row) for row in range(4)] if dropout else []
    assert loss == pytest.approx(oracle.loss(weights, 2, tokens, drops), rel=GRADIENT)
    assert found.keys() == weights.keys()
    for number, (name, gradient) in enumerate(found.items()):
        direction = np.random.default_rng(number).normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        there, back = (oracle.loss(weights | {name: weights[name] + h * direction}, 2, tokens, drops)
                       for h in (1e-5, -1e-5))  # fmt: skip
        along = np.vdot(gradient, direction)
        assert abs(along - (there - back) / 2e-5) <= GRADIENT * np.linalg.norm(gradient), name
        assert np.linalg.norm(gradient) > 1e-3, name  # else it would say nothing


def test_eight_updates_are_those_of_pytorch():
    """golden/training.json, made with transformers and torch in float64: clipped, warmed up, decayed, on tiny-a."""
    recorded = json.loads((GOLDEN / "training.json").read_text())
    settings = Settings(**recorded["settings"], dropout=0, epsilon=1e-7)
    model = load_model(GOLDEN / "tiny-a", dropout=0.0)
    before = values(model)
    trainer = Trainer(model, settings, tf.distribute.get_strategy())
    for step, tokens in enumerate(recorded["tokens"]):
        assert float(trainer.optimizer.learning_rate) == pytest.approx(recorded["learning_rate"][step], rel=1e-6)
        loss, norm = trainer.update(step, tokens)
        assert loss == pytest.approx(recorded["loss"][step], rel=CURVE)
        assert norm == pytest.approx(recorded["gradient_norm"][step], rel=10 * CURVE)
    after = values(model)
    for name, distance in recorded["moved"].items():
        moved = np.linalg.norm(after[name] - before[name])
        assert moved == pytest.approx(distance, rel=CURVE_WEIGHTS), name
    for name, twelve in recorded["first_12"].items():
        error = np.abs(after[name].ravel()[:12] - twelve).max()
        assert error <= CURVE_WEIGHTS * settings.learning_rate * settings.steps, name


def test_recompute_changes_nothing_but_rounding():
    tokens = batch(4)
    loss, expected = gradients(make_trainer(batch_size=4), tokens)
    again, found = gradients(make_trainer(batch_size=4, recompute=True), tokens)
    assert again == loss
    for name, gradient in expected.items():
        assert relative(found[name], gradient) <= GRADIENT, name


def test_batches_in_parts_are_the_batch_in_one():
    """With dropout: the mask of a row is the same wherever the row is computed."""
    outcomes = []
    for accumulate in (1, 2, 4):
        trainer = make_trainer(accumulate=accumulate, batch_size=4 // accumulate, dropout=0.3)
        outcomes.append((trainer.update(0, batch(4)), values(trainer.model)))
    (loss, weights), *others = outcomes
    assert len(others) == 2
    for other, found in others:
        assert other == pytest.approx(loss, rel=GRADIENT)
        for name, value in weights.items():
            difference = np.abs(without_keys(name, found[name] - value)).max()
            assert difference <= UPDATE * trainer.settings.learning_rate, name


def test_step_and_seed_change_the_dropout_and_nothing_else():
    trainer = make_trainer(dropout=0.3)
    losses = {step: gradients(trainer, batch(), step)[0] for step in (0, 1, 0)}
    assert losses[0] != losses[1] and gradients(trainer, batch(), 0)[0] == losses[0]
    assert gradients(make_trainer(dropout=0.3, seed=4), batch(), 0)[0] != losses[0]
    assert (
        gradients(make_trainer(dropout=0), batch(), 0)[0] == gradients(make_trainer(dropout=0, seed=4), batch(), 1)[0]
    )


def test_mixed_precision_trains_float32_weights():
    whole, mixed = make_trainer(), make_trainer(dtype="mixed_bfloat16")
    results = mixed.model(batch()[:, :-1])
    assert (results["present"].dtype, results["logits"].dtype) == (tf.bfloat16, tf.float32)
    losses = []
    for step in range(6):
        (expected, norm), (loss, its_norm) = whole.update(step, batch()), mixed.update(step, batch())
        losses.append(loss)
        if step == 0:
            assert loss == pytest.approx(expected, rel=BFLOAT16_LOSS)
            assert its_norm == pytest.approx(norm, rel=BFLOAT16_NORM)
    assert losses[-1] < losses[0] - 0.5
    assert {v.dtype for v in (*mixed.model.variables, *mixed.optimizer.variables)} <= {"float32", "int64", "int32"}


def test_adafactor_trains_and_keeps_little():
    trainer = make_trainer(HParams(n_vocab=300, n_ctx=16, n_embd=64, n_head=2, n_layer=2), optimizer="adafactor")
    losses = [trainer.update(step, batch())[0] for step in range(6)]
    assert losses[-1] < losses[0] - 0.5
    size = sum(v.numpy().size for v in trainer.model.variables)
    assert sum(value.size for value in trainer.state()) < 0.1 * size


def test_adafactor_makes_the_updates_of_keras():
    """Keras's keeps more state, but makes the same updates."""
    own, keras_ = make_trainer(optimizer="adafactor"), make_trainer(optimizer="adafactor")
    schedule = own.optimizer._learning_rate
    keras_.optimizer = keras.optimizers.Adafactor(schedule, relative_step=False, weight_decay=0.01)
    keras_.optimizer.exclude_from_weight_decay(var_list=[v for v in keras_.variables if len(v.shape) < 2])
    for step in range(4):
        assert own.update(step, batch(seed=step)) == pytest.approx(keras_.update(step, batch(seed=step)), rel=1e-4)
    before, expected, found = (values(trainer.model) for trainer in (make_trainer(), keras_, own))
    for name, value in found.items():
        if name.endswith("c_attn/b"):  # the keys' third is rounding, and counts in the norm by which all is clipped
            continue
        moved = np.abs(expected[name] - before[name]).max()
        assert np.abs(value - expected[name]).max() <= UPDATE * moved, name


EMBEDDINGS = {"model/wte", "model/wpe"}


@pytest.mark.parametrize(
    "freeze, scopes",
    [
        ("", set()),
        ("embeddings", {"wte", "wpe"}),
        ("wte", {"wte"}),
        ("wpe, ln_f", {"wpe", "ln_f"}),
        ("h0", {"h0"}),
        ("embeddings,h0-h1", {"wte", "wpe", "h0", "h1"}),
        ("h1-1", {"h1"}),
        ("h0-h5,wte", {"h0", "h1", "wte"}),
        ("h0-h999999999", {"h0", "h1"}),
    ],
)
def test_frozen_variables_stay_and_the_others_move(freeze, scopes):
    trainer = make_trainer(freeze=freeze)
    before = values(trainer.model)
    for step in range(2):
        trainer.update(step, batch())
    after = values(trainer.model)
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {name for name in before if name.split("/")[1] in scopes}


@pytest.mark.parametrize("word", ["h", "h-1", "wtf", "h0-", "embedding", "h0;h1", "H0", "h1-h0", "h0-h9999999999"])
def test_other_words_are_refused(word):
    with pytest.raises(ValueError, match=f"freeze has '{word}'; give some of embeddings, wte"):
        Settings(freeze=f"wpe,{word}")


def test_what_leaves_nothing_to_train_or_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="freeze is 'embeddings,h0-1,ln_f', which leaves nothing to train"):
        make_trainer(freeze="embeddings,h0-1,ln_f")
    with pytest.raises(ValueError, match="freeze has 'h2'; the model's n_layer is 2"):  # its blocks are h0 and h1
        make_trainer(freeze="h0, h2")
    with pytest.raises(ValueError, match="window is 17; the model's n_ctx is 16"):
        make_trainer(window=17)


def momentum(trainer):
    """Of AdamW after one update: a tenth of the gradients that it was given."""
    return np.sqrt(sum((v.numpy() ** 2).sum() for v in trainer.optimizer.variables if "momentum" in v.path))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_epsilon_stands_beside_the_root(epsilon):
    """As in TensorFlow 1: a first step is rate * root(1 - beta_2) g / (root(1 - beta_2) |g| + epsilon)."""
    trainer = make_trainer(weight_decay=0.0, clip=0.0, **({} if epsilon == 1e-8 else {"epsilon": epsilon}))
    trainer.update(0, batch())
    root, after = np.sqrt(1 - trainer.settings.beta_2), values(trainer.model)
    for name, gradient in gradients(make_trainer(), batch())[1].items():
        step = 1e-2 * root * gradient / (root * np.abs(gradient) + epsilon)
        before = initial_value(name, gradient.shape)
        found = before - after[name]
        large = np.abs(gradient) > 1e-5  # smaller ones are rounding
        assert large.any() and np.abs(found - step)[large].max() < 1e-4, name


@pytest.mark.parametrize("clip, factor", [(0, None), (1e9, None), (0.5, 0.5)])
def test_gradients_are_cut_down_to_the_norm(clip, factor):
    trainer = make_trainer(clip=clip)
    _, norm = trainer.update(0, batch())
    assert norm > 1
    found = gradients(make_trainer(clip=clip), batch())[1]
    assert norm == pytest.approx(np.sqrt(sum((g**2).sum() for g in found.values())), rel=1e-5)  # before it is cut
    assert momentum(trainer) == pytest.approx(0.1 * (factor or norm), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_only_matrices_decay(optimizer):
    settings = {"optimizer": optimizer, "learning_rate": 0.01}
    outcomes = []
    for decay in (0.0, 0.5):
        trainer = make_trainer(weight_decay=decay, **settings)
        trainer.update(0, batch())
        outcomes.append(values(trainer.model))
    without, with_decay = outcomes
    for name, value in without.items():
        if name.endswith(("/g", "/b")):
            assert np.array_equal(with_decay[name], value), name
        else:
            decayed = 0.01 * 0.5 * initial_value(name, value.shape)
            # Adafactor's step is relative to the weights' size, which is half a percent smaller after the decay.
            bound = 1e-6 if optimizer == "adamw" else 0.006 * np.abs(value - initial_value(name, value.shape)).max()
            assert np.abs(with_decay[name] - (value - decayed)).max() <= bound < np.abs(decayed).max(), name


@pytest.mark.parametrize("warmup, final", [(0, 0.1), (0, 1), (5, 0), (5, 1), (12, 0.1)])
def test_learning_rate_warms_up_and_comes_down(warmup, final):
    settings = Settings(steps=12, warmup=warmup, final_rate=final, learning_rate=0.5)
    optimizer = make_optimizer(settings, [])

    def rate(step):
        optimizer.iterations.assign(step)
        return float(optimizer.learning_rate)

    rates = [rate(step) for step in range(12)]
    assert rates[:warmup] == pytest.approx([0.5 * (step + 1) / (warmup + 1) for step in range(warmup)])
    if warmup < 12:
        assert rates[warmup] == pytest.approx(0.5) and rate(12) == pytest.approx(0.5 * final)
        middle = warmup + (12 - warmup) // 2
        share = (middle - warmup) / (12 - warmup)
        assert rates[middle] == pytest.approx(0.5 * (final + (1 - final) * (1 + np.cos(np.pi * share)) / 2))
    assert rate(1000) == pytest.approx(0.5 * final)


def test_state_of_another_optimizer_is_refused():
    trainer = make_trainer()
    trainer.update(0, batch())
    copy = make_trainer()
    copy.restore(trainer.state())
    for value, other in zip(trainer.state(), copy.state(), strict=True):
        assert np.array_equal(value, other)
    for settings in ({"optimizer": "adafactor"}, {"freeze": "h0"}):
        with pytest.raises(ValueError, match="state is of other settings"):
            make_trainer(**settings).restore(trainer.state())


def test_validation_loss_is_the_mean_over_tokens_without_dropout():
    trainer = make_trainer(dropout=0.5)
    weights = {name: value.astype(np.float64) for name, value in values(trainer.model).items()}
    batches = [batch(3, seed=1), batch(1, seed=2)]
    assert trainer.loss(batches) == pytest.approx(
        oracle.loss(weights, SMALL.n_head, np.concatenate(batches)), rel=GRADIENT
    )
    assert_same(values(trainer.model), values(make_trainer().model))


@pytest.mark.parametrize(
    "bad",
    "steps=0 clip=-1 beta_2=1 epsilon=0 epsilon=1e-40 dropout=1 window=0 final_rate=nan learning_rate=0 early_stop=-1 "
    "seed=-1 optimizer=sgd dtype=int8".split(),
)
def test_settings_out_of_range_are_refused(bad):
    name, value = bad.split("=")
    value = value if name in ("optimizer", "dtype") else float(value)
    with pytest.raises(ValueError, match=f"{name} is '?{value}'?; it must be"):
        Settings(**{name: value})


def test_early_stop_needs_a_validation_loss():
    for settings in ({"evaluate_every": 0}, {"validation": 0.0}):
        with pytest.raises(ValueError, match="early_stop looks at the validation loss"):
            Settings(early_stop=2, **settings)


@pytest.mark.parametrize(
    "settings, measured",
    [
        ({}, 5.41e9),
        ({"recompute": True}, 5.43e9),
        ({"optimizer": "adafactor"}, 5.12e9),
        ({"batch_size": 2, "window": 256}, 4.32e9),
        ({"batch_size": 4}, 8.78e9),
        ({"batch_size": 4, "dtype": "bfloat16"}, 8.78e9),
        ({"batch_size": 4, "recompute": True}, 6.75e9),
    ],
)
def test_memory_that_training_takes_is_estimated(settings, measured):
    """Against the peaks of processes that trained 124M on a CPU."""
    assert training_bytes(PUBLISHED["124M"], Settings(**settings)) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_advised_saves_memory(gpu):
    large = {"batch_size": 8}
    whole = training_bytes(PUBLISHED["124M"], Settings(**large), gpu)
    for settings in ({"recompute": True}, {"optimizer": "adafactor"}, {"batch_size": 4}, {"window": 512}):
        assert training_bytes(PUBLISHED["124M"], Settings(**large | settings), gpu) < 0.96 * whole
    narrow = training_bytes(PUBLISHED["124M"], Settings(**large, dtype="bfloat16"), gpu)
    assert narrow < 0.8 * whole if gpu else narrow == whole


def test_devices_share_a_batch_evenly_or_not_at_all():
    class Two:
        num_replicas_in_sync = 2

    trainer = make_trainer()
    with pytest.raises(ValueError, match="batch_size is 3, which 2 devices cannot share evenly"):
        Trainer(trainer.model, dataclasses.replace(trainer.settings, batch_size=3), Two())


def test_gradients_reach_the_keras_model_with_keys_of_its_own():
    """Training by hand, as in any Keras model: a tape around a call."""
    model = GPT2(SMALL, initial_value=initial_value)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch(), training=True, dropout_keys=row_keys(0, 0, [0, 1]))["logits"])
    assert all(gradient is not None for gradient in tape.gradient(loss, model.trainable_weights))
