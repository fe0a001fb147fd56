"""The saves of a run: whenever the process dies, the disk fills or a file is damaged, the last save stays."""

import contextlib
import errno
import io
import json
import os
import shutil

import numpy as np
import pytest
from training import DEFAULTS, LOOP, ONE_LAYER, assert_same, corpus, reset, resume, train, values

import encoder
from gpt2tf import checkpoint, load_model
from gpt2tf.checkpoint import Weights, save_checkpoint
from gpt2tf.locate import find_prefix
from gpt2tf.train import saves
from gpt2tf.train.loop import Run
from gpt2tf.train.settings import Settings

OF_A_MODEL = {"checkpoint", "hparams.json", "encoder.json", "vocab.bpe", "logs"}


def of_step(step):
    return {f"model-{step}.index", f"model-{step}.data-00000-of-00001", f"training-{step}.npz"}


@pytest.fixture(scope="module")
def finished(compiled_trainer, tmp_path_factory):
    """A run of six updates: its folder, its reports, its weights."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    reports = train(reset(compiled_trainer, **LOOP), folder)
    return folder, reports, values(compiled_trainer.model)


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_the_folder_is_a_model_and_holds_the_last_save_only(finished, compiled_trainer, tmp_path):
    folder, reports, weights = finished
    assert set(os.listdir(folder)) == OF_A_MODEL | of_step(6)
    assert [report.step for report in reports if report.saved] == [2, 4, 6]
    state = 'model_checkpoint_path: "model-6"\nall_model_checkpoint_paths: "model-6"\n'
    assert (folder / "checkpoint").read_text() == state
    assert find_prefix(folder) == str(folder / "model-6")
    model = load_model(folder)
    assert model.hparams == ONE_LAYER and model.vocabulary == encoder.released(300)
    assert_same(values(model), weights)
    save_checkpoint(model, tmp_path / "plain")
    for file in ("index", "data-00000-of-00001"):
        assert (folder / f"model-6.{file}").read_bytes() == (tmp_path / "plain" / f"model.ckpt.{file}").read_bytes()


def test_what_is_saved_is_what_is_read(finished, compiled_trainer):
    saved = saves.read_saved(finished[0])
    assert saved.settings == Settings(**DEFAULTS | LOOP)
    assert saved.corpus == {"crc32": 7}
    assert saved.progress == {"step": 6, "best": float("inf"), "best_step": 0}
    assert [value.shape for value in saved.state] == [tuple(v.shape) for v in compiled_trainer.optimizer.variables]


def test_a_save_from_before_there_was_an_epsilon_has_keras_s(copy):
    """A resumed run goes on as it was begun."""
    path = copy / "training-6.npz"
    with np.load(path) as arrays:
        arrays = dict(arrays)
    record = json.loads(str(arrays["record"]))
    assert record["settings"].pop("epsilon") == saves.read_saved(copy).settings.epsilon == 1e-8
    np.savez(path, **arrays | {"record": np.array(json.dumps(record))})
    assert saves.read_saved(copy).settings == Settings(**DEFAULTS | LOOP, epsilon=1e-7)


@pytest.mark.parametrize("settings", [{}, {"early_stop": 3, "evaluate_every": 2}], ids=["plain", "early stop"])
def test_killed_at_any_instant(compiled_trainer, finished, monkeypatch, tmp_path, settings):
    """A copy of the folder just before each change in it is what a kill, or a power cut, would have left."""
    folder, snapshots = tmp_path / "run", [set()]

    def before(function):
        def call(*args, **kwargs):
            found = {str(path.relative_to(folder)) for path in folder.rglob("*")} | {_text(folder / "checkpoint")}
            if found != snapshots[-1]:
                shutil.copytree(folder, tmp_path / f"killed-{len(snapshots)}")
                snapshots.append(found)
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "replace"), (os, "remove"), (os, "fsync"), (shutil, "rmtree")):
            patch.setattr(module, name, before(getattr(module, name)))
        train(reset(compiled_trainer, **LOOP | settings), folder)
    expected = values(compiled_trainer.model)
    assert_same(expected, finished[2])  # validation changes nothing
    assert len(snapshots) > 25
    steps = set()
    for number in range(1, len(snapshots)):
        killed = tmp_path / f"killed-{number}"
        step = saves.saved_step(killed)
        steps.add(step)
        if step is not None:
            weights = Weights(find_prefix(killed))
            assert all(np.isfinite(weights[name]).all() for name in weights)  # each read verifies a checksum
            assert saves.read_saved(killed).progress["step"] == step
        if step != 6 and number % 4 == 0:  # each takes a third of a second
            resume(compiled_trainer, killed, **settings)
            assert_same(values(compiled_trainer.model), expected)
            left = set(os.listdir(killed)) - OF_A_MODEL
            assert left == of_step(6)
    assert steps == {None, 2, 4, 6}


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("where", ["optimizer", "weights", "sync", "rename"])
def test_full_disk_leaves_the_save_before(compiled_trainer, finished, monkeypatch, tmp_path, where):
    folder = tmp_path / "run"
    reset(compiled_trainer, **LOOP)
    reports = Run(compiled_trainer, corpus(), folder).reports()
    for _ in range(3):
        next(reports)
    before = set(os.listdir(folder))
    assert of_step(2) < before

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = {"optimizer": (np, "savez"), "weights": (checkpoint, "_write_variables"), "sync": (os, "fsync"),
             "rename": (os, "replace")}[where]  # fmt: skip
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as error:
        patch.setattr(*place, full)
        next(reports)
    assert error.value.filename.startswith(str(folder))  # a line that says where
    assert before <= set(os.listdir(folder)) <= before | {"training-4.npz"}
    assert saves.saved_step(folder) == 2
    resume(compiled_trainer, folder)
    assert_same(values(compiled_trainer.model), finished[2])


def test_settle_goes_back_to_the_step_that_was_kept(compiled_trainer, copy):
    reset(compiled_trainer)
    saved = saves.Saved(Settings(), {}, {"step": 8}, compiled_trainer.state())
    saves.save(copy, compiled_trainer.model, 8, saved, keep=6)
    assert set(os.listdir(copy)) == OF_A_MODEL | of_step(6) | of_step(8)
    assert saves.saved_step(copy) == 8
    saves.settle(copy, 7)  # which is not there
    assert saves.saved_step(copy) == 8
    saves.settle(copy, 6)
    assert set(os.listdir(copy)) == OF_A_MODEL | of_step(6)
    assert saves.saved_step(copy) == 6 and saves.read_saved(copy).progress["step"] == 6


def test_files_of_others_stay(compiled_trainer, copy):
    others = {"model.ckpt.index", "model-x.index", "notes.txt", "tokens.npy", "training.npz", "model-5.txt"}
    for name in others:
        (copy / name).write_text("mine")
    (copy / "training-3.npz.99.part").write_text("half")
    (copy / "tokens.npy.99.part").write_text("half")
    (copy / ".saving-abc" / "model").mkdir(parents=True)
    saved = saves.Saved(Settings(), {}, {"step": 8}, [])
    saves.save(copy, compiled_trainer.model, 8, saved)
    assert set(os.listdir(copy)) == OF_A_MODEL | of_step(8) | others


def test_folder_without_a_run(tmp_path, copy):
    for folder in (tmp_path, tmp_path / "missing"):
        assert saves.saved_step(folder) is None
        with pytest.raises(FileNotFoundError, match="holds no run to resume; leave --resume out"):
            saves.read_saved(folder)
    (copy / "training-6.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"training-6.npz is missing, .*--model_name"):
        saves.read_saved(copy)


def damaged(raw):
    yield "empty", b""
    yield "half", raw[: len(raw) // 2]
    yield "without its end", raw[:-1]
    yield "text", b"hello\n"
    yield "zeros", bytes(len(raw))
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    yield "one array", array.getvalue()
    letters = [word.encode("utf-32-le") for word in ("best_step", "best_stap")]
    assert letters[0] in raw
    yield "another letter in the record", raw.replace(*letters)
    middle = len(raw) // 2
    yield "a flipped byte", raw[:middle] + bytes([raw[middle] ^ 255]) + raw[middle + 1 :]


def test_damaged_state_is_refused_in_one_line(copy):
    path = copy / "training-6.npz"
    raw = path.read_bytes()
    for what, bad in damaged(raw):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"training-6.npz is damaged .*start a new run from this model") as error:
            saves.read_saved(copy)
        assert "\n" not in str(error.value), what
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(raw), 60):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << rng.integers(8)]) + raw[place + 1 :])
        with contextlib.suppress(ValueError):  # a bit that nobody reads may do no harm; nothing else is raised
            saves.read_saved(copy)


def test_record_that_lacks_something_is_damage(copy, finished):
    path = copy / "training-6.npz"
    for record in (
        '"x"',
        "{}",
        '{"settings": {"nope": 1}, "corpus": {}, "progress": {}}',
        '{"settings": {"steps": 0}}',
    ):
        np.savez(path, record=np.array(record))
        with pytest.raises(ValueError, match="training-6.npz is damaged"):
            saves.read_saved(copy)
