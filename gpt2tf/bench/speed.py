"""How fast generation is, how much memory it takes, and how far both are from what the machine allows.

There is nothing like it in openai/gpt-2. The machine is measured first: bytes it reads a second, operations it does a
second. A row then says what share of these a token's unavoidable reads and operations are. Peers run on the same
weights in the same process, taking turns with us, since machines are shared and noisy; figures are medians.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import gc
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from gpt2tf.bench.costs import Case, decode_cost, prompt_operations
from gpt2tf.bench.peers import PEERS, Converted, Unsupported, missing_modules
from gpt2tf.checkpoint import load_weights
from gpt2tf.decode.network import Network
from gpt2tf.decode.ops import Ops
from gpt2tf.decode.weights import pack
from gpt2tf.devices import use_device
from gpt2tf.generate import Generator

OURS = "gpt2tf"
READ_BYTES = 2**29  # of the array that measures bandwidth: more than a large cache holds
MATMUL_SIZE = {"cpu": 2048, "gpu": 8192}
PAUSE = 0.3  # seconds before each timed call where engines take turns: OpenMP's threads spin for 0.2 after work

log = logging.getLogger(__name__)


# What DESIGN asks for: batches, a long prompt, and late positions.
ALL_CASES = (
    *(Case(dtype) for dtype in ("float32", "float16", "int8")),
    *(Case(dtype, batch_size) for batch_size in (8, 32) for dtype in ("float32", "int8")),
    Case(prompt_length=512, length=2),
    Case(prompt_length=868, length=65),
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the machine does: bytes read from memory a second, float32 operations of a matrix product a second."""

    bytes_per_s: float
    operations_per_s: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One engine's figures for one case. Speeds are of all rows of the batch together; None: not measured.

    first_call_s: the whole case for the first time, compilation included. prompt_s: until the first token is there.
    peak_bytes: see the function of that name; of gpt2tf only.
    *_share: of `Limits`, for gpt2tf. *_ratio: gpt2tf's speed over this engine's, for the others.
    """

    engine: str
    dtype: str
    batch_size: int
    prompt_length: int
    length: int
    load_s: float
    first_call_s: float
    prompt_s: float
    prompt_tokens_per_s: float
    decode_tokens_per_s: float | None
    peak_bytes: int | None = None
    bytes_per_token: float | None = None
    bytes_per_s: float | None = None
    bandwidth_share: float | None = None
    operations_per_token: float | None = None
    operations_per_s: float | None = None
    arithmetic_share: float | None = None
    prompt_arithmetic_share: float | None = None
    prompt_ratio: float | None = None
    decode_ratio: float | None = None


def measure_limits(device: str = "cpu", read_bytes: int = READ_BYTES, matmul_size: int = 0, runs: int = 5) -> Limits:
    """The best of several ways and tries. device: cpu or gpu."""
    n, columns = matmul_size or MATMUL_SIZE[device], 2048
    w, v = tf.ones([8, read_bytes // (32 * columns), columns]), tf.ones([columns])
    products = tf.function(lambda w, v: tf.einsum("goi,i->go", w, v), jit_compile=True)
    total = tf.function(lambda w: tf.reduce_sum(w), jit_compile=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        readers = [lambda: products(w, v).numpy(), lambda: total(w).numpy()]
        if device == "cpu":
            parts = np.array_split(w.numpy().reshape(-1, columns), os.cpu_count())
            readers.append(lambda: list(pool.map(np.max, parts)))
        fastest_read = min(timed(reader) for reader in readers * (runs + 1))
    a = tf.ones([n, n])
    matmul = tf.function(lambda a: tf.matmul(a, a)[0, 0] if device == "cpu" else tf.reduce_sum(tf.matmul(a, a)))
    fastest_matmul = min(timed(lambda: matmul(a).numpy()) for _ in range(runs + 1))
    return Limits(read_bytes / fastest_read, 2 * n**3 / fastest_matmul)


def timed(function: Callable, *args) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def ours(path: str | os.PathLike, case: Case, top_k: int) -> Callable[[int], None]:
    """Our engine: a call that makes 1 token or case.length tokens, by the same programs."""
    generator = Generator(path, case.dtype)
    prompts = case.prompts(generator.hparams.n_vocab)
    noise = np.random.default_rng(0).random([case.length, case.batch_size])

    def sample(length):
        next(generator.stream(prompts, case.length, chunk=length, top_k=top_k, noise=noise))

    return sample


def measure(
    path: str | os.PathLike,
    cases: Sequence[Case],
    limits: Limits,
    *,
    peers: Sequence[str] = (),
    top_k: int = 40,
    runs: int = 5,
    device: str = "cpu",
) -> Iterator[Row]:
    """Yields the rows of each case, ours first, once the case is done.

    path: of a model. peers: names of `peers.PEERS`; what is not installed or not possible is logged and left out.
    Raises ValueError for a peer that is not known, before anything is loaded.
    """
    for name in peers:
        if name not in PEERS:
            raise ValueError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    hparams, weights = load_weights(path)
    installed = []
    for name in dict.fromkeys(peers):
        missing = missing_modules(name)
        if missing:
            log.info("%s is left out: %s not installed (pip install 'gpt2tf[bench]')", name, ", ".join(missing))
        else:
            installed.append(name)
    with Converted(hparams, weights) as converted:
        for case in cases:
            makers = {OURS: lambda case=case: ours(path, case, top_k)}
            for name in installed:
                arguments = converted, case.dtype, case.prompts(hparams.n_vocab), top_k, device
                makers[name] = lambda name=name, arguments=arguments: PEERS[name][0](*arguments)
            peak = peak_bytes(path, case, top_k, device)
            own, *others = _measure_case(hparams, case, limits, makers, runs)
            yield dataclasses.replace(own, peak_bytes=peak)
            yield from (with_ratios(own, other) for other in others)


def _measure_case(hparams, case, limits, makers: Mapping[str, Callable], runs) -> list[Row]:
    engines, beginnings = {}, {}
    for name, maker in makers.items():
        try:
            engines[name], beginnings[name] = _begin(maker, case)
        except Unsupported as reason:
            log.info("%s is left out at %s, batch size %d: %s", name, case.dtype, case.batch_size, reason)
    times = alternate(engines, case.length, runs, PAUSE if len(engines) > 1 else 0)
    return [row(hparams, case, limits, name, beginnings[name], *times[name]) for name in engines]


def _begin(maker, case):
    """Make an engine and call it once: (engine, figures of `Row`)."""
    gc.collect()
    start = time.perf_counter()
    engine = maker()
    return engine, {"load_s": time.perf_counter() - start, "first_call_s": timed(engine, case.length)}


def alternate(
    engines: Mapping[str, Callable[[int], None]], length: int, runs: int, pause: float = 0
) -> dict[str, tuple[list[float], list[float]]]:
    """Let engines take turns: {name: (seconds to the first token, seconds for all)}, after a round of warming up."""
    times = {name: ([], []) for name in engines}
    for run in range(runs + 1):
        for name, engine in engines.items():
            for tokens, seconds in zip((1, length), times[name], strict=True):
                time.sleep(pause)
                took = timed(engine, tokens)
                if run:
                    seconds.append(took)
    return times


def row(hparams, case: Case, limits: Limits, engine: str, beginning: dict, first: list, whole: list) -> Row:
    """The figures that follow from the times of `alternate`; one list entry a run."""
    prompt_s = statistics.median(first)
    loop_s = statistics.median(b - a for a, b in zip(first, whole, strict=True))  # the first token is the prompt's
    speed = case.batch_size * (case.length - 1) / loop_s if case.length > 1 and loop_s > 0 else None
    figures = {"prompt_s": prompt_s, "prompt_tokens_per_s": case.batch_size * case.prompt_length / prompt_s}
    figures |= {"decode_tokens_per_s": speed, **beginning}
    if engine == OURS:
        cost = decode_cost(hparams, case)
        figures |= {"bytes_per_token": cost.bytes, "operations_per_token": cost.operations}
        figures["prompt_arithmetic_share"] = prompt_operations(hparams, case) / prompt_s / limits.operations_per_s
        if speed:
            figures |= {"bytes_per_s": cost.bytes * speed, "operations_per_s": cost.operations * speed}
            figures["bandwidth_share"] = cost.bytes * speed / limits.bytes_per_s
            figures["arithmetic_share"] = cost.operations * speed / limits.operations_per_s
    return Row(engine, **dataclasses.asdict(case), **figures)


def with_ratios(own: Row, peer: Row) -> Row:
    """The peer's row with how many times as fast we are."""
    both = own.decode_tokens_per_s and peer.decode_tokens_per_s
    return dataclasses.replace(
        peer,
        prompt_ratio=peer.prompt_s / own.prompt_s,
        decode_ratio=own.decode_tokens_per_s / peer.decode_tokens_per_s if both else None,
    )


def peak_bytes(path: str | os.PathLike, case: Case, top_k: int, device: str = "cpu") -> int | None:
    """The most memory that a process of its own ever holds, from start to the end of the case, or its part on the GPU.

    A process of its own, because TensorFlow keeps memory that is free again, for its next tensors.
    """
    task = json.dumps([os.path.abspath(path), dataclasses.asdict(case), top_k, device])
    made = _python("import sys; from gpt2tf.bench import speed; speed.be_measured(sys.argv[1])", task)
    return json.loads(made.stdout.split()[-1])


def be_measured(task: str) -> None:
    """The other process of `peak_bytes`."""
    path, case, top_k, device = json.loads(task)
    use_device(device)
    ours(path, Case(**case), top_k)(case["length"])
    sys.stdout.write(f"{json.dumps(_peak(device))}\n")


def _peak(device: str) -> int | None:
    if device == "gpu":
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    try:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    except (OSError, TypeError):
        return None  # no Linux


def process_seconds(path: str | os.PathLike, length: int = 20, runs: int = 5) -> float:
    """A whole run of `sample.py --length 20`, from start to exit."""
    flags = ["--model_name", os.path.abspath(path), "--length", str(length)]
    run = functools.partial(_python, "from gpt2tf.cli import main; main('sample')", *flags)
    return statistics.median(timed(run) for _ in range(runs + 1))


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run code in a new interpreter that finds this package. Raises ChildProcessError with what it says last."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    made = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)
    if made.returncode:
        last = made.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ChildProcessError(f"a run in another process failed ({made.returncode}) and said: {last[0]}")
    return made


def log_probability_difference(
    path: str | os.PathLike, dtype: str, batch_size: int = 8, seq: int = 128, jit_compile: bool = True
) -> float:
    """Mean |difference| from float32 of the log-probabilities of the next token, over the vocabulary, in nats.

    Over batch_size texts of seq / batch_size up to seq tokens, which the model itself makes in float32.
    """
    hparams, weights = load_weights(path)
    seq = min(seq, hparams.n_ctx)
    noise = np.random.default_rng(0).random([seq, batch_size])
    start = [[hparams.n_vocab - 1]] * batch_size
    tokens = np.stack(Generator(path, jit_compile=jit_compile).generate(start, seq, noise=noise))  # [batch, seq]
    lengths = np.linspace(seq / batch_size, seq, batch_size).astype(np.int32)  # [batch]
    found = []
    for each in ("float32", dtype):
        net = Network(pack(weights, hparams, each), hparams, Ops(jit_compile))

        def last_logits(tokens, lengths, net=net):
            h, _ = net.prefill(tokens, seq)  # [batch, seq, features]
            return net.logits(tf.gather(h, lengths - 1, batch_dims=1))  # [batch, padded vocab]

        program = tf.function(last_logits, jit_compile=jit_compile, autograph=False)
        logits = program(tf.constant(tokens), tf.constant(lengths))  # [batch, padded vocab]
        found.append(tf.nn.log_softmax(logits[:, : hparams.n_vocab]).numpy())  # [batch, vocab]
    return float(np.abs(found[0] - found[1]).mean())
