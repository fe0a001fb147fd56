"""`gpt2tf evaluate`: the columns of the paper's Table 3, HellaSwag, and any text."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys

from gpt2tf import checks
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.cli.score import load
from gpt2tf.files import locked, naming, replacing
from gpt2tf.locate import ModelFiles
from gpt2tf.paper import data as published
from gpt2tf.paper import report
from gpt2tf.paper.evaluate import Journal, Model, Result, Settings, evaluate, limited, make_setup, make_task

ALL = "all"

log = logging.getLogger(__name__)


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = (
        "Measure a model on a published set, or on a text, with all conventions beside the numbers and the paper's."
    )
    flag = parser.add_argument
    tasks = [*published.SOURCES, ALL]
    flag("task", metavar="TASK", choices=tasks, help=f"one of {', '.join(tasks)}; {ALL} makes the paper's whole row")
    words = "the published file, or a folder that has it; for all a folder"
    flag("--data", type=flags.some, required=True, metavar="PATH", help=words)
    words = "a folder in models_dir, or the path of any model (%(default)s)"
    flag("--model_name", type=flags.some, default="124M", help=words)
    flags.models_dir(parser)
    flag("--dtype", choices=checks.SCORING_DTYPES, default="float32", help="of the matrices (%(default)s)")
    flags.device(parser)
    words = "tokens from one window to the next; the fewer, the slower and the more context (half of the window)"
    flag("--stride", type=flags.number(int, functools.partial(checks.at_least(1), "stride")), metavar="N", help=words)
    words = "take only the first N items: passages, questions, lines, thousands of bytes; the output says so"
    flag("--limit", type=flags.number(int, functools.partial(checks.at_least(1), "limit")), metavar="N", help=words)
    words = "folder for results and for what is done so far: the same command goes on after Ctrl-C"
    flag("--output", type=flags.some, metavar="DIR", help=words)
    flag("--json", action="store_true", help="print JSON")
    words = "fetch OpenAI's lambada_test.jsonl into the folder --data if it is not there; no other set can be fetched"
    flag("--download", action="store_true", help=words)
    parser.set_defaults(run=run, prog=parser.prog)


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    paths, missing = _files(args)
    sets = {task: published.read(task, path) for task, path in paths.items()}
    files = ModelFiles.find(args.model_name, args.models_dir)
    if args.stride and files.hparams and args.stride >= files.hparams.n_ctx:
        raise UsageError(f"stride is {args.stride}; it must be from 1 to {files.hparams.n_ctx - 1}, below the window")
    if args.output:
        os.makedirs(args.output, exist_ok=True)

    def busy():
        raise ValueError(f"another process writes to {args.output}; name another folder with --output")

    with locked(args.output, busy) if args.output else contextlib.nullcontext():
        journals = _journals(args, sets, files) if args.output else {}
        silence_tensorflow()
        evaluation = interruptible(Evaluation, args, files, journals)
        results = []
        for task, data in sets.items():
            results.append(evaluation.result(task, data))
            if not args.json:
                _print(report.as_text(results[-1]) + "\n")
        if args.task == ALL:
            evaluation.write_row(results, missing)
        elif args.json:
            _print(json.dumps(results[0].as_json(), indent=1) + "\n")


def _print(text: str) -> None:
    with naming("stdout"):
        sys.stdout.write(text)
        sys.stdout.flush()


def _files(args) -> tuple[dict[str, str], list[str]]:
    """({task: its file}, the tasks without one)"""
    tasks = [task for task, source in published.SOURCES.items() if source.files] if args.task == ALL else [args.task]
    if args.download:
        if "lambada" not in tasks:
            raise UsageError(f"--download fetches lambada_test.jsonl alone, and {args.task} takes another file")
        if os.path.exists(args.data) and not os.path.isdir(args.data):
            raise UsageError(f"{args.data} is there already; give the folder for lambada_test.jsonl as --data")
        from gpt2tf import download

        if not os.path.exists(os.path.join(args.data, download.LAMBADA)):
            download.download_lambada(args.data)
    if args.task != ALL:
        return {args.task: published.find(args.task, args.data)}, []
    if not os.path.isdir(args.data):
        raise UsageError(f"{args.data} is no folder; all takes a folder with the published files")
    found = {}
    for task in tasks:
        with contextlib.suppress(FileNotFoundError):
            found[task] = published.find(task, args.data)
    if not found:
        names = ", ".join(os.path.basename(published.SOURCES[task].files[0]) for task in tasks)
        raise FileNotFoundError(f"{args.data} has none of the published files: {names}")
    missing = [task for task in tasks if task not in found]
    if missing:
        log.info("no file in %s for %s", args.data, ", ".join(missing))
    return found, missing


def _journals(args, sets: dict[str, published.Data], files: ModelFiles) -> dict[str, Journal]:
    """The journal of each task in --output. Raises ValueError where there is one of something else."""
    depends = {"model": files.fingerprint(), "tf32": args.tf32}
    depends |= Settings(args.dtype, args.stride, args.limit)._asdict()
    return {
        task: Journal(
            os.path.join(args.output, f"{task}.journal"),
            {"task": task, "data": data.sha256, **depends},
        )
        for task, data in sets.items()
    }


class Evaluation:
    """A model that is evaluated on one task or several, with the flags of the command."""

    def __init__(self, args, files: ModelFiles, journals: dict[str, Journal]):
        self.args, self.journals = args, journals
        self.scorer, enc = load(files, args)
        self.setup = make_setup(enc, self.scorer.hparams, args.stride)

    def result(self, task: str, data: published.Data) -> Result:
        """The result of a task; what is done of it stays in --output if Ctrl-C comes."""
        from tqdm import tqdm

        data, part = limited(data, self.args.limit)
        made = make_task(task, data, self.setup)
        journal = self.journals.get(task)
        if journal and journal.records:
            log.info("%d of %d items are in %s already", len(journal.records), len(made.items), journal.path)
        try:
            with tqdm(desc=task, total=len(made.items), unit=" items", disable=None) as bar:
                figures = evaluate(made, self.scorer, journal, bar.update)
        except KeyboardInterrupt:
            if journal:
                kept = f"{len(journal.records)} of {len(made.items)} items of {task} are kept in {journal.path}"
                log.info("%s; run the same command again to go on", kept)
            else:
                log.info("nothing is kept of %s; with --output DIR the same command goes on where it stopped", task)
            raise
        settings = Settings(self.args.dtype, self.setup.stride, self.args.limit)
        model = Model(self.args.model_name, self.scorer.hparams)
        result = Result(task, model, data, part, settings, figures, made.conventions)
        self._write(f"{task}.json", json.dumps(result.as_json(), indent=1))
        return result

    def write_row(self, results: list, missing: list[str]) -> None:
        """Print the row, and write it as text, JSON and a page."""
        from gpt2tf.paper.page import document

        row = report.row_as_text(results, missing)
        whole = json.dumps({"missing": missing, "results": [result.as_json() for result in results]}, indent=1)
        _print(whole + "\n" if self.args.json else row)
        self._write("row.txt", row + "\n" + "\n".join(map(report.as_text, results)))
        self._write("row.json", whole)
        title = f"Table 3 by {self.args.model_name}"
        self._write("row.html", document(title, report.as_page_body(results, missing)))

    def _write(self, name: str, text: str) -> None:
        if self.args.output:
            with replacing(os.path.join(self.args.output, name)) as file:
                file.write(text.encode(errors="replace"))  # names of files may hold what is not UTF-8
