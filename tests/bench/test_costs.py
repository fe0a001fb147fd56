"""The bytes and operations that generation and an update cannot do without."""

import pytest
from benchmarking import TINY

from gpt2tf.bench import costs
from gpt2tf.bench.plan import Case
from gpt2tf.hparams import PUBLISHED
from gpt2tf.names import parameter_count


def test_weight_bytes():
    assert costs.weight_bytes(PUBLISHED["124M"], "float32") == 497_759_232
    for hparams in (TINY, *PUBLISHED.values()):
        assert costs.weight_bytes(hparams, "float32") == 4 * parameter_count(hparams)
    # Of the tiny model: matrices, biases with norms, positions.
    matrices = 1000 * 48 + 3 * (48 * 144 + 48 * 48 + 48 * 192 + 192 * 48)
    vectors = 3 * (144 + 48 + 192 + 48 + 4 * 48) + 2 * 48
    scales = 1000 + 3 * (144 + 48 + 192 + 48)
    assert costs.weight_bytes(TINY, "float16") == 2 * matrices + 4 * (vectors + 64 * 48)
    assert costs.weight_bytes(TINY, "int8") == matrices + 4 * (vectors + 64 * 48 + scales)


def test_costs_of_a_token_of_the_tiny_model():
    case = Case(batch_size=2, prompt_length=5, length=10)
    matrices = 1000 * 48 + 3 * (48 * 144 + 48 * 48 + 48 * 192 + 192 * 48)
    vectors = 3 * (144 + 48 + 192 + 48 + 4 * 48) + 2 * 48
    positions = sum(range(6, 15)) / 9  # the loop's first token sees 6, its last 14
    past = 2 * 3 * 48 * positions
    cost = costs.decode_cost(TINY, case)
    assert cost.bytes == 4 * (matrices + vectors) / 2 + 4 * (48 + past)
    assert cost.operations == 2 * matrices + 2 * past
    seen = 1 + 2 + 3 + 4 + 5
    layers = 5 * 2 * (matrices - 48_000) + 3 * seen * 2 * 2 * 48
    assert costs.prompt_operations(TINY, case) == 2 * (layers + 2 * 48_000)


def test_costs_of_a_token_of_124m():
    cost = costs.decode_cost(PUBLISHED["124M"], Case())
    assert cost.bytes == pytest.approx(497.8e6 - 3.1e6 + 4.8e6, rel=1e-3)  # the weights but wpe, 65 keys and values
    assert cost.operations == pytest.approx(2 * 123.5e6 + 2.4e6, rel=1e-3)
    assert costs.decode_cost(PUBLISHED["124M"], Case("int8", 32)).bytes < cost.bytes / 20


def test_an_update_is_three_passes_with_all_logits():
    other_logits = 2 * 4 * (8 - 1) * TINY.n_vocab * TINY.n_embd
    passes = costs.prompt_operations(TINY, Case(batch_size=4, prompt_length=8)) + other_logits
    assert costs.training_operations(TINY, 4, 8) == 3 * passes
