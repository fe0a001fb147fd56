"""The Generator: the recorded runs, prompts of different lengths, stops, streams, threads, and what is compiled."""

import dataclasses
import os
import pathlib
import re
import resource
import subprocess
import sys
import threading

import numpy as np
import oracle
import pytest
import tensorflow as tf
from asking import ask, prompts_of
from logits import Logits
from recorded import GOLDEN, context_of, hinges_on_rounding, lists, read_cases, recorded
from tolerances import R124M_INT8_NLL

from gpt2tf import GPT2, Generator, HParams, load_model, sample_sequence, sampling_noise
from gpt2tf.decode.weights import STREAMS

N_CTX = 64
SMALL = HParams(n_vocab=11, n_ctx=32, n_embd=8, n_head=2, n_layer=1)


@pytest.fixture(scope="module")
def xla(tiny):
    return Generator(tiny)


@pytest.fixture(scope="module")
def graph(tiny):
    return Generator(tiny, jit_compile=False)


@pytest.fixture(scope="module")
def gpu(tiny):
    return Generator(tiny, jit_compile=False, platform="GPU")


@pytest.fixture(scope="module")
def gpu_xla(tiny):
    return Generator(tiny, platform="GPU")


@pytest.fixture(params=["xla", "graph", "gpu"])
def generator(request):
    """The tiny model, with XLA and without, and in the form for a GPU."""
    return request.getfixturevalue(request.param)


def reference(net, prompts, length, noise, **options):
    """What sample_sequence makes of each prompt by itself."""
    return [
        sample_sequence(net, length=length, context=prompt, noise=noise[:, row : row + 1], **options)[
            0, len(prompt) :
        ].tolist()
        for row, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("form", ["xla", "graph", "gpu", "gpu_xla"])
@pytest.mark.parametrize("case", recorded("tiny-a"))
def test_equals_the_recorded_runs(request, form, case):
    generator = request.getfixturevalue(form)
    batch_size, length = case["batch_size"], case["length"]
    for run, tokens in enumerate(case["runs"]):
        noise = sampling_noise(*map(tuple, case["op_seeds"]), length=length, batch_size=batch_size, run=run)
        found = generator.generate(
            [context_of(case, 1000)] * batch_size,
            length,
            noise=noise,
            **{name: case[name] for name in ("temperature", "top_k", "top_p")},
        )
        assert lists(found) == tokens


def test_a_folder_and_its_model_are_the_same(graph):
    options = {"length": 8, "seed": 5, "top_k": 40}
    found = Generator(str(GOLDEN / "tiny-a"), jit_compile=False).generate([[1, 2, 3]], **options)
    assert lists(found) == lists(graph.generate([[1, 2, 3]], **options))


@pytest.mark.parametrize("batches", [(1, 5, 1), (5, 1, 5), (5,)])
def test_each_batch_size_has_its_layout_whichever_came_first(tiny, batches):
    net, texts = Generator(tiny, "int8", jit_compile=False), {}
    for batch in batches:
        found = lists(net.generate(prompts_of(*[3] * batch), 4, seed=1, top_k=40))
        assert texts.setdefault(batch, found) == found
        assert net._network(batch).weights["mlp/c_fc"].array.shape[1] == (1 if batch == 5 else STREAMS)
        assert len(net._network(batch).weights["mlp/c_fc"].layers) == (3 if batch == 5 else 0)
    assert len(net._networks) == len(set(batches))


def test_what_comes_first_is_compiled_while_the_weights_are_read(monkeypatch, tiny, graph):
    """No weight is to be had before all is compiled, and the first call compiles nothing."""
    compiled, compile_ = threading.Event(), Generator.compile

    class Late(dict):
        def __getitem__(self, name):
            assert compiled.wait(60)
            return super().__getitem__(name)

    def compile_and_tell(self, *first):
        compile_(self, *first)
        compiled.set()

    weights = Late({v.path: v.numpy() for v in tiny.variables})
    monkeypatch.setattr("gpt2tf.generate.load_weights", lambda path: (tiny.hparams, weights, None))
    monkeypatch.setattr(Generator, "compile", compile_and_tell)
    generator = Generator("a path", jit_compile=False, first=(1, 3, 8))
    assert generator.compilations == 2
    options = {"length": 8, "seed": 5, "top_k": 40}
    assert lists(generator.generate([[1, 2, 3]], **options)) == lists(graph.generate([[1, 2, 3]], **options))
    assert generator.compilations == 2


@pytest.mark.parametrize("first", [(1, 1, 0), (2, 64, 1)])
def test_compiling_for_the_ends_of_what_is_possible(tiny, first):
    Generator(tiny, jit_compile=False, first=first)


def test_a_seed_stands_for_the_originals_first_run(generator):
    case = next(c for c in read_cases("tiny-a") if c["prompt"] and c["batch_size"] == 1 and c["length"] == 40)
    found = generator.generate(
        [case["prompt_tokens"]], 40, seed=case["seed"], **{n: case[n] for n in ("temperature", "top_k", "top_p")}
    )
    assert lists(found) == case["runs"][0]


def test_without_a_seed_runs_differ(graph):
    first, second = (lists(graph.generate([[1, 2, 3]], 20)) for _ in range(2))
    assert first != second


def test_rows_do_not_influence_each_other(tiny, xla, generator):
    """Batches of prompts of several lengths: each row is what it is alone, and what the readable loop makes."""
    prompts = prompts_of(1, 2, 20, 17, 3, 16, 15, 9, 5)
    noise = np.random.default_rng(1).random([24, 9])
    options = {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
    expected = reference(tiny, prompts, 24, noise, **options)
    alone = [generator.generate([p], 24, noise=noise[:, [i]], **options)[0].tolist() for i, p in enumerate(prompts)]
    assert alone == expected
    batches = [slice(0, 2), slice(2, 5), slice(0, 9), slice(4, 9)]  # the last two are of one kind to XLA
    for rows in batches[:3] if generator is xla else batches:
        assert lists(generator.generate(prompts[rows], 24, noise=noise[:, rows], **options)) == expected[rows]
    order = [2, 0, 1]  # the first rows of another batch, which is of another width
    assert lists(generator.generate([prompts[i] for i in order], 24, noise=noise[:, order], **options)) == [
        expected[i] for i in order
    ]


def test_greedy_equals_one_full_pass_for_every_prompt_length(tiny, generator):
    """Up to the last position of the window: a token made from the wrong position or mask would differ."""
    tokens = np.random.default_rng(1).integers(0, 1000, [N_CTX])
    for n_prompt in range(1, N_CTX + 1):
        length = min(3, N_CTX + 1 - n_prompt)
        (found,) = generator.generate([tokens[:n_prompt]], length, temperature=0)
        full = np.concatenate([tokens[:n_prompt], found])[None, :-1]
        expected = tf.argmax(tiny(full)["logits"][0, n_prompt - 1 :], axis=-1)
        assert found.tolist() == expected.numpy().tolist()


@pytest.mark.parametrize("n_prompt", [1, 5, 40])
def test_the_whole_window_is_used(tiny, generator, n_prompt):
    (prompt,) = prompts_of(n_prompt)
    length = N_CTX + 1 - n_prompt
    noise = np.random.default_rng(2).random([length, 1])
    found = generator.generate([prompt], length, noise=noise, top_k=40)
    assert lists(found) == reference(tiny, [prompt], length, noise, top_k=40)
    with pytest.raises(ValueError, match=f"the prompt has {n_prompt} tokens"):
        generator.generate([prompt], length + 1)


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("stop", [False, True])
def test_a_stream_is_the_same_in_pieces(generator, chunk, stop):
    prompts, noise = prompts_of(4, 11, 7), np.random.default_rng(3).random([20, 3])
    options = {"noise": noise, "top_k": 40}
    whole = generator.generate(prompts, 20, **options)
    if stop:
        options["stop"] = int(whole[1][9])
        whole = generator.generate(prompts, 20, **options)
        assert max(map(len, whole)) == 20 > len(whole[1])
    pieces = list(generator.stream(prompts, 20, chunk=chunk, **options))
    assert len(pieces) == -(-20 // chunk)
    assert all(len(piece) == 3 and max(map(len, piece)) <= chunk for piece in pieces)
    assert [np.concatenate(row).tolist() for row in zip(*pieces, strict=True)] == lists(whole)


def test_a_stream_yields_before_it_is_done(generator):
    stream = generator.stream([[1, 2, 3]], 20, seed=1, chunk=2)
    first = next(stream)
    assert len(first[0]) == 2
    stream.close()


def test_a_stop_ends_its_row_and_no_other(generator):
    prompts, noise = prompts_of(4, 11, 7), np.random.default_rng(4).random([20, 3])
    free = lists(generator.generate(prompts, 20, noise=noise))
    for row in range(3):
        for at in (0, 1, 8, 19):
            stop = free[row][at]
            expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in free]
            assert lists(generator.generate(prompts, 20, noise=noise, stop=stop)) == expected
    unused = next(token for token in range(1000) if token not in sum(free, []))
    assert lists(generator.generate(prompts, 20, noise=noise, stop=unused)) == free


def test_no_row_goes_on_after_all_have_stopped(generator):
    (prompt,) = prompts_of(4)
    free = generator.generate([prompt], 20, seed=6)[0].tolist()
    at = next(i for i in range(4, 20) if free[i] not in free[:i])
    pieces = list(generator.stream([prompt], 20, seed=6, stop=free[at], chunk=1))
    assert [piece[0].tolist() for piece in pieces] == [[token] for token in free[: at + 1]]


def broken(path, at, value):
    """A small model with one number replaced."""
    net = GPT2(SMALL)
    variable = next(v for v in net.variables if v.path == path)
    changed = variable.numpy()
    changed[at] = value
    variable.assign(changed)
    return net


@pytest.mark.parametrize("jit_compile", [True, False])
def test_the_loop_ends_with_the_last_stop(jit_compile):
    """A model whose position 10 is damaged: a loop that goes on there is an error, one that has ended is not."""
    generator = Generator(broken("model/wpe", (10, 0), np.nan), jit_compile=jit_compile)
    noise = np.random.default_rng(0).random([20, 1])
    free = generator.generate([[1]], 10, noise=noise[:10])[0].tolist()
    with pytest.raises(FloatingPointError, match="not finite"):
        generator.generate([[1]], 20, noise=noise)
    assert lists(generator.generate([[1]], 20, noise=noise, stop=free[9])) == [free[: free.index(free[9]) + 1]]
    pieces = []
    with pytest.raises(FloatingPointError, match="not finite"):
        for piece in generator.stream([[1]], 20, noise=noise, chunk=4):
            pieces.extend(piece[0].tolist())
    assert pieces == free[:8]  # nothing of the chunk with the damage comes out


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 1), ("int8", 1), ("int8", 4)])
@pytest.mark.parametrize(
    ("path", "at", "bad"),
    [
        ("model/wpe", 0, np.nan),
        ("model/wte", (1, 0), np.inf),
        ("model/h0/mlp/c_fc/w", (0, 0, 0), np.nan),
        ("model/ln_f/g", 3, np.inf),
    ],
)
def test_weights_that_are_not_finite_are_an_error(dtype, rows, path, at, bad):
    generator = Generator(broken(path, at, bad), dtype=dtype, jit_compile=False)
    with pytest.raises(FloatingPointError, match="not finite"):
        generator.generate([[1]] * rows, 1, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_weights_that_are_not_finite_are_an_error_with_xla(dtype):
    generator = Generator(broken("model/wpe", 0, np.nan), dtype=dtype)
    for temperature in (0, 1):
        with pytest.raises(FloatingPointError, match="not finite"):
            generator.generate([[1]] * 4, 1, seed=0, temperature=temperature)


def only_the_first_is_infinite():
    """Logits that overflow at position 0 and nowhere else."""
    net = GPT2(SMALL, initial_value=lambda path, shape: np.zeros(shape, np.float32))
    wpe, wte = np.zeros([32, 8], np.float32), np.zeros([11, 8], np.float32)
    wpe[:, 2:4] = 1, -1
    wpe[0] = 10, -10, 0, 0, 0, 0, 0, 0
    wte[10, 0] = 3e38
    for variable in net.variables:
        if variable.path in ("model/wpe", "model/wte"):
            variable.assign(wpe if variable.path == "model/wpe" else wte)
        elif variable.path.endswith("/g"):
            variable.assign(np.ones(variable.shape))
    return net


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_first_token_from_logits_that_are_not_finite_is_an_error(jit_compile):
    net = only_the_first_is_infinite()
    logits = net(np.array([[1, 1, 1]]))["logits"].numpy()
    assert np.isinf(logits[0, 0]).any() and np.isfinite(logits[0, 1:]).all()
    with pytest.raises(FloatingPointError, match="not finite"):
        Generator(net, jit_compile=jit_compile).generate([[1]], 3, seed=0)


def test_nothing_new_is_compiled_within_the_buckets(tiny):
    """One function for the prompts of a bucket and one for the loop, whatever else is asked."""
    generator = Generator(tiny, jit_compile=False)
    threads = [threading.Thread(target=generator.generate, args=[[[1, 2, 3]], 2]) for _ in range(4)]
    for thread in threads:  # who come first, all at once
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.compilations == 2
    ask(generator)
    assert generator.compilations == 2
    generator.generate([[1]], 3)  # the loop alone
    generator.generate(prompts_of(17), 3)  # 16 tokens, and the one with which the loop begins
    assert generator.compilations == 2
    generator.generate(prompts_of(64), 1)
    assert generator.compilations == 3
    ask(generator)
    assert generator.compilations == 3


COUNT_COMPILATIONS = """
import sys
sys.path.insert(0, sys.argv[1])
import pathlib
from asking import ask, prompts_of
from recorded import GOLDEN
from gpt2tf import Generator, load_model

def compiled():
    return sum(1 for _ in pathlib.Path(sys.argv[2]).glob("*.before_optimizations.txt"))

generator = Generator(load_model(GOLDEN / "tiny-a"))
(prompt,) = prompts_of(7)
generator.generate([prompt], 2, seed=0)
first = compiled()
ask(generator)
print("compiled", first, compiled(), "compilations", generator.compilations)
"""


def test_xla_compiles_each_program_once(tmp_path):
    """XLA may compile a traced function again for values that it takes as constants; it leaves a dump each time."""
    env = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    env["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).parent.parent), env.get("PYTHONPATH", "")])
    argv = [sys.executable, "-c", COUNT_COMPILATIONS, str(pathlib.Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert re.search(r"compiled 2 2 compilations 2", done.stdout), done.stdout + done.stderr


def test_threads_get_what_they_get_alone(generator):
    prompts = prompts_of(3, 12, 7, 16)
    noise = np.random.default_rng(5).random([4, 30, 1])
    alone = [lists(generator.generate([prompts[i]], 30, noise=noise[i], top_k=40)) for i in range(4)]
    found = [[] for _ in range(4)]

    def work(i):
        for _ in range(5):
            found[i].append(lists(generator.generate([prompts[i]], 30, noise=noise[i], top_k=40)))

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[tokens] * 5 for tokens in alone]


def resident():
    pages = pathlib.Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_200_calls_take_no_more_memory(xla):
    """A cache of tiny's is 300 KB: to keep one of each call would be 60 MB."""
    (prompt,) = prompts_of(7)
    for seed in range(20):
        xla.generate([prompt], 3, seed=seed)
    compilations, before = xla.compilations, resident()
    for seed in range(200):
        xla.generate([prompt], 3, seed=seed)
    assert xla.compilations == compilations
    assert resident() - before < 20e6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_narrow_matrices_reach_the_text(tiny, graph, dtype):
    """Their logits are in test_packed. Here: they are used, and the same call gives the same again."""
    generator = Generator(tiny, dtype=dtype, jit_compile=False)
    prompts, noise = prompts_of(9), np.random.default_rng(7).random([40, 1])
    found = lists(generator.generate(prompts, 40, noise=noise))
    assert found == lists(generator.generate(prompts, 40, noise=noise))
    text = np.array([prompts[0] + found[0]])
    wide = np.log(oracle.softmax(tiny(text[:, :-1])["logits"][0, 8:].numpy().astype(np.float64)))
    assert wide[np.arange(40), found[0]].mean() > np.log(1 / 1000)  # better than chance to float32


def test_an_unknown_dtype_or_platform_is_refused(tiny):
    with pytest.raises(ValueError, match="dtype is 'float8'; it must be one of float32, bfloat16, float16, int8"):
        Generator(tiny, dtype="float8")
    for platform in ("gpu", "TPU"):
        with pytest.raises(ValueError, match=f"platform is '{platform}'; it must be one of CPU, GPU"):
            Generator(tiny, platform=platform)


def test_length_0_gives_no_tokens(graph):
    assert lists(graph.generate([[1], [2, 3]], 0)) == [[], []]
    assert list(graph.stream([[1]], 0)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "no prompts"),
        ({"prompts": [[1], []]}, "the prompt is empty"),
        ({"prompts": [[0.5]]}, "tokens must be whole numbers, these are float64"),
        ({"prompts": [[True]]}, "tokens must be whole numbers, these are bool"),
        ({"prompts": [[1000]]}, "token 1000 is not in the vocabulary of 1000"),
        ({"prompts": [[5], [-1]]}, "token -1 is not in the vocabulary of 1000"),
        ({"prompts": [1, 2, 3]}, "a prompt must be a list of token ids"),
        ({"prompts": [[[1, 2]]]}, "a prompt must be a list of token ids"),
        ({"prompts": ["hello"]}, "a prompt must be a list of token ids|whole numbers"),
        ({"prompts": [[0] * 65]}, "the prompt has 65 tokens"),
        ({"prompts": [[0], [0] * 60], "length": 6}, "the prompt has 60 tokens and length is 6"),
        ({"length": -1}, "length is -1"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"noise": np.zeros([3, 1])}, r"noise has shape \(3, 1\)"),
        ({"noise": np.zeros([2])}, r"noise has shape \(2,\)"),
        ({"stop": 1000}, "token 1000 is not in the vocabulary of 1000"),
        ({"stop": -1}, "token -1 is not in the vocabulary of 1000"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_token(graph, arguments, message):
    compilations = graph.compilations
    for method in (graph.generate, graph.stream):  # a stream too refuses when it is called
        with pytest.raises(ValueError, match=message):
            method(**{"prompts": [[1, 2]], "length": 2, **arguments})
    assert graph.compilations == compilations


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_of_no_tokens_is_refused(graph, chunk):
    with pytest.raises(ValueError, match=f"chunk is {chunk}"):
        graph.stream([[1]], 5, chunk=chunk)


@pytest.fixture(scope="module")
def r124m(r124m_folder):
    return load_model(r124m_folder)


@pytest.mark.slow
def test_124m_equals_the_readable_loop_but_for_rounding(r124m):
    prompts = [np.random.default_rng(8).integers(0, 50257, n).tolist() for n in (1, 12, 40)]
    noise = np.random.default_rng(9).random([32, 3])
    case = {"temperature": 1, "top_k": 40, "top_p": 1}
    found = lists(Generator(r124m).generate(prompts, 32, noise=noise, **case))
    expected = reference(r124m, prompts, 32, noise, **case)
    weights = {v.path: v.numpy().astype(np.float64) for v in r124m.variables}
    for row, prompt in enumerate(prompts):
        if found[row] != expected[row]:
            at = next(i for i in range(32) if found[row][i] != expected[row][i])
            context = prompt + expected[row][:at]
            assert hinges_on_rounding(weights, 12, case, context, expected[row][at], noise[at, row]), (row, at)


@pytest.mark.slow
def test_124m_int8_is_near_float32(r124m):
    """The probabilities of recorded tokens: one row of 65 (products of vectors), and eight of 8 (products of bytes)."""
    case = read_cases("r124m")[0]
    tokens = np.array([50256, *case["runs"][0][0]], np.int32)
    logits = Logits(r124m, {v.path: v.numpy() for v in r124m.variables}, "int8", True)
    for rows in (tokens[None], tokens[:-1].reshape(8, 8)):
        found = logits(rows, [1] * len(rows), rows.shape[1] - 2, src=256)  # [batch, seq - 1, vocab]
        expected = r124m(rows)["logits"][:, :-1].numpy()
        moved = np.abs(log_probabilities(found, rows) - log_probabilities(expected, rows))
        assert moved.mean() < R124M_INT8_NLL


def log_probabilities(logits, tokens):
    """logits: [batch, seq - 1, vocab], tokens: [batch, seq] -> of each token but the first, [batch, seq - 1]"""
    return np.log(np.take_along_axis(oracle.softmax(logits.astype(np.float64)), tokens[:, 1:, None], axis=-1))[..., 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("platform", ["CPU", "GPU"])
def test_refresh_takes_the_weights_as_they_are_now(dtype, platform):
    """In every layout that is in use, and in the variables that a GPU's copies are; nothing is compiled for it."""
    first, second = (GPT2(SMALL, initial_value=other_start(seed)) for seed in (1, 2))
    generator, fresh = (Generator(net, dtype, jit_compile=False, platform=platform) for net in (first, second))
    asked = [(prompts_of(*[3] * batch), batch) for batch in (1, 5)]
    asked = [[[token % SMALL.n_vocab for token in prompt] for prompt in prompts] for prompts, _ in asked]
    options = {"length": 6, "seed": 3}
    before = [lists(generator.generate(prompts, **options)) for prompts in asked]
    expected = [lists(fresh.generate(prompts, **options)) for prompts in asked]
    compilations = generator.compilations
    generator.refresh(second)
    assert [lists(generator.generate(prompts, **options)) for prompts in asked] == expected != before
    assert generator.compilations == compilations


def test_refresh_takes_no_other_model():
    net = GPT2(SMALL, initial_value=other_start(1))
    generator = Generator(net, jit_compile=False)
    before = lists(generator.generate([[1, 2]], 5, seed=1))
    for change in ({"n_head": 1}, {"n_vocab": 10}, {"n_layer": 2}, {"n_ctx": 16}):
        with pytest.raises(ValueError, match="make another Generator"):
            generator.refresh(GPT2(dataclasses.replace(SMALL, **change), initial_value=other_start(2)))
    assert lists(generator.generate([[1, 2]], 5, seed=1)) == before


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 2**32}, {"seed": 1.5}, {"top_k": 1.5}, {"stop": [1, 2]}])
def test_arguments_that_cannot_be(graph, options):
    with pytest.raises((ValueError, TypeError), match="seed is|float|list"):
        graph.generate([[1, 2]], 2, **options)


def other_start(seed):
    rng = np.random.default_rng(seed)
    return lambda path, shape: rng.normal(size=shape).astype(np.float32)
