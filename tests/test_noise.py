"""The random stream of TensorFlow 1: recorded op seeds, Philox by hand, and the op itself."""

import json

import numpy as np
import oracle
import pytest
import tensorflow as tf
from recorded import GOLDEN

from gpt2tf.noise import MAX_INT32, fresh_seed, op_seeds, sampling_noise
from gpt2tf.sample import pick_token


def recorded_cases():
    for folder, n_layer in (("tiny-a", 3), ("r124m", 12)):
        for case in json.loads((GOLDEN / folder / "samples.json").read_text(encoding="utf-8"))["cases"]:
            if case.get("batch_size", 1) == 1:  # larger ones were recorded on an older commit
                yield pytest.param(case, n_layer, id=f"{folder}-{case['op_seeds']}")


@pytest.mark.parametrize(("case", "n_layer"), list(recorded_cases()))
def test_op_seeds_equal_the_recorded_ones(case, n_layer):
    flags = {name: case[name] for name in ("temperature", "top_k")}
    found = op_seeds(case["seed"], n_layer, conditional=case["prompt"] is not None, **flags)
    assert [list(op_seed) for op_seed in found] == case["op_seeds"]


def test_an_int_and_a_float_temperature_differ():
    assert op_seeds(1, 12, conditional=False, temperature=1) != op_seeds(1, 12, conditional=False, temperature=1.0)
    as_numpy = [op_seeds(1, 12, conditional=False, temperature=kind(1)) for kind in (np.int64, np.float32)]
    assert as_numpy == [op_seeds(1, 12, conditional=False, temperature=kind(1)) for kind in (int, float)]


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # the known answers of the Random123 distribution, for philox4x32-10
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_the_oracle_is_philox(key, counter, words):
    assert oracle.philox4x32(key, counter) == words


def philox_uniform(seed, seed2, block, row):
    """The number of one row, by hand: two of the four words of the block that the row falls in."""
    block += row // 2
    words = oracle.philox4x32((seed, 0), (block & 0xFFFFFFFF, block >> 32, seed2, 0))
    w0, w1 = words[2 * (row % 2) :][:2]
    return ((w0 & 0xFFFFF) << 32 | w1) / 2**52


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("run", [0, 1, 7, 10**6])
def test_noise_equals_philox_by_hand(batch_size, run):
    first, later, length = (42, 767), (42, 1654), 4
    noise = sampling_noise(first, later, length=length, batch_size=batch_size, run=run)
    executions = [(first, run)] + [(later, run * (length - 1) + step) for step in range(length - 1)]
    expected = [
        [philox_uniform(*op_seed, execution * 2048 * batch_size, row) for row in range(batch_size)]
        for op_seed, execution in executions
    ]
    assert noise.dtype == np.float64
    assert noise.tolist() == expected


@pytest.mark.parametrize(
    "op_seed", [(42, 767), (0, 5), (0, 0), (5, 0), (2**31 - 1, 0), (2**31, 2**31 + 4), (2**32 - 1, 7)]
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_picks_equal_tf_multinomial(op_seed, batch_size):
    """The op itself, in a session of TensorFlow 1's API, which keeps the state of the op from run to run."""
    logits = np.random.default_rng(3).normal(size=[batch_size, 1000]).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(op_seed[0])
        drawn = tf.compat.v1.multinomial(tf.constant(logits), num_samples=1, seed=op_seed[1], output_dtype=tf.int32)
        expected = [session.run(drawn)[:, 0].tolist() for _ in range(6)]
    noise = sampling_noise(op_seed, op_seed, length=7, batch_size=batch_size)[1:]  # one op's six executions
    assert [pick_token(logits, u).numpy().tolist() for u in noise] == expected


def test_runs_go_on_where_the_last_one_stopped():
    seeds = ((1, 2), (1, 3))
    first = sampling_noise(*seeds, length=4, run=0)
    second = sampling_noise(*seeds, length=4, run=1)
    one_long = sampling_noise(*seeds, length=7, run=0)
    assert np.array_equal(np.concatenate([first[1:], second[1:]]), one_long[1:])
    assert first[0] != second[0]


def test_length_0_and_1():
    assert sampling_noise((1, 2), (1, 3), length=0, batch_size=2).shape == (0, 2)
    assert sampling_noise((1, 2), (1, 3), length=1, batch_size=2, run=3).shape == (1, 2)


def test_fresh_seeds_are_seeds():
    seeds = [fresh_seed() for _ in range(10)]
    assert len(set(seeds)) > 1 and all(0 <= seed < MAX_INT32 for seed in seeds)


def test_bad_arguments_are_refused_and_numpy_ints_are_not():
    with pytest.raises(ValueError, match="run -1"):
        sampling_noise((1, 2), (1, 3), length=1, run=-1)
    with pytest.raises(ValueError, match="length -1"):
        sampling_noise((1, 2), (1, 3), length=-1)
    far = 10**6
    expected = sampling_noise((1, 2), (1, 3), length=2, run=far)
    assert np.array_equal(sampling_noise((1, 2), (1, 3), length=np.int32(2), run=np.int32(far)), expected)
