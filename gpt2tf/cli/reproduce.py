"""`gpt2tf reproduce`: the paper's samples, summaries, translations and answers, in files that a run can go on with."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from gpt2tf import checks
from gpt2tf.cli import flags
from gpt2tf.cli.process import Parser, UsageError, interruptible, silence_tensorflow
from gpt2tf.locate import ModelFiles
from gpt2tf.paper import metrics, prompting
from gpt2tf.paper.rows import digest, growing, read_rows
from gpt2tf.paper.samples import FORMATS, PUBLISHED, SETTINGS, SampleSet, read_contexts

log = logging.getLogger(__name__)


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = "Make the samples, summaries, translations and answers of the paper, each with its settings."
    what = parser.add_subparsers(metavar="what", required=True, parser_class=Parser)
    samples = what.add_parser("samples", help="one of the six published sets of samples")
    samples.description = "Make a set of samples as they were published, or a part of one."
    samples.add_argument("--setting", choices=SETTINGS, default="default", help="t07 is temperature 0.7 (%(default)s)")
    words = "JSON lines with texts to begin the samples with, four to each; without, they are unconditional"
    samples.add_argument("--contexts", type=flags.some, metavar="FILE", help=words)
    nsamples = flags.number(int, lambda value: checks.at_least(1, checks.MAX_INT32)("nsamples", value))
    samples.add_argument("--nsamples", type=nsamples, default=PUBLISHED, help="samples in the set (%(default)s)")
    words = "make part K, from 1 to N, of the set; the files of all parts, in order, are that of the set (%(default)s)"
    samples.add_argument("--shard", type=flags.shard, default="1/1", metavar="K/N", help=words)
    words = "as in gpt-2-samples, or as in gpt-2-output-dataset (%(default)s)"
    samples.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=words)
    _shared_flags(samples, run_samples)
    summaries = what.add_parser("summaries", help="articles and TL;DR:")
    _task_flags(summaries, "article and highlights", lambda args: prompting.summaries(not args.no_hint))
    summaries.add_argument("--no_hint", action="store_true", help="leave TL;DR: out, to see what it does")
    translations = what.add_parser("translations", help="English and French, by example pairs")
    _task_flags(translations, "en and fr", _translations)
    translations.add_argument("--direction", choices=["en-fr", "fr-en"], default="en-fr", help="(%(default)s)")
    words = "such lines, to stand in the prompts"
    translations.add_argument("--examples", type=flags.some, metavar="FILE", required=True, help=words)
    answers = what.add_parser("answers", help="questions, by example answers")
    _task_flags(answers, "question and answer, and context if they have one", _answers)
    answers.add_argument("--examples", type=flags.some, metavar="FILE", help=words)


def _task_flags(parser, fields: str, make_task) -> None:
    parser.description = f"Ask a model by prompts, and score what it says. DATA is JSON lines with {fields}."
    parser.add_argument("--data", type=flags.some, required=True, metavar="DATA", help="the file of rows")
    limit = flags.number(int, lambda value: checks.at_least(1)("limit", value))
    parser.add_argument("--limit", type=limit, metavar="N", help="use the first N rows of them (all)")
    parser.add_argument("--json", action="store_true", help="print the scores as one JSON object")
    _shared_flags(parser, run_task)
    parser.set_defaults(make_task=make_task)


def _shared_flags(parser, run) -> None:
    words = "a folder in models_dir, or the path of any model (%(default)s)"
    parser.add_argument("--model_name", type=flags.some, default="124M", help=words)
    flags.models_dir(parser)
    words = "the file to write, or to go on with where such a run was ended"
    parser.add_argument("--output", type=flags.some, metavar="FILE", required=True, help=words)
    seed = flags.number(int, checks.check_seed)
    parser.add_argument("--seed", type=seed, default=0, help="the same seed gives the same file (%(default)s)")
    batch_size = flags.number(int, checks.check_batch_size)
    words = "rows made at a time, which changes their text (%(default)s)"
    parser.add_argument("--batch_size", type=batch_size, default=8, help=words)
    words = "of the weights (%(default)s)"
    parser.add_argument("--dtype", choices=checks.DTYPES, default=checks.DTYPES[0], help=words)
    flags.device(parser)
    parser.set_defaults(run=run, prog=parser.prog)


def _translations(args) -> prompting.Task:
    return prompting.translations(read_rows(args.examples, prompting.PAIRS), args.direction)


def _answers(args) -> prompting.Task:
    return prompting.answers(read_rows(args.examples, prompting.QUESTIONS) if args.examples else [])


def run_samples(args) -> None:
    """Make samples; args are the parsed flags."""
    model = _Model(args)
    n_ctx, contexts = model.hparams.n_ctx, None
    if args.contexts is not None:
        contexts = read_contexts(args.contexts, args.nsamples, n_ctx, model.enc)
    samples = SampleSet(args.setting, args.nsamples, args.batch_size, args.seed, args.format, contexts)
    n_prompt = max(map(len, contexts)) if contexts else 1
    model.write(samples, samples.batches(*args.shard), (n_prompt, samples.length(n_ctx)), {"shard": args.shard})


def run_task(args) -> None:
    """Ask, and print the scores; args are the parsed flags."""
    task = args.make_task(args)
    if task.package:
        metrics.require(task.package)
    rows = read_rows(args.data, task.fields, args.limit)
    model = _Model(args)
    prompted = prompting.Prompted(task, rows, args.batch_size, args.seed)
    n_prompt = prompted.check(model.enc, model.hparams.n_ctx)
    model.write(prompted, prompted.batches(), (n_prompt, task.length), {})
    results = prompted.results(args.output)
    if args.json:
        print(json.dumps(results))
        return
    print(f"{task.name}, {results['rows']:,} rows; in brackets the paper's, of its largest model, on its own data")
    for name, score in results["scores"].items():
        print(f"{name:<12}{score:6.2f}  ({results['paper'][name]})")
    for assumed in results["assumed"]:
        print(f"assumed: {assumed}")


class _Model:
    """The model that is asked for: its files, and, once it is loaded, its Generator."""

    def __init__(self, args):
        self.args, self.generator = args, None
        self.files = ModelFiles.find(args.model_name, args.models_dir)
        self.hparams = self.files.hparams
        if self.hparams is None:  # the sizes are to be read off the weights
            self.load(None)
            self.hparams = self.generator.hparams
        self.enc = self.files.encoder(self.hparams.n_vocab)

    def load(self, first: tuple[int, int, int] | None) -> None:
        if self.generator is None:
            silence_tensorflow()
            self.generator = interruptible(_load, self.files, self.args, first)

    def write(self, work, batches: range, sizes: tuple[int, int], settings: dict) -> None:
        """Write the batches of work, a SampleSet or Prompted, that --output does not have yet.

        sizes: tokens of a prompt and of what is generated. settings: what decides the file beside work and model.
        """
        from tqdm import tqdm

        args, (n_prompt, length) = self.args, sizes
        past = 2 * self.hparams.n_layer * self.hparams.n_embd * (n_prompt + length)
        try:
            checks.check_memory(args.batch_size, 4 * (past + self.hparams.n_vocab))
        except ValueError as error:
            raise UsageError(str(error)) from None
        model = {"model_name": args.model_name, "checkpoint": _checkpoint(self.files), "dtype": args.dtype}
        settings = {**model, **work.settings(), **settings}
        with _output(args.output, settings) as file:
            left = batches[file.parts :]
            if not left:
                log.info("%s has all there is to make", args.output)
                return
            self.load((args.batch_size, n_prompt, length))
            from gpt2tf.devices import running_out_of_memory

            bar = tqdm(total=len(batches), initial=file.parts, unit=" batches", disable=None)
            with bar, running_out_of_memory("give a smaller --batch_size"):
                parts = work.made(self.generator, self.enc, left)
                while (part := interruptible(next, parts, None)) is not None:
                    file.append(part)
                    bar.update()


def _checkpoint(files: ModelFiles) -> str | None:
    """A hash of the checkpoint's index, which has a checksum of each tensor; None where a model has no index."""
    index = Path(f"{files.prefix}.index")
    return digest(index.read_bytes().hex()) if index.exists() else None


@contextlib.contextmanager
def _output(path: str, settings: dict):
    """As `growing`, but what is wrong with the path is bad usage."""
    try:
        with growing(path, settings) as file:
            yield file
    except FileExistsError as error:
        raise UsageError(str(error)) from None


def _load(files: ModelFiles, args, first):
    from gpt2tf.devices import use_device  # Keras takes a while too, and Ctrl-C is not to wait for it
    from gpt2tf.generate import Generator

    use_device(args.device, args.tf32)
    return files.load(lambda prefix: Generator(prefix, args.dtype, first=first))
