"""Types and flags that several commands have. No TensorFlow is imported."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import reprlib
import sys

from gpt2tf import checks
from gpt2tf.cli.process import UsageError
from gpt2tf.files import opened


def number(convert, check):
    """An argparse type: text to number to checked number, the message being the check's."""

    def parse(text):
        try:
            value = convert(text)
        except ValueError:
            kind = "a whole number" if convert is int else "a number"
            raise argparse.ArgumentTypeError(f"{reprlib.repr(text)} is not {kind}") from None
        try:
            return check(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def some(text):
    """An argparse type: text, but not none, which an unset variable of the shell gives."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a value or leave the flag out")
    return text


def int_or_float(text):
    """1 stays an int and 1.0 a float: the original's random stream depends on it (`noise.op_seeds`)."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def shard(text: str) -> tuple[int, int]:
    """An argparse type: "2/8" -> (2, 8)"""
    part = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if not part or not 1 <= int(part[1]) <= int(part[2]):
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(text)} is not K/N with K from 1 to N, such as 2/8, the second part of eight"
        )
    return int(part[1]), int(part[2])


def models_dir(parser):
    parser.add_argument(
        "--models_dir",
        type=lambda path: os.path.expanduser(os.path.expandvars(some(path))),
        default="models",
        help="folder of the models; ~ and variables are expanded (%(default)s)",
    )


def device(parser):
    parser.add_argument(
        "--device",
        choices=checks.DEVICES,
        default="auto",
        help="auto takes a GPU if there is one (%(default)s)",
    )
    parser.add_argument(
        "--tf32", action="store_true", help="faster products on a GPU, which give other text than a CPU"
    )


def html(parser):
    words = "write a page that shows each token's probability, its rank and its alternatives"
    parser.add_argument("--html", type=some, metavar="FILE", help=words)


def opened_page(args):
    """The file of --html, to be written to at the end; None without the flag."""
    return contextlib.nullcontext() if args.html is None else opened(args.html, sys.stdout)


def refuse_same(*paths):
    """Refuse to write to a file that is read, or written to as well. paths: those that were given, and None."""
    named = [path for path in paths if path not in (None, "-")]
    if len({os.path.realpath(path) for path in named}) < len(named):
        raise UsageError(f"two of {', '.join(named)} are the same file; name different ones")
