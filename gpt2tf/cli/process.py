"""A command as a process: its parser, its streams, Ctrl-C, and its end with an exit code.

Differences from the original, which left these to Fire and Python: what is wrong with the flags is said in one line
before TensorFlow is imported, with exit code 2; a failure is one line on stderr with exit code 1; Ctrl-C and a closed
pipe end in silence.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable

INTERRUPTED = 130  # 128 + SIGINT
CLOSED_PIPE = 0  # whoever reads our output has seen enough
TEXT_FLAGS = {"--prompt", "--stop"}


class UsageError(ValueError):
    """What was asked for cannot be: exit code 2."""


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line, and which knows no abbreviations."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def run(make_parser: Callable[[list[str]], Parser], argv: list[str] | None) -> None:
    """Parse argv (None: the words of this process), call what the parser sets as `run`, and exit.

    make_parser: from the words to the parser, which may have the flags of only the command that they name.
    """
    _prepare_streams()
    words = _normalise(sys.argv[1:] if argv is None else argv)
    try:
        parser = make_parser(words)
    except KeyboardInterrupt:  # the flags of some commands are in modules that take a moment to import
        _exit(INTERRUPTED, called=argv is not None)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        hint = f"{args.prog} --help lists the flags, and a text of several words needs quotes"
        parser.exit(2, f"{args.prog}: unrecognized arguments: {' '.join(unknown)}; {hint}\n")
    _log_to_stderr(args.prog)
    try:
        code = args.run(args) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = CLOSED_PIPE
    except (ValueError, OSError, ArithmeticError, MemoryError, ImportError) as error:
        sys.stderr.write(f"{args.prog}: {_one_line(error)}\n")
        code = 2 if isinstance(error, UsageError) else 1
    _exit(code, called=argv is not None)


def silence_tensorflow() -> None:
    """Import TensorFlow without its start-up messages, unless the user sets TF_CPP_MIN_LOG_LEVEL to 0.

    Some are written to file descriptor 2 before TensorFlow's own log settings are read.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's other programs run on
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    gc.disable()  # the import makes a million objects that all stay: looking through them again and again takes 0.3 s
    try:
        interruptible(importlib.import_module, "tensorflow")
    finally:
        gc.freeze()
        gc.enable()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def interruptible(function, *args, interrupted: Callable[[], object] | None = None, **kwargs):
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
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        interrupted()
        done.wait()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _prepare_streams() -> None:
    """Make the standard streams take any text, and be there: a closed one becomes the null device.

    A closed stdout becomes a file that cannot be written to, so that no result is lost in silence.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    sys.stdout = sys.stdout or open(os.devnull)
    sys.stderr = sys.stderr or open(os.devnull, "w")
    for stream, errors in (sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "backslashreplace"):
        if isinstance(stream, io.TextIOWrapper):  # a program that calls main may have put something simpler there
            stream.reconfigure(errors=errors)


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


def _one_line(error: Exception) -> str:
    """What is wrong, and for a package that is missing what to do."""
    if isinstance(error, OSError) and error.strerror:
        return " ".join(f"{error.filename}: {error.strerror}".split()) if error.filename else error.strerror
    text = " ".join(str(error).split())
    if isinstance(error, ImportError):
        return f"{text}; to install what is missing: pip install --upgrade {error.name or 'tensorflow'}"
    return text or "out of memory"  # a MemoryError of Python's own says nothing


def _exit(code: int, called: bool) -> None:
    """Exit with a code, without a word on a closed pipe.

    called: another program called this one, and does at its exit what it has to. Else, and always after Ctrl-C, where
    a thread may still be busy, the interpreter is not taken apart: with TensorFlow in it that takes most of a second,
    and more when connections wait for workers that have left.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # for the flush that Python does itself
    if code != INTERRUPTED:
        if called:
            sys.exit(code)
        atexit._run_exitfuncs()  # temporary folders go with them
    os._exit(code)
