"""`gpt2tf sample`: prompts in, samples out.

Mirrors the loops and the printing of openai/gpt-2 src/generate_unconditional_samples.py:56-77 and
src/interactive_conditional_samples.py:56-88, the two in one. Differences: exactly nsamples samples,
numbered from 1, whatever the batch size; a prompt may come from a flag or a file; bytes that are not
UTF-8 are replaced, not fatal; a prompt that does not fit is refused in words.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator

from tqdm import tqdm

import encoder
from gpt2tf import limits
from gpt2tf.cli import UsageError, interruptible, silence_tensorflow
from gpt2tf.hparams import read_hparams
from gpt2tf.locate import VOCABULARY_FILES, data_files, find_model, find_prefix

ASK = "Model prompt >>> "  # openai/gpt-2 src/interactive_conditional_samples.py:74
FLAGS_IN_JSON = ("model_name", "length", "temperature", "top_k", "top_p", "batch_size", "stop", "truncate")

log = logging.getLogger(__name__)


def run(args) -> None:
    """Run the command; args are the parsed flags of `cli._sample_flags`."""
    if args.interactive and args.nsamples == 0:
        raise UsageError("--nsamples 0 goes on forever and would never ask again; give 1 or more with --interactive")
    session = Session(args)
    if args.interactive:
        with _opened(args.output) as out:
            session.load()
            for prompt in _asked_prompts():
                try:
                    session.print_samples(prompt, session.context(prompt), out)
                except UsageError as error:
                    log.info("%s", error)
    else:
        prompt = _given_prompt(args)
        context = session.context(prompt)
        with _opened(args.output) as out:
            session.load()
            session.print_samples(prompt, context, out)


class Session:
    """One run of the command: the flags, the model, and how far its random stream has come."""

    def __init__(self, args):
        self.args = args
        self.prefix = find_prefix(find_model(args.model_name, args.models_dir))
        data_files(self.prefix)  # raises for a model that is not all there
        folder = os.path.dirname(self.prefix) or "."
        self.model = None
        hparams_path = os.path.join(folder, "hparams.json")
        if os.path.exists(hparams_path):
            self.hparams = read_hparams(hparams_path)
        else:  # the sizes are to be read off the weights
            self.load()
            self.hparams = self.model.hparams
        self.enc = _read_vocabulary(folder, self.hparams.n_vocab)
        self.end_of_text = self.enc.encoder[encoder.END_OF_TEXT]
        self.conditional = args.interactive or args.prompt is not None or args.prompt_file is not None
        default_length = self.hparams.n_ctx // 2 if self.conditional else self.hparams.n_ctx
        self.length = default_length if args.length is None else args.length
        self.stop = args.stop and _clean(args.stop)
        self.seed = args.seed
        self.runs = 0  # batches sampled so far; the random stream goes on from prompt to prompt

    def load(self) -> None:
        """Load the model if it is not there yet."""
        if self.model is None:
            silence_tensorflow()
            self.model = interruptible(_load_model, self.prefix)

    def context(self, prompt: str | None) -> list[int]:
        """The tokens of a prompt, or the start token for None. Raises UsageError for what does not fit."""
        tokens = [self.end_of_text] if prompt is None else self.enc.encode(prompt)
        if prompt is not None and prompt.endswith(" "):
            log.info("note: the prompt ends in a space, which usually makes worse text")
        try:
            limits.check_window(self.hparams.n_ctx, len(tokens), self.length)
            limits.check_memory(self.args.batch_size, self._row_bytes(len(tokens)))
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

            self.seed = fresh_seed()
            log.info("seed %d", self.seed)
        # On a terminal the samples themselves show the progress; elsewhere a bar does, on stderr if that is one.
        with tqdm(total=args.nsamples or None, unit=" samples", disable=True if out.isatty() else None) as bar:
            for number, tokens in enumerate(self._samples(context), 1):
                text, tokens = self._cut(tokens)
                if args.include_prefix and prompt is not None:
                    text = prompt + text
                if args.format == "jsonl":
                    flags = {name: getattr(args, name) for name in FLAGS_IN_JSON}
                    flags |= {"length": self.length, "stop": self.stop}
                    record = {"sample": number, "prompt": prompt, "text": text, "tokens": tokens, "seed": self.seed}
                    print(json.dumps(record | flags), file=out, flush=True)
                else:
                    print("=" * 40 + f" SAMPLE {number} " + "=" * 40 + f"\n{text}", file=out, flush=True)
                bar.update()
        if args.format == "text" and prompt is not None:
            print("=" * 80, file=out, flush=True)

    def _samples(self, context: list[int]) -> Iterator[list[int]]:
        """Yields the tokens of nsamples samples, or of samples without end."""
        from gpt2tf.noise import op_seeds, sampling_noise

        args = self.args
        first, later = op_seeds(
            self.seed,
            self.hparams.n_layer,
            conditional=self.conditional,
            temperature=args.temperature,
            top_k=args.top_k,
        )
        made = 0
        while args.nsamples == 0 or made < args.nsamples:
            noise = sampling_noise(first, later, length=self.length, batch_size=args.batch_size, run=self.runs)
            self.runs += 1
            batch = interruptible(self._batch, context, noise)
            # The last batch is made whole, so that a sample does not depend on how many are asked for.
            wanted = batch if args.nsamples == 0 else batch[: args.nsamples - made]
            yield from wanted.tolist()
            made += len(wanted)

    def _batch(self, context: list[int], noise):
        """The tokens of a batch after its context: [batch, length]"""
        import tensorflow as tf

        from gpt2tf.sample import sample_sequence

        args = self.args
        try:
            return sample_sequence(
                self.model,
                length=self.length,
                context=context,
                batch_size=args.batch_size,
                temperature=args.temperature,
                top_k=args.top_k,
                top_p=args.top_p,
                noise=noise,
            )[:, len(context) :]  # [batch, length]
        except tf.errors.ResourceExhaustedError:
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


def _load_model(prefix: str):
    from gpt2tf.checkpoint import load_model  # Keras takes a while too, and Ctrl-C is not to wait for it

    return load_model(prefix)


def _read_vocabulary(folder: str, n_vocab: int) -> encoder.Encoder:
    """The vocabulary of a model folder; the released one where the folder has none and the size is its."""
    if any(os.path.exists(os.path.join(folder, file)) for file in VOCABULARY_FILES):
        parent, name = os.path.split(os.path.abspath(folder))
        enc = encoder.get_encoder(name, parent)
    else:
        enc = encoder.get_encoder()
        log.info("%s has no %s; using the released vocabulary", folder, " and ".join(VOCABULARY_FILES))
    if len(enc.encoder) != n_vocab:
        raise ValueError(
            f"the vocabulary of {folder} has {len(enc.encoder)} tokens, its model has {n_vocab}; "
            "put the files of one model together"
        )
    return enc


def _given_prompt(args) -> str | None:
    """The text of --prompt or --prompt_file, or None without either."""
    prompt = args.prompt
    if args.prompt_file is not None:
        if args.prompt_file == "-":
            with _naming("stdin"):
                prompt = _clean(sys.stdin.buffer.read() if sys.stdin else b"")
        else:
            with open(args.prompt_file, "rb") as file:
                prompt = _clean(file.read())
        prompt = prompt.removesuffix("\n").removesuffix("\r")
    elif prompt is not None:
        prompt = _clean(prompt)
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
            return _clean(input(ASK)) + "\n"  # with the line editing of the terminal
        except EOFError:
            print()
            return None
    print(ASK, end="", file=sys.stderr, flush=True)
    with _naming("stdin"):
        line = sys.stdin.buffer.readline()
    if not (line and sys.stdin.isatty()):
        print(file=sys.stderr)  # nobody's Enter has ended the line of the question
    return _clean(line) if line else None


def _clean(raw: bytes | str) -> str:
    """Text of bytes, or of what Python made of bytes; what is not UTF-8 in them becomes U+FFFD."""
    if isinstance(raw, str):
        raw = re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", raw).encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    if text.encode() != raw:
        log.info("note: bytes that are not UTF-8 were replaced by U+FFFD")
    return text


@contextlib.contextmanager
def _opened(path: str | None):
    """The file to print to: stdout, or `path`, which gets its new content whole, at the end or by Ctrl-C."""
    if path in (None, "-"):
        if not sys.stdout.writable():
            raise OSError("stdout is closed; name a file with --output")
        with _naming("stdout"):
            yield sys.stdout
        return
    stream = _stream_at(path)
    if stream is not None or (os.path.exists(path) and not os.path.isfile(path)):  # a pipe or a device, say
        target = path if stream is None else stream
        with _naming(path), open(target, "w", encoding="utf-8", newline="\n", closefd=stream is None) as file:
            yield file
        return
    target = os.path.realpath(path)  # of a link, the file is replaced and not the link
    part = f"{target}.{os.getpid()}.part"
    with _naming(path, part):
        if os.path.exists(target):
            open(target, "ab").close()  # raises for a file that is not to be written
        try:
            with open(part, "w", encoding="utf-8", newline="\n") as file:
                if os.path.exists(target):
                    shutil.copymode(target, part)
                try:
                    yield file
                except KeyboardInterrupt:
                    if file.tell():
                        file.close()
                        os.replace(part, target)
                    raise
            os.replace(part, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)


def _stream_at(path: str) -> int | None:
    """The descriptor of stdout or stderr if that is what `path` is: /dev/stdout, or the file it was sent to."""
    if os.path.exists(path):
        for stream in (1, 2):
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return stream
    return None


@contextlib.contextmanager
def _naming(name: str, part: str | None = None):
    """Puts a name on an error of the system that names no file, as those of reading and writing, or names `part`."""
    try:
        yield
    except OSError as error:
        if error.strerror and error.filename in (None, part):
            error.filename = name
        raise
