"""The speed and memory of generation: what follows from times, our engine, and peers beside it."""

import contextlib
import json
import pathlib
import resource
import sys
import time

import pytest
from benchmarking import MACHINE, TINY, Paced, log_of_bench
from recorded import GOLDEN

from gpt2tf.bench import costs, peers, plan, speed
from gpt2tf.bench.plan import Case, Plan
from gpt2tf.bench.speed import Times

TOYS = pathlib.Path(__file__).parents[1] / "toy_engines.py"


def make_row(engine="gpt2tf", first=(1.0,), whole=(3.0,), **case):
    return speed.row(engine, Case(**case), Times(1.0, 2.0, list(first), list(whole)), TINY, MACHINE)


def test_a_row_follows_from_the_times():
    """Of three runs, where one was disturbed: 0.5 s to the first token, and 18 tokens of 2 texts in 3 s more."""
    case = {"batch_size": 2, "prompt_length": 5, "length": 19}
    found = make_row(first=[0.5, 0.5, 9], whole=[3.5, 7, 12], **case)
    cost = costs.decode_cost(TINY, Case(**case))
    assert (found.prompt_s, found.prompt_tokens_per_s, found.decode_tokens_per_s) == (0.5, 20, 12)
    assert (found.bytes_per_s, found.operations_per_s) == (cost.bytes * 12, cost.operations * 12)
    assert found.bandwidth_share == pytest.approx(cost.bytes * 12 / 10e9)
    assert found.arithmetic_share == pytest.approx(cost.operations * 12 / 100e9)
    assert found.prompt_arithmetic_share == pytest.approx(costs.prompt_operations(TINY, Case(**case)) / 0.5 / 100e9)
    assert (found.load_s, found.first_call_s) == (1, 2)
    assert (found.prompt_ratio, found.decode_ratio) == (None, None)


def test_ratios_say_how_many_times_as_fast_we_are():
    own = make_row(length=21)
    peer = speed.with_ratios(own, make_row("other", first=[0.5], whole=[5.5], length=21))
    assert (peer.prompt_ratio, peer.decode_ratio) == (0.5, 2.5)
    assert peer.bandwidth_share is None


@pytest.mark.parametrize(("length", "tokens_per_s"), [(1, None), (2, None), (16, None), (17, 8)])
def test_a_few_tokens_have_no_speed_of_the_loop(length, tokens_per_s):
    found = make_row(length=length)
    assert (found.prompt_s, found.decode_tokens_per_s) == (1, tokens_per_s)
    assert (found.bandwidth_share is None) == (found.bytes_per_s is None) == (tokens_per_s is None)
    assert speed.with_ratios(found, found).decode_ratio == (tokens_per_s and 1)


def test_our_engine_is_compiled_and_packed_when_it_is_loaded(monkeypatch):
    """For a batch whose weights are laid out in another way than those of a batch of one."""
    packed = []
    monkeypatch.setattr("gpt2tf.generate.in_streams", lambda *arguments: packed.append(arguments))
    engine = speed.Ours(GOLDEN / "tiny-a", Case(batch_size=4, prompt_length=3, length=5), top_k=40)
    engine.load()
    compilations = engine.generator.compilations
    for length in (5, 1, 5):
        assert engine.call("sample", length) > 0
    assert engine.generator.compilations == compilations
    assert not packed


@pytest.fixture
def log(caplog):
    return log_of_bench(caplog)


@pytest.fixture
def beside_toys(monkeypatch, tmp_path):
    """Measures beside the peers of toy_engines.py, whose folder is tmp_path: the rows."""
    monkeypatch.setattr(speed.tempfile, "TemporaryDirectory", lambda prefix: contextlib.nullcontext(str(tmp_path)))
    monkeypatch.setattr(peers, "ENGINES", TOYS)
    monkeypatch.setattr(peers, "PAUSE", 0)
    monkeypatch.setattr(plan, "PEERS", ("good", "noisy", "absent", "unable", "dying"))
    monkeypatch.setattr(speed, "Ours", Paced)
    monkeypatch.setattr(speed, "peak_bytes", lambda path, case, plan: 2_000_000_000)

    def measure(cases, **options):
        return list(speed.measure(GOLDEN / "tiny-a", cases, MACHINE, Plan(**options)))

    return measure


def test_peers_that_cannot_are_left_out_and_the_others_are_measured(beside_toys, log, tmp_path):
    cases = [Case(length=20), Case("int8", 2, length=2)]
    rows = beside_toys(cases, runs=2, peers=("absent", "unable", "noisy", "dying", "good"))
    assert [(row.engine, row.dtype) for row in rows] == [
        (engine, dtype) for dtype in ("float32", "int8") for engine in ("gpt2tf", "noisy", "good")
    ]
    assert [row.peak_bytes for row in rows] == 2 * [2_000_000_000, None, None]
    own, noisy, good = rows[:3]
    assert (own.load_s, own.first_call_s, own.prompt_s, own.prompt_ratio) == (1.0, 0.7, 0.51, None)
    for peer in (noisy, good):  # a millisecond a token, and what the system adds
        assert 0.02 < peer.first_call_s and 0.001 < peer.prompt_s
        assert peer.prompt_ratio == peer.prompt_s / 0.51
        assert peer.decode_ratio == pytest.approx(100 / peer.decode_tokens_per_s)
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    prepared, samples = ([call[1:] for call in calls if call[0] == method] for method in ("prepare", "sample"))
    assert prepared == 3 * [["float32", [[999]], 40, "cpu"]] + 3 * [["int8", [[999], [999]], 40, "cpu"]]
    for length in (20, 2):  # by noisy and good, in a first call and three rounds
        assert samples.count([length]) == 2 * (1 + 3)
    assert samples.count([1]) == 2 * 2 * 3
    died = "its process ended by signal 6 and said: double-linked list"
    assert log.messages == [
        f"absent is left out: with {sys.executable}, no module of that name",
        "unable is left out at float32, batch size 1: no such numbers",
        f"dying is left out at float32, batch size 1: {died}",
        "unable is left out at int8, batch size 2: no such numbers",
        f"dying is left out at int8, batch size 2: {died}",
    ]


def test_a_program_that_is_no_python_leaves_the_peers_out(beside_toys, log, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    (row,) = beside_toys([Case(length=2)], runs=1, peers=("good",), peer_python=str(program))
    assert row.engine == "gpt2tf"
    assert log.messages == [f"good is left out: with {program}, its process ended with exit code 3 and said: nothing"]


def test_unknown_peers_are_refused_in_python_too():
    with pytest.raises(ValueError, match="no peer 'gpt3'; there are transformers, ctranslate2, llama_cpp"):
        Plan(peers=("gpt3",))


def test_reduced_dtypes_change_log_probabilities_a_little():
    differences = [
        speed.log_probability_difference(GOLDEN / "tiny-a", dtype, batch_size=4, seq=16, jit_compile=False)
        for dtype in ("float32", "int8")
    ]
    assert differences == [0, pytest.approx(0.081, rel=0.2)]  # as it was found


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is Linux's")
def test_peak_of_memory():
    """Beside what the system says of the processes that ended; TensorFlow alone takes a quarter of a GB."""
    found = speed.peak_bytes(GOLDEN / "tiny-a", Case(length=1), Plan())
    most = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert 0.25e9 < found <= 1.01 * most
    assert speed._peak("cpu") == pytest.approx(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, rel=0.05)


def test_a_whole_process():
    start = time.perf_counter()
    found = speed.process_seconds(GOLDEN / "tiny-a", length=0, runs=0)
    elapsed = time.perf_counter() - start
    assert 0.9 * elapsed < found < elapsed
    with pytest.raises(ChildProcessError, match="there is no model"):
        speed.process_seconds(GOLDEN / "nowhere", runs=0)
