"""A command that a program calls: `cli.main(argv)` leaves the program as it was, and works with what it has."""

import contextlib
import gc
import io
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import time

import pytest
from command import FOUR, FOUR_TEXT, header, leaving
from recorded import GOLDEN, ROOT

from gpt2tf import cli
from gpt2tf.cli import process
from gpt2tf.cli import sample as cli_sample

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_", "PYTHON"))}
ENDINGS = [FOUR, ["--length=-1"], ["--model_name=nowhere"], ["--help"], ["--nope"]]


class Writing:
    """A stdout that can write, and nothing else."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


@pytest.fixture
def tiny_sample(monkeypatch, tiny_generator):
    """`cli.main(["sample", ...])` on the recorded model: the exit code."""
    monkeypatch.setattr(cli_sample, "_load", lambda *_: [tiny_generator])
    return lambda *flags: leaving(cli.main, ["sample", *FOUR, *flags])


def state():
    """What a program may have set for itself."""
    log = logging.getLogger("gpt2tf")
    return {
        "log": (log.handlers, list(log.handlers), log.propagate, log.level, log.disabled),
        "streams": [(stream, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "environment": dict(os.environ),
        "collector": (gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold()),
        "signals": [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "path": list(sys.path),
    }


@pytest.mark.parametrize("flags", ENDINGS, ids=lambda flags: flags[0])
@pytest.mark.parametrize("backend", ["jax", None])
def test_a_program_finds_everything_as_it_was(tiny_sample, stdin, monkeypatch, capsys, flags, backend):
    stdin(b"")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setenv("KERAS_BACKEND", backend) if backend else monkeypatch.delenv("KERAS_BACKEND", raising=False)
    log, own = logging.getLogger("gpt2tf"), logging.NullHandler()
    monkeypatch.setattr(log, "handlers", [own])
    monkeypatch.setattr(log, "propagate", backend is None)
    before = state()
    assert before["signals"]
    cli_words = ["sample", *FOUR, *flags]
    leaving(cli.main, cli_words)
    assert state() == before
    assert log.handlers == [own]


def test_a_program_that_froze_its_objects_or_collects_none(tiny_sample, stdin):
    stdin(b"")
    gc.freeze()
    gc.disable()
    try:
        before, frozen = state(), gc.get_freeze_count()
        assert tiny_sample() == 0
        assert state() == before
        assert frozen // 2 < gc.get_freeze_count() <= frozen  # some have gone out of use
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_stdout_that_can_only_write(tiny_sample, monkeypatch, capsys):
    for flags in [], ["--prompt=a", "--format=jsonl"], ["--prompt=a"], ["--nope"], ["--help"]:
        stdout, stderr = Writing(), Writing()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", stdout)
            patch.setattr("sys.stderr", stderr)
            code = tiny_sample(*flags)
            assert (sys.stdout, sys.stderr) == (stdout, stderr)
        assert code == (2 if flags == ["--nope"] else 0)
        if not flags:
            assert stdout.text == f"{header(1)}{FOUR_TEXT}\n"
        if "--nope" in flags:
            assert stdout.text == "" and stderr.text.startswith("gpt2tf sample: unrecognized arguments: --nope")
        if "--help" in flags:
            assert "--interactive" in stdout.text
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("flags", [["--prompt_file=-"], ["--interactive"]])
def test_streams_of_text_alone(tiny_sample, monkeypatch, flags):
    """As an editor's console has them."""
    stdout, stderr = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO("na\u00efve\n"))
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        assert tiny_sample(*flags, "--format=jsonl") == 0
    assert json.loads(stdout.getvalue())["prompt"] == "na\u00efve"
    assert not stdout.closed and not stderr.closed


def test_streams_that_are_not_there_or_closed(tiny_sample, monkeypatch, capsys, tmp_path):
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    for stream in None, closed:
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        assert tiny_sample() == 1
        assert tiny_sample("--output", str(tmp_path / "samples")) == 0
        assert [sys.stdin, sys.stdout, sys.stderr] == 3 * [stream]
    assert (tmp_path / "samples").read_text() == f"{header(1)}{FOUR_TEXT}\n"


def test_a_stdin_of_which_lines_were_read(tiny_sample, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    sys.stdin.readline()
    assert tiny_sample() == 0
    assert sys.stdin.readline() == "two\n"


def test_text_that_stdout_has_no_characters_for(tiny_sample, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "ascii"))
    assert tiny_sample("--prompt=na\u00efve", "--include_prefix") == 0
    assert b"na?ve" in raw.getvalue() and sys.stdout.errors == "strict"


def test_ctrl_c_is_the_programs(monkeypatch, capsys):
    def pressed(args):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(cli_sample, "run", pressed)
    before = state()
    with pytest.raises(KeyboardInterrupt):
        cli.main(["sample"])
    assert state() == before and capsys.readouterr() == ("", "")


def test_a_thread_of_a_program_may_call(tiny_sample, capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(tiny_sample()))
    thread.start()
    thread.join(60)
    assert codes == [0] and capsys.readouterr().out == f"{header(1)}{FOUR_TEXT}\n"


@pytest.mark.parametrize("script", ["sample.py", "download_model.py"])
def test_a_script_that_a_notebook_or_a_profiler_runs(monkeypatch, capsys, script):
    """The words are those of sys.argv, and still the process is not the command's to end."""
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("the process was ended"))
    monkeypatch.setattr("sys.argv", [script, "--nope"])
    before = state()
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert state() == before and capsys.readouterr().err.startswith(f"{script}: ")


PROGRAM = """
import atexit, gc, json, logging, os, signal, sys, time
import gpt2tf.cli
def state():  # TensorFlow sets variables of its own
    ours = os.environ.get("KERAS_BACKEND"), os.environ.get("TF_CPP_MIN_LOG_LEVEL")
    return gc.isenabled(), gc.get_freeze_count(), ours, signal.getsignal(signal.SIGTERM)
before = state()
logging.basicConfig(format="%(name)s %(message)s", level=logging.INFO)
atexit.register(print, "the end")
for words in json.loads(sys.argv[1]):
    try:
        gpt2tf.cli.main(words)
    except SystemExit as left:
        print("left", left.code)
assert state() == before, (state(), before)
assert "tensorflow" in sys.modules and gc.collect() is not None
logging.getLogger("gpt2tf").info("heard")
logging.getLogger("other").info("heard")
os.write(2, b"still there\\n")
"""


def test_a_program_that_imports_tensorflow_by_the_command(tmp_path):
    """All of it in a process where nothing of TensorFlow is there before."""
    sample = ["sample", "--model_name", str(GOLDEN / "tiny-a"), "--seed=1", "--length=4"]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([sample, sample, [*sample, "--nope"]])],
        env=BARE | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    one = f"{header(1)}{FOUR_TEXT}\nleft 0\n"
    assert (run.returncode, run.stdout) == (0, f"{one}{one}left 2\nthe end\n"), run.stderr
    loading = f"gpt2tf sample: loading {GOLDEN / 'tiny-a' / 'model.ckpt'}\n"
    assert run.stderr.startswith(2 * loading + "gpt2tf sample: unrecognized")
    assert run.stderr.endswith("gpt2tf heard\nother heard\nstill there\n")


def test_training_that_loses_its_stdout_leaves_it_to_the_program(monkeypatch, capfd):
    from gpt2tf.cli import train as cli_train

    def train(args):
        lines = cli_train._Lines()
        lines.show("one")
        assert lines.lost

    full = open("/dev/full", "w")
    monkeypatch.setattr("sys.stdout", full)
    monkeypatch.setattr(cli_train, "run", train)
    assert leaving(cli.main, ["train", "text", "--run_name=x"]) == 0
    assert sys.stdout is full and os.path.samestat(os.fstat(full.fileno()), os.stat("/dev/full"))
    with contextlib.suppress(OSError):
        full.close()


def test_the_process_of_a_command_is_told_from_a_program():
    assert not process._is_alone()
