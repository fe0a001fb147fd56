"""`sample.py` as a process: signals, pipes, terminals, locales, what it imports, and how soon it answers."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from recorded import GOLDEN
from terminal import PATIENCE, PseudoTerminal, until

SCRIPT = GOLDEN.parent.parent / "sample.py"
TINY = GOLDEN / "tiny-a"
SAMPLE = [sys.executable, str(SCRIPT), "--model_name", str(TINY), "--seed=1", "--length=4"]
HEADER = b"======================================== SAMPLE 1 ========================================\n"
FOUR = HEADER + b' $ into""\n'  # the first four tokens of the original at seed 1
LOADING = f"sample.py: loading {TINY / 'model.ckpt'}\n".encode()
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_", "PYTHON", "LC_"))}


def start(*flags, env=(), **streams):
    return subprocess.Popen([*SAMPLE, *flags], env=BARE | dict(env), **streams)


def shell(tail, cwd):
    """Runs sample.py under a shell that redirects its streams."""
    command = f"{shlex.join(SAMPLE)} {tail}"
    return subprocess.run(["bash", "-c", command], env=BARE, cwd=cwd, capture_output=True, timeout=PATIENCE)


@pytest.fixture
def terminal():
    with contextlib.closing(PseudoTerminal()) as terminal:
        yield terminal


@pytest.mark.timing
def test_help_is_quick(tmp_path):
    def seconds():
        started = time.monotonic()
        subprocess.run([*SAMPLE, "--help"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - started

    assert min(seconds() for _ in range(4)) < 0.5


def blocking(packages, tail):
    """A command of Python that does `tail` where these packages cannot be imported."""
    return [sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({packages!r})); {tail}"]


def test_help_needs_no_tensorflow(tmp_path):
    command = "import gpt2tf; from gpt2tf import cli; cli.main(command='sample')"
    run = blocking(["tensorflow", "keras", "numpy", "regex", "tqdm", "requests"], command)
    asked = subprocess.run([*run, "--help"], cwd=tmp_path, capture_output=True, check=True)
    assert b"--interactive" in asked.stdout and asked.stderr == b""
    run = blocking(["tensorflow", "keras"], f"import encoder; {command}")
    lacking = subprocess.run([*run, *SAMPLE[2:]], cwd=tmp_path, capture_output=True, text=True)
    assert (lacking.returncode, lacking.stdout) == (1, "")
    assert "pip install --upgrade tensorflow" in lacking.stderr
    assert lacking.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flags, code, part",
    [
        ([], 2, b"required: command"),
        (["nope"], 2, b"'nope'"),
        (["sample", "--nope"], 2, b"gpt2tf sample: unrecognized arguments: --nope; gpt2tf sample --help"),
        (["sample", "--models_dir=nowhere"], 1, b"gpt2tf sample: there is no model '124M' in nowhere"),
    ],
)
def test_gpt2tf_command(tmp_path, flags, code, part):
    command = [sys.executable, "-c", "from gpt2tf.cli import main; main()", *flags]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr.count(b"\n")) == (code, b"", 1)
    assert part in run.stderr


def test_closed_pipe_and_ascii_are_no_errors_and_tensorflow_says_nothing(tmp_path):
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "1", "KERAS_BACKEND": "jax", "HOME": "/proc"}
    flags = ["--nsamples=0", "--include_prefix", "--prompt", "naïve".encode() + b"\xe9"]
    process = start(*flags, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    expected = HEADER + b"na?ve?"
    assert process.stdout.read(len(expected)) == expected
    process.stdout.close()
    assert process.stderr.read() == b"sample.py: note: bytes that are not UTF-8 were replaced by U+FFFD\n" + LOADING
    assert process.wait(PATIENCE) == 0


def test_closed_stdout_is_refused(tmp_path):
    run = shell(">&-", tmp_path)
    assert run.returncode == 1
    assert run.stderr == b"sample.py: stdout is closed; name a file with --output\n"


def test_all_streams_closed_and_output_to_a_file(tmp_path):
    run = shell("--output samples <&- >&- 2>&-", tmp_path)
    assert run.returncode == 0
    assert (tmp_path / "samples").read_bytes() == FOUR
    assert os.listdir(tmp_path) == ["samples"]


def test_the_end_waits_for_nobody_and_leaves_no_temporary_folder(tmp_path):
    """The interpreter is not taken apart, which would wait for the thread; what is to be removed at exit is."""
    model, scratch = tmp_path / "a[b]", tmp_path / "scratch"  # TensorFlow would take that name for a pattern
    model.symlink_to(TINY)
    scratch.mkdir()
    code = (
        "import threading, time; from gpt2tf import cli;"
        "threading.Thread(target=time.sleep, args=[600]).start(); cli.main(command='sample')"
    )
    flags = ["--model_name", str(model), *SAMPLE[4:]]
    run = subprocess.run(
        [sys.executable, "-c", code, *flags],
        env=BARE | {"TMPDIR": str(scratch), "PYTHONPATH": str(SCRIPT.parent)},
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (run.returncode, run.stdout) == (0, FOUR)
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("flags", [["--help"], ["sample", "--help"], ["train", "--help"]], ids=" ".join)
@pytest.mark.parametrize("where, why", [(">&-", "stdout is closed"), (">/dev/full", "stdout: No space left on device")])
def test_a_help_that_gets_lost(tmp_path, flags, where, why):
    command = shlex.join([sys.executable, "-m", "gpt2tf", *flags])
    env = BARE | {"PYTHONPATH": str(SCRIPT.parent)}
    run = subprocess.run(["bash", "-c", f"{command} {where}"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"gpt2tf: {why}\n")


@pytest.mark.parametrize("tail", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_bad_usage_that_nobody_reads(tmp_path, tail):
    assert shell(f"--nope {tail}", tmp_path).returncode == shell(f"--length=-1 {tail}", tmp_path).returncode == 2


@pytest.mark.parametrize("tail", ["2>&-", "2>/dev/full", "<&-"])
def test_samples_without_the_other_streams(tmp_path, tail):
    run = shell(tail, tmp_path)
    assert (run.returncode, run.stdout) == (0, FOUR)


def test_output_to_a_full_disk(tmp_path):
    run = shell("--output /dev/full", tmp_path)
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr == LOADING + b"sample.py: /dev/full: No space left on device\n"


@pytest.mark.timing
def test_ctrl_c_while_tensorflow_is_imported(tmp_path):
    (tmp_path / "samples").write_text("old")
    process = start("--output=samples", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with open(f"/proc/{process.pid}/maps") as maps:
        until(lambda: maps.seek(0) == 0 and "/tensorflow/" in maps.read())
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 130
    assert time.monotonic() - started < 3
    assert (tmp_path / "samples").read_text() == "old" and os.listdir(tmp_path) == ["samples"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_sampling_keeps_whole_samples(tmp_path, number):
    flags = ["--nsamples=0", "--output=samples"]
    process = start(*flags, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    part = tmp_path / f"samples.{process.pid}.part"
    until(lambda: part.exists() and part.stat().st_size)
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE) == (b"", LOADING)
    assert process.returncode == 128 + number
    assert (tmp_path / "samples").read_bytes().startswith(FOUR)
    assert len((tmp_path / "samples").read_bytes().splitlines()) % 2 == 0
    assert os.listdir(tmp_path) == ["samples"]


def test_nohup_stays(tmp_path):
    """What was ignored when the process started is ignored."""
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = start("--nsamples=0", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **ignored)
    assert process.stdout.read(len(FOUR)) == FOUR
    process.send_signal(signal.SIGHUP)
    assert len(process.stdout.read(2**14)) == 2**14
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE)[1] == LOADING and process.returncode == 143


def test_terminal_asks_answers_and_ends_by_ctrl_c(tmp_path, terminal):
    streams = dict.fromkeys(["stdin", "stdout", "stderr"], terminal.slave)
    process = start("--interactive", cwd=tmp_path, start_new_session=True, **streams)
    terminal.read_until(b"Model prompt >>> ")
    terminal.type(b"caf\xe9 \xc3\xaf\n")
    terminal.read_until(b"=" * 80 + b"\r\nModel prompt >>> ")
    assert HEADER.strip() in terminal.shown and b"replaced by U+FFFD" in terminal.shown
    assert b"samples/s" not in terminal.shown  # no bar among the samples
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert b"Traceback" not in terminal.shown


def test_terminal_with_stdout_elsewhere_shows_a_bar_and_ends_by_ctrl_d(tmp_path, terminal):
    process = start("--interactive", stdin=terminal.slave, stdout=subprocess.PIPE, stderr=terminal.slave, cwd=tmp_path)
    terminal.read_until(b"Model prompt >>> ")
    terminal.type(b"hello\n")
    terminal.read_until(b"1/1")
    terminal.type(b"\x04")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out.startswith(HEADER) and out.endswith(b"\n" + b"=" * 80 + b"\n")
    assert b"Traceback" not in terminal.shown and b"SAMPLE" not in terminal.shown
