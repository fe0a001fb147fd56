"""`gpt2tf benchmark`: the flags, and the figures of `bench` as a table or as JSON."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import platform
import shutil
import sys

from tqdm import tqdm

from gpt2tf import checks
from gpt2tf.bench.plan import ALL_CASES, PEERS, Case, Plan
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, silence_tensorflow
from gpt2tf.files import replacing
from gpt2tf.locate import ModelFiles

# Heading, width, and what of a row stands there.
COLUMNS = (
    ("engine", 12, lambda row: row.engine),
    ("dtype", 8, lambda row: row.dtype),
    ("batch", 5, lambda row: row.batch_size),
    ("prompt", 6, lambda row: row.prompt_length),
    ("length", 6, lambda row: row.length),
    ("first ms", 9, lambda row: _fixed(row.prompt_s, 1e-3)),
    ("prompt/s", 8, lambda row: _fixed(row.prompt_tokens_per_s)),
    ("tokens/s", 8, lambda row: _fixed(row.decode_tokens_per_s)),
    ("start s", 7, lambda row: _fixed(row.load_s + row.first_call_s)),
    ("peak GB", 7, lambda row: _fixed(row.peak_bytes, 1e9, 2)),
    ("MB/token", 8, lambda row: _fixed(row.bytes_per_token, 1e6)),
    ("GB/s", 6, lambda row: _fixed(row.bytes_per_s, 1e9)),
    ("%", 4, lambda row: _fixed(row.bandwidth_share, 0.01, 0)),
    ("GFLOP/s", 7, lambda row: _fixed(row.operations_per_s, 1e9)),
    ("%", 4, lambda row: _fixed(row.arithmetic_share, 0.01, 0)),
    ("prompt %", 8, lambda row: _fixed(row.prompt_arithmetic_share, 0.01, 0)),
    ("x first", 7, lambda row: _fixed(row.prompt_ratio, 1, 2)),
    ("x decode", 8, lambda row: _fixed(row.decode_ratio, 1, 2)),
)
LEGEND = """\
first ms: to the first new token; prompt/s: tokens of the prompt; tokens/s: made after the first; start s: with the
libraries imported, to the end of the first run, loading and compilation included; peak GB: of a process that does just
this; MB/token: what must be read; %: of what the machine was measured to do; x: gpt2tf's speed over the peer's.
Medians of {runs} runs in turns."""

TRAINING_COLUMNS = (
    ("engine", 12, lambda row: row.engine),
    ("batch", 5, lambda row: row.batch_size),
    ("window", 6, lambda row: row.window),
    ("first s", 8, lambda row: _fixed(row.first_call_s)),
    ("update s", 9, lambda row: _fixed(row.update_s, 1, 2)),
    ("tokens/s", 9, lambda row: _fixed(row.tokens_per_s)),
    ("GFLOP/s", 7, lambda row: _fixed(row.operations_per_s, 1e9)),
    ("%", 4, lambda row: _fixed(row.arithmetic_share, 0.01, 0)),
    ("x", 5, lambda row: _fixed(row.ratio, 1, 2)),
)
TRAINING_LEGEND = """\
first s: the first update, compilation included; %: of what the machine was measured to do; x: gpt2tf's speed over the
peer's. Medians of {runs} updates in turns."""


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = (
        "Measure the speed and memory of generation, and how far they are from what this machine allows."
    )
    flag = parser.add_argument
    flag("--model_name", type=flags.some, default="124M", help="a folder in models_dir, or the path of any model")
    flags.models_dir(parser)
    dtypes = f"some of {','.join(checks.DTYPES)} (float32)"
    flag("--dtype", type=_list(_one_of(checks.DTYPES)), default=["float32"], help=dtypes)
    flag("--batch_size", type=_list(flags.number(int, checks.check_batch_size)), default=[1], help="such as 1,8,32 (1)")
    flag("--prompt_length", type=flags.number(int, _check_positive), default=1, help="tokens in a prompt (%(default)s)")
    flag("--length", type=flags.number(int, _check_positive), default=128, help="tokens made in a run (%(default)s)")
    flag("--top_k", type=flags.number(int, checks.check_top_k), default=40, help="as in sample (%(default)s)")
    flag("--runs", type=flags.number(int, _check_positive), default=5, help="runs, after one to warm up (%(default)s)")
    whole = "instead: several dtypes and batches, a long prompt, late positions, and what reduced dtypes change"
    flag("--all", action="store_true", help=whole)
    update = "instead: an update of the weights, on batch_size windows of length tokens"
    flag("--train", action="store_true", help=update)
    programs = "instead: write the programs for a cpu or gpu, which need not be here: DIR/prefill.hlo and decode.hlo"
    flag("--lower", nargs=2, type=flags.some, metavar=("cpu|gpu", "DIR"), help=programs)
    flag("--peers", type=_list(_one_of(PEERS)), default=[], help=f"some of {','.join(PEERS)} to measure beside it")
    python = "the program that runs the peers, of any Python that has them (this one)"
    flag("--peer_python", type=_python, default=sys.executable, metavar="PATH", help=python)
    flag("--device", choices=checks.DEVICES, default="auto", help="auto takes a GPU if there is one")
    flag("--json", action="store_true", help="print one JSON object in place of the table")
    parser.set_defaults(run=run, prog=parser.prog)


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    files = ModelFiles.find(args.model_name, args.models_dir)
    prefix, n_ctx = files.prefix, files.hparams and files.hparams.n_ctx
    if args.lower:
        if args.lower[0] not in ("cpu", "gpu"):
            raise UsageError(f"--lower is for {args.lower[0]!r}; it must be cpu or gpu, and then a folder")
        if args.all or args.train or args.peers or args.json or len(args.dtype) > 1 or len(args.batch_size) > 1:
            raise UsageError("--lower is for one dtype and batch_size, without --all, --train, --peers, --json")
    if n_ctx and not args.all:
        try:
            checks.check_window(n_ctx, args.prompt_length, args.length)
        except ValueError as error:
            raise UsageError(str(error)) from None
    print(end="")  # raises where stdout is closed, before minutes are spent
    silence_tensorflow()
    for handler in logging.getLogger("gpt2tf").handlers:  # those of this run of the command
        handler.addFilter(lambda record: record.name != "gpt2tf.checkpoint")  # a model is loaded for each row
    import tensorflow as tf

    from gpt2tf import devices
    from gpt2tf.bench import machine, speed, training

    devices.use_device(args.device)
    if args.lower:
        return _lower(files, args, *args.lower)
    device = devices.platform().lower()
    plan = Plan(args.top_k, args.runs, device, tuple(args.peers), args.peer_python)
    limits = machine.measure_limits(device)
    report = {"model": args.model_name, "device": device, "cores": os.cpu_count(), "tensorflow": tf.__version__}
    report |= {"python": platform.python_version(), "load_average": _load_average()}
    report |= {"runs": args.runs, "top_k": args.top_k, "limits": dataclasses.asdict(limits)}
    if args.train:
        columns, legend = TRAINING_COLUMNS, TRAINING_LEGEND
        rows = training.measure_training(prefix, args.batch_size, args.length, limits, plan)
    else:
        columns, legend = COLUMNS, LEGEND
        rows = speed.measure(prefix, _cases(args, n_ctx), limits, plan)
    if not args.json:
        print(_heading(report, columns))
    with contextlib.closing(rows):  # ends the peers, also at Ctrl-C
        shown = tqdm(rows, unit=" rows", disable=_no_bar())
        report["rows"] = [_shown(row, columns, args.json) for row in shown]
    if args.all and not args.train:
        report |= _whole(speed, prefix, args)
    print(json.dumps(report, indent=2) if args.json else legend.format(runs=args.runs))


def _lower(files: ModelFiles, args, device: str, folder: str) -> None:
    """Write the programs of generation."""
    from gpt2tf.generate import Generator

    os.makedirs(folder, exist_ok=True)
    generator = files.load(lambda prefix: Generator(prefix, args.dtype[0], platform=device.upper()))
    programs = generator.lower(args.batch_size[0], args.prompt_length, args.length)
    if "prefill" not in programs and "prefill.hlo" in os.listdir(folder):  # of another case
        os.remove(os.path.join(folder, "prefill.hlo"))
    for name, text in programs.items():
        with replacing(os.path.join(folder, f"{name}.hlo")) as file:
            file.write(text.encode())


def _cases(args, n_ctx: int | None) -> list[Case]:
    """What --all stands for, as far as it fits the window, or what the other flags say."""
    if args.all:
        return [case for case in ALL_CASES if not n_ctx or case.prompt_length + case.length <= n_ctx + 1]
    sizes = [(dtype, batch_size) for batch_size in args.batch_size for dtype in args.dtype]
    return [Case(dtype, batch_size, args.prompt_length, args.length) for dtype, batch_size in sizes]


def _shown(row, columns, as_json: bool) -> dict:
    if not as_json:
        print(" ".join(_cell(value(row), width) for _, width, value in columns), flush=True)
    return dataclasses.asdict(row)


def _whole(speed, prefix, args) -> dict:
    """The figures that are not of a case: of a whole process, and of what reduced dtypes change."""
    figures = {
        "process_s": speed.process_seconds(prefix, runs=args.runs),
        "log_probability_difference": {
            dtype: speed.log_probability_difference(prefix, dtype) for dtype in checks.DTYPES if dtype != "float32"
        },
    }
    if not args.json:
        print(f"sample.py --length 20, the whole process: {figures['process_s']:.1f} s")
        for dtype, difference in figures["log_probability_difference"].items():
            print(f"{dtype}: the next token's log-probabilities differ from float32's by {difference:.4f} on average")
    return figures


def _heading(report, columns) -> str:
    speeds = report["limits"]
    machine = f"{speeds['bytes_per_s'] / 1e9:.1f} GB/s, {speeds['operations_per_s'] / 1e9:.0f} GFLOP/s"
    load = report["load_average"]
    return (
        f"{report['model']} on {report['device']}, {report['cores']} cores, TensorFlow {report['tensorflow']}; "
        f"the machine: {machine}" + (f"; load average {load:.1f}" if load is not None else "") + "\n\n"
    ) + " ".join(_cell(name, width) for name, width, _ in columns)


def _cell(value, width: int) -> str:
    """Words to the left, numbers to the right."""
    return f"{value:<{width}}" if width in (8, 12) and str(value)[:1].isalpha() else f"{value:>{width}}"


def _fixed(value, unit: float = 1, digits: int = 1) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def _no_bar() -> bool:
    """A bar would break up a table on the same terminal."""
    return not sys.stderr.isatty() or sys.stdout.isatty()


def _load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _list(convert):
    """An argparse type: values with commas between them."""
    return lambda text: [convert(part.strip()) for part in text.split(",")]


def _one_of(choices):
    def check(text):
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return check


def _python(text):
    path = shutil.which(os.path.expanduser(text))
    if path is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program; give the path of a Python that has the peers")
    return os.path.abspath(path)  # a peer runs in a folder of its own


def _check_positive(value):
    return checks.at_least(1)("it", value)
