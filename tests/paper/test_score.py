"""Scores: equal to a float64 calculation from the definition of the windows, whatever they are batched with."""

import math
import pathlib
import subprocess
import sys
import time

import numpy as np
import oracle
import pytest
from recorded import GOLDEN
from tolerances import SCORE, SCORE_BFLOAT16

import encoder
import gpt2tf
from gpt2tf import GPT2, Scorer
from gpt2tf.checkpoint import load_weights
from gpt2tf.hparams import HParams
from gpt2tf.locate import BUNDLED
from gpt2tf.paper.score import BUCKETS, SLAB, TOKENS

FOLDERS = {"tiny-a": GOLDEN / "tiny-a", "shakespeare": pathlib.Path(BUNDLED, "shakespeare")}


@pytest.fixture(scope="module", params=FOLDERS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def truth(name):
    """(hparams, float64 weights) of the model."""
    hparams, weights, _ = load_weights(FOLDERS[name])
    return hparams, {key: np.asarray(weights[key], np.float64) for key in weights}


@pytest.fixture(scope="module")
def scorer(name):
    return Scorer(FOLDERS[name], jit_compile=False)


@pytest.fixture(scope="module")
def tiny_scorer():
    return Scorer(FOLDERS["tiny-a"], jit_compile=False)


def random_row(n, n_vocab, seed=0):
    return np.random.RandomState(seed).randint(0, n_vocab, n).tolist()


def logits_before(truth, row, stride):
    """The logits that score each token of a row but the first, [tokens - 1, vocab], by the definition of the windows.

    Token i is scored by the first window that holds it; window k has the n_ctx tokens from k * stride on.
    """
    hparams, weights = truth
    found, passes = [], {}
    for i in range(1, len(row)):
        begin = max(0, math.ceil((i - hparams.n_ctx + 1) / stride)) * stride
        if begin not in passes:
            passes[begin] = oracle.forward(weights, hparams.n_head, np.array(row[begin : begin + hparams.n_ctx]))
        found.append(passes[begin][i - 1 - begin])
    return np.array(found).reshape(-1, hparams.n_vocab)


def assert_scores(score, logits, targets, alternatives=0):
    """A score, of which the first may be unknown, by the logits before the targets."""
    at = np.arange(len(targets))
    expected = np.log(oracle.softmax(logits))
    assert np.abs(score.log_probabilities[-len(targets) :] - expected[at, targets]).max() < SCORE
    target = logits[at, targets][:, None]
    # Where others are within rounding of the target its rank is one of several.
    lowest, highest = (1 + (logits > target + slack).sum(-1) for slack in (SCORE, -SCORE))
    assert ((lowest <= score.ranks[-len(targets) :]) & (score.ranks[-len(targets) :] <= highest)).all()
    assert (lowest == highest - 1).mean() > 0.9  # the target itself is the one more
    best = np.sort(expected)[:, ::-1][:, :alternatives]
    assert np.abs(score.alternative_log_probabilities[-len(targets) :] - best).max(initial=0) < SCORE
    named = np.take_along_axis(expected, score.alternatives[-len(targets) :], -1)
    assert np.abs(named - best).max(initial=0) < SCORE


@pytest.mark.parametrize(
    "name, stride",
    [*(("tiny-a", stride) for stride in (None, 1, 40, 63)), ("shakespeare", None)],
    indirect=["name"],
    scope="module",
)
def test_rows_of_any_length_equal_the_definition(truth, scorer, name, stride):
    hparams = truth[0]
    lengths = [2, hparams.n_ctx + 9] + ([hparams.n_ctx, 3 * hparams.n_ctx + 5] if name == "tiny-a" else [])
    rows = [random_row(n, hparams.n_vocab, seed) for seed, n in enumerate(lengths)]
    scores = list(scorer.score(rows, stride=stride, alternatives=4))
    for row, score in zip(rows, scores, strict=True):
        assert np.isnan(score.log_probabilities[0]) and score.ranks[0] == 0
        assert np.isnan(score.alternative_log_probabilities[0]).all()
        assert_scores(score, logits_before(truth, row, stride or hparams.n_ctx // 2), row[1:], alternatives=4)


def test_the_start_is_context_and_no_result(truth, scorer):
    end = truth[0].n_vocab - 1
    assert scorer.vocabulary.tables()[0][encoder.END_OF_TEXT] == end
    row = random_row(truth[0].n_ctx + 10, end)
    (score,) = scorer.score([row], start=True)
    assert len(score.log_probabilities) == len(row)
    assert_scores(score, logits_before(truth, [end, *row], truth[0].n_ctx // 2), row)


def test_what_fits_a_window_is_one_pass(truth, scorer):
    hparams, weights = truth
    row = random_row(hparams.n_ctx + 50, hparams.n_vocab)
    logits = oracle.forward(weights, hparams.n_head, np.array(row[: hparams.n_ctx - 1]))
    (score,) = scorer.score([row])
    first = type(score)(*(array[: hparams.n_ctx] for array in score))
    assert_scores(first, logits, row[1 : hparams.n_ctx])


def test_rows_with_nothing_to_score(tiny_scorer):
    empty, one = tiny_scorer.score([[], [3]], alternatives=2)
    assert [array.shape for array in empty] == [(0,), (0,), (0, 2), (0, 2)]
    assert np.isnan(one.log_probabilities).tolist() == [True] and one.ranks.tolist() == [0]
    empty, one = tiny_scorer.score([[], [3]], start=True)
    assert empty.ranks.shape == (0,) and np.isfinite(one.log_probabilities).all() and one.ranks[0] >= 1
    assert list(tiny_scorer.score([])) == []


def test_a_row_does_not_depend_on_its_batch(tiny_scorer):
    rows = [random_row(n, 1000, n) for n in [5, 70, 5, 1, 33, 64, 200, 0, 17, *range(2, 60)]]
    together = list(tiny_scorer.score(rows))
    for row, score in zip(rows, together, strict=True):
        (alone,) = tiny_scorer.score([row])
        assert len(score.ranks) == len(row)
        assert np.allclose(score.log_probabilities, alone.log_probabilities, rtol=0, atol=SCORE, equal_nan=True)


def test_rows_come_in_order_and_as_they_are_done(tiny_scorer):
    read, rows = [], [random_row(1 + n % 90, 1000, n) for n in range(600)]
    scores = tiny_scorer.score(read.append(len(row)) or row for row in rows)
    next(scores)
    assert sum(read) < sum(map(len, rows)) / 2  # the rest was not asked for yet
    assert [len(score.ranks) for score in scores] == [len(row) for row in rows[1:]]


def test_few_functions_are_compiled_and_little_is_computed_at_a_time(monkeypatch):
    scorer = Scorer(FOLDERS["shakespeare"], jit_compile=False)
    hidden, scores = scorer._network.hidden, scorer._network.scores
    sizes, slabs = [], []
    monkeypatch.setattr(scorer._network, "hidden", lambda t, begin: sizes.append(t.shape) or hidden(t, begin))
    monkeypatch.setattr(scorer._network, "scores", lambda h, *rest: slabs.append(h.shape[0]) or scores(h, *rest))
    rows = [random_row(n, 4096) for n in range(2, 300, 9)]
    progress = []
    list(scorer.score(rows, progress=progress.append))
    assert sum(progress) == sum(len(row) - 1 for row in rows) and len(progress) == len(sizes)
    assert {seq for _, seq in sizes} <= set(BUCKETS)
    assert max(batch * seq for batch, seq in sizes) <= TOKENS["CPU"] and max(slabs) <= SLAB
    padding = sum(batch * seq for batch, seq in sizes) / sum(map(len, rows))
    assert padding < 1.5
    # Of one row and of more, and of all positions or of those alone that are scored.
    assert all(block.experimental_get_tracing_count() <= 4 for block in scorer._network._blocks.values())


@pytest.mark.timing
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_takes_no_longer_than_its_rows(dtype):
    scorer = Scorer(FOLDERS["shakespeare"], dtype, jit_compile=False)

    def seconds(batch):
        rows, taken = [np.arange(256)] * batch, []
        for _ in range(4):  # the first compiles
            begun = time.perf_counter()
            list(scorer.score(rows))
            taken.append(time.perf_counter() - begun)
        return min(taken)

    assert seconds(4) < 10 * seconds(1)  # it is 3 times as long


def with_wte(rows, value):
    """The recorded model with other values in some rows of wte."""
    hparams, weights, vocabulary = load_weights(FOLDERS["tiny-a"])
    arrays = {key: np.array(weights[key]) for key in weights}
    arrays["model/wte"][rows] = value
    return GPT2(hparams, initial_value=lambda path, shape: arrays[path], vocabulary=vocabulary)


def test_ties_count_as_less_likely():
    equal = list(range(10, 30))
    model = with_wte(equal, 0)  # so their logits are 0
    row = [5, *equal, 400, 20]
    (score,) = gpt2tf.score(model, [row], jit_compile=False, alternatives=1000)
    logits = model(np.array([row[:-1]]))["logits"].numpy()[0]
    for at in range(1, 21):
        assert score.ranks[at] == 1 + (logits[at - 1] > 1e-6).sum()
        tied = [token for token in score.alternatives[at] if token in equal]
        assert tied == equal  # in the order of their ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_wte_without_a_token_have_no_probability(dtype):
    hparams, weights, vocabulary = load_weights(FOLDERS["tiny-a"])
    padded = {key: np.array(weights[key]) for key in weights}
    padded["model/wte"] = np.concatenate([padded["model/wte"], np.full([24, 48], 0.3, np.float32)])
    hparams = HParams(**{**vars(hparams), "n_vocab": 1024})
    model = GPT2(hparams, initial_value=lambda path, shape: padded[path], vocabulary=vocabulary)
    row = random_row(40, 1000)
    (found,) = gpt2tf.score(model, [row], jit_compile=False, dtype=dtype, alternatives=1000)
    (expected,) = gpt2tf.score(FOLDERS["tiny-a"], [row], jit_compile=False, dtype=dtype, alternatives=1000)
    slack = SCORE if dtype == "float32" else SCORE_BFLOAT16
    assert np.nanmax(np.abs(found.log_probabilities - expected.log_probabilities)) < slack
    assert found.alternatives[1:].max() == 999
    with pytest.raises(ValueError, match="token 1000 is not in the vocabulary of 1000"):
        gpt2tf.score(model, [[1, 1000]], jit_compile=False)


def test_bfloat16_is_near_also_where_all_logits_are_far_from_0(truth, name):
    hparams, weights = truth
    row = random_row(hparams.n_ctx, hparams.n_vocab)
    expected = np.log(oracle.softmax(oracle.forward(weights, hparams.n_head, np.array(row[:-1]))))
    (found,) = gpt2tf.score(FOLDERS[name], [row], dtype="bfloat16", jit_compile=False)
    difference = found.log_probabilities[1:] - expected[np.arange(len(row) - 1), row[1:]]
    assert 1e-4 < np.abs(difference).max() < SCORE_BFLOAT16 and abs(difference.mean()) < SCORE_BFLOAT16 / 4
    # ln_f's output gets a large part that is the same for all tokens, which their probabilities do not show.
    far = {key: np.array(value, np.float32) for key, value in weights.items()}
    direction = np.zeros([hparams.n_embd], np.float32)
    direction[0] = 1
    far["model/wte"] = far["model/wte"].copy()
    far["model/wte"][:, 0] = 4
    far["model/ln_f/g"][0], far["model/ln_f/b"][0] = 0, 0
    near = GPT2(hparams, initial_value=lambda path, shape: far[path])
    far["model/ln_f/b"] = far["model/ln_f/b"] - 25 * direction  # all logits are 100 less
    other = GPT2(hparams, initial_value=lambda path, shape: far[path])
    near, other = (
        gpt2tf.score(model, [row], dtype="bfloat16", jit_compile=False)[0].log_probabilities[1:]
        for model in (near, other)
    )
    assert np.abs(near - other).max() < SCORE_BFLOAT16


def test_a_model_and_its_folder_score_alike_with_and_without_xla(tiny, tiny_scorer):
    rows = [random_row(64, 1000), random_row(100, 1000)]
    expected = list(tiny_scorer.score(rows, alternatives=3))
    for found in gpt2tf.score(tiny, rows, alternatives=3), gpt2tf.score(tiny, rows, alternatives=3, jit_compile=True):
        for score, other in zip(found, expected, strict=True):
            assert np.allclose(score.log_probabilities, other.log_probabilities, rtol=0, atol=SCORE, equal_nan=True)
            assert (score.alternatives == other.alternatives).all()


def test_what_is_refused(tiny_scorer):
    for options, message in [
        ({"stride": 0}, "stride is 0; it must be from 1 to 63"),
        ({"stride": 64}, "stride is 64; it must be from 1 to 63"),
        ({"alternatives": -1}, "alternatives is -1; it must be from 0 to 1000"),
        ({"alternatives": 1001}, "alternatives is 1001; it must be from 0 to 1000"),
    ]:
        with pytest.raises(ValueError, match=message):
            tiny_scorer.score([[1, 2]], **options)  # before a row is asked for
    for row, message in [
        ([1, 1000], "token 1000 is not in the vocabulary of 1000"),
        ([-1, 1], "token -1 is not in the vocabulary"),
        ([0.5], "whole numbers"),
        ([[1, 2]], r"a row must be a list of token ids; its shape is \(1, 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(tiny_scorer.score([row]))
    with pytest.raises(ValueError, match="dtype is 'int8'; it must be one of float32, bfloat16"):
        Scorer(FOLDERS["tiny-a"], "int8")


def test_a_start_needs_a_vocabulary():
    model = GPT2(HParams(n_vocab=300, n_ctx=16, n_embd=8, n_head=2, n_layer=1))
    with pytest.raises(ValueError, match="vocabulary is not known"):
        Scorer(model).score([[1, 2]], start=True)


def test_damaged_weights_are_an_error():
    with pytest.raises(FloatingPointError, match="not finite"):
        gpt2tf.score(with_wte([7], np.nan), [[1, 7, 2]], jit_compile=False)


MEMORY = """
import ctypes, re
import numpy as np
from gpt2tf import GPT2, Scorer
from gpt2tf.hparams import HParams
def memory(name): return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
scorer = Scorer(GPT2(HParams(n_vocab=50257, n_ctx=1024, n_embd=16, n_head=2, n_layer=1)))
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = memory("VmRSS")
list(scorer.score([np.arange(1500), *[np.arange(100)] * 10], alternatives=5, stride=1000))
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read in /proc")
def test_the_logits_of_a_window_are_never_there_at_once():
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 300e6  # those of the windows are 500 MB, and what is made of them as much again
