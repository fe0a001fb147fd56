"""`gpt2tf sample`: prompts in, samples out.

Mirrors the loops and the printing of openai/gpt-2 src/generate_unconditional_samples.py:56-77 and
src/interactive_conditional_samples.py:56-88, the two in one. Differences: exactly nsamples samples,
numbered from 1, whatever the batch size; a prompt may come from a flag or a file; bytes that are not
UTF-8 are replaced, not fatal; a prompt that does not fit is refused in words.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections.abc import Iterator

from tqdm import tqdm

import encoder
from gpt2tf import checks, cluster
from gpt2tf.cli import flags
from gpt2tf.cli.process import UsageError, interruptible, silence_tensorflow
from gpt2tf.files import clean, naming, opened
from gpt2tf.locate import ModelFiles
from gpt2tf.train.settings import STRATEGIES

ASK = "Model prompt >>> "  # openai/gpt-2 src/interactive_conditional_samples.py:74
STREAMED_CHUNK = 8  # tokens between two looks at what has come, where somebody watches
CHUNK = 32  # and where only --stop may end a sample early
FLAGS_IN_JSON = ("model_name", "dtype", "length", "temperature", "top_k", "top_p", "batch_size", "stop", "truncate")

log = logging.getLogger(__name__)


def add_flags(parser) -> None:
    """The flags of the command."""
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
    parser.set_defaults(run=run, prog=parser.prog)


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


def run(args) -> None:
    """Run the command; args are the parsed flags."""
    if args.interactive and args.nsamples == 0:
        raise UsageError("--nsamples 0 goes on forever and would never ask again; give 1 or more with --interactive")
    if args.strategy == "multiworker":
        _be_one_of_several(args)
    session = Session(args)
    if args.interactive:
        with opened(args.output, sys.stdout) as out:
            session.load()
            for prompt in _asked_prompts():
                try:
                    session.print_samples(prompt, session.context(prompt), out)
                except UsageError as error:
                    log.info("%s", error)
    else:
        prompt = _given_prompt(args)
        context = session.context(prompt)
        with opened(args.output, sys.stdout) as out:
            session.load(len(context))
            session.print_samples(prompt, context, out)


class Session:
    """One run of the command: the flags, the model, and how far its random stream has come."""

    def __init__(self, args):
        self.args = args
        self.files = ModelFiles.find(args.model_name, args.models_dir)
        self.generator = None
        self.hparams = self.files.hparams
        if self.hparams is None:  # the sizes are to be read off the weights
            self.load()
            self.hparams = self.generator.hparams
        self.enc = self.files.vocabulary(self.hparams.n_vocab)
        self.end_of_text = self.enc.encoder[encoder.END_OF_TEXT]
        self.conditional = args.interactive or args.prompt is not None or args.prompt_file is not None
        default_length = self.hparams.n_ctx // 2 if self.conditional else self.hparams.n_ctx
        self.length = default_length if args.length is None else args.length
        self.stop = args.stop and clean(args.stop)
        self.seed = args.seed
        self.runs = 0  # batches sampled so far; the random stream goes on from prompt to prompt

    def load(self, n_prompt: int | None = None) -> None:
        """Load the model if it is not there yet. n_prompt: tokens of the first prompt, if that is known."""
        if self.generator is None:
            silence_tensorflow()
            first = n_prompt and (self.args.batch_size, n_prompt, self.length)
            self.generator = interruptible(_load, self.files, self.args, first)

    def context(self, prompt: str | None) -> list[int]:
        """The tokens of a prompt, or the start token for None. Raises UsageError for what does not fit."""
        tokens = [self.end_of_text] if prompt is None else self.enc.encode(prompt)
        if prompt is not None and prompt.endswith(" "):
            log.info("note: the prompt ends in a space, which usually makes worse text")
        try:
            checks.check_window(self.hparams.n_ctx, len(tokens), self.length)
            checks.check_memory(self.args.batch_size, self._row_bytes(len(tokens)))
        except ValueError as error:
            raise UsageError(str(error)) from None
        return tokens

    def _row_bytes(self, n_prompt: int) -> int:
        """The past and the logits of one sample, in float32, without which no way of sampling does."""
        past = 2 * self.hparams.n_layer * self.hparams.n_embd * (n_prompt + self.length)
        return 4 * (past + self.hparams.n_vocab)

    def print_samples(self, prompt: str | None, context: list[int], out) -> None:
        """Print nsamples samples to the file `out`, each batch as soon as it is done."""
        args = self.args
        if self.seed is None:
            from gpt2tf.noise import fresh_seed

            self.seed = self._agreed(fresh_seed(), context)
            log.info("seed %d", self.seed)
        else:
            self._agreed(self.seed, context)
        # Whoever asked is shown the words as they come; a file or another program gets whole samples.
        streamed = args.interactive and args.batch_size == 1 and args.format == "text" and args.output is None
        streamed = streamed and args.strategy == "one"
        # On a terminal the samples themselves show the progress; elsewhere a bar does, on stderr if that is one.
        hidden = True if out.isatty() or args.output == os.devnull else None
        with tqdm(total=args.nsamples or None, unit=" samples", disable=hidden) as bar:
            for number, growing in enumerate(self._samples(context, streamed), 1):
                if args.format == "text":
                    self._print_text(number, prompt, growing, out)
                else:
                    self._print_json(number, prompt, growing, out)
                bar.update()
        if args.format == "text" and prompt is not None:
            print("=" * 80, file=out, flush=True)

    def _agreed(self, seed: int, context: list[int]) -> int:
        """The seed of all workers. Raises ValueError if they are not to sample the same."""
        args = self.args
        if args.strategy == "one":
            return seed
        flags = {name: getattr(args, name) for name in ("nsamples", "seed", *FLAGS_IN_JSON)}
        return interruptible(self.generator.agree, seed, flags=flags, prompt=context)

    def _print_text(self, number: int, prompt: str | None, growing: Iterator[list[int]], out) -> None:
        """Print a sample; what may still change (half a character, the start of --stop) waits for the next piece."""
        start = prompt if self.args.include_prefix and prompt is not None else ""
        printed = None
        for tokens in growing:
            text = start + self._cut(tokens)[0]
            if printed is None:
                print("=" * 40 + f" SAMPLE {number} " + "=" * 40, file=out)
                printed = 0
            sure = len(text.rstrip("\ufffd"))
            if self.stop:
                sure -= max((n for n in range(len(self.stop)) if text[:sure].endswith(self.stop[:n])), default=0)
            print(text[printed:sure], end="", file=out, flush=True)
            printed = max(printed, sure)
        print(text[printed:], file=out, flush=True)

    def _print_json(self, number: int, prompt: str | None, growing: Iterator[list[int]], out) -> None:
        *_, tokens = growing
        text, tokens = self._cut(tokens)
        if self.args.include_prefix and prompt is not None:
            text = prompt + text
        flags = {name: getattr(self.args, name) for name in FLAGS_IN_JSON}
        flags |= {"length": self.length, "stop": self.stop}
        record = {"sample": number, "prompt": prompt, "text": text, "tokens": tokens, "seed": self.seed}
        print(json.dumps(record | flags), file=out, flush=True)

    def _samples(self, context: list[int], streamed: bool) -> Iterator[Iterator[list[int]]]:
        """Yields nsamples samples, or samples without end; each as its tokens so far, as they grow."""
        from gpt2tf.noise import RandomStream

        args = self.args
        stream = RandomStream(self.seed, self.hparams.n_layer, self.conditional, args.temperature, args.top_k)
        if args.strategy != "one":
            yield from self._spread(context, lambda run: stream.noise(self.length, args.batch_size, run))
            return
        made = 0
        while args.nsamples == 0 or made < args.nsamples:
            noise = stream.noise(self.length, args.batch_size, self.runs)
            self.runs += 1
            if streamed:
                yield (rows[0] for rows in self._batch(self.generator, context, noise, STREAMED_CHUNK))
                made += 1
            else:
                *_, rows = self._batch(self.generator, context, noise, CHUNK if self.stop else self.length)
                # The last batch is made whole, so that a sample does not depend on how many are asked for.
                wanted = rows if args.nsamples == 0 else rows[: args.nsamples - made]
                yield from (iter([tokens]) for tokens in wanted)
                made += len(wanted)

    def _spread(self, context: list[int], noise) -> Iterator[Iterator[list[int]]]:
        """As `_samples`, on all devices at once; noise: of a batch, by its number."""
        args = self.args

        def make(generator, run):
            *_, rows = self._batch(generator, context, noise(run), CHUNK if self.stop else self.length)
            return rows

        count = -(-args.nsamples // args.batch_size) or None
        batches = self.generator.batches(make, self.runs, count, args.batch_size, self.length)
        self.runs += count or 0
        whole = iter(lambda: interruptible(next, batches, None), None)
        yield from itertools.islice((iter([tokens]) for rows in whole for tokens in rows), args.nsamples or None)

    def _batch(self, generator, context: list[int], noise, chunk: int) -> Iterator[list[list[int]]]:
        """Yields the new tokens of each row so far, after every `chunk` of them, until all rows have met their end."""
        import tensorflow as tf

        args = self.args
        rows = [[] for _ in range(args.batch_size)]
        pieces = generator.stream(
            [context] * args.batch_size,
            self.length,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            noise=noise,
            stop=self.end_of_text if args.truncate else None,
            chunk=max(chunk, 1),
        )
        try:
            yield rows
            while (piece := interruptible(next, pieces, None)) is not None:
                rows = [row + tokens.tolist() for row, tokens in zip(rows, piece, strict=True)]
                yield rows
                if self.stop and all(self.stop in self.enc.decode(row) for row in rows):
                    return
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
            if "memory" not in str(error).lower():
                raise
            raise MemoryError("out of memory; give a smaller --batch_size or --length") from None

    def _cut(self, tokens: list[int]) -> tuple[str, list[int]]:
        """The sample's text and tokens, ended before <|endoftext|> and --stop where those are asked for."""
        if self.args.truncate and self.end_of_text in tokens:
            tokens = tokens[: tokens.index(self.end_of_text)]
        text = self.enc.decode(tokens)
        if self.stop and self.stop in text:
            text = text[: text.index(self.stop)]
            while tokens and self.enc.decode(tokens[:-1]).startswith(text):
                tokens = tokens[:-1]  # the fewest that spell the text; the last may say more than it
        return text, tokens


def _be_one_of_several(args) -> None:
    """Refuse what several workers cannot do together; one that is not the chief prints nothing."""
    try:
        workers = cluster.read_cluster()
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.interactive or args.prompt_file == "-":
        raise UsageError("several workers have no stdin in common; give --prompt or the name of a file")
    if args.nsamples == 0:
        raise UsageError("--nsamples 0 goes on forever, and workers are to end together; give 1 or more")
    if not workers.chief:
        args.output = os.devnull
        logging.getLogger("gpt2tf").setLevel(logging.WARNING)


def _load(files: ModelFiles, args, first):
    from gpt2tf.devices import use_device  # Keras takes a while too, and Ctrl-C is not to wait for it
    from gpt2tf.generate import Generator

    use_device(args.device, args.tf32)
    if args.strategy != "one":
        from gpt2tf.spread import Spread

        return Spread(args.strategy, files.prefix, args.dtype)
    return files.load(lambda prefix: Generator(prefix, args.dtype, first=first))


def _given_prompt(args) -> str | None:
    """The text of --prompt or --prompt_file, or None without either."""
    prompt = args.prompt
    if args.prompt_file is not None:
        if args.prompt_file == "-":
            with naming("stdin"):
                prompt = clean(sys.stdin.buffer.read() if sys.stdin else b"")
        else:
            with open(args.prompt_file, "rb") as file:
                prompt = clean(file.read())
        prompt = prompt.removesuffix("\n").removesuffix("\r")
    elif prompt is not None:
        prompt = clean(prompt)
    if prompt == "":
        raise UsageError("the prompt is empty; leave it out to sample without one")
    return prompt


def _asked_prompts() -> Iterator[str]:
    """The lines of stdin that are not empty, asked for one by one, to its end."""
    while True:
        line = _ask()
        if line is None:
            return
        prompt = line.removesuffix("\n").removesuffix("\r")
        if prompt:
            yield prompt
        else:
            print("Prompt should not be empty!", file=sys.stderr)


def _ask() -> str | None:
    """One line of stdin with its newline, or None at its end."""
    if sys.stdin is None:
        return None
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return clean(input(ASK)) + "\n"  # with the line editing of the terminal
        except EOFError:
            print()
            return None
    print(ASK, end="", file=sys.stderr, flush=True)
    with naming("stdin"):
        line = sys.stdin.buffer.readline()
    if not (line and sys.stdin.isatty()):
        print(file=sys.stderr)  # nobody's Enter has ended the line of the question
    return clean(line) if line else None
