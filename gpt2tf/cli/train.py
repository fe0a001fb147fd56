"""The commands `gpt2tf train` and `gpt2tf finetune`: their flags, and a line for each report that is due.

Flags have the names of nshepperd/gpt-2 and gpt-2-simple where those have one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import logging
import os
import re
import reprlib
import shlex
import signal
import sys
import tempfile
import threading
import typing
from pathlib import Path

from tqdm import tqdm

from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.files import LONGEST_NAME, locked
from gpt2tf.hparams import HParams, read_hparams
from gpt2tf.locate import ModelFiles
from gpt2tf.names import parameter_count
from gpt2tf.train.memory import training_bytes
from gpt2tf.train.settings import ALL_BUT_LAYERS, Settings
from gpt2tf.train.start import Job, read_corpus, start

LINE_EVERY = 100  # updates between two lines, where no validation loss is due

log = logging.getLogger(__name__)


def add_finetune_flags(parser) -> None:
    parser.description = "Train a model further on your text; `gpt2tf sample --model_name NAME` samples from it."
    _common_flags(parser)
    parser.add_argument(
        "--model_name",
        type=flags.some,
        default="124M",
        help="the model to start from: a folder in models_dir, or the path of any model (%(default)s)",
    )
    parser.add_argument(
        "--only_train_transformer_layers",
        action="store_const",
        const=ALL_BUT_LAYERS,
        dest="freeze",
        default=argparse.SUPPRESS,
        help=f"the same as --freeze {ALL_BUT_LAYERS}",
    )
    parser.set_defaults(hparams=None)


def add_train_flags(parser) -> None:
    parser.description = "Train a new model on your text; `gpt2tf sample --model_name NAME` samples from it."
    _common_flags(parser)
    parser.add_argument(
        "--hparams",
        type=flags.some,
        metavar="FILE",
        help="hparams.json with the sizes of the model; n_vocab may be from 257 to 50257",
    )
    parser.set_defaults(model_name=None)


def _common_flags(parser) -> None:
    flag = parser.add_argument
    flag(
        "data",
        type=flags.some,
        metavar="DATA",
        help="a text file, a .jsonl, .json, .csv or .tsv with a column of text, .gz of any, or encoded .npz or .npy; "
        "or a folder or a quoted pattern ('data/*.npz') of them",
    )
    flag("--run_name", type=_run_name, required=True, help="the new model's name: its folder in models_dir")
    flags.models_dir(parser)
    flag("--resume", action="store_true", help="resume the run from its last save, with its settings")
    flag("--text_column", type=flags.some, help="the column of .jsonl, .csv and their kin (text)")
    types = typing.get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        options = {"help": field.metadata["help"], "default": argparse.SUPPRESS}
        if types[field.name] is bool:
            options["action"] = "store_true"
        else:
            convert = int if types[field.name] == int | None else types[field.name]
            options["type"] = flags.number(convert, functools.partial(field.metadata["check"], field.name))
            options["metavar"] = {int: "N", float: "X", str: "NAME"}[convert]
            if field.default is not None:
                options["help"] += f" ({field.default or 'none'})" if convert is str else f" ({field.default})"
        flag(f"--{field.name}", **options)
    flags.device(parser)
    parser.set_defaults(run=run, prog=parser.prog)


def _run_name(name):
    if not name or re.search(r"[/\\\x00]", name) or name in (".", ".."):
        raise argparse.ArgumentTypeError(f"{name!r} is no name of a folder in models_dir")
    size = len(os.fsencode(name))
    if size > LONGEST_NAME:
        raise argparse.ArgumentTypeError(
            f"{reprlib.repr(name)} is {size} bytes long; the name of a folder has at most {LONGEST_NAME}"
        )
    return name


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    job = _job(args)
    folder = Path(job.folder)
    new = job.chief and not folder.exists()
    try:
        _run(args, job, folder)
    finally:
        if new:
            with contextlib.suppress(OSError):  # what a start that failed leaves empty
                folder.rmdir()


def _run(args, job: Job, folder: Path) -> None:
    if job.chief:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        logging.getLogger("gpt2tf").setLevel(logging.WARNING)

    def busy():
        raise BlockingIOError(f"another run is writing to {folder}; give another --run_name, or wait")

    with locked(folder, busy) if job.chief else tempfile.TemporaryDirectory() as own_folder:
        corpus = read_corpus(job, own_folder)
        silence_tensorflow()
        training = interruptible(_start, args, job, corpus)
        stopping, heard = threading.Event(), []

        def interrupted(interrupt):
            again = {signal.SIGTERM: "SIGTERM again", signal.SIGINT: "Ctrl-C again"}
            another = again.get(getattr(interrupt, "signum", signal.SIGINT), "Ctrl-C")  # SIGHUP is heard once
            log.warning("stopping after this update, which is saved; %s leaves at once, without saving", another)
            heard.append(interrupt)
            stopping.set()

        interruptible(_train, training, stopping, interrupted=interrupted)
    if stopping.is_set() and not heard:
        log.info("another worker was interrupted, so all have stopped after the same update, which is saved")
    names = shlex.quote(args.run_name), shlex.quote(args.models_dir)
    log.info("sample from it: gpt2tf sample --model_name %s --models_dir %s", *names)
    if stopping.is_set():
        raise (heard or [KeyboardInterrupt])[0]


def _job(args) -> Job:
    settings = {f.name: getattr(args, f.name) for f in dataclasses.fields(Settings) if hasattr(args, f.name)}
    source = _source(args)
    try:
        return Job(args.data, Path(args.models_dir, args.run_name), source, settings, args.text_column)
    except (ValueError, FileExistsError) as error:
        raise UsageError(str(error)) from None


def _source(args) -> HParams | ModelFiles | None:
    if args.resume:
        return None
    if args.model_name is not None:
        return ModelFiles.find(args.model_name, args.models_dir)
    if args.hparams is None:
        raise UsageError("give --hparams FILE, the sizes of the new model, or --resume")
    return read_hparams(args.hparams)


def _start(args, job, corpus):
    from gpt2tf.devices import platform, use_device

    use_device(args.device, args.tf32, repeatable=True)
    training = start(job, corpus)
    hparams = training.trainer.model.hparams
    log.info(
        "%s parameters; training takes about %.1f GB of memory",
        f"{parameter_count(hparams):,}",
        training_bytes(hparams, training.settings, gpu=platform() == "GPU") / 1e9,
    )
    return training


def _train(training, stopping) -> None:
    """Train, and print what comes of it."""
    settings, losses, show = training.settings, [], _Lines().show
    disable = None if training.chief else True
    with tqdm(total=settings.steps, initial=training.step, unit=" updates", disable=disable) as bar:
        for report in training.reports(stopping):
            losses.append(report.loss)
            bar.set_postfix(loss=f"{report.loss:.3f}", refresh=False)
            bar.update()
            last = report.step == settings.steps
            if training.chief and (report.validation is not None or last or report.step % LINE_EVERY == 0):
                show(_line(report, sum(losses) / len(losses)))
                losses = []
            if report.sample is not None:
                show("=" * 40 + f" SAMPLE AT STEP {report.step} " + "=" * 40)
                show(training.corpus.enc.decode(report.sample))


def _line(report, loss: float) -> str:
    """loss: the mean since the line before."""
    line = f"step {report.step}  loss {loss:.4f}"
    if report.validation is not None:
        line += f"  validation {report.validation:.4f}"
    return line + f"  {report.tokens_per_s:,.0f} tokens/s  {tqdm.format_interval(report.seconds_left)} left"


class _Lines:
    """Lines to stdout, while it takes them. The result of a run is its folder, so it goes on without them."""

    def __init__(self):
        self.lost = False

    def show(self, line: str) -> None:
        if self.lost:
            return
        try:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()
        except OSError as error:  # a closed pipe, a full disk
            self.lost = True
            log.warning("stdout: %s; training goes on without it", error.strerror or error)
            sys.stdout = open(os.devnull, "w")  # until the command ends; what is in the buffer would fail again
