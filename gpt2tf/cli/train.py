"""`gpt2tf train` and `gpt2tf finetune`: the flags, and a line for what happens on the way.

There is nothing like it in openai/gpt-2; flags have the names of nshepperd/gpt-2 and gpt-2-simple where those have one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import os
import re
import shlex
import sys
import tempfile
import threading
import typing
import zlib
from pathlib import Path

from tqdm import tqdm

import encoder
from gpt2tf import cluster
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.files import locked
from gpt2tf.hparams import HParams, read_hparams
from gpt2tf.locate import ModelFiles
from gpt2tf.names import parameter_count
from gpt2tf.train import tokens as data
from gpt2tf.train.memory import training_bytes
from gpt2tf.train.settings import EMBEDDINGS, Settings
from gpt2tf.train.text import find_files

LINE_EVERY = 100  # updates between two lines, where no validation loss is due
TOKENS = "tokens.npy"
LESS = "give a smaller --batch_size, with more --accumulate, a smaller --window, --recompute or --optimizer adafactor"
AGAIN = "start all workers again with --resume"

log = logging.getLogger(__name__)


def add_finetune_flags(parser) -> None:
    parser.description = "Train a model further on your text; `gpt2tf sample --model_name NAME` then samples from it."
    _common_flags(parser)
    parser.add_argument(
        "--model_name",
        type=flags.some,
        default="124M",
        help="what to start from: a folder in models_dir, or the path of any model (%(default)s)",
    )
    parser.add_argument(
        "--only_train_transformer_layers",
        action="store_const",
        const=EMBEDDINGS,
        dest="freeze",
        default=argparse.SUPPRESS,
        help=f"the same as --freeze {EMBEDDINGS}",
    )
    parser.set_defaults(hparams=None)


def add_train_flags(parser) -> None:
    parser.description = "Train a new model on your text; `gpt2tf sample --model_name NAME` then samples from it."
    _common_flags(parser)
    parser.add_argument(
        "--hparams",
        type=flags.some,
        metavar="FILE",
        help="hparams.json with the sizes of the model; n_vocab may be any",
    )
    parser.set_defaults(model_name=None)


def _common_flags(parser) -> None:
    flag = parser.add_argument
    flag(
        "data",
        type=flags.some,
        metavar="DATA",
        help="a text file, a folder of them, a .jsonl or .csv with a column of text, or encoded .npz or .npy",
    )
    flag("--run_name", type=_run_name, required=True, help="the new model's name: its folder in models_dir")
    flags.models_dir(parser)
    flag("--resume", action="store_true", help="go on from the last save of this name, with its settings")
    flag("--text_column", type=flags.some, default="text", help="of .jsonl and .csv (%(default)s)")
    types = typing.get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        options = {"help": field.metadata["help"], "default": argparse.SUPPRESS}
        if types[field.name] is bool:
            options["action"] = "store_true"
        else:
            convert = int if types[field.name] == int | None else types[field.name]
            options["type"] = flags.number(convert, functools.partial(_checked, field))
            options["metavar"] = {int: "N", float: "X", str: "NAME"}[convert]
            if field.default is not None:
                options["help"] += f" ({field.default or 'none'})" if convert is str else f" ({field.default})"
        flag(f"--{field.name}", **options)
    flags.device(parser)
    parser.set_defaults(run=run, prog=parser.prog)


def _checked(field, value):
    if field.metadata["check"]:
        field.metadata["check"](field.name, value)
    return value


def _run_name(name):
    if not name or re.search(r"[/\\\x00]", name) or name in (".", ".."):
        raise argparse.ArgumentTypeError(f"{name!r} is no name of a folder in models_dir")
    return name


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    # Where a run goes on is no part of it, so a strategy holds for this command alone, as --device does.
    given = {"strategy": "one"} | {
        f.name: getattr(args, f.name) for f in dataclasses.fields(Settings) if hasattr(args, f.name)
    }
    try:
        settings = Settings(**given)
        chief = _is_chief(settings, args.resume)
    except ValueError as error:
        raise UsageError(str(error)) from None
    folder = Path(args.models_dir, args.run_name)
    source = _source(args, folder)
    # A model may have come without the file `checkpoint`, and the saves of a run take the place of others.
    if not args.resume and ((folder / "checkpoint").exists() or any(folder.glob("*.index"))):
        raise UsageError(f"{folder} holds a model; give --resume to go on with it, or another --run_name")
    os.stat(args.data)  # raises for data that is not there, before there is a new folder
    if chief:
        folder.mkdir(parents=True, exist_ok=True)

    def busy():
        raise BlockingIOError(f"another run is writing to {folder}; give another --run_name, or wait")

    with locked(folder, busy) if chief else tempfile.TemporaryDirectory() as own_folder:
        _run(args, given, settings, source, folder, Path(own_folder or folder), chief)


def _run(args, given, settings, source, folder, own_folder, chief):
    """own_folder: where this worker writes, which is the folder only for the chief."""
    enc = _vocabulary(source, own_folder)
    tokens, corpus = _tokens(args, enc, folder, own_folder)
    silence_tensorflow()
    training = interruptible(_prepare, args, given, settings, source, folder, tokens, corpus, enc, chief)
    stopping, here = threading.Event(), threading.Event()

    def interrupted():
        log.warning("stopping after this update, which is saved; Ctrl-C again leaves at once, without saving")
        here.set()
        stopping.set()

    interruptible(_train, training, stopping, enc, interrupted=interrupted)
    if stopping.is_set() and not here.is_set():
        log.info("another worker was interrupted, so all have stopped after the same update, which is saved")
    names = shlex.quote(args.run_name), shlex.quote(args.models_dir)
    log.info("sample from it: gpt2tf sample --model_name %s --models_dir %s", *names)
    if stopping.is_set():
        raise KeyboardInterrupt


def _is_chief(settings: Settings, resume: bool) -> bool:
    """Whether this process writes files and prints. Raises ValueError for a TF_CONFIG that does not say it."""
    if settings.strategy != "multiworker":
        return True
    workers = cluster.read_cluster()
    if settings.batch_size % len(workers.addresses) and not resume:  # which goes on with the batch_size of its start
        raise ValueError(
            f"batch_size is {settings.batch_size}, which {len(workers.addresses)} workers cannot share evenly"
        )
    if not workers.chief:
        logging.getLogger("gpt2tf").setLevel(logging.WARNING)
    return workers.chief


def _source(args, folder: Path) -> HParams | ModelFiles:
    """What to start from: sizes, or the files of a model."""
    if args.resume:
        if not any(folder.glob("*.index")):
            raise FileNotFoundError(f"{folder} holds no run to resume; leave --resume out to start one")
        files = ModelFiles.at(folder)
        if not re.search(r"model-\d+$", files.prefix):
            raise FileNotFoundError(
                f"{files.prefix} is no save of a run; start one from it with finetune, --model_name {folder} and "
                "another --run_name"
            )
        return files
    if args.model_name is not None:
        return ModelFiles.find(args.model_name, args.models_dir)
    if args.hparams is None:
        raise UsageError("give --hparams FILE, the sizes of the new model, or --resume")
    return read_hparams(args.hparams)


def _vocabulary(source: HParams | ModelFiles, folder: Path) -> encoder.Encoder:
    """The vocabulary of the model to start from; for a new one, that of its size, written to the folder."""
    if isinstance(source, HParams):
        encoder.write_vocabulary(folder, source.n_vocab)
        return encoder.get_encoder(folder.name, folder.parent)
    return source.vocabulary(source.hparams and source.hparams.n_vocab)


def _tokens(args, enc: encoder.Encoder, folder: Path, own_folder: Path):
    """The corpus as [tokens] ids, and what tells it from another. Text is encoded once, to a file in own_folder."""
    n_vocab, corpus = len(enc.encoder), {}
    if not data.is_encoded(args.data):  # so that a text that changed is noticed without encoding it again
        corpus["bytes"] = sum(os.path.getsize(file) for file in find_files(args.data))
        tokens = _encoded_before(folder / TOKENS, n_vocab) if args.resume else None
        if tokens is None:
            tokens = data.encode_corpus(args.data, enc, own_folder / TOKENS, args.text_column)
    else:
        tokens = data.open_tokens(args.data, n_vocab)
    log.info("%s tokens", f"{len(tokens):,}")
    crc = 0
    for start in range(0, len(tokens), 2**24):
        crc = zlib.crc32(tokens[start : start + 2**24].tobytes(), crc)
    return tokens, corpus | {"tokens": len(tokens), "crc32": crc}


def _encoded_before(path: Path, n_vocab: int):
    """The tokens that the run's start left, or None if they are gone or damaged."""
    try:
        tokens = data.open_tokens(path, n_vocab)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("%s", error)
        return None
    log.info("using %s, in which the text was encoded before", path)
    return tokens


def _prepare(args, given, settings, source, folder, tokens, corpus, enc, chief):
    """Make the devices ready, the model, and what trains it."""
    from gpt2tf import devices
    from gpt2tf.devices import use_device
    from gpt2tf.train import saves
    from gpt2tf.train.loop import Run

    use_device(args.device, args.tf32)
    saved = None
    if args.resume:
        saved = saves.read_saved(folder)
        if any(saved.corpus.get(name, value) != value for name, value in corpus.items()):
            message = f"{args.data} is not what {folder} was trained on; resume with that, or start a new run"
            if corpus.get("bytes", 0) == saved.corpus.get("bytes"):
                message += f", or if it is, remove {folder / TOKENS}, and it is encoded again"
            raise ValueError(message)
        settings = dataclasses.replace(saved.settings, **given)
        if saved.progress["step"] >= settings.steps:
            raise ValueError(f"{folder} has had its {settings.steps} updates; give more --steps")
    strategy = devices.make_strategy(settings.strategy)
    with devices.running_out_of_memory(LESS), devices.losing_workers(strategy, AGAIN), strategy.scope():
        devices.check_same(strategy, settings=settings, corpus=corpus, save=saved and saved.progress)
        trainer = _trainer(args, source, settings, strategy)
    model = trainer.model
    if isinstance(source, HParams):
        model.vocabulary = os.path.abspath(folder)
    else:  # of a model without hparams.json the size was not known before
        source.check_vocabulary(enc, model.hparams.n_vocab)
    log.info(
        "%s parameters; training takes about %.1f GB of memory",
        f"{parameter_count(model.hparams):,}",
        training_bytes(model.hparams, settings) / 1e9,
    )
    return Run(
        trainer,
        tokens,
        folder,
        corpus=corpus,
        end_of_text=enc.encoder[encoder.END_OF_TEXT],
        saved=saved,
        chief=chief,
    )


def _trainer(args, source, settings, strategy):
    from gpt2tf import layers
    from gpt2tf.checkpoint import load_model
    from gpt2tf.train.update import Trainer

    options = {
        "dropout": settings.dropout,
        "recompute": settings.recompute,
        "dtype": "mixed_bfloat16" if settings.dtype == "bfloat16" else "float32",
    }
    if isinstance(source, HParams):
        start = functools.partial(layers.initial_value, seed=settings.seed)
        model = layers.GPT2(source, initial_value=start, **options)
    elif args.resume:
        model = load_model(source.prefix, **options)
    else:
        model = source.load(lambda prefix: load_model(prefix, **options))
    return Trainer(model, settings, strategy)


def _train(training, stopping, enc) -> None:
    """Train, and print what comes of it."""
    from gpt2tf import devices

    settings, losses, show = training.settings, [], _Lines().show
    disable = None if training.chief else True
    bar = tqdm(total=settings.steps, initial=training.step, unit=" updates", disable=disable)
    with devices.running_out_of_memory(LESS), devices.losing_workers(training.trainer.strategy, AGAIN), bar:
        for report in training.reports(stopping):
            losses.append(report.loss)
            bar.set_postfix(loss=f"{report.loss:.3f}", refresh=False)
            bar.update()
            last = report.step == settings.steps
            if training.chief and (report.validation is not None or last or report.step % LINE_EVERY == 0):
                line = f"step {report.step}  loss {sum(losses) / len(losses):.4f}"
                if report.validation is not None:
                    line += f"  validation {report.validation:.4f}"
                line += f"  {report.tokens_per_s:,.0f} tokens/s  {tqdm.format_interval(report.seconds_left)} left"
                show(line)
                losses = []
            if report.sample is not None:
                show("=" * 40 + f" SAMPLE AT STEP {report.step} " + "=" * 40)
                show(enc.decode(report.sample))


class _Lines:
    """Lines to stdout, while it takes them. What a run is for is its folder, so it goes on without them."""

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
            if sys.stdout.writable():
                with open(os.devnull, "w") as null:  # for what is still in its buffer
                    os.dup2(null.fileno(), sys.stdout.fileno())
