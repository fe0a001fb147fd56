"""The network over packed weights: its logits in prefill and decode steps, over each dtype, against the model's."""

import numpy as np
import pytest
from logits import Logits, quantized
from tolerances import PACKED, TINY_FLOAT32, relative

from gpt2tf import GPT2, HParams
from gpt2tf.checks import DTYPES

MATRICES = ("attn/c_attn", "attn/c_proj", "mlp/c_fc", "mlp/c_proj")
CASES = [(2, [3, 9]), (3, [1, 4, 9]), (5, [9, 1, 2, 5, 9])]


def reference(net, tokens, lengths, n_next):
    logits = net(tokens)["logits"].numpy()
    return np.stack([row[n - 1 : n + n_next] for row, n in zip(logits, lengths, strict=True)])


@pytest.mark.parametrize(
    ("dtype", "jit_compile"), [(dtype, jit_compile) for dtype in DTYPES for jit_compile in (False, True)]
)
@pytest.mark.parametrize("platform", ["CPU", "GPU"])
def test_logits_are_near_those_of_the_model(tiny, weights, dtype, jit_compile, platform):
    """Prompt pass and token pass, with the gap between a shorter prompt and its tokens."""
    logits = Logits(tiny, weights, dtype, jit_compile, platform=platform)
    rng = np.random.default_rng(0)
    tolerance = {"float32": TINY_FLOAT32, **PACKED}[dtype]
    n_next = 0 if jit_compile and dtype in ("bfloat16", "float16") else 4
    cases = CASES[:1] if jit_compile else CASES[1:] if dtype == "float32" else CASES[2:]
    for batch, lengths in cases:
        tokens = rng.integers(0, 1000, [batch, 16], dtype=np.int32)
        error = relative(logits(tokens, lengths, n_next), reference(tiny, tokens, lengths, n_next))
        assert error < tolerance
        if dtype != "float32":
            assert error > tolerance / 20  # the bound is not a loose one


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_few_rows_are_multiplied_by_a_layer_where_it_is(tiny, weights, dtype):
    batch, lengths = CASES[-1]
    logits = Logits(tiny, weights, dtype, True, batch)
    assert all(len(logits.network.weights[name].layers) == 3 for name in MATRICES)
    tokens = np.random.default_rng(0).integers(0, 1000, [batch, 16], dtype=np.int32)
    error = relative(logits(tokens, lengths, 2), reference(tiny, tokens, lengths, 2))
    assert error < {"float32": TINY_FLOAT32, **PACKED}[dtype]


@pytest.mark.parametrize("rows", [1, 3])
def test_int8_differs_by_the_rounding_of_its_weights_alone(tiny, weights, rows):
    """Below MATMUL_FROM rows, where all else stays float32: the model of the rounded weights has the same logits."""
    rounded = dict(weights)
    for name, w in weights.items():
        if name.split("/")[-1] in ("w", "wte"):
            values, scale = quantized(w[0].T if w.ndim == 3 else w)
            w = (values * scale[:, None]).astype(np.float32)
            rounded[name] = w.T[None] if name.endswith("/w") else w
    net = GPT2(tiny.hparams, initial_value=lambda path, shape: rounded[path])
    tokens = np.random.default_rng(0).integers(0, 1000, [rows, 8], dtype=np.int32)
    found = Logits(tiny, weights, "int8", False)(tokens, [1] * rows, 5)
    assert relative(found, reference(net, tokens, [1] * rows, 5)) < TINY_FLOAT32


@pytest.mark.parametrize("n_embd", [4, 6, 12])
def test_sizes_that_no_group_divides(n_embd):
    """The published sizes are multiples of 64; a toy's need not be."""
    net = GPT2(HParams(n_vocab=11, n_ctx=16, n_embd=n_embd, n_head=2, n_layer=2))
    weights = {v.path: v.numpy() for v in net.variables}
    tokens = np.random.default_rng(0).integers(0, 11, [2, 12], dtype=np.int32)
    found = Logits(net, weights, "float32", False)(tokens, [3, 5], 3)
    assert relative(found, reference(net, tokens, [3, 5], 3)) < TINY_FLOAT32
