"""The loop of a training run: its reports, when it validates, samples, saves and stops, and how it is resumed."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
from tolerances import CURVE
from training import ONE_LAYER, assert_same, batch, corpus, make_trainer, reset, resume, values

from gpt2tf.generate import Generator
from gpt2tf.train import loop, saves
from gpt2tf.train.loop import Run
from gpt2tf.train.tokens import Windows, fixed_windows, split

NEVER = threading.Event()


@pytest.fixture
def make_run(compiled_trainer, tmp_path):
    """A run of the trainer as new, with settings of the loop."""

    def make(saved=None, tokens=None, chief=True, **settings):
        return Run(reset(compiled_trainer, **settings), tokens or corpus(), tmp_path / "run", saved, chief)

    return make


def stopped(run, step):
    """The reports up to a step, after which the run is asked to stop."""
    stopping, reports = threading.Event(), []
    for report in run.reports(stopping):
        reports.append(report)
        if report.step == step - 1:
            stopping.set()
    return reports


def test_stopped_and_resumed_is_not_stopped(make_run, compiled_trainer, tmp_path):
    """Bit for bit: weights, the optimizer's state, losses. The stop after five updates is in the middle of an epoch."""
    settings = {"steps": 12, "evaluate_every": 4, "warmup": 3}
    expected = list(make_run(**settings).reports(NEVER))
    weights, state = values(compiled_trainer.model), compiled_trainer.state()
    assert len(expected) == 12 and expected[0].loss > expected[-1].loss

    run = make_run(**settings)
    assert run.windows.epoch_size == 22
    first = stopped(run, 5)
    assert [report.saved for report in first] == [False] * 4 + [True]
    assert saves.saved_step(tmp_path / "run") == 5
    then = resume(compiled_trainer, tmp_path / "run", **settings)
    for found, report in zip(first + then, expected, strict=True):
        names = ("step", "loss", "gradient_norm", "learning_rate", "validation")
        assert [getattr(found, name) for name in names] == [getattr(report, name) for name in names]
    assert_same(values(compiled_trainer.model), weights)
    for found, value in zip(compiled_trainer.state(), state, strict=True):
        np.testing.assert_array_equal(found, value, strict=True)


def test_compiled_functions_equal_eager_ones(compiled_trainer, eagerly):
    eager = make_trainer(ONE_LAYER)
    expected = [eager.update(step, batch(seed=step)) for step in range(3)]
    tf.config.run_functions_eagerly(False)
    reset(compiled_trainer)
    for step, (loss, norm) in enumerate(expected):
        assert compiled_trainer.update(step, batch(seed=step)) == pytest.approx((loss, norm), rel=10 * CURVE)
    assert compiled_trainer.loss([batch(1)]) == pytest.approx(eager.loss([batch(1)]), rel=CURVE)


def test_reports(make_run, compiled_trainer):
    run = make_run(steps=7, evaluate_every=3, save_every=5)
    reports = list(run.reports(NEVER))
    assert [report.step for report in reports] == list(range(1, 8))
    assert [report.step for report in reports if report.validation is not None] == [3, 6, 7]
    assert [report.step for report in reports if report.saved] == [5, 7]
    assert [report.sample for report in reports] == [None] * 7
    assert reports[-1].seconds_left == 0 < reports[0].seconds_left
    assert all(report.tokens_per_s > 0 and report.gradient_norm > 0 for report in reports)
    optimizer, trained = make_trainer().optimizer, []
    for step in range(7):
        optimizer.iterations.assign(step)
        trained.append(float(optimizer.learning_rate))
    assert [report.learning_rate for report in reports] == trained  # of this update, not of the next one
    assert reports[-1].validation == run.validation_loss()
    train_part, held = split(corpus().tokens, 8, 0.05)
    assert reports[-1].validation == pytest.approx(compiled_trainer.loss(fixed_windows(held, 8, 2)), rel=CURVE)
    windows = Windows(train_part, 8, 2, seed=3)
    reset(compiled_trainer)
    assert [compiled_trainer.update(step, windows.batch(step))[0] for step in range(7)] == [r.loss for r in reports]


def test_asked_to_stop_it_saves_what_it_did(make_run, compiled_trainer, tmp_path):
    """Whether it is asked before it starts or while a report is read."""
    stopping = threading.Event()
    stopping.set()
    assert [(report.step, report.saved) for report in make_run().reports(stopping)] == [(1, True)]
    assert saves.saved_step(tmp_path / "run") == 1
    reports = stopped(make_run(), 3)
    assert reports[-1].saved and saves.saved_step(tmp_path / "run") == 3
    assert_same(values(compiled_trainer.model), values(make_loaded(tmp_path)))


def make_loaded(tmp_path):
    from gpt2tf import load_model

    return load_model(tmp_path / "run")


@pytest.fixture
def scripted(monkeypatch):
    """Sets what the validation losses are to be."""

    def script(losses):
        losses = iter(losses)
        monkeypatch.setattr(Run, "validation_loss", lambda run: next(losses))

    return script


EARLY = {"steps": 12, "evaluate_every": 1, "early_stop": 3, "save_every": 5}


def test_early_stop_keeps_the_best_weights(make_run, compiled_trainer, scripted, tmp_path):
    scripted([3, 2, 2, 2.5, float("nan"), 1])
    at_best, steps = None, []
    for report in make_run(**EARLY).reports(NEVER):
        steps.append((report.step, report.saved))
        if report.step == 2:
            at_best = values(compiled_trainer.model)
    assert steps == [(1, True), (2, True), (3, False), (4, False), (5, True)]
    assert saves.saved_step(tmp_path / "run") == 2
    assert_same(values(make_loaded(tmp_path)), at_best)
    assert [path.name for path in (tmp_path / "run").glob("training-*")] == ["training-2.npz"]
    progress = saves.read_saved(tmp_path / "run").progress
    assert progress == {"step": 2, "best": 2, "best_step": 2}


def test_early_stop_counts_on_after_a_stop(make_run, compiled_trainer, scripted, tmp_path):
    scripted([3, 2, 2.5, 2.6, 2.7])
    assert [report.step for report in stopped(make_run(**EARLY), 4)] == [1, 2, 3, 4]
    assert saves.saved_step(tmp_path / "run") == 4  # a stop by hand settles nothing
    assert [report.step for report in resume(compiled_trainer, tmp_path / "run", **EARLY)] == [5]
    assert saves.saved_step(tmp_path / "run") == 2


def test_early_stop_of_a_run_that_had_none_starts_to_count(make_run, compiled_trainer, scripted, tmp_path):
    """Its best step is gone, and the folder is to end up with the best one."""
    scripted([1, 2, 2, 2, 9, 8, 8, 8, 8])
    assert len(list(make_run(**EARLY | {"early_stop": 0, "steps": 4}).reports(NEVER))) == 4
    assert [report.step for report in resume(compiled_trainer, tmp_path / "run", **EARLY)] == [5, 6, 7, 8, 9]
    assert saves.saved_step(tmp_path / "run") == 6


def test_without_early_stop_the_last_weights_count(make_run, scripted, tmp_path):
    scripted([1, 2, 3, 4])
    assert len(list(make_run(steps=4, evaluate_every=1).reports(NEVER))) == 4
    assert saves.saved_step(tmp_path / "run") == 4


def test_early_stop_on_a_corpus_without_validation_is_refused(make_run):
    with pytest.raises(ValueError, match="early_stop looks at the validation loss, and the corpus is too short"):
        make_run(tokens=corpus(9), **EARLY)


def test_short_corpus_is_trained_on_without_validation(make_run):
    reports = list(make_run(tokens=corpus(9), steps=2, evaluate_every=1).reports(NEVER))
    assert [report.validation for report in reports] == [None, None]


def test_loss_that_is_not_finite_ends_the_run_and_keeps_the_save(make_run, compiled_trainer, tmp_path):
    run = make_run(save_every=2)
    reports = run.reports(NEVER)
    for _ in range(3):
        next(reports)
    saved = values(make_loaded(tmp_path))
    compiled_trainer.model.ln_f.g.assign(np.full(16, np.nan))
    with pytest.raises(FloatingPointError, match="the loss is nan .* at update 4: give a lower --learning_rate"):
        next(reports)
    assert saves.saved_step(tmp_path / "run") == 2
    assert_same(values(make_loaded(tmp_path)), saved)


def test_weights_that_are_not_finite_are_not_saved(make_run, compiled_trainer, tmp_path, monkeypatch):
    """The loss of the last update does not show what that update made of the weights."""
    run, update = make_run(steps=2, save_every=1), compiled_trainer.update

    def breaking(step, tokens):
        found = update(step, tokens)
        if step == 1:
            compiled_trainer.model.ln_f.g.assign(np.full(16, np.inf))
        return found

    monkeypatch.setattr(compiled_trainer, "update", breaking)
    with pytest.raises(FloatingPointError, match="the weights are not finite at update 2: give a lower"):
        list(run.reports(NEVER))
    assert saves.saved_step(tmp_path / "run") == 1


def test_logs_that_cannot_be_written_are_named(make_run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").touch()
    with pytest.raises(OSError, match="cannot write .*logs: .*[Nn]ot a directory"):
        list(make_run().reports(NEVER))


def test_logs_that_fail_on_the_way_do_not_end_the_run(make_run, tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.summary, "write", full)
    assert len(list(make_run(steps=3).reports(NEVER))) == 3 == saves.saved_step(tmp_path / "run")
    assert caplog.text.count("logs: No space left on device; training goes on without it") == 1


def test_sample_on_the_way(make_run, monkeypatch):
    """Of the length that is asked for, when it is due."""
    monkeypatch.setattr(loop, "Generator", functools.partial(Generator, jit_compile=False))
    run = make_run(steps=3, sample_every=2, sample_length=5)
    found = [report.sample for report in run.reports(NEVER)]
    assert found[0] is found[2] is None and found[1].shape == (5,)
    assert 0 <= found[1].min() and found[1].max() < 300


def test_thirty_samples_cost_what_one_costs(make_run, monkeypatch):
    """Each is of the weights as they are then, and what the first one compiled serves for all."""
    made = []

    class Counted(Generator):
        def __init__(self, model):
            super().__init__(model, jit_compile=False)
            made.append(self)

    monkeypatch.setattr(loop, "Generator", Counted)
    run = make_run(steps=30, sample_every=1, sample_length=5, learning_rate=0.1)
    counts, samples = [], []
    for report in run.reports(NEVER):
        counts.append(made[0].compilations)
        if report.step in (1, 2, 30):
            fresh = Generator(run.trainer.model, jit_compile=False)
            seed = run.settings.seed + report.step
            assert np.array_equal(report.sample, fresh.generate([[299]], 5, top_k=loop.SAMPLE_TOP_K, seed=seed)[0])
        samples.append(tuple(report.sample))
    assert len(made) == 1 and counts == [counts[0]] * 30
    assert len(set(samples)) > 10


def test_workers_that_are_not_the_chief_write_nothing(make_run, tmp_path):
    reports = list(make_run(steps=2, chief=False, sample_every=1).reports(NEVER))
    assert len(reports) == 2 and not (tmp_path / "run").exists()


def test_tensorboard_finds_the_numbers(make_run, tmp_path):
    reports = list(make_run(steps=4, evaluate_every=2).reports(NEVER))
    (path,) = (tmp_path / "run" / "logs").iterdir()
    found = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    names = {"loss", "gradient_norm", "learning_rate", "tokens_per_s", "validation"}
    assert found.keys() == names
    for name in names:
        expected = {r.step: getattr(r, name) for r in reports if getattr(r, name) is not None}
        assert found[name] == pytest.approx(expected, rel=1e-6), name
