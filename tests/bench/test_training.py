"""The speed of an update of the weights: what follows from times, our trainer, and the peer beside it."""

import contextlib
import json
import pathlib
import types

import numpy as np
import pytest
from benchmarking import MACHINE, TINY, Paced, log_of_bench
from recorded import GOLDEN

from gpt2tf.bench import peers, training
from gpt2tf.bench.costs import training_operations
from gpt2tf.bench.plan import Plan

TOYS = pathlib.Path(__file__).parents[1] / "toy_engines.py"


def test_an_update_beside_the_peers(monkeypatch, caplog, tmp_path):
    ours, log = [], log_of_bench(caplog)

    def make(path, tokens):
        ours.append(tokens)
        return Paced()

    monkeypatch.setattr(training, "Ours", make)
    monkeypatch.setattr(training.tempfile, "TemporaryDirectory", lambda prefix: contextlib.nullcontext(str(tmp_path)))
    monkeypatch.setattr(training, "TRAINING", {"transformers": "good"})
    monkeypatch.setattr(training, "installed", lambda plan, folder: plan)  # good is none of PEERS
    monkeypatch.setattr(peers, "ENGINES", TOYS)
    monkeypatch.setattr(peers, "PAUSE", 0)
    plan = Plan(runs=3, peers=("transformers", "llama_cpp"))
    rows = list(training.measure_training(GOLDEN / "tiny-a", [2, 3], 8, MACHINE, plan))
    assert [(row.engine, row.batch_size, row.window) for row in rows] == [
        (engine, batch_size, 8) for batch_size in (2, 3) for engine in ("gpt2tf", "transformers")
    ]
    for own, peer in (rows[:2], rows[2:]):
        operations = training_operations(TINY, own.batch_size, 8)
        assert (own.first_call_s, own.update_s, own.ratio) == (0.5, 0.5, None)
        assert peer.ratio == peer.update_s / 0.5
        assert own.tokens_per_s == own.batch_size * 8 / 0.5
        assert peer.operations_per_s == pytest.approx(operations / peer.update_s)
        assert own.arithmetic_share == pytest.approx(operations / 0.5 / 100e9)
    assert [tokens.shape for tokens in ours] == [(2, 9), (3, 9)] and all(tokens.max() < 1000 for tokens in ours)
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert calls == [
        call for tokens in ours for call in [["prepare", tokens.tolist(), "cpu"], ["load"], *4 * [["update"]]]
    ]  # a first update and three runs
    assert log.messages == ["llama_cpp is left out: it does not train"]


def test_our_trainer_updates_by_the_default_settings(monkeypatch):
    tokens = np.arange(18, dtype=np.int32).reshape(2, 9)  # [batch, window + 1]
    updates = []

    def make(model, settings, strategy):
        assert (model.hparams, settings) == (TINY, training.Settings(batch_size=2))
        return types.SimpleNamespace(update=lambda *arguments: updates.append(arguments))

    monkeypatch.setattr(training, "Trainer", make)
    engine = training.Ours(GOLDEN / "tiny-a", tokens)
    assert engine.call("load") > engine.call("update") > 0
    assert updates == [(0, tokens)]
