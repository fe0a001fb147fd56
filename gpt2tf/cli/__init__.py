"""The command line: `gpt2tf COMMAND`, and the scripts sample.py and download_model.py, which are a command each.

Mirrors the flags, names and defaults of openai/gpt-2 src/generate_unconditional_samples.py,
src/interactive_conditional_samples.py and download_model.py. Difference: argparse in place of Fire, so that a prompt is
always text and an unknown flag is refused at once.
"""

from __future__ import annotations

import importlib

from gpt2tf.cli import process

# What each command is for, and the function that adds its flags: its module is imported when it is asked for.
COMMANDS = {
    "benchmark": ("measure speed and memory", "gpt2tf.cli.benchmark:add_flags"),
    "convert": ("write a model in another format", "gpt2tf.cli.convert:add_flags"),
    "download": ("fetch a published model", "gpt2tf.cli.download:add_flags"),
    "evaluate": ("measure a model on the sets of the paper", "gpt2tf.cli.evaluate:add_flags"),
    "finetune": ("train a model further on your text", "gpt2tf.cli.train:add_finetune_flags"),
    "reproduce": ("make the paper's samples, summaries, translations, answers", "gpt2tf.cli.reproduce:add_flags"),
    "sample": ("print samples from a model", "gpt2tf.cli.sample:add_flags"),
    "score": ("print how likely a model finds a text", "gpt2tf.cli.score:add_flags"),
    "train": ("train a new model on your text", "gpt2tf.cli.train:add_train_flags"),
}


def main(argv: list[str] | None = None, *, command: str | None = None) -> None:
    """Run `gpt2tf`, or the script of one command, and exit.

    argv: the words after the name, which a program gives that calls this; then it ends in SystemExit with the exit
    code, or in KeyboardInterrupt, and leaves everything else of the program as it was. None is for a process that does
    nothing else: the words are those of sys.argv, SIGTERM and SIGHUP are heard as Ctrl-C is, and the process ends.
    """
    process.run(lambda words: _parser(command, words), argv)


def _parser(command: str | None, words: list[str]) -> process.Parser:
    if command:
        parser = process.Parser()
        _add_flags(command, parser)
        return parser
    parser = process.Parser(prog="gpt2tf", description="GPT-2 in Keras 3 / TensorFlow 2.")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=process.Parser)
    for name, (purpose, _) in COMMANDS.items():
        subparser = commands.add_parser(name, help=purpose)
        if name in words:
            _add_flags(name, subparser)
    return parser


def _add_flags(command: str, parser: process.Parser) -> None:
    module, _, function = COMMANDS[command][1].partition(":")
    try:
        getattr(importlib.import_module(module), function)(parser)
    except ImportError as error:
        parser.exit(1, f"{parser.prog}: {process.one_line(error)}\n")
