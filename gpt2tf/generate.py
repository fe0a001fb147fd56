"""Generation as compiled programs: the prompt in one, the token loop in another, no Python between tokens.

Mirrors openai/gpt-2 src/sample.py:43-95 and agrees with `gpt2tf.sample`, which is there to be read. Differences:
the cache is preallocated, prompts may have different lengths, everything but a few sizes is an argument
of the program and not a part of it, and a row ends at a stop token.

Sizes that make a new program: the number of rows, the prompt's bucket (PROMPT_BUCKETS) and the cache's
(CACHE_STEP). A prompt goes through the first program but for its last token, with which the loop begins: so
only the loop has logits and a choice, and a prompt of one token needs no other program. Rows are padded on the
right to the bucket; what the loop runs through goes to the slots behind the longest prompt, the same for every row,
and the gap of a shorter one is masked. Positions are counted by row, without the gap.

To start sooner, the programs compile on the memory that the weights are read into at the same time: on a CPU tensors
are made of it without a copy. Also tried on two cores with 124M: XLA's persistent cache, by which the first call of a
second process takes 0.85 s in place of 2.1. It needs TF_XLA_FLAGS and a folder of the user's to write to. Not set.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from gpt2tf import checks
from gpt2tf.checkpoint import load_weights
from gpt2tf.decode.choose import choose_token
from gpt2tf.decode.network import Packed
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import allocate, as_tensors, fill, in_streams, streams_for
from gpt2tf.hparams import HParams
from gpt2tf.model import GPT2
from gpt2tf.noise import RandomStream, fresh_seed

PROMPT_BUCKETS = (0, 16, 64, 128, 256, 512, 768, 1024)
CACHE_STEP = 256  # the cache has a multiple of this many slots
NO_STOP = -1


class Generator:
    """A model, packed and compiled for generation. Safe to call from several threads.

    model: a GPT2, or the path of a model as `load_model` takes it (then the weights are read straight into their
    packed form). dtype: of the matrices, float32, bfloat16, float16 or int8. jit_compile: False runs the same graph
    without XLA, to compare. first: what `compile` takes, if it is known what will be asked first; it is then done
    while the weights are read. device: the name of TensorFlow's device to compute on; its own choice if not given.
    """

    def __init__(
        self,
        model: GPT2 | str | os.PathLike,
        dtype: str = "float32",
        jit_compile: bool = True,
        first: tuple[int, int, int] | None = None,
        device: str | None = None,
    ):
        if dtype not in checks.DTYPES:
            raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(checks.DTYPES)}")
        if isinstance(model, GPT2):
            self.hparams: HParams = model.hparams
            weights = {v.path: v.value for v in model.variables}
        else:
            self.hparams, weights = load_weights(model)
        self._device = device
        self._prompt_program = tf.function(self._prompt, jit_compile=jit_compile, autograph=False)
        self._token_program = tf.function(self._tokens, jit_compile=jit_compile, autograph=False)
        self._dtype, self._ops, self._making = dtype, Ops(jit_compile), threading.Lock()
        self._streams = streams_for(first[0] if first else 1)
        self._arrays = allocate(self.hparams, dtype, self._streams)
        self._nets: dict[int, Packed] = {}  # by the streams of their layout
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            filled = pool.submit(fill, self._arrays, weights, self.hparams, dtype)
            if tf.config.get_visible_devices("GPU"):  # where tensors are copies
                filled.result()
            if first:
                self.compile(*first)
            filled.result()

    @property
    def programs(self) -> int:
        """How many programs have been made so far; another seed, temperature, top_k, top_p or stop makes none."""
        return sum(f.experimental_get_tracing_count() for f in (self._prompt_program, self._token_program))

    def compile(self, batch_size: int, n_prompt: int, length: int) -> None:
        """Make the programs for batch_size prompts of up to n_prompt tokens, so that such a call starts at once.

        They run through no layer and no step: the weights need not be there yet.
        """
        tokens, lengths, last = self._padded([[0] * n_prompt] * batch_size, length)
        if not length:
            return
        noise, cache = self._begin(tokens, np.zeros([length, batch_size]), n_layer=0)
        done, options = np.zeros([batch_size], bool), _options(1, 0, 1)
        self._loop(last, done, lengths, lengths.max(), (0, 0), noise, NO_STOP, options, cache)

    def generate(self, prompts: Sequence[Sequence[int]], length: int, **options) -> list[np.ndarray]:
        """Sample `length` tokens after each of the prompts.

        prompts: lists of token ids, of any lengths that fit. options:
        temperature (1), top_k (0), top_p (1): as in `sample_sequence`.
        noise: [length, batch] float64 in [0, 1); or else seed (a fresh one), which stands for the noise of the
        original's first run. stop: a token that ends its row, and is the row's last.
        Returns for each prompt the new tokens, [length] int32 or fewer after a stop.
        Raises ValueError for what is out of range, FloatingPointError when the model's logits are not finite.
        """
        pieces = list(self.stream(prompts, length, chunk=max(length, 1), **options))
        return pieces[0] if pieces else [np.zeros([0], np.int32) for _ in prompts]

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        length: int,
        *,
        temperature: float = 1,
        top_k: int = 0,
        top_p: float = 1,
        noise=None,
        seed: int | None = None,
        stop: int | None = None,
        chunk: int = 8,
    ) -> Iterator[list[np.ndarray]]:
        """As `generate`, but yields the new tokens of each row as they come, at most `chunk` of them at a time."""
        checks.check_length(length)
        checks.check_temperature(temperature)
        checks.check_top_k(top_k)
        checks.check_top_p(top_p)
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; it must be 1 or more")
        if stop is not None:
            checks.check_tokens(np.asarray(stop), self.hparams.n_vocab)
        tokens, lengths, last = self._padded(prompts, length)
        if noise is None:
            seed = fresh_seed() if seed is None else seed
            noise = RandomStream(seed, self.hparams.n_layer, True, temperature, top_k).noise(length, len(tokens))
        noise = checks.check_noise(np.asarray(noise, np.float64), length, len(tokens))
        options = _options(temperature, top_k, top_p)
        return self._chunks(tokens, lengths, last, noise, NO_STOP if stop is None else stop, options, chunk)

    def _net(self, batch: int) -> Packed:
        """The network in the layout for so many rows. A second layout takes the memory of another copy."""
        with self._making, tf.init_scope(), tf.device(self._device):  # tensors of no program, whichever is being traced
            streams = streams_for(batch)
            if streams not in self._nets:
                arrays = self._arrays if streams == self._streams else in_streams(self._arrays, streams)
                if not self._nets:  # nothing is in the other layout yet, which is not kept
                    self._arrays, self._streams = arrays, streams
                self._nets[streams] = Packed(as_tensors(arrays, self._dtype), self.hparams, self._ops)
            return self._nets[streams]

    def _padded(self, prompts, length):
        """The prompts without their last tokens, [batch, bucket], how long they are, and the last tokens, [batch] both.

        Raises ValueError for what does not fit.
        """
        rows = [np.asarray(prompt) for prompt in prompts]
        if not rows:
            raise ValueError("there are no prompts; give at least one")
        for row in rows:
            if row.ndim != 1:
                raise ValueError(f"a prompt must be a list of token ids; its shape is {row.shape}")
            checks.check_tokens(row, self.hparams.n_vocab)
            checks.check_window(self.hparams.n_ctx, len(row), length)
        lengths = np.array([len(row) - 1 for row in rows], np.int32)
        buckets = [bucket for bucket in PROMPT_BUCKETS if bucket >= lengths.max()]
        tokens = np.zeros([len(rows), min([self.hparams.n_ctx, *buckets])], np.int32)
        for padded, row in zip(tokens, rows, strict=True):
            padded[: len(row) - 1] = row[:-1]
        return tokens, lengths, np.array([row[-1] for row in rows], np.int32)

    def _chunks(self, tokens, lengths, token, noise, stop, options, chunk):
        """Yields lists of [steps] int32, one for each row."""
        length, width = len(noise), lengths.max()
        noise, cache = self._begin(tokens, noise, self.hparams.n_layer)
        done, step = np.zeros([len(tokens)], bool), 0
        while step < length and not done.all():
            bounds = step, min(length, step + chunk)
            made, end, finite, token, cache = self._loop(
                token, done, lengths, width, bounds, noise, stop, options, cache
            )
            if not finite:
                raise FloatingPointError("the model's logits are not finite; its weights are damaged or diverged")
            made = made.numpy()[step : int(end)]  # [steps, batch]
            step, stops = int(end), made == stop
            before = np.cumsum(stops, axis=0) - stops  # [steps, batch], stops of the row before each token
            yield [column[(count == 0) & ~over] for column, count, over in zip(made.T, before.T, done, strict=True)]
            done |= stops.any(axis=0)

    def _begin(self, tokens, noise, n_layer: int):
        """tokens: [batch, bucket], noise: [length, batch] -> (noise [slots, batch], cache after the prompts)"""
        batch, bucket = tokens.shape
        length = len(noise)
        # The longest prompt and the length never need more than n_ctx slots.
        src = -(-min(bucket + length, self.hparams.n_ctx) // CACHE_STEP) * CACHE_STEP
        room = np.zeros([src, batch])  # [slots, batch], one size for all lengths that fit a cache
        room[:length] = noise
        with tf.device(self._device):
            if bucket and length:
                cache = self._prompt_program(tf.constant(tokens), src, tf.constant(n_layer))
            else:  # prompts of one token, and nothing in front of it
                cache = self._net(batch).empty_cache(batch, src)
        return room, cache

    def _loop(self, token, done, lengths, width, bounds, noise, stop, options, cache):
        """`_tokens`, called with arrays and numbers, which as tensors become no part of the program."""
        arguments = (token, done, lengths, width, *bounds, noise, stop)
        with tf.device(self._device):
            return self._token_program(*map(tf.constant, arguments), options, cache)

    def _prompt(self, tokens, src: int, n_layer):
        """tokens: [batch, seq] -> the cache of src slots"""
        return self._net(tokens.shape[0]).prompt_pass(tokens, src, n_layer)[1]

    def _tokens(self, token, done, lengths, width, first, last, noise, stop, options, cache):
        """Steps first to last of the loop; each runs one token through the network and chooses the next.

        token: [batch], the last ones; done: [batch]; lengths: [batch], of the prompts in the cache, which take the
        first of width slots; noise: [slots, batch]
        -> (tokens [slots, batch], made from first to end; end; whether all logits were finite; token; cache)
        """
        slots, net = tf.range(noise.shape[0]), self._net(token.shape[0])

        def body(step, token, done, finite, out, *cache):
            slot = width + step
            seen = (slots < lengths[:, None]) | ((slots >= width) & (slots <= slot))  # [batch, slots]
            logits, cache = net.token_pass(token, lengths + step, slot, tf.cast(seen, tf.float32), cache)
            token, fine = self._choose(logits, noise[step], options)
            out = net.ops.update(out, token[None], [step, 0])
            return (step + 1, token, done | (token == stop), finite & fine, out, *cache)

        end, token, done, finite, out, *cache = tf.while_loop(
            lambda step, token, done, finite, *_: (step < last) & finite & ~tf.reduce_all(done),
            body,
            (first, token, done, True, tf.zeros(noise.shape, tf.int32), *cache),
        )
        return out, end, finite, token, tuple(cache)

    def _choose(self, logits, u, options):
        return choose_token(self._ops, logits, u, n_vocab=self.hparams.n_vocab, **options)


def _options(temperature, top_k, top_p):
    return {
        "temperature": tf.constant(temperature, tf.float32),
        "top_k": tf.constant(top_k, tf.int32),
        "top_p": tf.constant(top_p, tf.float32),
    }
