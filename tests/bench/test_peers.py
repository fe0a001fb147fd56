"""The peers' processes and their protocol, with engines of our own; and how engines take turns."""

import contextlib
import dataclasses
import json
import pathlib
import sys
import time

import numpy as np
import pytest
from benchmarking import TINY, Paced, log_of_bench

import encoder
from gpt2tf.bench import engines, peers, plan, training
from gpt2tf.bench.peers import Peer, PeerError, Turns

TOYS = pathlib.Path(__file__).parents[1] / "toy_engines.py"
JOB = ("float32", [[1, 2], [3, 4]], 40, "cpu")


@pytest.fixture
def log(caplog):
    return log_of_bench(caplog)


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny):
    """Where the peers' model is; the peers are those of toy_engines.py."""
    monkeypatch.setattr(peers, "ENGINES", TOYS)
    monkeypatch.setattr(peers, "PAUSE", 0)
    monkeypatch.setattr(plan, "PEERS", ("good", "absent", "dying"))
    peers.write_model(str(tmp_path), TINY, {v.path: v.value for v in tiny.variables})
    return str(tmp_path)


@pytest.fixture
def start(folder):
    """Starts a peer, which ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(contextlib.closing(Peer(name, sys.executable, folder)))


def calls(folder):
    return [tuple(json.loads(line)) for line in pathlib.Path(folder, "calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["good", "noisy"])
def test_a_peer_does_what_it_is_asked_and_says_how_long_it_took(start, folder, name):
    began = time.perf_counter()
    peer = start(name)
    peer.call("check")
    peer.call("prepare", *JOB)
    peer.call("load")
    seconds = [peer.call("sample", length) for length in (50, 1)]
    elapsed = time.perf_counter() - began
    assert 0.05 < sum(seconds) < elapsed - 0.01  # Python's own start is not counted
    assert calls(folder) == [("prepare", *JOB), ("load",), ("sample", 50), ("sample", 1)]


def test_a_peer_that_dies_says_how_and_its_last_words(start):
    peer = start("dying")
    assert peer.call("sample", 1) >= 0 and peer.call("sample", 1) >= 0
    for _ in range(2):  # and after that
        with pytest.raises(PeerError, match=r"^its process ended by signal 6 and said: double-linked list$"):
            peer.call("sample", 1)


@pytest.mark.parametrize(
    ("name", "method", "reason"),
    [
        ("absent", "check", "no module of that name"),
        ("unable", "prepare", "no such numbers"),
        ("failing", "load", "RuntimeError: out of memory"),
        ("good", "train", "AttributeError: 'Good' object has no attribute 'train'"),
        ("nobody", "check", "KeyError: 'nobody'"),
    ],
)
def test_a_peer_that_cannot_says_why_in_a_line_and_goes_on(start, name, method, reason):
    peer = start(name)
    for _ in range(2):
        with pytest.raises(PeerError) as error:
            peer.call(method)
        assert str(error.value) == reason


def test_a_peer_that_hangs_is_ended(start, monkeypatch):
    peer = start("hanging")
    peer.call("check")
    monkeypatch.setattr(peers, "PATIENCE", 0.2)
    with pytest.raises(PeerError, match=r"no answer in 0\.2 seconds"):
        peer.call("sample", 1)


def test_a_script_that_python_cannot_run_is_a_dead_peer(start, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "SERVE", tmp_path / "nowhere.py")
    with pytest.raises(PeerError, match=r"its process ended with exit code 1 and said: FileNotFoundError"):
        start("good").call("check")


def test_engines_take_turns(folder, start, monkeypatch):
    made, pauses = [], []
    monkeypatch.setattr(Paced, "call", lambda self, *call: made.append(call) or 0.25)
    monkeypatch.setattr(peers, "PAUSE", 0.3)
    monkeypatch.setattr(peers.time, "sleep", lambda seconds: pauses.append((seconds, len(made))))
    with Turns(Paced(), "at work") as turns:
        turns.add("good", start("good"), *JOB)
        for _ in range(2):
            times = turns.take(("sample", 1), ("sample", 2))
    assert list(times) == ["gpt2tf", "good"]
    assert times["gpt2tf"] == [0.25, 0.25] and 0.003 < sum(times["good"])
    assert made == 2 * [("sample", 1), ("sample", 2)]
    assert calls(folder)[1:] == made
    assert pauses == [(0.3, n) for n in (0, 1, 2, 2, 2, 3, 4, 4)]  # a pause before each call, also of the peer


def test_a_peer_that_fails_is_left_out_with_a_line_and_the_others_go_on(start, log):
    with Turns(Paced(), "at work") as turns:
        for name in ("dying", "unable", "good"):
            turns.add(name, start(name), *JOB)
        rounds = [turns.take(("sample", 1), ("sample", 2)) for _ in range(3)]
        processes = [engine._process for engine in turns.engines.values() if isinstance(engine, Peer)]
        assert processes and all(process.poll() is None for process in processes)
    assert [list(times) for times in rounds] == [["gpt2tf", "dying", "good"], *2 * [["gpt2tf", "good"]]]
    assert list(turns.engines) == ["gpt2tf", "good"]
    assert [record.getMessage().split(":")[0] for record in log.records] == [
        "unable is left out at work",
        "dying is left out at work",
    ]
    assert all(process.poll() is not None for process in processes)  # none outlives the turns


def test_peers_that_are_not_installed_are_left_out(folder, log):
    found = peers.installed(plan.Plan(runs=3, peers=("good", "absent", "good")), folder)
    assert found == plan.Plan(runs=3, peers=("good",))
    assert log.messages == [f"absent is left out: with {sys.executable}, no module of that name"]


def test_every_peer_has_an_engine_which_names_the_modules_that_it_lacks():
    assert {*plan.PEERS, *training.TRAINING.values()} == set(engines.ENGINES)

    class Lacking(engines.Engine):
        modules = ("json", "nowhere", "elsewhere")

    with pytest.raises(ModuleNotFoundError, match="No module named nowhere, elsewhere"):
        Lacking("nowhere").check()


def test_the_model_comes_to_the_engines_as_it_is(folder, tiny):
    found = engines.Model(folder)
    assert vars(found.hparams) == dataclasses.asdict(TINY)
    assert sorted(found.weights) == sorted(v.path for v in tiny.variables)
    for variable in tiny.variables:
        assert np.array_equal(found.weights[variable.path], variable.numpy())
    tokens, merges = found.vocabulary
    released = encoder.get_encoder()
    assert tokens == [*list(released.encoder)[:999], "<|endoftext|>"]
    assert [tuple(merge.split()) for merge in merges] == list(released.bpe_ranks)[: 1000 - 257]


def test_a_format_is_written_once_and_again_if_it_was_cut_short(folder):
    model, written = engines.Model(folder), []

    def write(path):
        path.mkdir()
        written.append(path)
        if len(written) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model._once("hf", write)
    assert model._once("hf", write) == model._once("hf", write) == pathlib.Path(folder, "hf")
    assert len(written) == 2
