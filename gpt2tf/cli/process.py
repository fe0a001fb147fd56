"""A command as a process: its parser, its streams, the signals that end it, and its end with an exit code.

Differences from the original, which left these to Fire and Python: what is wrong with the flags is said in one line
before TensorFlow is imported, with exit code 2; a failure is one line on stderr with exit code 1; Ctrl-C and a closed
pipe end in silence. A program that calls a command finds its streams, log, environment and collector as they were.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from gpt2tf import files

TEXT_FLAGS = {"--prompt", "--stop"}
ECHO = 0.5  # seconds; `timeout`, for one, signals a process and then its group, and means it once


class UsageError(ValueError):
    """What was asked for cannot be: exit code 2."""


class Ended(KeyboardInterrupt):
    """The signal `signum` has ended the command: Ctrl-C, or what stands for it where nobody sits at a terminal."""

    def __init__(self, signum: int):
        super().__init__()
        self.signum = signum


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line, and which knows no abbreviations."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")

    def print_help(self, file=None):
        with files.naming("stdout"):
            (file or sys.stdout).write(self.format_help())  # argparse's own says nothing where it fails


def run(make_parser: Callable[[list[str]], Parser], argv: list[str] | None) -> None:
    """Parse argv (None: the words of this process), call what the parser sets as `run`, and exit.

    make_parser: from the words to the parser, which may have the flags of only the command that they name.
    Raises, to a program that called, SystemExit with the exit code, or KeyboardInterrupt; a process of its own ends.
    """
    words = _normalise(sys.argv[1:] if argv is None else argv)
    with contextlib.ExitStack() as stack:
        if argv is not None or not _is_alone():
            _restore_at_exit(stack)
            sys.exit(_code(make_parser, words, stack))
        try:
            _hear_signals()
            files.open_descriptors()
            code = _code(make_parser, words, stack)
        except KeyboardInterrupt as interrupt:
            code = 128 + getattr(interrupt, "signum", signal.SIGINT)
        _leave(code)


def _is_alone() -> bool:
    """Whether the process is the command and nothing else: no notebook, profiler or test that goes on after it."""
    frame, modules = sys._getframe(), set()
    while frame:
        modules.add(frame.f_globals.get("__name__"))
        frame = frame.f_back
    return modules <= {"__main__", "runpy", "gpt2tf.cli", __name__} and not sys.flags.inspect


def _code(make_parser, words: list[str], stack: contextlib.ExitStack) -> int:
    """Run the command: its exit code. stack: gets what is to be undone afterwards."""
    prog, code = "gpt2tf", 0
    try:
        files.prepare_streams(stack)
        parser = make_parser(words)
        prog = parser.prog
        args, unknown = parser.parse_known_args(words)
        prog = args.prog
        if unknown:
            hint = f"{prog} --help lists the flags, and a text of several words needs quotes"
            parser.exit(2, f"{prog}: unrecognized arguments: {' '.join(unknown)}; {hint}\n")
        _log_to_stderr(prog)
        code = args.run(args) or 0
    except SystemExit as left:  # of the parser
        code = left.code or 0
    except BrokenPipeError:
        pass  # whoever reads our output has seen enough
    except (ValueError, OSError, ArithmeticError, MemoryError, ImportError) as error:
        code = _fail(prog, error)
    try:
        with files.naming("stdout"):
            sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (ValueError, OSError) as error:
        code = code or _fail(prog, error)
    return code


def _fail(prog: str, error: Exception) -> int:
    with contextlib.suppress(ValueError, OSError):  # without stderr there is still the exit code
        sys.stderr.write(f"{prog}: {one_line(error)}\n")
    return 2 if isinstance(error, UsageError) else 1


def silence_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, unless the user sets TF_CPP_MIN_LOG_LEVEL to 0.

    Some are written to file descriptor 2 before TensorFlow's own log settings are read.
    Raises ImportError for whatever its import raises, where it is missing or broken.
    """
    loud = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
    os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's other programs run on
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0" if loud else "3"
    if sys.modules.get("tensorflow"):  # of a program that called
        return
    collected = gc.isenabled()
    with contextlib.nullcontext() if loud else _silent_stderr():
        gc.disable()  # the import makes a million objects that stay: looking through them again and again takes 0.3 s
        try:
            interruptible(importlib.import_module, "tensorflow")
        except Exception as error:
            raise ImportError(f"TensorFlow cannot be imported: {error}", name="tensorflow") from error
        finally:
            if not gc.get_freeze_count():
                gc.freeze()
            if collected:
                gc.enable()


@contextlib.contextmanager
def _silent_stderr():
    """Sends to the null device what is written to file descriptor 2."""
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # a program that called has closed it
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def interruptible(function, *args, interrupted: Callable[[KeyboardInterrupt], object] | None = None, **kwargs):
    """Call a function that stays in TensorFlow for long, and let Ctrl-C end the wait for it.

    Python sees signals between its own instructions only, so the function runs in another thread; after Ctrl-C it is
    abandoned there, and `run` exits without waiting. interrupted: called at the first Ctrl-C instead, for a function
    that then comes to its end by itself.
    """
    outcome, done = {}, threading.Event()

    def call():
        try:
            outcome["result"] = function(*args, **kwargs)
        except BaseException as error:
            outcome["error"] = error
        done.set()

    threading.Thread(target=call, daemon=True).start()
    try:
        done.wait()  # and not for the thread, which Python 3.11 takes for ended when a wait for it is interrupted
    except KeyboardInterrupt as interrupt:
        if interrupted is None:
            raise
        interrupted(interrupt)
        done.wait()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _hear_signals() -> None:
    """SIGTERM and SIGHUP do what Ctrl-C does, unless they were ignored when the process started, as nohup has it."""
    last = -ECHO

    def end(signum, frame):
        nonlocal last
        echo, last = time.monotonic() < last + ECHO, time.monotonic()
        if signum == getattr(signal, "SIGHUP", None):  # a terminal that closes sends two, by the shell and the system
            signal.signal(signum, signal.SIG_IGN)
        if not echo:
            raise Ended(signum)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signum = getattr(signal, name, None)  # Windows has no SIGHUP
        if signum and signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, end)


def _restore_at_exit(stack: contextlib.ExitStack) -> None:
    """Has the stack put back what a command sets beside the streams."""
    log, frozen = logging.getLogger("gpt2tf"), gc.get_freeze_count()
    handlers, propagate, level = log.handlers, log.propagate, log.level
    environment = {name: os.environ.get(name) for name in ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")}

    def restore():
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)
        for name, value in environment.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        if not frozen:
            gc.unfreeze()

    stack.callback(restore)


def _normalise(argv: list[str]) -> list[str]:
    """--top-k is --top_k, and the word after --prompt is the prompt whatever it starts with."""
    normal, words = [], iter(argv)
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + equals + value
            if word in TEXT_FLAGS:
                value = next(words, None)
                word = word if value is None else f"{word}={value}"
        normal.append(word)
    return normal


def _log_to_stderr(prog: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
    log = logging.getLogger("gpt2tf")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def one_line(error: Exception) -> str:
    """What is wrong, and for a package that is missing or broken what to do."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(f"{error.filename}: {error.strerror}".split()) if error.filename else error.strerror
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        text = ([line for line in text.splitlines() if re.match(r"\w+Error: ", line)] or [text])[-1]  # of a traceback
        frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        packages = [(error.name or name).split(".")[0] for name in frames if not name.startswith("importlib")]
        if packages and packages[-1] not in ("gpt2tf", "encoder"):
            text += f"; to install what is missing: pip install --upgrade {packages[-1]}"
    return " ".join(text.split()) or "out of memory"  # a MemoryError of Python's own says nothing


def _leave(code: int) -> None:
    """End the process. To take the interpreter apart takes most of a second; workers or a busy thread make it more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):
            stream.flush()
    if code < 128:
        atexit._run_exitfuncs()  # temporary folders go with them
    os._exit(code)
