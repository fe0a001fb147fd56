"""`Generator`: generation as two compiled functions, prefill and the token loop, with no Python between the tokens.

Mirrors openai/gpt-2 src/sample.py:43-95 and agrees with `gpt2tf.sample`, which is there to be read. Differences:
the cache is preallocated, prompts may have different lengths, everything but a few sizes is an argument of what is
compiled and not a part of it, and a row ends at a stop token.

Sizes that make another compilation: the number of rows, the prompt's bucket (PROMPT_BUCKETS) and the cache's
(CACHE_STEP). Prefill takes the prompts without their last tokens, with which the loop begins: so only the loop has
logits and a choice, and a prompt of one token needs no prefill. Rows are padded on the right to the bucket. The loop's
tokens go to the cache positions behind the longest prompt, the same for every row, and the gap of a shorter prompt is
masked. Positions of the embedding are counted by row, without the gap.

The cache is kept in variables, which both programs write in place: XLA copies what is an argument and a result of a
program.

To start sooner, both are compiled on the memory that the weights are read into at the same time: on a CPU tensors are
made of it without a copy.
"""

from __future__ import annotations

import concurrent.futures
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpt2tf import checks, devices, encoder
from gpt2tf.checkpoint import load_weights
from gpt2tf.decode.choose import Options, choose_token
from gpt2tf.decode.network import Network
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import Weights, allocate, as_tensors, assign, copy_streams, fill, in_streams, streams_for
from gpt2tf.hparams import HParams
from gpt2tf.model import GPT2
from gpt2tf.noise import RandomStream, fresh_seed

PROMPT_BUCKETS = (0, 16, 64, 128, 256, 512, 768, 1024)
CACHE_STEP = 256  # the cache has a multiple of this many positions
NO_STOP = -1


class Prompts(NamedTuple):
    """Prompts without their last tokens."""

    tokens: np.ndarray  # [batch, bucket] int32, padded on the right
    lengths: np.ndarray  # [batch] int32


class State(NamedTuple):
    """What the token loop goes on from."""

    token: tf.Tensor  # [batch] int32, the last one of each row, not in the cache yet
    done: tf.Tensor  # [batch] bool, whether it has met the stop token
    cache: tuple[tf.Variable, tf.Variable]  # as of Network.empty_cache


class Generator:
    """A model, packed and compiled for generation. Safe to call from several threads.

    model: a GPT2, or the path of a model as `load_model` takes it (then the weights are read straight into their
    packed form). dtype: of the matrices, float32, bfloat16, float16 or int8. jit_compile: False runs the same graph
    without XLA, to compare. first: what `compile` takes, if it is known what will be asked first; it is then done
    while the weights are read. device: the name of TensorFlow's device to compute on; its own choice if not given.
    platform: the kind of device that programs are made for, "CPU" or "GPU"; the one that is there if not given.
    """

    def __init__(
        self,
        model: GPT2 | str | os.PathLike,
        dtype: str = "float32",
        jit_compile: bool = True,
        first: tuple[int, int, int] | None = None,
        device: str | None = None,
        platform: str | None = None,
    ):
        checks.one_of(checks.DTYPES)("dtype", dtype)
        platform = checks.one_of(("CPU", "GPU"))("platform", platform or devices.platform())
        if isinstance(model, GPT2):
            self.hparams: HParams = model.hparams
            vocabulary = model.vocabulary
            weights = {v.path: v.value for v in model.variables}
        else:
            self.hparams, weights, vocabulary = load_weights(model)
        self._real_tokens = encoder.real_tokens(vocabulary, self.hparams.n_vocab)  # beyond them nothing is sampled
        self._device = device
        self._prefill = tf.function(self._fill_cache, jit_compile=jit_compile, autograph=False)
        self._decode = tf.function(self._token_loop, jit_compile=jit_compile, autograph=False)
        self._ops, self._making = Ops(jit_compile, platform), threading.Lock()
        streams = streams_for(first[0] if first else 1, self._ops.platform)
        arrays = allocate(self.hparams, dtype, streams)
        self._arrays: dict[int, Weights] = {streams: arrays}  # by the streams of their layout
        self._networks: dict[int, Network] = {}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            filled = pool.submit(fill, arrays, weights, self.hparams)
            if self._ops.on_gpu:  # where tensors are copies
                filled.result()
            if first:
                self.compile(*first)
            filled.result()

    @property
    def compilations(self) -> int:
        """How many functions were compiled so far, of the sizes that came up."""
        return sum(function.experimental_get_tracing_count() for function in (self._prefill, self._decode))

    def refresh(self, model: GPT2) -> None:
        """Take the weights of a model of the same sizes as they are now. Nothing is compiled for it.

        Not while another thread samples, which may then see some of the old ones and some of the new.
        Raises ValueError for a model of other sizes, or with another number of tokens.
        """
        tokens = encoder.real_tokens(model.vocabulary, model.hparams.n_vocab)
        if (model.hparams, tokens) != (self.hparams, self._real_tokens):
            raise ValueError(
                f"the model is {model.hparams} with {tokens} tokens, this Generator was made for {self.hparams} with "
                f"{self._real_tokens}; make another Generator"
            )
        with self._making, tf.device(self._device):
            arrays, *others = self._arrays.values()
            fill(arrays, {v.path: v.value for v in model.variables}, self.hparams)
            for other in others:
                copy_streams(arrays, other)
            for streams, network in self._networks.items():
                assign(network.weights, self._arrays[streams])

    def compile(self, batch_size: int, n_prompt: int, length: int) -> None:
        """Compile for batch_size prompts of up to n_prompt tokens, so that such a call starts at once.

        It makes no token, and on a CPU runs through no layer: the weights need not be there yet.
        """
        prompts, last = self._padded([[0] * n_prompt] * batch_size, length)
        if length:
            noise, state = self._begin(prompts, last, np.zeros([length, batch_size]))
            self._fill(prompts, state, n_layer=0)
            self._steps(state, prompts.lengths, (0, 0), noise, (NO_STOP, Options.of()))

    def lower(self, batch_size: int, n_prompt: int, length: int) -> dict[str, str]:
        """The programs of such a call as HLO, XLA's text, as XLA is given them. Nothing is compiled or run.

        {"prefill": of the prompts without their last tokens, if they have more; "decode": the token loop}
        """
        prompts, last = self._padded([[0] * n_prompt] * batch_size, length)
        noise, state = self._begin(prompts, last, np.zeros([length, batch_size]))
        loop = self._as_tensors(state, prompts.lengths, (0, length), noise, (NO_STOP, Options.of()))
        prefill = tf.constant(prompts.tokens), tf.constant(self.hparams.n_layer), state.cache
        programs = {"prefill": (self._prefill, prefill)} if prompts.tokens.size else {}
        programs["decode"] = self._decode, loop
        return {
            name: function.experimental_get_compiler_ir(*arguments)(stage="hlo")
            for name, (function, arguments) in programs.items()
        }

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
        length, top_k = operator.index(length), operator.index(top_k)
        checks.check_length(length)
        checks.check_temperature(temperature)
        checks.check_top_k(top_k)
        checks.check_top_p(top_p)
        if operator.index(chunk) < 1:
            raise ValueError(f"chunk is {chunk}; it must be 1 or more")
        if stop is not None:
            checks.check_tokens(np.asarray(operator.index(stop)), self.hparams.n_vocab)
        prompts, last = self._padded(prompts, length)
        if noise is None:
            seed = fresh_seed() if seed is None else checks.check_seed(operator.index(seed))
            noise = RandomStream(seed, self.hparams.n_layer, True, temperature, top_k).noise(length, len(last))
        noise = checks.check_noise(np.asarray(noise, np.float64), length, len(last))
        ends = NO_STOP if stop is None else stop, Options.of(temperature, top_k, top_p)
        return self._chunks(prompts, last, noise, ends, chunk)

    def _network(self, batch: int) -> Network:
        """The network in the layout for so many rows. A second layout takes the memory of another copy."""
        with self._making, tf.init_scope(), tf.device(self._device):  # tensors of no graph, whichever is being traced
            streams = streams_for(batch, self._ops.platform)
            if streams not in self._networks:
                if streams not in self._arrays:
                    arrays = in_streams(next(iter(self._arrays.values())), streams)
                    if not self._networks:  # nothing uses the other layout yet, which is not kept
                        self._arrays.clear()
                    self._arrays[streams] = arrays
                tensors = as_tensors(self._arrays[streams], self._ops.platform)
                self._networks[streams] = Network(tensors, self.hparams, self._ops)
            return self._networks[streams]

    def _padded(self, prompts, length: int) -> tuple[Prompts, np.ndarray]:
        """The prompts, and their last tokens, [batch] int32. Raises ValueError for what does not fit."""
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
        return Prompts(tokens, lengths), np.array([row[-1] for row in rows], np.int32)

    def _chunks(self, prompts: Prompts, last, noise, ends, chunk: int):
        """Yields lists of [steps] int32, one for each row. ends: (stop token, options of the choice)"""
        length = len(noise)
        noise, state = self._begin(prompts, last, noise)
        self._fill(prompts, state, self.hparams.n_layer)
        done, step = np.zeros([len(last)], bool), 0
        while step < length and not done.all():
            bounds = step, min(length, step + chunk)
            made, end, finite, token = self._steps(state, prompts.lengths, bounds, noise, ends)
            if not finite:
                raise FloatingPointError("the model's logits are not finite; its weights are damaged or diverged")
            made = made.numpy()[step : int(end)]  # [steps, batch]
            step, stops = int(end), made == ends[0]
            before = np.cumsum(stops, axis=0) - stops  # [steps, batch], stops of the row before each token
            yield [column[(count == 0) & ~over] for column, count, over in zip(made.T, before.T, done, strict=True)]
            done |= stops.any(axis=0)
            state = State(token, done, state.cache)

    def _begin(self, prompts: Prompts, last, noise):
        """noise: [length, batch] -> (noise with a row for each cache position, the state before the prompts)"""
        batch, bucket = prompts.tokens.shape
        length = len(noise)
        # The longest prompt and the length never need more than n_ctx positions.
        src = -(-min(bucket + length, self.hparams.n_ctx) // CACHE_STEP) * CACHE_STEP
        room = np.zeros([src, batch])  # [src, batch], one size for all lengths that fit a cache
        room[:length] = noise
        with tf.device(self._device):
            cache = (tf.Variable(zeros, trainable=False) for zeros in self._network(batch).empty_cache(batch, src))
            return room, State(last, np.zeros([batch], bool), tuple(cache))

    def _fill(self, prompts: Prompts, state: State, n_layer: int) -> None:
        """Run prefill, if there is anything in front of the prompts' last tokens."""
        if prompts.tokens.size:
            with tf.device(self._device):
                self._prefill(tf.constant(prompts.tokens), tf.constant(n_layer), state.cache)

    def _steps(self, *arguments):
        """Run `_token_loop`."""
        with tf.device(self._device):
            return self._decode(*self._as_tensors(*arguments))

    def _as_tensors(self, state: State, *arguments):
        """The arguments of `_token_loop`, with arrays and numbers as tensors, which are no part of what is compiled."""
        token, done, arguments = tf.nest.map_structure(tf.convert_to_tensor, (state.token, state.done, arguments))
        return State(token, done, state.cache), *arguments

    def _fill_cache(self, tokens, n_layer, cache):
        """tokens: [batch, seq], into the first positions of the cache"""
        network = self._network(tokens.shape[0])
        _, filled = network.prefill(tokens, tuple(each.read_value() for each in cache), n_layer)
        for variable, value in zip(cache, filled, strict=True):
            variable.assign(value)

    def _token_loop(self, state: State, lengths, bounds, noise, ends):
        """The steps from bounds[0] to bounds[1]; each runs one token through the network and chooses the next.

        lengths: [batch], of the prompts, which have the first cache positions up to the longest; noise: [src, batch]
        -> (tokens [src, batch], made from the first step to end; end; whether all logits were finite; token)
        """
        src, network, n_vocab = tf.range(noise.shape[0]), self._network(noise.shape[1]), self._real_tokens
        (first, last), (stop, options), width = bounds, ends, tf.reduce_max(lengths)

        def body(step, token, done, finite, out, *cache):
            place = width + step
            seen = (src < lengths[:, None]) | ((src >= width) & (src <= place))  # [batch, src]
            logits, cache = network.decode_step(token, lengths + step, place, tf.cast(seen, tf.float32), cache)
            token, fine = choose_token(self._ops, logits, noise[step], n_vocab, options)
            out = self._ops.update(out, token[None], [step, 0])
            return (step + 1, token, done | (token == stop), finite & tf.reduce_all(fine), out, *cache)

        out = tf.zeros(noise.shape, tf.int32)  # [src, batch]
        end, token, _, finite, out, *cache = tf.while_loop(
            lambda step, token, done, finite, *_: (step < last) & finite & ~tf.reduce_all(done),
            body,
            (first, state.token, state.done, True, out, *(each.read_value() for each in state.cache)),
        )
        for variable, value in zip(state.cache, cache, strict=True):
            variable.assign(value)
        return out, end, finite, token
