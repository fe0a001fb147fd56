"""`gpt2tf benchmark`: what it counts, what it derives from times, what it prints and what it refuses."""

import dataclasses
import json
import re
import time

import pytest
from recorded import GOLDEN

from gpt2tf import cli
from gpt2tf.bench import costs, speed, training
from gpt2tf.bench.costs import Case, prompt_operations, training_operations
from gpt2tf.bench.speed import Limits
from gpt2tf.hparams import PUBLISHED, HParams
from gpt2tf.names import parameter_count

TINY = HParams(n_vocab=1000, n_ctx=64, n_embd=48, n_head=4, n_layer=3)
MACHINE = Limits(bytes_per_s=10e9, operations_per_s=100e9)
BEGINNING = {"load_s": 1.0, "first_call_s": 2.0}
MODEL = ["--model_name", "tiny-a", "--models_dir", str(GOLDEN)]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `gpt2tf benchmark` on the recorded model and a machine of given speed: (exit code, stdout, stderr)."""
    monkeypatch.setattr(speed, "measure_limits", lambda device: MACHINE)

    def run(*argv):
        with pytest.raises(SystemExit) as left:
            cli.main(argv=["benchmark", *MODEL, *argv])
        return left.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def engine(monkeypatch):
    """In place of ours, one that needs no compiling; the cases that it was made for."""
    cases, work = [], lambda length: time.sleep(length / 1000)
    monkeypatch.setattr(speed, "peak_bytes", lambda *arguments: 2_000_000_000)
    monkeypatch.setattr(speed, "ours", lambda path, case, top_k: cases.append(case) or work)
    return cases


def test_weight_bytes():
    assert costs.weight_bytes(PUBLISHED["124M"], "float32") == 497_759_232
    for hparams in (TINY, *PUBLISHED.values()):
        assert costs.weight_bytes(hparams, "float32") == 4 * parameter_count(hparams)
    # Of the tiny model: matrices, biases with norms, positions.
    matrices = 1000 * 48 + 3 * (48 * 144 + 48 * 48 + 48 * 192 + 192 * 48)
    vectors = 3 * (144 + 48 + 192 + 48 + 4 * 48) + 2 * 48
    scales = 1000 + 3 * (144 + 48 + 192 + 48)
    assert costs.weight_bytes(TINY, "float16") == 2 * matrices + 4 * (vectors + 64 * 48)
    assert costs.weight_bytes(TINY, "int8") == matrices + 4 * (vectors + 64 * 48 + scales)


def test_costs_of_a_token_of_the_tiny_model():
    case = Case(batch_size=2, prompt_length=5, length=10)
    matrices = 1000 * 48 + 3 * (48 * 144 + 48 * 48 + 48 * 192 + 192 * 48)
    vectors = 3 * (144 + 48 + 192 + 48 + 4 * 48) + 2 * 48
    positions = sum(range(6, 15)) / 9  # the loop's first token sees 6, its last 14
    past = 2 * 3 * 48 * positions
    cost = costs.decode_cost(TINY, case)
    assert cost.bytes == 4 * (matrices + vectors) / 2 + 4 * (48 + past)
    assert cost.operations == 2 * matrices + 2 * past
    seen = 1 + 2 + 3 + 4 + 5
    layers = 5 * 2 * (matrices - 48_000) + 3 * seen * 2 * 2 * 48
    assert costs.prompt_operations(TINY, case) == 2 * (layers + 2 * 48_000)


def test_costs_of_a_token_of_124m():
    cost = costs.decode_cost(PUBLISHED["124M"], Case())
    assert cost.bytes == pytest.approx(497.8e6 - 3.1e6 + 4.8e6, rel=1e-3)  # the weights but wpe, 65 keys and values
    assert cost.operations == pytest.approx(2 * 123.5e6 + 2.4e6, rel=1e-3)
    assert costs.decode_cost(PUBLISHED["124M"], Case("int8", 32)).bytes < cost.bytes / 20


def test_a_row_follows_from_the_times():
    """Of three runs, where one was disturbed: 0.5 s to the first token, and 9 tokens of 2 texts in 3 s more."""
    case = Case(batch_size=2, prompt_length=5, length=10)
    found = speed.row(TINY, case, MACHINE, "gpt2tf", BEGINNING, [0.5, 0.5, 9], [3.5, 7, 12])
    cost = costs.decode_cost(TINY, case)
    assert (found.prompt_s, found.prompt_tokens_per_s, found.decode_tokens_per_s) == (0.5, 20, 6)
    assert (found.bytes_per_s, found.operations_per_s) == (cost.bytes * 6, cost.operations * 6)
    assert found.bandwidth_share == pytest.approx(cost.bytes * 6 / 10e9)
    assert found.arithmetic_share == pytest.approx(cost.operations * 6 / 100e9)
    assert found.prompt_arithmetic_share == pytest.approx(costs.prompt_operations(TINY, case) / 0.5 / 100e9)
    assert (found.load_s, found.first_call_s) == (1, 2)
    assert (found.prompt_ratio, found.decode_ratio) == (None, None)


def test_ratios_say_how_many_times_as_fast_we_are():
    case = Case(length=11)
    own = speed.row(TINY, case, MACHINE, "gpt2tf", BEGINNING, [1.0], [3.0])
    peer = speed.with_ratios(own, speed.row(TINY, case, MACHINE, "other", BEGINNING, [0.5], [5.5]))
    assert (peer.prompt_ratio, peer.decode_ratio) == (0.5, 2.5)
    assert peer.bandwidth_share is None


def test_one_token_has_no_speed_of_the_loop():
    found = speed.row(TINY, Case(length=1), MACHINE, "gpt2tf", BEGINNING, [1.0], [1.0])
    assert (found.prompt_s, found.decode_tokens_per_s, found.bandwidth_share) == (1, None, None)
    assert speed.with_ratios(found, found).decode_ratio is None


def test_engines_take_turns_after_a_round_that_does_not_count():
    calls = []
    engines = {name: lambda length, name=name: calls.append((name, length)) for name in "ab"}
    times = speed.alternate(engines, length=7, runs=2)
    assert calls == 3 * [("a", 1), ("a", 7), ("b", 1), ("b", 7)]
    assert [len(seconds) for both in times.values() for seconds in both] == [2] * 4


def test_a_peer_that_cannot_is_left_out_and_others_are_measured(engine, monkeypatch, caplog):
    def cannot(converted, dtype, prompts, top_k, device):
        raise speed.Unsupported("no such numbers")

    def can(converted, dtype, prompts, top_k, device):
        assert (converted.hparams, dtype, prompts, top_k) == (TINY, "float32", [[999]], 40)
        assert converted.weights["model/wpe"].shape == (64, 48)
        return lambda length: time.sleep(length / 2000)

    monkeypatch.setattr(speed, "PEERS", {"cannot": (cannot, ()), "can": (can, ()), "absent": (can, ("nowhere",))})
    monkeypatch.setattr(speed, "PAUSE", 0)
    monkeypatch.setattr(speed, "missing_modules", lambda name: ["nowhere"] if name == "absent" else [])
    caplog.set_level("INFO", "gpt2tf")
    rows = list(
        speed.measure(GOLDEN / "tiny-a", [Case(length=3)], MACHINE, peers=["cannot", "can", "absent", "can"], runs=1)
    )
    assert [row.engine for row in rows] == ["gpt2tf", "can"]
    assert [row.peak_bytes for row in rows] == [2_000_000_000, None]
    assert rows[1].prompt_ratio < 1
    assert "cannot is left out at float32, batch size 1: no such numbers" in caplog.text
    assert "absent is left out: nowhere not installed" in caplog.text


def test_unknown_peers_are_refused_in_python_too():
    with pytest.raises(ValueError, match="no peer 'gpt3'"):
        next(speed.measure("nowhere", [Case()], MACHINE, peers=["gpt3"]))


def test_json_has_all_fields(run, monkeypatch):
    monkeypatch.setattr(speed, "peak_bytes", lambda *arguments: 2_000_000_000)
    # An engine of known speed: of the tiny model's own, a few tokens' time is lost in the noise.
    monkeypatch.setattr(speed, "ours", lambda *arguments: lambda length: time.sleep(length / 50))
    code, out, _ = run("--json", "--length=3", "--runs=1", "--dtype=int8", "--batch_size=2", "--prompt_length=5")
    report = json.loads(out)
    assert code == 0
    assert report["limits"] == {"bytes_per_s": 10e9, "operations_per_s": 100e9}
    (row,) = report["rows"]
    assert list(row) == [field.name for field in dataclasses.fields(speed.Row)]
    assert [name for name, value in row.items() if value is None] == ["prompt_ratio", "decode_ratio"]
    assert [row[name] for name in ("engine", "dtype", "batch_size", "prompt_length")] == ["gpt2tf", "int8", 2, 5]
    assert row["prompt_tokens_per_s"] == pytest.approx(10 / row["prompt_s"])
    assert row["bandwidth_share"] == pytest.approx(row["bytes_per_token"] * row["decode_tokens_per_s"] / 10e9)
    assert row["first_call_s"] > row["prompt_s"]


def test_dtypes_and_batch_sizes_make_cases(run, engine):
    code, out, _ = run("--dtype=float16,int8", "--batch_size=1,8", "--length=9", "--prompt-length=4", "--json")
    assert code == 0
    assert engine == [Case(dtype, batch, 4, 9) for batch in (1, 8) for dtype in ("float16", "int8")]


def test_all_leaves_out_what_does_not_fit_the_window(run, engine, monkeypatch):
    monkeypatch.setattr(speed, "ALL_CASES", (Case(length=65), Case(length=64), Case(prompt_length=64, length=1)))
    monkeypatch.setattr(speed, "process_seconds", lambda path, runs: 1.5)
    monkeypatch.setattr(speed, "log_probability_difference", lambda path, dtype: 0.25)
    code, out, _ = run("--all")
    assert code == 0
    assert engine == list(speed.ALL_CASES[1:])
    assert "the whole process: 1.5 s\nbfloat16: the next token's log-probabilities differ" in out


def test_table(run, engine):
    code, out, _ = run("--length=3", "--runs=1")
    heading, _, columns, row, *legend = out.splitlines()
    assert code == 0
    assert heading.startswith("tiny-a on cpu, ") and "the machine: 10.0 GB/s, 100 GFLOP/s" in heading
    assert columns.split()[:5] == ["engine", "dtype", "batch", "prompt", "length"]
    assert row.split()[:5] == ["gpt2tf", "float32", "1", "1", "3"]
    assert len(columns) == len(row)
    assert "Medians of 1 runs" in legend[-1]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--peers=gpt3"], "'gpt3' is not one of transformers, ctranslate2, llama_cpp"),
        (["--dtype=float32,int4"], "'int4' is not one of"),
        (["--batch_size=1,0"], "batch_size is 0"),
        (["--batch_size=1,"], "'' is not a whole number"),
        (["--runs=0"], "1 or more"),
        (["--length=65"], "give a length of 64 or less"),
        (["--device=tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_bad_usage(run, flags, part):
    code, out, err = run(*flags)
    assert (code, out) == (2, "")
    assert err.startswith("gpt2tf benchmark: ") and part in err


def test_limits_are_measured():
    found = speed.measure_limits(read_bytes=2**24, matmul_size=256, runs=1)
    assert 1e8 < found.bytes_per_s < 1e13
    assert 1e8 < found.operations_per_s < 1e15


def test_reduced_dtypes_change_log_probabilities_a_little():
    differences = [
        speed.log_probability_difference(GOLDEN / "tiny-a", dtype, batch_size=4, seq=16, jit_compile=False)
        for dtype in ("float32", "int8")
    ]
    assert differences[0] == 0
    assert 1e-5 < differences[1] < 0.1


def test_peak_of_memory():
    assert 1e8 < speed.peak_bytes(GOLDEN / "tiny-a", Case(length=1), top_k=40) < 1e10


def test_a_whole_process():
    assert speed.process_seconds(GOLDEN / "tiny-a", length=0, runs=0) > 0.1
    with pytest.raises(ChildProcessError, match="there is no model"):
        speed.process_seconds(GOLDEN / "nowhere", runs=0)


def test_an_update_beside_the_peers(monkeypatch):
    class Slow:
        def __init__(self, model, settings, strategy):
            assert settings.batch_size == 2

        def update(self, step, tokens):
            assert tokens.shape == (2, 9) and tokens.max() < 1000
            time.sleep(0.02)

    monkeypatch.setattr(training, "Trainer", Slow)
    monkeypatch.setattr(training, "PAUSE", 0)
    monkeypatch.setattr(training.engines, "missing_modules", lambda name: [])
    monkeypatch.setattr(training.engines, "transformers_update", lambda *arguments: lambda: time.sleep(0.06))
    ours, theirs = training.measure_training(
        GOLDEN / "tiny-a", 2, 8, MACHINE, peers=["transformers", "llama_cpp"], runs=3
    )
    assert (ours.engine, theirs.engine, ours.ratio) == ("gpt2tf", "transformers", None)
    assert theirs.ratio == pytest.approx(theirs.update_s / ours.update_s) and 2 < theirs.ratio < 4
    assert ours.tokens_per_s == pytest.approx(16 / ours.update_s)
    assert ours.arithmetic_share == pytest.approx(training_operations(TINY, 2, 8) / ours.update_s / 100e9)


def test_an_update_is_three_passes_with_all_logits():
    other_logits = 2 * 4 * (8 - 1) * TINY.n_vocab * TINY.n_embd
    passes = prompt_operations(TINY, Case(batch_size=4, prompt_length=8)) + other_logits
    assert training_operations(TINY, 4, 8) == 3 * passes


@pytest.mark.parametrize("as_json", [False, True])
def test_train_prints_the_figures_of_an_update(run, monkeypatch, as_json):
    row = training.TrainingRow("gpt2tf", 2, 8, 1.5, 0.25, 64.0, 5e9, 0.05)
    monkeypatch.setattr(training, "measure_training", lambda *arguments, **options: [row])
    code, out, _ = run("--train", "--batch_size=2", "--length=8", *["--json"] * as_json)
    assert code == 0
    if as_json:
        assert json.loads(out)["rows"] == [dataclasses.asdict(row)]
    else:
        assert re.search(r"^gpt2tf +2 +8 +1\.5 +0\.25 +64\.0 +5\.0 +5 +-$", out, re.MULTILINE)


def test_a_window_that_does_not_fit_is_refused(run):
    assert run("--train", "--length=65")[0] == 2
