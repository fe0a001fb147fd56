"""The recorded truth on a GPU. Runs by itself where TensorFlow sees one."""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from recorded import GOLDEN, context_of, lists, recorded
from tolerances import TINY_FLOAT32, relative

from gpt2tf import Generator, sampling_noise
from gpt2tf.bench import machine, speed
from gpt2tf.bench.plan import Case, Plan
from gpt2tf.train.settings import Settings
from gpt2tf.train.update import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="TensorFlow sees no GPU"),
]


@pytest.fixture(scope="module", autouse=True)
def float32_products():
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture(scope="module")
def generator(tiny):
    return Generator(tiny)


def test_logits_are_the_recorded_ones(tiny):
    golden = np.load(GOLDEN / "tiny-a" / "forward.npz")
    with tf.device("GPU:0"):
        results = tiny(golden["tokens"])
    assert "GPU" in results["logits"].device
    assert relative(results["logits"], golden["logits"]) < TINY_FLOAT32


@pytest.mark.parametrize("case", recorded("tiny-a"))
def test_equals_the_recorded_runs(generator, case):
    batch_size, length = case["batch_size"], case["length"]
    for run, tokens in enumerate(case["runs"]):
        noise = sampling_noise(*map(tuple, case["op_seeds"]), length=length, batch_size=batch_size, run=run)
        options = {name: case[name] for name in ("temperature", "top_k", "top_p")}
        found = generator.generate([context_of(case, 1000)] * batch_size, length, noise=noise, **options)
        assert lists(found) == tokens


def test_an_update_is_that_of_a_cpu(tiny):
    """Loss and gradients' norm, with the same numbers dropped."""
    from gpt2tf import load_model

    tokens, found = np.random.default_rng(0).integers(0, 1000, [2, 9]), []
    for device in ("GPU:0", "CPU:0"):
        with tf.device(device):
            model = load_model(GOLDEN / "tiny-a")
            found.append(Trainer(model, Settings(batch_size=2), tf.distribute.get_strategy()).update(0, tokens))
    assert relative(*found) < 10 * TINY_FLOAT32


@pytest.mark.slow
@pytest.mark.timing
def test_the_loop_at_full_size_beside_its_peers(capsys, r124m_folder):
    """Prints tokens/s, the share of the memory's speed, and the ratios to what is installed of the peers."""
    limits, peers = machine.measure_limits("gpu"), ("transformers", "ctranslate2")
    plan = Plan(device="gpu", peers=peers, peer_python=os.environ.get("PEER_PYTHON", sys.executable))
    cases = [Case(dtype, batch) for batch in (1, 8, 32) for dtype in ("float32", "bfloat16", "int8")]
    for row in speed.measure(r124m_folder, cases, limits, plan):
        words = f"{row.engine}, batch {row.batch_size}, {row.dtype}: {row.decode_tokens_per_s:.0f} tokens/s"
        if row.bandwidth_share is not None:
            words += f", {row.bandwidth_share:.0%} of {limits.bytes_per_s / 1e9:.0f} GB/s"
        if row.decode_ratio is not None:
            words += f"; gpt2tf is {row.decode_ratio:.2f} times as fast"
        with capsys.disabled():
            print(words)
        assert row.decode_tokens_per_s > 0
