"""A .keras file, opened by Keras in a process of its own: what it computes, its names, what training left in it."""

import json
import os
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from recorded import ROOT
from training import ONE_LAYER, initial_value

from gpt2tf import GPT2, cross_entropy, encoder
from gpt2tf.formats.keras_file import write_keras
from gpt2tf.names import variable_shapes

X = np.arange(36).reshape(4, 9)
TOKENS = np.arange(32).reshape(4, 8)

FRESH = """
import json, sys
import keras, numpy as np
from gpt2tf import GPT2

tokens, found = np.arange(32).reshape(4, 8), {}
for name in ("alone", "around"):
    model = keras.models.load_model(name + ".keras")
    net = model if name == "alone" else next(layer for layer in model.layers if isinstance(layer, GPT2))
    logits = model(tokens)
    found[name] = logits["logits"] if name == "alone" else logits
    print(json.dumps({
        "names": {v.path: list(v.shape) for v in model.variables}, "dtype": net.dtype_policy.name,
        "iterations": int(model.optimizer.iterations), "loss": model.loss.__name__, "size": net.vocabulary.size,
        "slots": float(sum(np.abs(v).sum() for v in model.optimizer.variables)),
    }))
np.savez("found.npz", **found)
"""


def test_in_a_fresh_process_all_is_as_it_was(tmp_path):
    expected, told = {}, []
    for name, dtype in (("alone", "mixed_bfloat16"), ("around", "float32")):
        vocabulary = encoder.released(ONE_LAYER.n_vocab)
        model = net = GPT2(ONE_LAYER, initial_value=initial_value, dtype=dtype, vocabulary=vocabulary)
        if name == "around":
            tokens = keras.Input([None], dtype="int32")
            model = keras.Model(tokens, net(tokens)["logits"])
        model.compile("adam", loss=cross_entropy, run_eagerly=True)
        model.fit(X[:, :-1], X[:, 1:], verbose=0)
        write_keras(model, tmp_path / f"{name}.keras")
        logits = model(TOKENS)
        expected[name] = logits["logits"] if name == "alone" else logits
        slots = float(sum(np.abs(v).sum() for v in model.optimizer.variables))
        told.append({"dtype": dtype, "iterations": 1, "loss": "cross_entropy", "size": 300, "slots": slots})
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", FRESH], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    names = {name: list(shape) for name, shape in variable_shapes(ONE_LAYER).items()}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"names": names} | each for each in told]
    with np.load(tmp_path / "found.npz") as found:
        for name, logits in expected.items():
            assert np.array_equal(found[name], logits)


def test_a_file_is_new_and_whole_or_not_there(tmp_path, monkeypatch):
    model = GPT2(ONE_LAYER)
    (tmp_path / "there.keras").write_text("something")
    with pytest.raises(FileExistsError, match="there.keras is there already"):
        write_keras(model, tmp_path / "there.keras")
    with pytest.raises(ValueError, match="mine.h5 must end in .keras"):
        write_keras(model, tmp_path / "mine.h5")

    def fail(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(OSError, match=r"No space left on device.*mine.keras"):
        write_keras(model, tmp_path / "mine.keras")
    assert [path.name for path in tmp_path.rglob("*")] == ["there.keras"]
    assert (tmp_path / "there.keras").read_text() == "something"
