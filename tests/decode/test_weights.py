"""The packed weights: what a matrix of each dtype holds, and in which layout."""

import time

import numpy as np
import pytest
import tensorflow as tf
from logits import quantized

from gpt2tf.checks import DTYPES
from gpt2tf.decode.weights import STREAMS, Matrix, allocate, fill, in_streams, pack
from gpt2tf.names import variable_shapes

MATRICES = ("attn/c_attn", "attn/c_proj", "mlp/c_fc", "mlp/c_proj")


def rows_of(packed, name, dtype=np.float32):
    """A packed matrix without its streams and groups, [..., out, in]."""
    w = tf.cast(packed[name].array, dtype).numpy()  # [..., streams, groups, out / groups, in / streams]
    w = np.moveaxis(w, -4, -2)  # [..., groups, out / groups, streams, in / streams]
    return w.reshape(*w.shape[:-4], w.shape[-4] * w.shape[-3], -1)


def matrices(weights, n_layer):
    """{packed name: [layer, out, in]} of the matrices of the layers, as the checkpoint has them."""
    return {name: np.stack([weights[f"model/h{layer}/{name}/w"][0].T for layer in range(n_layer)]) for name in MATRICES}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_floats_are_the_nearest_of_their_kind(tiny, weights, dtype):
    packed = pack(weights, tiny.hparams, dtype, "CPU")
    for name, w in matrices(weights, 3).items():
        assert packed[name].array.dtype == dtype
        assert np.array_equal(rows_of(packed, name), tf.cast(tf.cast(w, dtype), tf.float32))
    assert np.array_equal(rows_of(packed, "wte")[:1000], tf.cast(tf.cast(weights["model/wte"], dtype), tf.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("old, new", [(STREAMS, 1), (1, STREAMS)])
def test_a_layout_is_the_same_whether_read_or_made_of_the_other(tiny, weights, dtype, old, new):
    """So that a text does not depend on which batch size came first."""
    arrays, expected = allocate(tiny.hparams, dtype, old), allocate(tiny.hparams, dtype, new)
    fill(arrays, weights, tiny.hparams)
    fill(expected, weights, tiny.hparams)
    found = in_streams(arrays, new)
    assert found.keys() == expected.keys()
    for name in found:
        one, other = (each[name] for each in (found, expected))
        assert type(one) is type(other)
        for a, b in [(one.array, other.array), (one.scale, other.scale)] if isinstance(one, Matrix) else [(one, other)]:
            assert np.shape(a) == np.shape(b) and np.array_equal(a, b)


def test_int8_is_rounded_by_output_row(tiny, weights):
    packed = pack(weights, tiny.hparams, "int8", "CPU")
    for name, w in {**matrices(weights, 3), "wte": weights["model/wte"]}.items():
        values, scale = quantized(w)
        n_out = w.shape[-2]
        assert packed[name].array.dtype == tf.int8
        assert np.array_equal(rows_of(packed, name)[..., :n_out, :], values)
        assert np.array_equal(packed[name].scale.numpy()[..., :n_out], scale)
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
        pack(Damaged(weights), tiny.hparams, "float32", "CPU")
    assert len(read) < len(weights) / 2


def test_int8_halves_go_to_the_even_side_and_rows_of_zeros_stay(tiny, weights):
    wte = weights["model/wte"].copy()
    wte[0] = 0
    wte[1, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    wte[1, 6:] = 0
    wte[2] = 0
    wte[2, 0] = 1e-42  # its 127th part is nothing
    packed = pack({**weights, "model/wte": wte}, tiny.hparams, "int8", "CPU")
    found = rows_of(packed, "wte")[:3]
    assert not found[0].any()
    assert found[1, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert np.isfinite(packed["wte"].scale.numpy()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_else_stays_float32_as_it_was(tiny, weights, dtype):
    packed = pack(weights, tiny.hparams, dtype, "CPU")
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
        wte = rows_of(pack(weights, tiny.hparams, dtype, "CPU"), "wte")
        assert len(wte) == 1024 and not wte[1000:].any()
