"""A GPT2 wherever it is made, and however it is copied or exported: its names, its weights, what it computes."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from recorded import GOLDEN
from training import ONE_LAYER, assert_same, initial_value, make_trainer, values

from encoder import Vocabulary, get_encoder, released
from gpt2tf import GPT2, Generator, cross_entropy, load_model, save_checkpoint
from gpt2tf.names import variable_shapes
from gpt2tf.train.dropout import Rates

X = np.arange(32).reshape(4, 8)


def net(**options):
    return GPT2(ONE_LAYER, initial_value=initial_value, **options)


class Around(keras.layers.Layer):
    """A layer that makes its GPT2 when it is built."""

    def build(self, shape):
        self.net = net()

    def call(self, x):
        return self.net(x)["logits"]


def made_in_a_layer():
    layer = Around(name="around")
    layer(X)
    return layer.net


def made_in_a_scope():
    with keras.name_scope("text"), keras.name_scope("inner"):
        return net()


def made_in_a_functional_model():
    tokens = keras.Input([None], dtype="int32")
    with keras.name_scope("text"):
        inner = net()
        return next(layer for layer in keras.Model(tokens, inner(tokens)["logits"]).layers if layer is inner)


@pytest.mark.parametrize("make", [net, made_in_a_layer, made_in_a_scope, made_in_a_functional_model])
def test_names_are_the_originals_wherever_it_is_made(make, tmp_path):
    model = make()
    assert {v.path: tuple(v.shape) for v in model.variables} == variable_shapes(ONE_LAYER)
    model(X)
    assert {v.path: tuple(v.shape) for v in model.variables} == variable_shapes(ONE_LAYER)
    with keras.name_scope("another"):
        save_checkpoint(model, tmp_path / "model")
        found = load_model(tmp_path / "model")
        generator = Generator(model, jit_compile=False)
    assert_same(values(found), values(net()))
    saved = dict(tf.train.list_variables(str(tmp_path / "model" / "model.ckpt")))
    assert {name: tuple(shape) for name, shape in saved.items()} == variable_shapes(ONE_LAYER)
    assert len(generator.generate([[1, 2]], 3)[0]) == 3


def test_a_checkpoint_loads_and_freezes_in_any_scope():
    with keras.name_scope("text"):
        model = load_model(GOLDEN / "tiny-a")
        trainer = make_trainer(freeze="embeddings")
    assert model.variables[0].path == "model/wpe"
    assert {v.path for v in trainer.variables} == set(variable_shapes(trainer.model.hparams)) - {
        "model/wte",
        "model/wpe",
    }


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


COPIES = {
    "keras": saved_and_loaded,
    "deepcopy": lambda model, tmp_path: copy.deepcopy(model),
    "pickle": lambda model, tmp_path: pickle.loads(pickle.dumps(model)),
}
VOCABULARY = Vocabulary(
    json.dumps({token: 299 - i for token, i in json.loads(released(300).table).items()}), released(300).merges
)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_weights_and_their_names(way, tmp_path):
    model = net()
    found = COPIES[way](model, tmp_path)
    assert_same(values(found), values(model))
    assert np.array_equal(found(X)["logits"], model(X)["logits"])


@pytest.mark.parametrize("way", [*COPIES, "clone_model", "inside of another"])
@pytest.mark.parametrize("vocabulary", [None, VOCABULARY, Vocabulary(VOCABULARY.table)], ids=["unknown", "own", "part"])
def test_what_a_model_carries_comes_along(way, vocabulary, tmp_path):
    rates = Rates(0.1, 0.2, 0.3)
    model = net(vocabulary=vocabulary, dropout=rates, recompute=True, dtype="mixed_bfloat16")
    model.h0.trainable = model.wpe.trainable = False
    if way == "clone_model":
        found = keras.models.clone_model(model)
    elif way == "inside of another":
        tokens = keras.Input([None], dtype="int32")
        found = saved_and_loaded(keras.Model(tokens, model(tokens)["logits"]), tmp_path).get_layer("model")
    else:
        found = COPIES[way](model, tmp_path)
    assert (found.hparams, found.vocabulary, found.dropout, found.recompute) == (ONE_LAYER, vocabulary, rates, True)
    assert found.dtype_policy.name == "mixed_bfloat16"
    assert [v.path for v in found.trainable_variables] == [v.path for v in model.trainable_variables]
    save_checkpoint(found, tmp_path / "saved")
    assert load_model(tmp_path / "saved").vocabulary == vocabulary
    if vocabulary == VOCABULARY:
        assert get_encoder("saved", tmp_path).encode("AB") == [299 - 32, 299 - 33]


def test_a_compiled_model_with_frozen_layers_goes_on_training(tmp_path):
    model = net(dropout=0.0)
    model.h0.trainable = False
    model.compile("adam", loss=cross_entropy, run_eagerly=True)
    model.fit(X[:, :-1], X[:, 1:], verbose=0)
    found = saved_and_loaded(model, tmp_path)
    for each in (model, found):
        each.fit(X[:, :-1], X[:, 1:], shuffle=False, verbose=0)
    assert_same(values(found), values(model))


def test_a_keras_file_without_a_vocabulary_loads(tmp_path):
    """As those that were written before there was one in them."""
    config = net().get_config()
    del config["vocabulary"], config["frozen"]
    assert GPT2.from_config(config).vocabulary is None


def test_a_functional_model_around_it_trains_saves_and_loads(tmp_path):
    tokens = keras.Input([None], dtype="int32")
    model = keras.Model(tokens, net()(tokens)["logits"])
    model.compile("sgd", loss=cross_entropy, run_eagerly=True)
    model.fit(X[:, :-1], X[:, 1:], verbose=0)
    found = saved_and_loaded(model, tmp_path)
    assert np.array_equal(found(X), model(X))
    assert {v.path for v in found.variables} == set(variable_shapes(ONE_LAYER))


def served(path, tokens):
    """What a SavedModel's default signature answers."""
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    return signature(**{name: tf.constant(tokens, tf.int32)})


def exported(model, path):
    model.export(path, verbose=False)


def exported_with_a_signature(model, path):
    model.export(path, verbose=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])


def saved_by_tensorflow(model, path):
    tf.saved_model.save(model, str(path))


def archived(model, path):
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", model.call, [tf.TensorSpec([None, None], tf.int32)])
    archive.write_out(str(path), verbose=False)


@pytest.mark.parametrize("write", [exported, exported_with_a_signature, saved_by_tensorflow, archived])
def test_a_saved_model_right_after_loading(write, tmp_path):
    model = net()
    write(model, tmp_path / "saved")
    for shape in ((1, 1), (4, 8), (2, 16)):
        tokens = np.arange(np.prod(shape)).reshape(shape)
        np.testing.assert_allclose(served(tmp_path / "saved", tokens)["logits"], model(tokens)["logits"], atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="17.*n_ctx"):
        served(tmp_path / "saved", np.zeros([1, 17]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="300.*vocabulary"):
        served(tmp_path / "saved", [[300]])


def test_a_checkpoint_of_tensorflow_has_every_variable(tmp_path):
    model, other = net(), GPT2(ONE_LAYER)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    tf.train.Checkpoint(model=other).read(str(tmp_path / "ckpt")).assert_existing_objects_matched()
    assert_same(values(other), values(model))


def test_fit_under_a_strategy_of_two_devices(tmp_path):
    """In a process of its own, whose CPU is split in two; to the weights that one device comes to."""
    import subprocess
    import sys

    code = """
import sys, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
sys.path.insert(0, sys.argv[1])
from training import ONE_LAYER, initial_value
from gpt2tf import GPT2, cross_entropy
x = np.arange(36).reshape(4, 9).astype(np.uint16)
found = []
for devices in (["CPU:0", "CPU:1"], ["CPU:0"]):
    with tf.distribute.MirroredStrategy(devices).scope():
        model = GPT2(ONE_LAYER, initial_value=initial_value, dropout=0.0)
        model.compile("sgd", loss=cross_entropy, jit_compile=False)
    model.fit(x[:, :-1], x[:, 1:], batch_size=4, verbose=0)
    found.append(np.concatenate([np.ravel(v) for v in model.get_weights()]))
print("differ by", np.abs(found[0] - found[1]).max(), "moved", np.abs(found[0]).sum())
assert np.abs(found[0] - found[1]).max() < 1e-6
"""
    tests = str(GOLDEN.parent)
    run = subprocess.run([sys.executable, "-c", code, tests], cwd=GOLDEN.parent.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


def test_another_backend_of_keras_is_named(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="runs on jax; set KERAS_BACKEND=tensorflow"):
        net()
