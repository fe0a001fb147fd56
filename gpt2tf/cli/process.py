"""The command line: `gpt2tf sample`, `gpt2tf download`, and the scripts sample.py and download_model.py.

Mirrors the flags, names and defaults of openai/gpt-2 src/generate_unconditional_samples.py,
src/interactive_conditional_samples.py and download_model.py. Differences: argparse in place of Fire, so
that a prompt is always text and an unknown flag is refused at once; everything that can be wrong is said
before TensorFlow is imported, in one line on stderr, with exit code 2 for usage and 1 for failure.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import logging
import os
import sys
import threading

from gpt2tf import checks
from gpt2tf.cli import flags
from gpt2tf.files import INTERRUPTED, leave
from gpt2tf.hparams import PUBLISHED
from gpt2tf.train.settings import STRATEGIES

CLOSED_PIPE = 0  # whoever reads our output has seen enough
TEXT_FLAGS = {"--prompt", "--stop"}


class UsageError(ValueError):
    """What was asked for cannot be: exit code 2."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main(command: str | None = None, argv: list[str] | None = None) -> None:
    """Run the `gpt2tf` command, or as the script of one of its commands, and exit."""
    _prepare_streams()
    try:
        parser = _parser(command)
    except KeyboardInterrupt:  # the flags of some commands are in modules that take a moment to import
        leave(INTERRUPTED, at_once=argv is None)
    args, unknown = parser.parse_known_args(_normalise(sys.argv[1:] if argv is None else argv))
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
    except UsageError as error:
        sys.stderr.write(f"{args.prog}: {_one_line(error)}\n")
        code = 2
    except (ValueError, OSError, ArithmeticError, MemoryError, ImportError) as error:
        sys.stderr.write(f"{args.prog}: {_one_line(error)}\n")
        code = 1
    leave(code, at_once=argv is None)


def _prepare_streams():
    """Make the standard streams take any text, and be there: a closed one is the null device.

    A closed stdout stands as a file that cannot be written, so that no result is lost in silence.
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


def _parser(command: str | None) -> argparse.ArgumentParser:
    if command:
        parser = _Parser(allow_abbrev=False)
        COMMANDS[command](parser)
        return parser
    parser = _Parser(prog="gpt2tf", description="GPT-2 in Keras 3 / TensorFlow 2.", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=_Parser)
    for name, add_flags in COMMANDS.items():
        add_flags(commands.add_parser(name, help=add_flags.__doc__, allow_abbrev=False))
    return parser


def _sample_flags(parser):
    """print samples from a model"""
    parser.description = "Print samples from a model: unconditional ones, or continuations of a prompt."
    flag = parser.add_argument
    flag(
        "--model_name",
        type=flags.some,
        default="124M",
        help="a folder in models_dir, or the path of any model (%(default)s)",
    )
    flags.models_dir(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompts.add_argument(
        "--prompt_file",
        type=flags.some,
        metavar="FILE",
        help="file with the text to continue, less its last newline; - is stdin",
    )
    prompts.add_argument("--interactive", action="store_true", help="ask for prompts, or answer piped lines one by one")
    _sampling_flags(flag)
    _generator_flags(parser)
    flag(
        "--strategy",
        choices=STRATEGIES,
        default="one",
        help="mirrored: on all GPUs at once; multiworker: on all machines of TF_CONFIG (%(default)s)",
    )
    _output_flags(flag)
    parser.set_defaults(run=_run_sample, prog=parser.prog)


def _sampling_flags(flag):
    flag("--seed", type=flags.number(int, checks.check_seed), help="the same seed gives the same text (a fresh one)")
    flag(
        "--nsamples",
        type=flags.number(int, checks.check_nsamples),
        default=1,
        help="samples for each prompt; 0 goes on forever (%(default)s)",
    )
    flag(
        "--batch_size",
        type=flags.number(int, checks.check_batch_size),
        default=1,
        help="samples made at a time, which changes their text (%(default)s)",
    )
    flag(
        "--length",
        type=flags.number(int, checks.check_length),
        help="tokens in a sample (the window; half of it with a prompt)",
    )
    flag(
        "--temperature",
        type=flags.number(flags.int_or_float, checks.check_temperature),
        default=1,
        help="divides the logits: 0 takes the likeliest token; 1 and 1.0 draw differently (%(default)s)",
    )
    flag(
        "--top_k",
        type=flags.number(int, checks.check_top_k),
        default=0,
        help="sample from the k likeliest tokens; 0 is off (%(default)s)",
    )
    flag(
        "--top_p",
        type=flags.number(float, checks.check_top_p),
        default=1,
        help="sample from the likeliest tokens whose probabilities sum to at most p; 1 is off (%(default)s)",
    )


def _output_flags(flag):
    flag("--stop", type=flags.some, metavar="TEXT", help="end a sample before this text")
    flag("--truncate", action="store_true", help="end a sample before <|endoftext|>")
    flag("--include_prefix", action="store_true", help="print the prompt before its continuation")
    flag(
        "--format",
        choices=["text", "jsonl"],
        default="text",
        help="jsonl is one object a line, with the tokens, the seed and the flags (%(default)s)",
    )
    flag(
        "--output",
        type=flags.some,
        metavar="FILE",
        help="write the samples to this file, as UTF-8, once they are all made",
    )


def _generator_flags(parser):
    parser.add_argument(
        "--dtype",
        choices=checks.DTYPES,
        default="float32",
        help="of the weights: all but float32 are faster and give other text (%(default)s)",
    )
    flags.device(parser)


def _download_flags(parser):
    """fetch a published model"""
    parser.description = "Fetch a published model into models_dir, verified; what was interrupted is resumed."
    parser.add_argument("model_name", metavar="MODEL", help=f"one of {', '.join(PUBLISHED)}")
    flags.models_dir(parser)
    parser.add_argument("--base_url", metavar="URL", help="address of a mirror, with the folders of the original's")
    parser.set_defaults(run=_run_download, prog=parser.prog)


def _benchmark_flags(parser):
    """measure speed and memory"""
    from gpt2tf.cli import benchmark as cli_benchmark

    cli_benchmark.add_flags(parser)


def _finetune_flags(parser):
    """train a model further on your text"""
    from gpt2tf.cli import train as cli_train

    cli_train.add_finetune_flags(parser)


def _train_flags(parser):
    """train a new model on your text"""
    from gpt2tf.cli import train as cli_train

    cli_train.add_train_flags(parser)


COMMANDS = {
    "benchmark": _benchmark_flags,
    "download": _download_flags,
    "finetune": _finetune_flags,
    "sample": _sample_flags,
    "train": _train_flags,
}


def _run_sample(args):
    from gpt2tf.cli import sample as cli_sample

    cli_sample.run(args)


def _run_download(args):
    from gpt2tf import download

    try:
        name = download.check_name(args.model_name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    silence_tensorflow()
    download.download_model(name, args.models_dir, args.base_url or download.BASE_URL)


def _normalise(argv):
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


def _log_to_stderr(prog):
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
    log = logging.getLogger("gpt2tf")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def silence_tensorflow():
    """Import TensorFlow without its start-up chatter, unless the user sets TF_CPP_MIN_LOG_LEVEL to 0.

    Some of it is written to file descriptor 2 before TensorFlow's own log settings are read.
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


def interruptible(function, *args, interrupted=None, **kwargs):
    """Call a function that stays in TensorFlow for long, and let Ctrl-C end the wait for it.

    Python sees signals between its own instructions only, so the call goes on in another thread;
    after Ctrl-C it is abandoned there, and `main` exits without waiting. interrupted: what the first Ctrl-C calls
    instead, for a function that is to come to its end by itself.
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


def _one_line(error):
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ImportError):
        text = " ".join(str(error).split())
        return f"{text}; to install what is missing: pip install --upgrade {error.name or 'tensorflow'}"
    return " ".join(str(error).split()) or "out of memory"  # a MemoryError of Python's own says nothing
