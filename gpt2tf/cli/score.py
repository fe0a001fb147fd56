"""`gpt2tf score`: how likely a model finds a text, or each of many, one a line of JSON."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from gpt2tf import checks
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.files import clean, naming, opened
from gpt2tf.locate import ModelFiles
from gpt2tf.train.reader import PACKED, read_text, text_reader

if TYPE_CHECKING:
    from gpt2tf.paper.score import Score, Scorer

FORMATS = ("text", "jsonl")
SCORE = "score"  # the field of a line that gets the results
SHOWN = 5  # alternatives on a page


def add_flags(parser) -> None:
    """The flags of the command."""
    parser.description = "Print how likely a model finds a text, or add that to each line of a .jsonl file, as `score`."
    flag = parser.add_argument
    flag("file", type=flags.some, metavar="FILE", help="a text or .jsonl file, or .gz of either; - is stdin")
    words = "the model: a folder in models_dir, or the path of any model (%(default)s)"
    flag("--model_name", type=flags.some, default="124M", help=words)
    flags.models_dir(parser)
    words = "of the weights: bfloat16 is faster and rounds (%(default)s)"
    flag("--dtype", choices=checks.SCORING_DTYPES, default="float32", help=words)
    words = "tokens from one window to the next: more are faster and give less context (half of the window)"
    flag("--stride", type=flags.number(int, functools.partial(checks.at_least(1), "stride")), metavar="N", help=words)
    flag("--start", action="store_true", help="score the first token too, as what follows <|endoftext|>")
    words = "text is one text a file, jsonl one object with a text, or one string, a line (by the name of FILE)"
    flag("--format", choices=FORMATS, help=words)
    flag("--text_column", type=flags.some, default="text", metavar="NAME", help="of .jsonl (%(default)s)")
    flag("--output", type=flags.some, metavar="FILE", help="write the results to this file, at the end or by Ctrl-C")
    flags.html(parser)
    flags.device(parser)
    parser.set_defaults(run=run, prog=parser.prog)


class Item(NamedTuple):
    """What is to be scored."""

    record: dict | None  # of its line, None of a whole file
    tokens: list[int]


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    flags.refuse_same(args.file, args.output, args.html)
    files = ModelFiles.find(args.model_name, args.models_dir)
    if args.stride is not None and files.hparams is not None:
        try:
            checks.between(1, files.hparams.n_ctx - 1)("stride", args.stride)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if args.format is None:
        args.format = "jsonl" if args.file.lower().removesuffix(PACKED).endswith((".jsonl", ".ndjson")) else "text"
    if args.format == "jsonl" and args.text_column == SCORE:
        raise UsageError(f"the results take the place of a field {SCORE!r}; rename it, or the text would be lost")
    with contextlib.ExitStack() as stack:
        stream = _stdin() if args.file == "-" else stack.enter_context(open(args.file, "rb"))
        name = "stdin" if args.file == "-" else args.file
        texts = _lines(stream, name, args.text_column) if args.format == "jsonl" else _whole(stream, name)
        out = stack.enter_context(opened(args.output, sys.stdout))
        page = stack.enter_context(flags.opened_page(args))
        silence_tensorflow()
        scorer, enc = interruptible(load, files, args)
        shown = []
        for item, score in _scored(texts, scorer, enc, args, out):
            print(_report(item, score, enc), file=out, flush=True)
            if page:
                shown.append((f"Line {len(shown) + 1}" if args.format == "jsonl" else None, item.tokens, score))
        if page:
            page.write(page_of(name, shown, enc))


def load(files: ModelFiles, args) -> tuple[Scorer, object]:
    """The model, ready to score, and its encoder. args: has device, tf32 and dtype."""
    from gpt2tf.devices import use_device
    from gpt2tf.paper.score import Scorer

    use_device(args.device, args.tf32)
    scorer = files.load(lambda prefix: Scorer(prefix, args.dtype if args.dtype in checks.SCORING_DTYPES else "float32"))
    return scorer, files.encoder(scorer.hparams.n_vocab)


def page_of(title: str, texts, enc) -> str:
    """The page of scored texts. texts: (heading or None, tokens, score) of each"""
    from gpt2tf.paper.page import Text, scored_texts

    return scored_texts(title, [Text(*text) for text in texts], enc)


def _stdin() -> BinaryIO:
    return sys.stdin.buffer if sys.stdin else io.BytesIO()  # of one that is closed


def _whole(stream, name: str) -> Iterator[tuple[None, str]]:
    """The one text of a file. It is read at once, so that what is no text is refused before a model is loaded."""
    text = read_text(stream, name)
    if not text:
        raise ValueError(f"{name} is empty; there is no token to score")
    return iter([(None, text)])


def _lines(stream, name: str, text_column: str) -> Iterator[tuple[dict, str]]:
    """The object of each line, and its text; a string stands for an object with that text. Blank lines are left out."""
    with naming(name):
        lines = text_reader(stream, name, live=True)

    def read():
        with naming(name):
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _record(line, f"{name}, line {number},", text_column)

    return read()


def _record(line: str, place: str, text_column: str) -> tuple[dict, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    record = {text_column: record} if isinstance(record, str) else record
    if not isinstance(record, dict) or not isinstance(record.get(text_column), str):
        there = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{place} has no text {text_column!r} (there: {there[:200]}); name it by --text_column")
    return record, clean(record[text_column])


def _scored(texts, scorer: Scorer, enc, args, out) -> Iterator[tuple[Item, Score]]:
    """Each text with its score, as soon as that is there, and a progress bar."""
    from tqdm import tqdm

    waiting = collections.deque()

    def rows():
        for record, text in texts:
            waiting.append(Item(record, enc.encode(text)))
            if args.format == "text":
                bar.total = len(waiting[-1].tokens) - 1 + args.start
            yield waiting[-1].tokens

    hidden = True if args.format == "jsonl" and out.isatty() else None  # where the lines themselves show the progress
    with tqdm(unit=" tokens", disable=hidden) as bar:
        options = {"stride": args.stride, "start": args.start, "alternatives": SHOWN if args.html else 0}
        scores = scorer.score(rows(), progress=bar.update, **options)
        while (score := interruptible(next, scores, None)) is not None:
            yield waiting.popleft(), score


def _report(item: Item, score: Score, enc) -> str:
    """What is printed of a text."""
    from gpt2tf.paper.totals import Totals

    totals = Totals.of(item.tokens, score, enc)
    if item.record is not None:
        perplexity = totals.perplexity("tokens")
        found = {
            "tokens": totals.tokens,
            "log_probability": totals.log_probability,
            "mean_log_probability": totals.mean,
            "perplexity": None if perplexity == math.inf else perplexity,  # JSON has no infinity
            "bits_per_byte": totals.bits("bytes"),
        }
        return json.dumps(item.record | {SCORE: found})
    if not totals.tokens:
        raise ValueError(f"the text has {len(item.tokens)} tokens, none to be scored; --start scores the first")
    lines = [
        ("tokens scored", f"{totals.tokens:,}"),
        ("mean log-probability", f"{totals.mean:.4f}"),
        ("perplexity per token", _shown(totals.perplexity("tokens"), 2)),
        ("perplexity per word", _shown(totals.perplexity("words"), 2)),
        ("perplexity per byte", _shown(totals.perplexity("bytes"), 4)),
        ("bits per byte", _shown(totals.bits("bytes"), 4)),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in lines)


def _shown(number: float | None, digits: int) -> str:
    number = math.nan if number is None else number
    return f"{number:.3g}" if number >= 1e12 else f"{number:,.{digits}f}"
