"""`gpt2tf sample --interactive`: the question for a prompt, on a terminal with line editing, or the lines of a pipe.

Mirrors the loop over `input` of openai/gpt-2 src/interactive_conditional_samples.py:73-77. Differences: a line may be
of any length, where a terminal by itself cuts it; the question does not get among the samples of a stdout that is a
file; the end of stdin ends the loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from gpt2tf.files import clean, naming

ASK = "Model prompt >>> "  # openai/gpt-2 src/interactive_conditional_samples.py:74
HELD = (
    4095  # bytes of a line that a terminal holds where it edits lines itself; N_TTY_BUF_SIZE of Linux, less a newline
)
CUT = f"That line is not used: the terminal has cut it after {HELD:,} bytes. "
TYPE_AGAIN = "It came before it was asked for; give it again now."
NO_READLINE = "This Python has no readline, which takes any length; give a long prompt by --prompt_file."


def asked_prompts() -> Iterator[str]:
    """The lines of stdin that are not empty, asked for one by one, to its end."""
    while (line := _ask()) is not None:
        if prompt := line.removesuffix("\n").removesuffix("\r"):
            yield prompt
        else:
            print("Prompt should not be empty!", file=sys.stderr)


def _ask() -> str | None:
    """One line of stdin, or None at its end."""
    if sys.stdin is None:
        return None
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError, OSError):
            return _edited_line()
    print(ASK, end="", file=sys.stderr, flush=True)
    with naming("stdin"):
        line = sys.stdin.buffer.readline()
    if not (line and sys.stdin.isatty()):
        print(file=sys.stderr)  # nobody's Enter has ended the line of the question
    elif os.name == "posix" and len(line) > HELD:
        print(CUT + NO_READLINE, file=sys.stderr)
        return _ask()
    return clean(line) if line else None


def _edited_line() -> str | None:
    """One line from the terminal that stdin is, of any length, with editing and history; None at its end.

    Raises ImportError where Python has no readline, and OSError where there is nothing to show the line on.
    """
    import readline

    if sys.stdin.fileno() != 0:
        raise OSError("readline reads descriptor 0")
    for setting in ("convert-meta off", "input-meta on", "output-meta on", "enable-meta-key off"):
        readline.parse_and_bind(f"set {setting}")  # no byte of a text is a command
    waiting = _waiting()
    with _terminal_as_stdout():
        try:
            line = input(ASK)
        except EOFError:
            print()
            return None
    if waiting >= HELD <= len(line.encode(sys.stdin.encoding, sys.stdin.errors)):
        print(CUT + TYPE_AGAIN, file=sys.stderr)
        return _ask()
    return clean(line) + "\n"


@contextlib.contextmanager
def _terminal_as_stdout() -> Iterator[None]:
    """Makes stdout the terminal, for `input` edits lines only where stdin and stdout both are one."""
    stdout = os.dup(1)
    try:
        if not os.isatty(1):
            terminal = os.dup(2) if os.isatty(2) else os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY)
            os.dup2(terminal, 1)
            os.close(terminal)
        with open(1, "w", closefd=False) as shown, contextlib.redirect_stdout(shown):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _waiting() -> int:
    """The bytes that were typed before they are asked for, those of a line without its end included."""
    import fcntl
    import termios

    try:
        mode = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSANOW, [*mode[:3], mode[3] & ~termios.ICANON, *mode[4:]])
        waiting = fcntl.ioctl(0, termios.FIONREAD, bytes(4))
        termios.tcsetattr(0, termios.TCSANOW, mode)
    except termios.error as error:
        raise OSError(*error.args) from None
    return int.from_bytes(waiting, sys.byteorder)
