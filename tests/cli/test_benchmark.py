"""`gpt2tf benchmark`: what it prints, and what it refuses."""

import dataclasses
import json
import os
import re
import sys

import pytest
from benchmarking import MACHINE, Paced
from recorded import GOLDEN

from gpt2tf import cli
from gpt2tf.bench import machine, speed, training
from gpt2tf.bench.plan import Case, Plan
from gpt2tf.cli import benchmark

MODEL = ["--model_name", "tiny-a", "--models_dir", str(GOLDEN)]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `gpt2tf benchmark` on the recorded model and a machine of given speed: (exit code, stdout, stderr)."""
    monkeypatch.setattr(machine, "measure_limits", lambda device: MACHINE)

    def run(*argv):
        with pytest.raises(SystemExit) as left:
            cli.main(["benchmark", *MODEL, *argv])
        return left.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def cases(monkeypatch):
    """An engine of given speed in place of ours; the cases that it was made for."""
    made = []
    monkeypatch.setattr(speed, "peak_bytes", lambda path, case, plan: 2_000_000_000)
    monkeypatch.setattr(speed, "Ours", lambda path, case, top_k: made.append(case) or Paced())
    return made


def test_json_has_all_fields(run, cases):
    code, out, _ = run("--json", "--length=21", "--runs=1", "--dtype=int8", "--batch_size=2", "--prompt_length=5")
    report = json.loads(out)
    assert code == 0
    assert report["limits"] == {"bytes_per_s": 10e9, "operations_per_s": 100e9}
    (row,) = report["rows"]
    assert list(row) == [field.name for field in dataclasses.fields(speed.Row)]
    assert [name for name, value in row.items() if value is None] == ["prompt_ratio", "decode_ratio"]
    assert [row[name] for name in ("engine", "dtype", "batch_size", "prompt_length")] == ["gpt2tf", "int8", 2, 5]
    assert row["prompt_tokens_per_s"] == pytest.approx(10 / 0.51)
    assert row["decode_tokens_per_s"] == pytest.approx(2 * 100)
    assert row["bandwidth_share"] == pytest.approx(row["bytes_per_token"] * row["decode_tokens_per_s"] / 10e9)
    assert (row["load_s"], row["first_call_s"]) == (1, 0.71)


def test_dtypes_and_batch_sizes_make_cases(run, cases):
    code, out, _ = run("--dtype=float16,int8", "--batch_size=1,8", "--length=9", "--prompt-length=4", "--json")
    assert code == 0
    assert cases == [Case(dtype, batch, 4, 9) for batch in (1, 8) for dtype in ("float16", "int8")]


def test_all_leaves_out_what_does_not_fit_the_window(run, cases, monkeypatch):
    every = (Case(length=65), Case(length=64), Case(prompt_length=64, length=1))
    monkeypatch.setattr(benchmark, "ALL_CASES", every)
    monkeypatch.setattr(speed, "process_seconds", lambda path, runs: 1.5)
    monkeypatch.setattr(speed, "log_probability_difference", lambda path, dtype: 0.25)
    code, out, _ = run("--all")
    assert code == 0
    assert cases == list(every[1:])
    assert "the whole process: 1.5 s\nbfloat16: the next token's log-probabilities differ" in out


def test_table(run, cases):
    code, out, _ = run("--length=3", "--runs=1")
    heading, _, columns, row, *legend = out.splitlines()
    assert code == 0
    assert heading.startswith("tiny-a on cpu, ") and "the machine: 10.0 GB/s, 100 GFLOP/s" in heading
    assert columns.split()[:5] == ["engine", "dtype", "batch", "prompt", "length"]
    # Three tokens have no speed of the loop; from nothing to the end of the first run it takes 1 and 0.53 s.
    assert row.split()[:10] == ["gpt2tf", "float32", "1", "1", "3", "510.0", "2.0", "-", "1.5", "2.00"]
    assert len(columns) == len(row)
    assert "Medians of 1 runs" in legend[-1]


def test_peers_and_their_python(run, monkeypatch, tmp_path):
    """A program is looked for in PATH, and in the folder where the command runs."""
    plans = []
    monkeypatch.setattr(speed, "measure", lambda path, cases, limits, plan: plans.append(plan) or (_ for _ in ()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    for flags in (["--peers=llama_cpp,transformers", f"--peer_python=.{os.sep}python", "--runs=2"], []):
        assert run("--length=9", *flags)[0] == 0
    peers = ("llama_cpp", "transformers")
    assert plans == [Plan(40, 2, "cpu", peers, str(tmp_path / "python")), Plan(peer_python=sys.executable)]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--peers=gpt3"], "'gpt3' is not one of transformers, ctranslate2, llama_cpp"),
        (["--peer_python=/nowhere/python"], "'/nowhere/python' is no program"),
        (["--dtype=float32,int4"], "'int4' is not one of"),
        (["--batch_size=1,0"], "batch_size is 0"),
        (["--batch_size=1,"], "'' is not a whole number"),
        (["--runs=0"], "1 or more"),
        (["--length=65"], "give a length of 64 or less"),
        (["--device=tpu"], "invalid choice: 'tpu'"),
        (["--lower", "tpu", "d"], "--lower is for 'tpu'; it must be cpu or gpu"),
        (["--lower", "gpu", ""], "it is empty"),
        *(
            (["--lower", "gpu", "d", more], "is for one dtype and batch_size, without --all, --train")
            for more in (
                "--json",
                "--all",
                "--train",
                "--dtype=int8,float16",
                "--batch_size=1,8",
                "--peers=transformers",
            )
        ),
    ],
)
def test_bad_usage(run, flags, part):
    code, out, err = run(*flags)
    assert (code, out) == (2, "")
    assert err.startswith("gpt2tf benchmark: ") and part in err


@pytest.mark.parametrize("as_json", [False, True])
def test_train_prints_the_figures_of_an_update(run, monkeypatch, as_json):
    row, asked = training.TrainingRow("gpt2tf", 2, 8, 1.5, 0.25, 64.0, 5e9, 0.05), []

    def measure(path, batch_sizes, window, limits, plan):
        asked.append((batch_sizes, window, limits))
        yield row

    monkeypatch.setattr(training, "measure_training", measure)
    code, out, _ = run("--train", "--batch_size=2", "--length=8", *["--json"] * as_json)
    assert (code, asked) == (0, [([2], 8, MACHINE)])
    if as_json:
        assert json.loads(out)["rows"] == [dataclasses.asdict(row)]
    else:
        assert re.search(r"^gpt2tf +2 +8 +1\.5 +0\.25 +64\.0 +5\.0 +5 +-$", out, re.MULTILINE)


def test_a_window_that_does_not_fit_is_refused(run):
    assert run("--train", "--length=65")[0] == 2


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_programs_for_a_device(run, tmp_path, device):
    folder = tmp_path / "programs"
    assert run("--lower", device, str(folder), "--length=4", "--prompt_length=9") == (0, "", "")
    assert sorted(os.listdir(folder)) == ["decode.hlo", "prefill.hlo"]
    assert all("ENTRY" in path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert run("--lower", device, str(folder), "--length=4", "--prompt_length=1") == (0, "", "")
    assert os.listdir(folder) == ["decode.hlo"]  # none is left of another case


def test_programs_go_to_a_folder(run, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = run("--lower", "gpu", str(tmp_path / "file"), "--length=4")
    assert (code, out) == (1, "") and f"{tmp_path}/file: File exists" in err
