"""`gpt2tf sample`: prompts in, one stream of samples, printers out.

Mirrors the loops and the printing of openai/gpt-2 src/generate_unconditional_samples.py:56-77 and
src/interactive_conditional_samples.py:56-88, the two in one. Differences: exactly nsamples samples,
numbered from 1, whatever the batch size; a prompt may come from a flag or a file; bytes that are not
UTF-8 are replaced, not fatal; a prompt that does not fit is refused in words.
"""

from __future__ import annotations

import bisect
import codecs
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from gpt2tf import checks
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.cli.terminal import asked_prompts
from gpt2tf.files import clean, opened
from gpt2tf.locate import ModelFiles
from gpt2tf.paper.samples import heading
from gpt2tf.train.reader import read_text

STREAMED_CHUNK = 8  # tokens between two looks at what has come, where somebody watches
CHUNK = 32  # and where only --stop may end a batch early
IN_JSON = ("seed", "model_name", "dtype", "length", "temperature", "top_k", "top_p", "batch_size", "stop", "truncate")

log = logging.getLogger(__name__)


def add_flags(parser) -> None:
    """The flags of the command."""

    def number(name, convert, check, default, words):
        words += "" if default is None else " (%(default)s)"
        parser.add_argument(name, type=flags.number(convert, check), default=default, help=words)

    def choice(name, choices, words):
        parser.add_argument(name, choices=choices, default=choices[0], help=words + " (%(default)s)")

    parser.description = "Print samples from a model: unconditional ones, or continuations of a prompt."
    words = "a folder in models_dir, or the path of any model (%(default)s)"
    parser.add_argument("--model_name", type=flags.some, default="124M", help=words)
    flags.models_dir(parser)
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", metavar="TEXT", help="text to continue")
    words = "file with the text to continue, less its last newline; - is stdin"
    prompts.add_argument("--prompt_file", type=flags.some, metavar="FILE", help=words)
    prompts.add_argument("--interactive", action="store_true", help="ask for prompts, or answer piped lines one by one")
    number("--seed", int, checks.check_seed, None, "the same seed gives the same text (a fresh one)")
    number("--nsamples", int, checks.check_nsamples, 1, "samples for each prompt; 0 goes on forever")
    number("--batch_size", int, checks.check_batch_size, 1, "samples made at a time, which changes their text")
    number("--length", int, checks.check_length, None, "tokens in a sample (the window; half of it with a prompt)")
    words = "divides the logits: 0 takes the likeliest token; 1 and 1.0 draw differently"
    number("--temperature", flags.int_or_float, checks.check_temperature, 1, words)
    number("--top_k", int, checks.check_top_k, 0, "sample from the k likeliest tokens; 0 is off")
    words = "sample from the likeliest tokens whose probabilities sum to at most p; 1 is off"
    number("--top_p", float, checks.check_top_p, 1, words)
    choice("--dtype", checks.DTYPES, "of the weights: all but float32 are faster and give other text")
    flags.device(parser)
    choice("--strategy", ["one", "mirrored"], "mirrored: on all GPUs at once")
    words = "make part K, from 1 to N, of the samples; N such runs together print what one does (%(default)s)"
    parser.add_argument("--shard", type=flags.shard, default="1/1", metavar="K/N", help=words)
    parser.add_argument("--stop", type=flags.some, metavar="TEXT", help="end a sample before this text")
    parser.add_argument("--truncate", action="store_true", help="end a sample before <|endoftext|>")
    parser.add_argument("--include_prefix", action="store_true", help="print the prompt before its continuation")
    choice("--format", list(PRINTERS), "jsonl is one object a line, with the tokens, the seed and the flags")
    words = "write the samples to this file, as UTF-8, once they are all made"
    parser.add_argument("--output", type=flags.some, metavar="FILE", help=words)
    flags.html(parser)
    parser.set_defaults(run=run, prog=parser.prog)


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    if args.interactive and args.nsamples == 0:
        raise UsageError("--nsamples 0 goes on forever and would never ask again; give 1 or more with --interactive")
    if args.interactive and args.shard != (1, 1):
        raise UsageError("--shard is a part of the samples of one prompt; give --prompt in place of --interactive")
    if args.seed is None and args.shard != (1, 1):
        raise UsageError("--shard needs a --seed, the same for all parts; without one each would draw its own")
    if args.html and args.nsamples == 0:
        raise UsageError("--nsamples 0 goes on forever and --html waits for the last sample; give --nsamples 1 or more")
    flags.refuse_same(args.prompt_file, args.output, args.html)
    session = Session(args)
    with flags.opened_page(args) as page:
        _sample(session, args)
        if page:
            session.write_page(page)


def _sample(session: Session, args) -> None:
    if args.interactive:
        with opened(args.output, sys.stdout) as out:
            session.load()
            for prompt in asked_prompts():
                try:
                    context = session.context(prompt)
                except UsageError as error:
                    log.info("%s", error)
                else:
                    session.print_samples(prompt, context, out)
    else:
        prompt = _given_prompt(args)
        context = session.context(prompt)
        with opened(args.output, sys.stdout) as out:
            if session.batches:
                session.load(len(context))
                session.print_samples(prompt, context, out)


class Session:
    """One run of the command: the flags, the model, and how far its random stream has come."""

    def __init__(self, args):
        from gpt2tf import encoder

        self.args = args  # what they leave open is filled in: length here, seed before the first sample
        self.files = ModelFiles.find(args.model_name, args.models_dir)
        self.generators = []  # one for each device
        self.hparams = self.files.hparams
        if self.hparams is None:  # the sizes are to be read off the weights
            self.load()
            self.hparams = self.generators[0].hparams
        self.enc = self.files.encoder(self.hparams.n_vocab)
        self.end_of_text = self.enc.encoder[encoder.END_OF_TEXT]
        self.conditional = args.interactive or args.prompt is not None or args.prompt_file is not None
        if args.length is None:
            args.length = self.hparams.n_ctx // 2 if self.conditional else self.hparams.n_ctx
        args.stop = args.stop and clean(args.stop)
        # Whoever asked is shown the words as they come; a file or another program gets whole samples.
        self.streamed = args.interactive and args.batch_size == 1 and args.format == "text" and args.output is None
        self.streamed = self.streamed and args.strategy == "one"
        self.nsamples = args.nsamples or sys.maxsize  # to which no run comes
        part, parts = args.shard
        # The numbers, from 0, of those that are made here for each prompt; a shard of few samples may get none.
        self.batches = range(part - 1, -(-self.nsamples // args.batch_size), parts)
        self.runs = 0  # batches of the prompts before; the random stream goes on from prompt to prompt
        self.shown: list[tuple[str, list[int]]] = []  # the heading and the tokens of each sample for a page

    def load(self, n_prompt: int | None = None) -> None:
        """Load the model if it is not there yet. n_prompt: tokens of the first prompt, if that is known."""
        if not self.generators:
            silence_tensorflow()
            first = n_prompt and (self.args.batch_size, n_prompt, self.args.length)
            self.generators = interruptible(_load, self.files, self.args, first)

    def context(self, prompt: str | None) -> list[int]:
        """The tokens of a prompt, or the start token for None. Raises UsageError for what does not fit."""
        tokens = [self.end_of_text] if prompt is None else self.enc.encode(prompt)
        if prompt is not None and prompt.endswith(" "):
            log.info("note: the prompt ends in a space, which usually makes worse text")
        # The past and the logits of one sample, in float32, without which no way of sampling does.
        past = 2 * self.hparams.n_layer * self.hparams.n_embd * (len(tokens) + self.args.length)
        try:
            checks.check_window(self.hparams.n_ctx, len(tokens), self.args.length)
            checks.check_memory(self.args.batch_size, 4 * (past + self.hparams.n_vocab))
        except ValueError as error:
            raise UsageError(str(error)) from None
        return tokens

    def print_samples(self, prompt: str | None, context: list[int], out) -> None:
        """Print the samples of a prompt to the file `out`, each as soon as it is done."""
        from tqdm import tqdm

        from gpt2tf.noise import fresh_seed

        args = self.args
        if args.seed is None:
            args.seed = fresh_seed()
            log.info("seed %d", args.seed)
        beyond = (self.batches[-1] + 1) * args.batch_size - self.nsamples  # in the last batch
        total = len(self.batches) * args.batch_size - max(beyond, 0) if args.nsamples else None
        # On a terminal the samples themselves show the progress; elsewhere a bar does, on stderr if that is one.
        hidden = True if out.isatty() or args.output == os.devnull else None
        with tqdm(total=total, unit=" samples", disable=hidden) as bar:
            PRINTERS[args.format](self._counted(context, bar), args, prompt, out)

    def _counted(self, context, bar):
        for sample in self.samples(context):
            yield sample
            bar.update(sample.done)
            if self.args.html and sample.done:
                prompt = context if self.conditional else []  # shown too, if somebody has given it
                self.shown.append((f"Sample {sample.number}", [*prompt, *sample.tokens]))

    def write_page(self, page) -> None:
        """Write the page of the samples to an open file; it scores them, by the weights that made them."""
        from gpt2tf.cli.score import SHOWN, load, page_of

        scorer, enc = interruptible(load, self.files, self.args)
        rows = [tokens for _, tokens in self.shown]
        scores = interruptible(list, scorer.score(rows, start=not self.conditional, alternatives=SHOWN))
        texts = [(*text, score) for text, score in zip(self.shown, scores, strict=True)]
        page.write(page_of(f"Samples of {self.args.model_name}", texts, enc))

    def samples(self, context: list[int]) -> Iterator[Sample]:
        """Yields the samples of a prompt in order: each when it is done, and before that as it grows if streamed."""
        if len(self.generators) == 1:
            for batch in self.batches:
                yield from self._batch(context, self.generators[0], batch)
        else:
            pool, batches = ThreadPoolExecutor(len(self.generators)), iter(self.batches)
            while turn := list(itertools.islice(batches, len(self.generators))):
                made = pool.map(lambda *work: list(self._batch(context, *work)), self.generators, turn)
                yield from itertools.chain.from_iterable(made)
        self.runs += len(self.batches)

    def _batch(self, context: list[int], generator, batch: int) -> Iterator[Sample]:
        """As `samples`, of one batch."""
        from gpt2tf.devices import running_out_of_memory
        from gpt2tf.noise import RandomStream

        args, size = self.args, self.args.batch_size
        end = self.end_of_text if args.truncate else None
        chunk = STREAMED_CHUNK if self.streamed else CHUNK if args.stop else max(args.length, 1)
        stream = RandomStream(args.seed, self.hparams.n_layer, self.conditional, args.temperature, args.top_k)
        noise = stream.noise(args.length, size, self.runs + batch)
        options = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "noise": noise}
        pieces = generator.stream([context] * size, args.length, stop=end, chunk=chunk, **options)
        samples = [Sample(batch * size + row, self.enc, end, args.stop) for row in range(1, size + 1)]
        with running_out_of_memory("give a smaller --batch_size or --length"):
            while not all(sample.done for sample in samples):
                if self.streamed:
                    yield from samples
                piece = interruptible(next, pieces, None)
                for row, sample in enumerate(samples):
                    sample.add([] if piece is None else piece[row].tolist(), last=piece is None)
        # The last batch is made whole, so that a sample does not depend on how many are asked for.
        yield from (sample for sample in samples if sample.number <= self.nsamples)


class Sample:
    """One sample as it grows: its number, from 1, its tokens, its text, and whether it is done.

    It ends before the token `end` and before the text `stop`, where they are given; its tokens are then the fewest
    that spell its text. Each token is decoded once. The text lacks what is not certain yet: a character of which bytes
    are to come, and what may be the start of `stop`.
    """

    def __init__(self, number: int, enc, end: int | None = None, stop: str | None = None):
        self.number, self.tokens, self.text, self.done = number, [], "", False
        self._enc, self._end, self._stop = enc, end, stop or ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(enc.errors)
        self._waiting = ""  # what may be the start of stop

    def add(self, tokens: list[int], last: bool = False) -> None:
        """Take the next tokens; last: there will be no more. Those behind the end do not matter."""
        if self.done:
            return
        if self._end in tokens:
            tokens, last = tokens[: tokens.index(self._end)], True
        self.tokens += tokens
        text, stop = self._waiting + self._decoder.decode(self._enc.decode_bytes(tokens), last), self._stop
        if stop and stop in text:
            self.text += text[: text.index(stop)]
            fewest = bisect.bisect_left(
                range(len(self.tokens)), True, key=lambda n: self._enc.decode(self.tokens[:n]).startswith(self.text)
            )
            self.tokens, self.done = self.tokens[:fewest], True
        else:
            held = 0 if last else max((n for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
            sure = len(text) - held
            self.text += text[:sure]
            self._waiting, self.done = text[sure:], last


def print_text(samples: Iterator[Sample], args, prompt: str | None, out) -> None:
    """Print samples as the original did, what a sample has grown by each time it comes."""
    prefix = (args.include_prefix and prompt) or ""
    number = printed = 0  # of the sample that came last, and how much of its text
    for sample in samples:
        text = sample.text[printed:]
        if sample.number != number:
            text = heading("SAMPLE", sample.number) + prefix + sample.text
        print(text, end="\n" if sample.done else "", file=out, flush=True)
        number, printed = sample.number, len(sample.text)
    if prompt is not None:
        print("=" * 80, file=out, flush=True)


def print_json(samples: Iterator[Sample], args, prompt: str | None, out) -> None:
    """Print samples as one object a line, with what repeats them."""
    prefix, settings = (args.include_prefix and prompt) or "", {name: getattr(args, name) for name in IN_JSON}
    for sample in samples:
        if sample.done:
            record = {"sample": sample.number, "prompt": prompt, "text": prefix + sample.text, "tokens": sample.tokens}
            print(json.dumps(record | settings), file=out, flush=True)


PRINTERS = {"text": print_text, "jsonl": print_json}


def _load(files: ModelFiles, args, first) -> list:
    """A Generator, or with mirrored one for each device. first: as Generator's."""
    from gpt2tf.devices import all_devices, use_device  # Keras takes a while too, and Ctrl-C is not to wait for it
    from gpt2tf.generate import Generator

    def load_on_all(prefix):
        generators, notes = [], logging.getLogger("gpt2tf.checkpoint")
        try:
            for device in all_devices():
                generators.append(Generator(prefix, args.dtype, device=device))
                notes.disabled = True  # the next would say the same again
        finally:
            notes.disabled = False
        log.info("sampling on %d devices", len(generators))
        return generators

    use_device(args.device, args.tf32)
    if args.strategy == "mirrored":
        return files.load(load_on_all)
    return files.load(lambda prefix: [Generator(prefix, args.dtype, first=first)])


def _given_prompt(args) -> str | None:
    """The text of --prompt or --prompt_file, or None without either."""
    if args.prompt_file is None:
        prompt = args.prompt and clean(args.prompt)
    else:
        if args.prompt_file == "-":
            text = read_text(sys.stdin.buffer, "stdin") if sys.stdin else ""
        else:
            with open(args.prompt_file, "rb") as file:
                text = read_text(file, args.prompt_file)
        prompt = text.removesuffix("\n")
    if prompt == "":
        raise UsageError("the prompt is empty; leave it out to sample without one")
    return prompt
