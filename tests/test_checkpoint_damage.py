"""Every way a checkpoint can be broken gives one line: which file, what is wrong, what to do."""

import dataclasses
import gc
import json
import os
import random
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_files import TINY, assert_is_tiny, tiny_weights, write_checkpoint

from gpt2tf import GPT2, Generator, HParams, load_model, save_checkpoint
from gpt2tf.checkpoint import Weights, verify, verify_index
from gpt2tf.hparams import PUBLISHED, read_hparams
from gpt2tf.locate import ModelFiles

INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"
HTML = b"<?xml version='1.0'?>\n<Error><Code>BlobNotFound</Code>\n<Message>The specified blob does not exist.</Message>"
WHAT_TO_DO = (
    "get the file again",
    "get the others",
    "download the model again",
    "download it again",
    "put the files of one model together",
    "it belongs to another index or has something appended",
    "saved with gpt2tf.save_checkpoint",
    "put the model's hparams.json there",
    "must be a positive whole number",
)


def refusal(path, names_file, error=ValueError):
    """The message that path is refused with, having checked that it is one line, names the file, says what to do."""
    with pytest.raises(error) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(names_file) in message
    assert any(advice in message for advice in WHAT_TO_DO), message
    return message


def flipped(raw, position, bit):
    changed = bytearray(raw)
    changed[position] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 575, 576, 271_968, 543_935])
def test_short_data(folder, kept):
    (folder / DATA).write_bytes((TINY / DATA).read_bytes()[:kept])
    message = refusal(folder, folder / DATA)
    assert f"has {kept:,} bytes, its index says 543,936" in message
    assert "not fully downloaded" in message


@pytest.mark.parametrize("extra", [b"\0", b"\n", b"x" * 4096])
def test_long_data(folder, extra):
    (folder / DATA).write_bytes((TINY / DATA).read_bytes() + extra)
    message = refusal(folder, folder / DATA)
    assert "something appended" in message
    assert "not fully downloaded" not in message


def test_long_data_beside_strings(folder):
    for variables in ({"texts": b"x" * 300}, {"_CHECKPOINTABLE_OBJECT_GRAPH": b"", "n": np.int64(1)}):
        write_checkpoint(folder / "model.ckpt", {**tiny_weights(), **variables})
        load_model(folder)
        with open(folder / DATA, "ab") as file:
            file.write(b"\0")
        assert "something appended" in refusal(folder, folder / DATA)


@pytest.mark.parametrize("cut", [1, 300, 303, 400])
def test_short_data_with_strings(folder, cut):
    write_checkpoint(folder / "model.ckpt", {**tiny_weights(), "texts": b"x" * 300})
    (folder / DATA).write_bytes((folder / DATA).read_bytes()[:-cut])
    assert "not fully downloaded" in refusal(folder, folder / DATA)


@pytest.mark.parametrize("zeroed", [4, 4096, 543_936])
def test_zero_filled_tail(folder, zeroed):
    (folder / DATA).write_bytes((TINY / DATA).read_bytes()[:-zeroed] + bytes(zeroed))
    assert "Checksum does not match" in refusal(folder, folder / DATA)


def test_single_bits_of_the_data(folder):
    """Each flip gives an error that names the variable; verify and load_model alike."""
    raw, rng = (TINY / DATA).read_bytes(), random.Random(0)
    hparams = read_hparams(folder / "hparams.json")
    positions = [0, len(raw) - 1, *(rng.randrange(len(raw)) for _ in range(60))]
    for position in positions:
        (folder / DATA).write_bytes(flipped(raw, position, rng.randrange(8)))
        with pytest.raises(ValueError, match=r"copy/model\.ckpt\.data\S*: model/\S+ cannot be read, TensorB") as caught:
            verify(str(folder / "model.ckpt"), hparams)
        assert "\n" not in str(caught.value)
    assert "Checksum does not match" in refusal(folder, folder / DATA)


def test_every_byte_of_the_index(folder):
    """A flip in any byte of the index is refused or, in what TensorFlow does not read, harmless."""
    raw, harmless = (TINY / INDEX).read_bytes(), []
    for position in range(len(raw)):
        (folder / INDEX).write_bytes(flipped(raw, position, position % 8))
        try:
            weights = Weights(str(folder / "model.ckpt"))
            found = dict(weights)
        except ValueError as error:
            message = str(error)
            assert message.startswith(str(folder)) and "\n" not in message and message.endswith("get the file again")
        else:
            harmless.append(position)
            assert found.keys() == tiny_weights().keys()
            assert all(np.array_equal(found[name], value) for name, value in tiny_weights().items())
    assert 0 < len(harmless) < 60  # the table's empty meta block and the padding of its footer
    assert min(harmless) > len(raw) - 90


@pytest.mark.parametrize("kept", [0, 1, 47, 48, 683, 1365])
def test_short_index(folder, kept):
    (folder / INDEX).write_bytes((TINY / INDEX).read_bytes()[:kept])
    assert "not fully downloaded" in refusal(folder, folder / INDEX)


def test_long_index(folder):
    (folder / INDEX).write_bytes((TINY / INDEX).read_bytes() + b"\0")
    assert "not an sstable" in refusal(folder, folder / INDEX)


@pytest.mark.parametrize("content", [b"", HTML, HTML * 10, bytes(1366), bytes(range(256)) * 8])
@pytest.mark.parametrize("file", [INDEX, DATA])
def test_something_else_in_place_of_a_file(folder, file, content):
    (folder / file).write_bytes(content)
    refusal(folder, folder / file)


@pytest.mark.parametrize("file", [INDEX, DATA])
def test_missing_file(folder, file):
    (folder / file).unlink()
    expected = folder if file == INDEX else folder / DATA
    with pytest.raises(FileNotFoundError) as caught:
        load_model(folder)
    assert str(expected) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=f"{file} is missing; download the model again"):
        load_model(folder / "model.ckpt")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 543936\n" % (b"4d7a" * 16)


@pytest.mark.parametrize("file", [INDEX, DATA, "hparams.json", "checkpoint", "encoder.json", "vocab.bpe"])
def test_a_pointer_of_git_lfs(folder, file):
    (folder / file).write_bytes(POINTER)
    read = [load_model, Generator, lambda path: ModelFiles.at(path).hparams and ModelFiles.at(path).encoder()]
    for path in (folder, folder / "model.ckpt") if file != "checkpoint" else (folder,):
        for each in read:
            with pytest.raises(ValueError) as caught:
                each(path)
            said = f"{folder / file} is not the file itself but a pointer of Git LFS to it; get it with: git lfs pull"
            assert str(caught.value) == said


def test_an_index_that_git_lfs_has_not_fetched_is_no_download(folder):
    (folder / INDEX).write_bytes(POINTER)
    with pytest.raises(ValueError, match="a pointer of Git LFS"):
        verify_index(str(folder / "model.ckpt"), read_hparams(folder / "hparams.json"))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("step", [None, 100])
def test_a_checkpoint_in_the_v1_format_is_named_with_a_way_to_convert_it_that_works(tmp_path, sharded, step):
    folder = tmp_path / "it's old"
    folder.mkdir()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        [v1.get_variable(k, initializer=v, use_resource=False) for k, v in tiny_weights().items()]
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1, sharded=sharded)
        saver.save(session, str(folder / "model.ckpt"), global_step=step)
    prefix = folder / ("model.ckpt" if step is None else "model.ckpt-100")
    shutil.copyfile(TINY / "hparams.json", folder / "hparams.json")
    for path in (folder, prefix, f"{prefix}.meta", *folder.glob("model.ckpt*-of-?????")):
        with pytest.raises(ValueError) as caught:
            load_model(path)
        message = str(caught.value)
        assert message.startswith(str(prefix)) and "\n" not in message and "download" not in message
        assert "is a checkpoint in TensorFlow's V1 format; write one in the V2 format" in message
    command = shlex.split(message.partition("beside it: ")[2])
    assert command[:2] == ["python", "-c"]
    exec(command[2], {})
    assert_is_tiny(load_model(folder))


def test_missing_hparams(folder):
    (folder / "hparams.json").unlink()
    assert "n_head" in refusal(folder, folder / "hparams.json", FileNotFoundError)


def test_missing_hparams_and_a_missing_variable(tmp_path):
    write_checkpoint(
        tmp_path / "model.ckpt",
        {"model/wpe": np.ones([8, 768]), "model/wte": np.ones([300, 768]), "model/h0/ln_1/b": 1.0},
    )
    assert "lacks model/h0/ln_1/g" in refusal(tmp_path, tmp_path / INDEX)


@pytest.mark.parametrize(
    "content", [b"", HTML, b"{}", b'{"n_vocab": 1000.0, "n_ctx": 64, "n_embd": 48, "n_head": 4, "n_layer": 3}']
)
def test_damaged_hparams(folder, content):
    (folder / "hparams.json").write_bytes(content)
    refusal(folder, folder / "hparams.json")


def test_swapped_data_of_the_same_size(folder, tmp_path):
    save_checkpoint(GPT2(read_hparams(folder / "hparams.json")), tmp_path / "other")
    shutil.copyfile(tmp_path / "other" / DATA, folder / DATA)
    assert "Checksum does not match" in refusal(folder, folder / DATA)


def test_files_of_another_published_size(tmp_path, monkeypatch):
    """355M's index and data beside 124M's hparams.json, with both models shrunk."""
    small = {
        "124M": HParams(n_vocab=300, n_ctx=8, n_embd=16, n_head=2, n_layer=1),
        "355M": HParams(n_vocab=300, n_ctx=8, n_embd=32, n_head=2, n_layer=2),
    }
    for size, hparams in small.items():
        monkeypatch.setitem(PUBLISHED, size, hparams)
        save_checkpoint(GPT2(hparams), tmp_path / size)
    shutil.copyfile(tmp_path / "124M" / "hparams.json", tmp_path / "355M" / "hparams.json")
    message = refusal(tmp_path / "355M", tmp_path / "355M" / INDEX)
    assert "these shapes are 355M's, hparams.json says 124M; put the files of one model together" in message
    shutil.copyfile(tmp_path / "355M" / DATA, tmp_path / "124M" / DATA)
    assert "it belongs to another index" in refusal(tmp_path / "124M", tmp_path / "124M" / DATA)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v: v.pop("model/ln_f/b"), "lacks model/ln_f/b"),
        (lambda v: v.pop("model/wpe"), "lacks model/wpe"),
        (lambda v: v.update({"model/h3/ln_1/g": np.ones(48, np.float32)}), "has model/h3/ln_1/g beyond the model"),
        (lambda v: v.update({"model/wpe": np.ones([63, 48], np.float32)}), "has model/wpe [63, 48] for [64, 48]"),
        (lambda v: v.update({"model/ln_f/g": np.float32(1)}), "has model/ln_f/g [] for [48]"),
        (
            lambda v: v.update({"model/h1/attn/c_proj/w": v["model/h1/attn/c_proj/w"][0]}),
            "has model/h1/attn/c_proj/w [48, 48] for [1, 48, 48]",
        ),
        (lambda v: v.pop("model/wte"), "no variable `wte`"),
        (lambda v: [v.clear(), v.update(step=np.int64(1))], "no variable `wte`, but step"),
    ],
)
def test_variables_of_another_model(folder, change, says):
    variables = dict(tiny_weights())
    change(variables)
    write_checkpoint(folder / "model.ckpt", variables)
    assert says in refusal(folder, folder / INDEX)


@pytest.mark.parametrize("field", ["n_vocab", "n_ctx", "n_layer"])
def test_hparams_of_another_model(folder, field):
    hparams = dataclasses.asdict(read_hparams(folder / "hparams.json"))
    for wrong in (hparams[field] - 1, hparams[field] + 1):
        (folder / "hparams.json").write_text(json.dumps({**hparams, field: wrong}))
        refusal(folder, folder / INDEX)


def test_object_based_checkpoint(folder, tiny):
    tf.train.Checkpoint(model=tiny).write(str(folder / "model.ckpt"))
    assert "no variable `wte`" in refusal(folder, folder / INDEX)


def test_not_a_checkpoint(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4" + bytes(1000))
    for path in ("pytorch_model.bin", "nothing", "", "nothing/model.ckpt"):
        with pytest.raises(FileNotFoundError) as caught:
            load_model(tmp_path / path)
        assert str(tmp_path / path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_refusal_leaves_nothing_behind(folder, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    bracketed = folder.rename(tmp_path / "[b]")
    (bracketed / DATA).write_bytes(HTML)
    before = sorted(os.listdir(bracketed))
    refusal(bracketed, bracketed / DATA)
    gc.collect()  # the error's traceback held the reader
    assert sorted(os.listdir(bracketed)) == before
    assert os.listdir(tmp_path / "tmp") == []
