"""The sampling loop: every recorded run of the original, and the bounds of the window."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from recorded import context_of, differences, hinges_on_rounding, read_cases, recorded

from gpt2tf import GPT2, HParams, load_model, op_seeds, sample_sequence, sampling_noise


def runs_of(net, case, first, later):
    """What the port samples for a recorded case: [runs, batch, length]."""
    batch_size = case.get("batch_size", 1)
    options = {name: case[name] for name in ("length", "temperature", "top_k", "top_p")}
    context = context_of(case, net.hparams.n_vocab)
    return [
        sample_sequence(
            net,
            context=context,
            batch_size=batch_size,
            noise=sampling_noise(first, later, length=case["length"], batch_size=batch_size, run=run),
            **options,
        )[:, len(context) :].tolist()
        for run in range(len(case["runs"]))
    ]


@pytest.mark.parametrize("case", recorded("tiny-a"))
def test_tiny_equals_the_recorded_runs(tiny, case):
    assert runs_of(tiny, case, *map(tuple, case["op_seeds"])) == case["runs"]


@pytest.mark.parametrize("case", [param for param in recorded("tiny-a") if param.values[0]["batch_size"] == 1])
def test_tiny_equals_the_recorded_runs_from_the_flags_alone(tiny, case):
    seeds = op_seeds(
        case["seed"],
        tiny.hparams.n_layer,
        conditional=case["prompt"] is not None,
        temperature=case["temperature"],
        top_k=case["top_k"],
    )
    assert runs_of(tiny, case, *seeds) == case["runs"]


def assert_differences_hinge_on_rounding(net, cases, at_most):
    weights = {v.path: v.numpy().astype(np.float64) for v in net.variables}
    count = 0
    for case in cases:
        for context, token, u in differences(net, case):
            assert hinges_on_rounding(weights, net.hparams.n_head, case, context, token, u), (case, context)
            count += 1
    assert count <= at_most


def test_what_differs_hinges_on_rounding(tiny):
    marked = [case for case in read_cases("tiny-a") if "rounding" in case]
    assert len(marked) == 1
    assert_differences_hinge_on_rounding(tiny, marked, at_most=2)


@pytest.mark.slow
def test_124m_equals_the_recorded_runs_but_for_rounding(r124m_folder):
    """536 tokens; at about one in a hundred the original hinged on a last bit, each time shown in float64."""
    net = load_model(r124m_folder)
    cases = read_cases("r124m")
    assert_differences_hinge_on_rounding(net, cases, at_most=10)
    assert runs_of(net, cases[3], *map(tuple, cases[3]["op_seeds"])) == cases[3]["runs"]  # 24 tokens of top_p 0.9


def test_rows_do_not_influence_each_other(tiny):
    rng = np.random.default_rng(0)
    context, noise = rng.integers(0, 1000, [4, 7]), rng.random([30, 4])
    together = sample_sequence(tiny, length=30, context=context, noise=noise, top_k=40)
    for row in range(4):
        alone = sample_sequence(
            tiny, length=30, context=context[row : row + 1], noise=noise[:, row : row + 1], top_k=40
        )
        assert alone[0].tolist() == together[row].tolist()


def test_greedy_equals_one_full_pass(tiny):
    """At both ends and in the middle of the window; test_generate does so for every length of the prompt."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 1000, [1, 64])
    for n_prompt in (1, 2, 3, 31, 32, 33, 62, 63, 64):
        length = min(3, 65 - n_prompt)
        found = sample_sequence(
            tiny, length=length, context=tokens[:, :n_prompt], temperature=0, noise=np.zeros([length, 1])
        )
        expected = tf.argmax(tiny(found[:, :-1])["logits"][0, n_prompt - 1 :], axis=-1)
        assert found[0, n_prompt:].tolist() == expected.numpy().tolist()


class Scripted:
    """A stand-in for the model that always wants the next token up, to make indexing exact."""

    hparams = HParams(n_vocab=11, n_ctx=8, n_embd=4, n_head=2, n_layer=1)
    compute_dtype = "float32"

    def __call__(self, tokens, past):
        batch, seq = tf.unstack(tf.shape(tokens))
        tf.debugging.assert_less_equal(tf.shape(past)[-2] + seq, self.hparams.n_ctx)
        return {
            "logits": tf.one_hot((tokens + 1) % 11, 11, on_value=1e9),
            "present": tf.zeros([batch, 1, 2, 2, seq, 2]),
        }


@pytest.mark.parametrize(("n_prompt", "length"), [(3, 6), (1, 8), (8, 1), (2, 0), (8, 0)])
def test_what_fits_the_window_runs(n_prompt, length):
    found = sample_sequence(
        Scripted(), length=length, context=np.tile(np.arange(n_prompt), [2, 1]), noise=np.zeros([length, 2])
    )
    assert found.tolist() == [list(range(n_prompt + length))] * 2


@pytest.mark.parametrize(("n_prompt", "length"), [(3, 7), (8, 2), (9, 1), (9, 0)])
def test_what_does_not_fit_the_window_is_refused(n_prompt, length):
    with pytest.raises(ValueError, match=f"the prompt has {n_prompt} tokens"):
        sample_sequence(Scripted(), length=length, context=[0] * n_prompt, noise=np.zeros([length, 1]))


def test_start_token_and_batch_size():
    found = sample_sequence(Scripted(), length=2, start_token=5, batch_size=3, noise=np.zeros([2, 3]))
    assert found.tolist() == [[5, 6, 7]] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": -1}, "length is -1"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e-9}, "temperature is 1e-09"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"context": None}, "either start_token or context"),
        ({"start_token": 3}, "either start_token or context"),
        ({"context": []}, "the prompt is empty"),
        ({"context": [[]]}, "the prompt is empty"),
        ({"context": [11]}, "token 11 is not in the vocabulary of 11"),
        ({"context": [-1]}, "token -1 is not in the vocabulary of 11"),
        ({"context": [0.5]}, "tokens must be whole numbers, these are float64"),
        ({"context": [[[1]]]}, "context must be"),
        ({"context": [[1], [2]], "batch_size": 3}, "context has 2 rows, batch_size is 3"),
        ({"context": np.zeros([0, 3], int)}, "context has no rows"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"noise": np.zeros([3, 1])}, r"noise has shape \(3, 1\)"),
        ({"noise": np.ones([2, 1])}, r"outside of \[0, 1\)"),
        ({"noise": np.full([2, 1], np.nan)}, r"outside of \[0, 1\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    good = {"length": 2, "context": [0], "noise": np.zeros([2, 1])}
    with pytest.raises(ValueError, match=message):
        sample_sequence(Scripted(), **{**good, **arguments})


@pytest.mark.parametrize("temperature", [0, 1])
def test_weights_that_are_not_finite_are_an_error(temperature):
    net = GPT2(Scripted.hparams)
    net.wte.assign(np.full(net.wte.shape, np.nan))
    with pytest.raises(FloatingPointError, match="not finite"):
        sample_sequence(net, length=5, context=[0], temperature=temperature, noise=np.zeros([5, 1]))


def test_numpy_scalars_are_options_too(tiny):
    plain = {"length": 5, "temperature": 0.75, "top_k": 4, "top_p": 0.5}
    kinds = {"length": np.int64, "temperature": np.float32, "top_k": np.int32, "top_p": np.float32}
    noise = np.linspace(0, 0.9, 5)[:, None]
    expected = sample_sequence(tiny, context=[1], noise=noise, **plain)
    found = sample_sequence(tiny, context=[1], noise=noise, **{name: kinds[name](plain[name]) for name in plain})
    assert found.tolist() == expected.tolist()


def test_a_sampled_model_can_be_forgotten():
    net = GPT2(Scripted.hparams)
    sample_sequence(net, length=2, context=[0], noise=np.zeros([2, 1]))
    remembered = weakref.ref(net)
    del net
    gc.collect()
    assert remembered() is None
