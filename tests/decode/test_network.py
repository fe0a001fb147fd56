"""The packed weights: what a quantized matrix holds, and the logits of the network over each kind of them."""

import time

import numpy as np
import pytest
import tensorflow as tf
from logits import Logits
from recorded import GOLDEN
from tolerances import PACKED, TINY_FLOAT32, relative

from gpt2tf import GPT2, HParams
from gpt2tf.checkpoint import load_weights
from gpt2tf.checks import DTYPES
from gpt2tf.decode.weights import STREAMS, allocate, fill, in_streams, pack
from gpt2tf.names import variable_shapes

MATRICES = ("attn/c_attn", "attn/c_proj", "mlp/c_fc", "mlp/c_proj")


@pytest.fixture(scope="module")
def weights():
    return dict(load_weights(GOLDEN / "tiny-a")[1])


def rows_of(packed, name, dtype=np.float32):
    """A packed matrix without its streams and groups, [..., out, in]."""
    w = np.moveaxis(tf.cast(packed[name], dtype).numpy(), -4, -2)  # [..., groups, out / groups, streams, in / streams]
    return w.reshape(*w.shape[:-4], w.shape[-4] * w.shape[-3], -1)


def matrices(weights, n_layer):
    """{packed name: [layer, out, in]} of the matrices of the layers, as the checkpoint has them."""
    return {name: np.stack([weights[f"model/h{layer}/{name}/w"][0].T for layer in range(n_layer)]) for name in MATRICES}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_floats_are_the_nearest_of_their_kind(tiny, weights, dtype):
    packed = pack(weights, tiny.hparams, dtype)
    for name, w in matrices(weights, 3).items():
        assert packed[name].dtype == dtype
        assert np.array_equal(rows_of(packed, name), tf.cast(tf.cast(w, dtype), tf.float32))
    assert np.array_equal(rows_of(packed, "wte")[:1000], tf.cast(tf.cast(weights["model/wte"], dtype), tf.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("old, new", [(STREAMS, 1), (1, STREAMS)])
def test_a_layout_is_the_same_whether_read_or_made_of_the_other(tiny, weights, dtype, old, new):
    """So that a text does not depend on which batch size came first."""
    arrays, expected = allocate(tiny.hparams, dtype, old), allocate(tiny.hparams, dtype, new)
    fill(arrays, weights, tiny.hparams, dtype)
    fill(expected, weights, tiny.hparams, dtype)
    found = in_streams(arrays, new)
    assert found.keys() == expected.keys()
    for name in found:
        assert found[name].shape == expected[name].shape and np.array_equal(found[name], expected[name])


def quantized(w):
    """[out, in] float32 -> (int8 values, scale [out]): each row by itself, halves to the even side."""
    scale = np.abs(w).max(axis=-1) / np.float32(127)
    return np.rint(w / scale[..., None]), scale


def test_int8_is_rounded_by_output_row(tiny, weights):
    packed = pack(weights, tiny.hparams, "int8")
    for name, w in {**matrices(weights, 3), "wte": weights["model/wte"]}.items():
        values, scale = quantized(w)
        n_out = w.shape[-2]
        assert packed[name].dtype == tf.int8
        assert np.array_equal(rows_of(packed, name)[..., :n_out, :], values)
        assert np.array_equal(packed[f"{name}/scale"].numpy()[..., :n_out], scale)
        assert np.abs(values).max(axis=-1).min() == 127  # every row uses the whole range


def test_what_cannot_be_read_ends_the_packing(tiny, weights):
    read = []

    class Damaged(dict):
        def __getitem__(self, name):
            read.append(name)
            if name == "model/wte":  # the largest, and so the first
                raise ValueError("damaged")
            time.sleep(0.1)  # reading the rest would take seconds
            return super().__getitem__(name)

    with pytest.raises(ValueError, match="damaged"):
        pack(Damaged(weights), tiny.hparams, "float32")
    assert len(read) < len(weights) / 2


def test_int8_halves_go_to_the_even_side_and_rows_of_zeros_stay(tiny, weights):
    wte = weights["model/wte"].copy()
    wte[0] = 0
    wte[1, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    wte[1, 6:] = 0
    wte[2] = 0
    wte[2, 0] = 1e-42  # its 127th part is nothing
    packed = pack({**weights, "model/wte": wte}, tiny.hparams, "int8")
    found = rows_of(packed, "wte")[:3]
    assert not found[0].any()
    assert found[1, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert np.isfinite(packed["wte/scale"].numpy()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_else_stays_float32_as_it_was(tiny, weights, dtype):
    packed = pack(weights, tiny.hparams, dtype)
    assert np.array_equal(packed["wpe"], weights["model/wpe"])
    others = [name for name in variable_shapes(tiny.hparams) if name.split("/")[-1] in "gb"]
    for name in others:
        scope, leaf = name.removeprefix("model/").split("/", 1)
        if scope == "ln_f":
            found = packed[f"ln_f/{leaf}"]
        else:
            found = packed[leaf][int(scope[1:])]
        assert found.dtype == tf.float32
        assert np.array_equal(found, weights[name])
    assert len(others) == 3 * 8 + 2


def test_the_vocabulary_is_padded_with_rows_of_zeros(tiny, weights):
    for dtype in DTYPES:
        wte = rows_of(pack(weights, tiny.hparams, dtype), "wte")
        assert len(wte) == 1024 and not wte[1000:].any()


CASES = [(2, [3, 9]), (3, [1, 4, 9]), (5, [9, 1, 2, 5, 9])]


def reference(net, tokens, lengths, n_next):
    logits = net(tokens)["logits"].numpy()
    return np.stack([row[n - 1 : n + n_next] for row, n in zip(logits, lengths, strict=True)])


@pytest.mark.parametrize(
    ("dtype", "jit_compile"), [(dtype, jit_compile) for dtype in DTYPES for jit_compile in (False, True)]
)
def test_logits_are_near_those_of_the_model(tiny, weights, dtype, jit_compile):
    """Prompt pass and token pass, with the gap between a shorter prompt and its tokens."""
    logits = Logits(tiny, weights, dtype, jit_compile)
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
    assert all(len(logits.packed.weights[f"{name}/layers"]) == 3 for name in MATRICES)
    tokens = np.random.default_rng(0).integers(0, 1000, [batch, 16], dtype=np.int32)
    error = relative(logits(tokens, lengths, 2), reference(tiny, tokens, lengths, 2))
    assert error < {"float32": TINY_FLOAT32, **PACKED}[dtype]


@pytest.mark.parametrize("rows", [1, 3])
def test_int8_differs_by_the_rounding_of_its_weights_alone(tiny, weights, rows):
    """Below MATMUL_FROM rows, where activations stay float32: the model of the rounded weights has the same logits."""
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
