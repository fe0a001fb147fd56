"""Hugging Face folders: what transformers writes is read, what is written is such a folder, the rest is refused."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import TINY, assert_is_tiny, tiny_weights
from hugging_face_files import HF, INDEX, WEIGHTS, tensors, write_folder, write_shards

import encoder
import gpt2tf
from gpt2tf.checkpoint import load_weights
from gpt2tf.formats.hugging_face import their_name, write_hugging_face
from gpt2tf.locate import ModelFiles

EXPECTED = json.loads((HF / "expected.json").read_text())


@pytest.fixture(scope="module")
def recorded():
    """What transformers wrote: float16, three files and their index, tokens added, tokenizer.json alone."""
    return gpt2tf.load_model(HF)


# What transformers wrote


def test_logits_are_those_of_transformers(recorded):
    logits = recorded(np.array([EXPECTED["tokens"]]))["logits"].numpy()[0]
    largest = np.abs(logits).max()
    np.testing.assert_allclose(logits[:, ::37] / largest, np.array(EXPECTED["logits"]) / largest, atol=1e-5)
    assert logits.argmax(-1).tolist() == EXPECTED["argmax"]


def test_greedy_text_is_that_of_transformers(recorded):
    generator = gpt2tf.Generator(str(HF), jit_compile=False)
    (tokens,) = generator.generate([EXPECTED["tokens"][:4]], len(EXPECTED["greedy"]), temperature=0)
    assert tokens.tolist() == EXPECTED["greedy"]


def test_vocabulary_is_that_of_transformers():
    enc = encoder.get_encoder(HF.name, HF.parent)
    for text, tokens in EXPECTED["encode"].items():
        assert enc.encode(text) == tokens
    for token, text in EXPECTED["decode"].items():
        assert enc.decode([int(token)]) == text


def test_the_command_takes_such_a_folder(sample):
    code, out, _ = sample("--model_name", HF, "--seed", 1, "--length", 4, "--nsamples", 1, "--prompt", "the")
    assert code == 0 and "SAMPLE 1" in out


# What others write


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scope", ["", "transformer."])
def test_scope_and_layout(tmp_path, scope, transposed):
    assert_is_tiny(gpt2tf.load_model(write_folder(tmp_path / "m", tensors(scope, transposed))))


def test_what_follows_from_other_tensors(tmp_path):
    found = tensors() | {"lm_head.weight": tensors()["transformer.wte.weight"]}
    for layer in range(3):
        found[f"transformer.h.{layer}.attn.bias"] = np.tril(np.ones([1, 1, 64, 64], bool))
        found[f"transformer.h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)
    assert_is_tiny(gpt2tf.load_model(write_folder(tmp_path / "m", found, tie_word_embeddings=False)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision(tmp_path, dtype):
    found = {name: value.astype(dtype) for name, value in tensors().items()}
    _, weights, *_ = load_weights(write_folder(tmp_path / "m", found))
    for name, value in tiny_weights().items():
        np.testing.assert_array_equal(weights[name], value.astype(dtype).astype(np.float32), strict=True)


def test_parts(tmp_path):
    assert_is_tiny(gpt2tf.load_model(write_shards(tmp_path / "m")))


def test_sizes_that_config_leaves_out(tmp_path):
    folder = write_folder(tmp_path / "m", n_head=12)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": config["model_type"]}))
    hparams = load_weights(folder)[0]
    assert (hparams.n_vocab, hparams.n_ctx, hparams.n_embd, hparams.n_layer) == (1000, 64, 48, 3)
    assert hparams.n_head == 12 and ModelFiles.at(folder).hparams is None


def test_other_names_of_the_sizes(tmp_path):
    folder = write_folder(tmp_path / "m")
    config = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 1000}))
    assert ModelFiles.at(folder).hparams == load_weights(TINY)[0]


def test_settings_without_another_result(tmp_path):
    settings = {"activation_function": "gelu_pytorch_tanh", "reorder_and_upcast_attn": True, "n_inner": 192}
    assert_is_tiny(gpt2tf.load_model(write_folder(tmp_path / "m", **settings)))


def test_the_original_goes_first(tmp_path):
    folder = write_folder(tmp_path / "m", {name: value + 1 for name, value in tensors().items()})
    gpt2tf.save_checkpoint(gpt2tf.load_model(TINY), folder)
    assert_is_tiny(gpt2tf.load_model(folder))


def test_training_does_not_take_such_a_folder_for_another_thing(tmp_path):
    from gpt2tf.train.start import Job
    from gpt2tf.train.text import find_files

    write_folder(tmp_path / "data" / "m")
    (tmp_path / "data" / "a.txt").write_text("text")
    assert find_files(tmp_path / "data") == [str(tmp_path / "data" / "a.txt")]
    with pytest.raises(FileExistsError, match="holds a model"):
        Job(tmp_path / "data", tmp_path / "data" / "m", ModelFiles.at(TINY))


# What is written


def test_names_are_those_of_transformers():
    assert {f"transformer.{their_name(name)}" for name in tiny_weights()} == set(tensors())


def test_written_folder(tiny, tmp_path):
    from safetensors import safe_open

    write_hugging_face(tiny, tmp_path / "m")
    with safe_open(tmp_path / "m" / WEIGHTS, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        found = {name: file.get_tensor(name) for name in file.keys()}
    assert found.keys() == tensors().keys()
    for name, value in tensors().items():
        np.testing.assert_array_equal(found[name], value, strict=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["eos_token_id"] == 999 and config["n_positions"] == 64
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text())["eos_token_id"] == 999
    for ours, theirs in ("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"):
        assert (tmp_path / "m" / theirs).read_bytes() == (TINY / ours).read_bytes()


@pytest.mark.parametrize("name", ["wpe.weight", "h.1.mlp.c_fc.weight"])
def test_weights_that_are_not_finite_are_not_written(tmp_path, name):
    from gpt2tf.formats.hugging_face import write_safetensors

    weights = {
        our: np.full_like(value, np.inf) if their_name(our) == name else value for our, value in tiny_weights().items()
    }
    with pytest.raises(ValueError, match="finite"):
        write_safetensors(str(tmp_path / "m"), weights)


# What this model is not


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("activation_function", "relu"),
        ("activation_function", "gelu"),
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
        ("add_cross_attention", True),
        ("layer_norm_epsilon", 1e-6),
        ("n_inner", 100),
        ("model_type", "gpt_neo"),
        ("architectures", ["GPT2ForSequenceClassification"]),
        ("quantization_config", {"bits": 4}),
        ("vocab_size", 1001),
        ("n_positions", 128),
        ("n_layer", 4),
        ("n_embd", 96),
        ("n_head", 5),
        ("n_head", "four"),
    ],
)
def test_settings_that_are_refused(tmp_path, setting, value):
    folder = write_folder(tmp_path / "m", **{setting: value})
    with pytest.raises(ValueError, match=setting) as refused:
        load_weights(folder)
    assert "config.json" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["score.weight", "transformer.h.0.crossattention.c_attn.weight", "transformer.h.0.attn.rotary", "v_head.bias"],
)
def test_tensors_that_are_refused(tmp_path, name):
    folder = write_folder(tmp_path / "m", tensors() | {name: np.zeros([2, 48], np.float32)})
    with pytest.raises(ValueError, match=name.removeprefix("transformer.")):
        load_weights(folder)


def test_an_untied_head_is_refused(tmp_path):
    head = tensors()["transformer.wte.weight"] * 2
    folder = write_folder(tmp_path / "m", tensors() | {"lm_head.weight": head})
    with pytest.raises(ValueError, match=r"lm_head\.weight is not wte\.weight"):
        load_weights(folder)
    with pytest.raises(ValueError, match=r"lm_head\.weight is not wte\.weight"):
        load_weights(write_folder(tmp_path / "n", tie_word_embeddings=False))


# Damage


def truncated(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-100])


def changed_header(change):
    """Damages the header of the file: change(header) in place."""

    def damage(folder):
        data = (folder / WEIGHTS).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        found = json.loads(data[8 : 8 + size])
        change(found)
        text = json.dumps(found).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return damage


def overlapping(found):
    names = [name for name in found if name.endswith("ln_f.bias") or name.endswith("ln_f.weight")]
    found[names[0]]["data_offsets"] = found[names[1]]["data_offsets"]


def retyped(found):
    found["transformer.ln_f.bias"].update(dtype="F64", shape=[24])


def long_header(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 10**10) + data[8:])


def pointer(file):
    def damage(folder):
        (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 548105171\n")

    return damage


def replaced(**changed):
    """Writes other values of tensors: replaced(name=value of old)."""

    def damage(folder):
        from safetensors.numpy import save_file

        found = tensors()
        for name, change in changed.items():
            found["transformer." + name] = change(found["transformer." + name])
        save_file(found, folder / WEIGHTS)

    return damage


DAMAGE = {
    "truncated": (truncated, "model.safetensors"),
    "a header of 10 GB": (long_header, "header too large"),
    "overlapping offsets": (changed_header(overlapping), "model.safetensors"),
    "a type": (changed_header(retyped), "ln_f.bias is F64"),
    "empty": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "model.safetensors"),
    "a web page": (lambda folder: (folder / WEIGHTS).write_bytes(b"<html>" * 100), "model.safetensors"),
    "a pointer": (pointer(WEIGHTS), "git lfs pull"),
    "config.json a pointer": (pointer("config.json"), "git lfs pull"),
    "config.json cut": (lambda folder: (folder / "config.json").write_text('{"model_type'), "config.json is not JSON"),
    "config.json a list": (lambda folder: (folder / "config.json").write_text("[]"), "does not hold an object"),
    "NaN": (replaced(**{"h.1.mlp.c_fc.weight": lambda value: value * np.nan}), "h.1.mlp.c_fc.weight has numbers"),
    "a shape": (replaced(**{"h.1.ln_1.bias": lambda value: value[:40]}), "h.1.ln_1.bias is [40], and must be [48]"),
    "a matrix": (replaced(**{"h.0.mlp.c_fc.weight": lambda value: value.T.copy()}), "h.0."),
    "wte": (replaced(**{"wte.weight": lambda value: value[0]}), "no matrices wte.weight"),
    "another model": (lambda folder: changed_header(dict.clear)(folder), "model.safetensors"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "has a config.json and no weights"),
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "has no config.json beside it"),
    "a pickle": (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), "pickle"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_said_in_one_line(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)  # as where it is not installed
    damage, message = DAMAGE[kind]
    damage(write_folder(tmp_path / "m"))
    with pytest.raises((ValueError, OSError)) as refused:
        gpt2tf.load_model(tmp_path / "m")
    assert message in str(refused.value) and "\n" not in str(refused.value)


def reindexed(change):
    def damage(folder):
        index = json.loads((folder / INDEX).read_text())
        change(index)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


SECOND = "model-00002-of-00002.safetensors"
INDEX_DAMAGE = {
    "a missing part": (lambda folder: (folder / SECOND).unlink(), f"{SECOND} is missing"),
    "a part as a pointer": (pointer(SECOND), "git lfs pull"),
    "a way out": (reindexed(lambda i: i["weight_map"].update(x="../other.safetensors")), "not a file in its folder"),
    "an absolute path": (reindexed(lambda i: i["weight_map"].update(x="/etc/passwd")), "not a file in its folder"),
    "no map": (reindexed(dict.clear), "no weight_map"),
    "another map": (reindexed(lambda i: i["weight_map"].update({"transformer.x": SECOND})), "transformer.x"),
    "parts of two": (lambda folder: replaced()(folder) or (folder / WEIGHTS).rename(folder / SECOND), ""),
}


@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_damage_of_parts(tmp_path, kind):
    damage, message = INDEX_DAMAGE[kind]
    folder = write_shards(tmp_path / "m")
    damage(folder)
    if not message:  # what the index does not ask for is passed over
        assert_is_tiny(gpt2tf.load_model(folder))
        return
    with pytest.raises((ValueError, OSError)) as refused:
        ModelFiles.at(folder)
        load_weights(folder)
    assert message in str(refused.value) and "\n" not in str(refused.value)
