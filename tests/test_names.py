"""Names, shapes and hparams: against the index of the real 124M release, and every way hparams.json can be wrong."""

import json
import math
import pathlib
import re

import pytest

from gpt2tf import names
from gpt2tf.hparams import FORMER_NAMES, PUBLISHED, HParams, read_hparams, size_name, write_hparams

RELEASE = pathlib.Path(__file__).parent / "golden" / "release"
TINY = HParams(n_vocab=1000, n_ctx=64, n_embd=48, n_head=4, n_layer=3)
GOOD = {"n_vocab": 1000, "n_ctx": 64, "n_embd": 48, "n_head": 4, "n_layer": 3}


@pytest.fixture(scope="module")
def released_shapes():
    import tensorflow as tf

    reader = tf.compat.v1.train.NewCheckpointReader(str(RELEASE / "model.ckpt"))  # reads the index alone
    return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}


def test_names_and_shapes_are_the_released_ones(released_shapes):
    assert len(released_shapes) == 148
    assert names.variable_shapes(PUBLISHED["124M"]) == released_shapes
    assert names.difference(PUBLISHED["124M"], released_shapes) is None
    assert names.infer_hparams(released_shapes) == PUBLISHED["124M"]


def test_variables_are_in_the_order_of_creation():
    layer = ["ln_1/g", "ln_1/b", "attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b"]
    layer += ["ln_2/g", "ln_2/b", "mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b"]
    expected = ["wpe", "wte", *(f"h{i}/{name}" for i in range(3) for name in layer), "ln_f/g", "ln_f/b"]
    assert list(names.variable_shapes(TINY)) == [f"model/{name}" for name in expected]


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("124M", 124_439_808), ("355M", 354_823_168), ("774M", 774_030_080), ("1558M", 1_557_611_200)],
)
def test_published_sizes(size, parameters):
    hparams = PUBLISHED[size]
    assert names.parameter_count(hparams) == parameters == sum(map(math.prod, names.variable_shapes(hparams).values()))
    assert size_name(hparams) == size
    assert names.infer_hparams(names.variable_shapes(hparams)) == hparams


def test_former_names_are_those_of_published_sizes():
    assert FORMER_NAMES == {"117M": "124M", "345M": "355M", "762M": "774M", "1542M": "1558M"}
    assert set(FORMER_NAMES.values()) == set(PUBLISHED)
    assert size_name(TINY) is None


@pytest.mark.parametrize(
    ("found", "scope"),
    [
        (["model/wte", "model/wpe", "global_step"], "model/"),
        (["wte", "wpe"], ""),
        (["gpt2/model/wte"], "gpt2/model/"),
        (["model/wte", "model/wte/Adam", "model/wte/Adam_1"], "model/"),
        (["average/model/wte", "model/wte"], "model/"),
        (["avg/wte", "model/wte"], "model/"),
        (["b/wte", "a/wte"], "a/"),
        (["model/wte/Adam", "notwte", "wte_1"], None),
        ([], None),
    ],
)
def test_leading_scope(found, scope):
    assert names.leading_scope(found) == scope
    assert names.leading_scope(found[::-1]) == scope


def changed(hparams, **changes):
    """The shapes of hparams, with some replaced or (None) left out."""
    shapes = names.variable_shapes(hparams)
    shapes.update({name.replace("__", "/"): shape for name, shape in changes.items()})
    return {name: shape for name, shape in shapes.items() if shape is not None}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (changed(TINY, model__wpe=None), "lacks model/wpe"),
        (changed(TINY, model__h3__ln_1__g=(48,)), "has model/h3/ln_1/g beyond the model"),
        (changed(TINY, model__wte=(999, 48)), "has model/wte [999, 48] for [1000, 48]"),
        (changed(TINY, model__h0__attn__c_attn__w=(48, 144)), "has model/h0/attn/c_attn/w [48, 144] for [1, 48, 144]"),
        (
            changed(TINY, model__wpe=None, model__h3__ln_1__g=(48,), model__ln_f__b=(47,)),
            "lacks model/wpe; has model/h3/ln_1/g beyond the model; has model/ln_f/b [47] for [48]",
        ),
        ({}, "lacks model/wpe, model/wte, model/h0/ln_1/g and 37 more"),
    ],
)
def test_difference_is_said_in_one_line(found, message):
    assert names.difference(TINY, found) == message


def test_difference_knows_the_published_sizes():
    shapes = names.variable_shapes(PUBLISHED["355M"])
    assert names.difference(PUBLISHED["124M"], shapes) == "these shapes are 355M's, hparams.json says 124M"
    assert names.difference(TINY, shapes).startswith("these shapes are 355M's, hparams.json says HParams(n_vocab=1000,")
    del shapes["model/ln_f/g"]
    assert names.difference(PUBLISHED["355M"], shapes) == "lacks model/ln_f/g"


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        names.variable_shapes(TINY),  # 48 features: no published model tells how many heads
        names.variable_shapes(HParams(n_vocab=1000, n_ctx=64, n_embd=128, n_head=4, n_layer=3)),  # 32 a head, not 64
        changed(PUBLISHED["124M"], model__wte=(50257,)),
        changed(PUBLISHED["124M"], model__wpe=(0, 768)),
        {"model/wte": (50257, 768), "model/wpe": (1024, 768)},
    ],
)
def test_heads_are_not_guessed(shapes):
    assert names.infer_hparams(shapes) is None


def test_fine_tuned_vocabulary_and_depth_are_inferred():
    hparams = HParams(n_vocab=21128, n_ctx=512, n_embd=768, n_head=12, n_layer=5)
    assert names.infer_hparams(names.variable_shapes(hparams)) == hparams


def test_released_hparams_file(tmp_path):
    assert read_hparams(RELEASE / "hparams.json") == PUBLISHED["124M"]
    write_hparams(PUBLISHED["124M"], tmp_path / "hparams.json")
    assert (tmp_path / "hparams.json").read_bytes() == (RELEASE / "hparams.json").read_bytes()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_fields_of_forks_are_named_in_a_warning(tmp_path, encoding, caplog):
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps({"res_dropout": 0.1, **GOOD, "dtype": "float32"}), encoding=encoding)
    for _ in range(2):  # and said once for a command that reads the file twice
        assert read_hparams(path) == TINY
    said = f"{path}: ignoring 'res_dropout', 'dtype', which this GPT-2 does not have"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]


def test_the_five_fields_need_no_warning(tmp_path, caplog):
    (tmp_path / "hparams.json").write_text(json.dumps(GOOD))
    assert read_hparams(tmp_path / "hparams.json") == TINY and not caplog.records


@pytest.mark.parametrize("value", [0, -1, 48.0, 1.5, "48", True, None, [48]])
@pytest.mark.parametrize("field", list(GOOD))
def test_wrong_values_are_named(tmp_path, field, value):
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps({**GOOD, field: value}))
    with pytest.raises(
        ValueError, match=re.escape(f"{path}: {field} is {value!r}; it must be a positive whole number")
    ):
        read_hparams(path)


def test_heads_divide_the_features():
    with pytest.raises(ValueError, match="n_embd is 48, which n_head 5 does not divide"):
        HParams(n_vocab=1000, n_ctx=64, n_embd=48, n_head=5, n_layer=3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"<!DOCTYPE html>\n<html>404</html>\n", "not JSON"),
        (json.dumps(GOOD).encode()[:-1], "not JSON"),
        (json.dumps(GOOD).encode("utf-16"), "not JSON"),
        (b"\x00" * 71, "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1000, 64, 48, 4, 3]", "must hold an object with n_vocab, n_ctx, n_embd, n_head, n_layer"),
        (b"null", "must hold an object"),
        (b"{}", "lacks n_vocab, n_ctx, n_embd, n_head, n_layer"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "n_head"}).encode(), "lacks n_head"),
        (json.dumps(GOOD).replace("48", "Infinity").encode(), "n_embd is inf"),
    ],
)
def test_damaged_hparams_file(tmp_path, content, says):
    path = tmp_path / "hparams.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_hparams(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and says in message and "\n" not in message
    assert "download it again" in message or "must be a positive whole number" in message


def test_missing_hparams_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "hparams.json"))):
        read_hparams(tmp_path / "hparams.json")
