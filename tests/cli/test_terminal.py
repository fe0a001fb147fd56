"""Prompts that are typed or pasted on a real pseudo-terminal: whole, whatever their length and their bytes."""

import contextlib
import os
import subprocess
import sys

import pytest
from recorded import GOLDEN, ROOT
from terminal import PATIENCE, PseudoTerminal

from encoder import get_encoder

ASK = b"Model prompt >>> "
ENC = get_encoder("tiny-a", GOLDEN)
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UTF_8 = {"LC_ALL": "C.UTF-8"}
# The command, but for the model: a prompt that does not fit its window is answered by the number of its tokens.
COMMAND = """
import sys
from gpt2tf import cli
from gpt2tf.cli import sample
sample.Session.load = lambda session: print("loaded", file=sys.stderr)
{}
cli.main("sample")
"""


@pytest.fixture
def terminal():
    with contextlib.closing(PseudoTerminal()) as terminal:
        yield terminal


def interactive(before="", env=UTF_8, **streams):
    command = [sys.executable, "-c", COMMAND.format(before), "--interactive", "--seed=1"]
    command += ["--model_name=tiny-a", f"--models_dir={GOLDEN}"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "INPUTRC"))}
    return subprocess.Popen(command, env=bare | {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | env, **streams)


def told(text):
    """What is said of a prompt that is too long for the window, and so how long it came to be."""
    return f"the prompt has {len(ENC.encode(text))} tokens; the model's window has 64".encode()


TEXTS = ["x" * 6300, "é日本🙂" * 600, "a\tb" * 4000, "Ångström " * 10]


@pytest.mark.parametrize("env", [UTF_8, ASCII], ids=["UTF-8", "ASCII"])
def test_a_pasted_line_is_the_whole_prompt(terminal, env):
    process = interactive(env=env, **dict.fromkeys(["stdin", "stdout", "stderr"], terminal.slave))
    for text in TEXTS:
        terminal.read_until(ASK)
        terminal.shown = b""
        terminal.type(text.encode() + b"\n")
        terminal.read_until(told(text))
    terminal.read_until(ASK)
    terminal.type(b"\x04")
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("stderr", [True, False], ids=["stderr on the terminal", "all in files"])
def test_a_pasted_line_with_stdout_in_a_file(terminal, tmp_path, stderr):
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        process = interactive(stdin=terminal.slave, stdout=out, stderr=terminal.slave if stderr else err)
    for text in TEXTS:
        terminal.read_until(ASK)
        terminal.shown = b""
        terminal.type(text.encode() + b"\n")
        if stderr:
            terminal.read_until(told(text))
    terminal.read_until(ASK)
    terminal.type(b"\x04")
    assert process.wait(PATIENCE) == 0
    said = (tmp_path / "err").read_bytes()
    assert stderr or [text for text in TEXTS if told(text) not in said] == []
    assert (tmp_path / "out").read_bytes() == b""


def test_a_line_is_edited_and_the_one_before_comes_back(terminal, tmp_path):
    with open(tmp_path / "out", "wb") as out:
        process = interactive(stdin=terminal.slave, stdout=out, stderr=terminal.slave)
    terminal.read_until(ASK)
    terminal.type("é".encode() * 80 + b"y\x7f\n")  # the last one is taken back
    terminal.read_until(told("é" * 80))
    terminal.read_until(told("é" * 80) + b", so shorten the prompt\r\n" + ASK)
    terminal.shown = b""
    terminal.type(b"\x1b[A" + b"xx\x01z\n")  # up; and Ctrl-A, to the start of the line
    terminal.read_until(told("z" + "é" * 80 + "xx"))
    terminal.type(b"\x04")
    assert process.wait(PATIENCE) == 0


CUT = b"That line is not used: the terminal has cut it after 4,095 bytes."


def test_where_python_has_no_readline_a_line_that_is_cut_is_said_and_not_used(terminal):
    process = interactive(
        "sys.modules['readline'] = None", **dict.fromkeys(["stdin", "stdout", "stderr"], terminal.slave)
    )
    terminal.read_until(ASK)
    terminal.shown = b""
    terminal.type(b"x" * 6300 + b"\n")
    terminal.read_until(CUT + b" This Python has no readline")
    terminal.read_until(ASK)
    assert b"the prompt has" not in terminal.shown
    terminal.type(b"x" * 4094 + b"\n")
    terminal.read_until(told("x" * 4094))
    terminal.type(b"\x04")
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("end", [b"\n", b""], ids=["with its Enter", "without"])
def test_what_is_pasted_before_it_is_asked_for_is_cut_and_said(terminal, end):
    terminal.type(b"x" * 6300 + end)
    process = interactive(**dict.fromkeys(["stdin", "stdout", "stderr"], terminal.slave))
    terminal.read_until(ASK)
    if not end:
        terminal.type(b"\n")
    terminal.read_until(CUT + b" It came before it was asked for")
    terminal.read_until(ASK)
    assert b"the prompt has" not in terminal.shown
    terminal.type(b"\x04")
    assert process.wait(PATIENCE) == 0
