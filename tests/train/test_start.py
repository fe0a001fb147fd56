"""A run started from Python, without the command line: of a new model, of one to finetune, and resumed."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from recorded import GOLDEN
from training import ONE_LAYER, assert_same, values

from gpt2tf import load_model
from gpt2tf.locate import ModelFiles
from gpt2tf.train import saves
from gpt2tf.train.settings import Settings
from gpt2tf.train.start import Job, read_corpus, start

SETTINGS = {"steps": 4, "batch_size": 2, "window": 8, "evaluate_every": 2, "seed": 1}

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat. the dog sat on the log. " * 30)
    return path


def started(job):
    return start(job, read_corpus(job))


def test_a_new_model_is_trained_and_resumed(text, tmp_path):
    """Resumed, it ends with the weights of a run that was not stopped."""
    whole = started(Job(text, tmp_path / "whole", ONE_LAYER, SETTINGS))
    expected = [(report.step, report.loss, report.validation) for report in whole.reports()]
    assert [step for step, *_ in expected] == [1, 2, 3, 4] and expected[-1][1] < expected[0][1]

    stopping, found = threading.Event(), []
    for report in started(Job(text, tmp_path / "parts", ONE_LAYER, SETTINGS)).reports(stopping):
        found.append((report.step, report.loss, report.validation))
        stopping.set()
    assert [step for step, *_ in found] == [1, 2]  # asked to stop after the first, it saves the second

    resumed = started(Job(text, tmp_path / "parts", None, {"save_every": 1}))
    assert resumed.step == 2 and resumed.settings == Settings(**SETTINGS, save_every=1)
    found += [(report.step, report.loss, report.validation) for report in resumed.reports()]
    assert found == expected
    model = load_model(tmp_path / "parts")
    assert model.hparams == ONE_LAYER
    assert_same(values(model), values(whole.trainer.model))
    with pytest.raises(ValueError, match="parts has had 4 updates; give more --steps than that"):
        started(Job(text, tmp_path / "parts", None))


def test_a_model_is_finetuned(text, tmp_path):
    run = started(Job(text, tmp_path / "new", ModelFiles.at(GOLDEN / "tiny-a"), SETTINGS | {"steps": 1}))
    assert_same(values(run.trainer.model), values(load_model(GOLDEN / "tiny-a")))
    assert [report.saved for report in run.reports()] == [True]
    assert saves.saved_step(tmp_path / "new") == 1
    assert not np.array_equal(load_model(tmp_path / "new").wte.numpy(), load_model(GOLDEN / "tiny-a").wte.numpy())


def test_what_cannot_start_is_refused_before_there_is_a_folder(text, tmp_path):
    new = tmp_path / "new"
    with pytest.raises(ValueError, match="steps is 0; it must be 1 or more"):
        Job(text, new, ONE_LAYER, {"steps": 0})
    with pytest.raises(FileNotFoundError, match="new holds no run to resume"):
        Job(text, new, None)
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        Job(tmp_path / "missing.txt", new, ONE_LAYER)
    assert not new.exists()
    with pytest.raises(FileExistsError, match="tiny-a holds a model"):
        Job(text, GOLDEN / "tiny-a", ONE_LAYER)


def test_the_corpus_is_read_without_tensorflow(text, tmp_path):
    code = """
import sys; sys.modules.update(tensorflow=None, keras=None)
from gpt2tf.hparams import HParams
from gpt2tf.train.start import Job, read_corpus
job = Job(sys.argv[1], sys.argv[2], HParams(n_vocab=300, n_ctx=16, n_embd=16, n_head=2, n_layer=1))
corpus = read_corpus(job)
print(len(corpus.tokens), corpus.identity["tokens"], corpus.identity["bytes"], len(corpus.enc.encoder))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, text, tmp_path / "new"],
        env={"PYTHONPATH": str(GOLDEN.parent.parent)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tokens, *others = map(int, found.stdout.split())
    assert others == [tokens, text.stat().st_size, 300]
    assert tokens == len(np.load(tmp_path / "new" / "tokens.npy")) > 100
