"""Same seed, same text on a trained model: 60 runs of the original on the bundled one, and what parts from them."""

import collections

import numpy as np
import pytest
from recorded import differences, hinges_on_rounding, read_cases

from encoder import get_encoder
from gpt2tf import Generator, find_model, load_model, op_seeds, sample_sequence, sampling_noise
from gpt2tf.hparams import read_hparams
from gpt2tf.locate import BUNDLED

FOLDER = find_model("shakespeare", "no such folder")
N_LAYER = read_hparams(f"{FOLDER}/hparams.json").n_layer
ENC = get_encoder("shakespeare", BUNDLED)
OPTIONS = ("temperature", "top_k", "top_p")


def with_what_follows(case):
    """A case with what the others have as well: the seeds of the two ops, the prompt's tokens, and a list of runs."""
    seeds = op_seeds(case["seed"], N_LAYER, conditional=True, temperature=case["temperature"], top_k=case["top_k"])
    return case | {"op_seeds": seeds, "prompt_tokens": ENC.encode(case["prompt"]), "runs": [[case["tokens"]]]}


CASES = [with_what_follows(case) for case in read_cases("trained")]
MARKED = [case for case in CASES if "rounding" in case]


@pytest.fixture(scope="module")
def shakespeare():
    return load_model(FOLDER)


@pytest.fixture(scope="module")
def generator():
    return Generator(FOLDER)


def assert_as_recorded(found, case):
    """Token for token, up to the place where rounding decides if there is one."""
    expected = case["tokens"][: len(found)]
    place = case.get("rounding", len(found))
    assert found[:place] == expected[:place]
    assert (found == expected) == ("rounding" not in case)


def test_what_is_recorded_is_what_the_readme_counts():
    runs, parted = (collections.Counter((c["top_k"], c["top_p"]) for c in cases) for cases in (CASES, MARKED))
    assert runs == {(0, 1): 20, (40, 0.9): 20, (40, 1): 20} and parted == {(40, 1): 10}


@pytest.mark.parametrize("case", CASES, ids=[f"top_k {c['top_k']} top_p {c['top_p']} seed {c['seed']}" for c in CASES])
def test_generator(generator, case):
    options = {name: case[name] for name in OPTIONS}
    (found,) = generator.generate([case["prompt_tokens"]], case["length"], seed=case["seed"], **options)
    assert_as_recorded(found.tolist(), case)


@pytest.mark.parametrize("case", CASES[1::20], ids=lambda case: f"top_k {case['top_k']} top_p {case['top_p']}")
def test_sample_sequence(shakespeare, case):
    length, context = 40, case["prompt_tokens"]  # behind the place where rounding decides, if it does
    noise = sampling_noise(*case["op_seeds"], length=length)
    options = {name: case[name] for name in OPTIONS}
    found = sample_sequence(shakespeare, length=length, context=context, noise=noise, **options)
    assert_as_recorded(found[0, len(context) :].tolist(), case)


def test_what_parts_hinges_on_rounding(shakespeare):
    """Given the recorded tokens in front, the port parts at the marked place for the first time. Each time, in float64,
    the recorded token is the one that comes of dropping the last of the forty, or a last bit lies between the two."""
    weights = {v.path: v.numpy().astype(np.float64) for v in shakespeare.variables}
    for case in MARKED:
        found = list(differences(shakespeare, case))
        assert len(found[0][0]) == len(case["prompt_tokens"]) + case["rounding"]
        assert all(hinges_on_rounding(weights, shakespeare.hparams.n_head, case, *which) for which in found)
