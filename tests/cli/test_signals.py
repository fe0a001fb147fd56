"""Training that a signal ends, as a process: what is saved, and the exit code."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
from recorded import ROOT
from training import ONE_LAYER, values

from gpt2tf import load_model
from gpt2tf.hparams import write_hparams
from gpt2tf.train import saves

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_"))}
BARE |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
# Op by op, as compiling would take most of the time.
MAIN = "import tensorflow as tf; tf.config.run_functions_eagerly(True); from gpt2tf.cli import main; main()"
# An update that never ends.
STUCK = """
import time
from gpt2tf.train.update import Trainer
update = Trainer.update
Trainer.update = lambda self, step, tokens: update(self, step, tokens) if step < 3 else time.sleep(600)
"""
STOPPING = "gpt2tf train: stopping after this update, which is saved; {} leaves at once, without saving\n"
PATIENCE = 60  # seconds; only a failing test waits so long
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def start(tmp_path):
    """Starts a run that has no end, in tmp_path / "new", and waits for its first line."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat. the dog sat on the log. " * 30)
    write_hparams(ONE_LAYER, tmp_path / "hparams.json")
    flags = "text.txt --hparams hparams.json --run_name new --models_dir . --steps 1000000 --batch_size 1 --window 8"
    command = ["train", *flags.split(), "--evaluate_every=3", "--save_every=1000000", "--seed=1"]

    with contextlib.ExitStack() as stack:

        def start(prelude="", **options):
            options = PIPES | options
            process = subprocess.Popen(
                [sys.executable, "-c", prelude + MAIN, *command], cwd=tmp_path, env=BARE, **options
            )
            stack.callback(process.kill)
            return process

        yield start


def assert_saved(folder):
    """The run holds what it came to, all of it, and nothing half-written."""
    assert saves.read_saved(folder).progress["step"] == saves.saved_step(folder) >= 3
    assert np.isfinite(values(load_model(folder))["model/wte"]).all()
    assert not [name for name in os.listdir(folder) if name.endswith(".part") or name.startswith(".")]


@pytest.mark.parametrize("number, again", [(signal.SIGTERM, "SIGTERM again"), (signal.SIGHUP, "Ctrl-C")])
def test_a_signal_saves_also_where_it_comes_twice(start, tmp_path, number, again):
    """As `timeout` sends it to a process and then to its group, and a terminal that closes by two ways."""
    process = start()
    assert process.stdout.readline().startswith(b"step 3 ")
    process.send_signal(number)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert err.decode().count(STOPPING.format(again)) == 1 and b"Traceback" not in err
    assert_saved(tmp_path / "new")


def test_a_second_signal_leaves_at_once(start, tmp_path):
    process = start(STUCK)
    assert process.stdout.readline().startswith(b"step 3 ")
    process.send_signal(signal.SIGHUP)
    for line in process.stderr:
        if line.decode() == STOPPING.format("Ctrl-C"):
            break
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (143, b"", b"")
    assert not (tmp_path / "new" / "checkpoint").exists()


def test_a_terminal_that_closes(start, tmp_path):
    """The run is saved, though there is nothing left to write to."""
    master, slave = pty.openpty()

    def take_the_terminal():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = start(stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_the_terminal)
    os.close(slave)
    shown = b""
    while b"step 3 " not in shown:
        shown += os.read(master, 4096)
    os.close(master)
    assert process.wait(PATIENCE) == 128 + signal.SIGHUP
    assert_saved(tmp_path / "new")
