"""save_checkpoint: complete folders, what it leaves alone, and what a failing or killed save leaves behind."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from checkpoint_files import MODEL_FILES, TINY, assert_is_tiny, copy_tiny, tiny_weights

import encoder
from gpt2tf import GPT2, HParams, checkpoint, load_model, save_checkpoint
from gpt2tf.hparams import read_hparams, write_hparams

INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"
SMALL = HParams(n_vocab=300, n_ctx=8, n_embd=16, n_head=2, n_layer=1)


def other():
    """An untrained model of the sizes of tiny-a, with tiny-a's vocabulary."""
    return GPT2(read_hparams(TINY / "hparams.json"), vocabulary=encoder.read_vocabulary(TINY))


def files(folder):
    """{path below folder: content} of everything in it."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_same_weights(found, expected):
    for variable, wanted in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy(), err_msg=variable.path)


def test_a_new_folder_is_complete(tmp_path, tiny):
    save_checkpoint(tiny, tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == sorted(MODEL_FILES)
    assert os.listdir(tmp_path) == ["m"]


def test_a_model_of_unknown_vocabulary_gets_none_and_a_warning(tmp_path, caplog):
    model = GPT2(SMALL)
    assert model.vocabulary is None
    save_checkpoint(model, tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == sorted({*MODEL_FILES} - {"encoder.json", "vocab.bpe"})
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "WARNING" and said.startswith(f"{tmp_path / 'm'} gets no encoder.json and vocab.bpe")
    found = load_model(tmp_path / "m")
    assert found.vocabulary is None
    assert_same_weights(found, model)


def test_a_new_model_with_a_part_of_the_released_vocabulary(tmp_path, caplog):
    save_checkpoint(GPT2(SMALL, vocabulary=encoder.released(300)), tmp_path / "m")
    enc = encoder.get_encoder("m", tmp_path)
    assert len(enc.encoder) == 300
    assert enc.encoder[encoder.END_OF_TEXT] == 299
    assert enc.decode(enc.encode("Größe 日本 hello")) == "Größe 日本 hello"
    assert json.loads((tmp_path / "m" / "hparams.json").read_text())["n_vocab"] == 300
    assert not caplog.records


def test_only_the_size_of_the_released_vocabulary_stands_for_it(tmp_path, caplog):
    for n_vocab, known in (50256, False), (50257, True), (50304, False):
        folder = tmp_path / str(n_vocab)
        save_checkpoint(GPT2(HParams(n_vocab=n_vocab, n_ctx=8, n_embd=2, n_head=1, n_layer=1)), folder)
        caplog.clear()
        assert load_model(folder).vocabulary == (encoder.released() if known else None)
        note = f"{folder} has no encoder.json and vocab.bpe; using the released vocabulary"
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == ([note] if known else [])
    (folder / "encoder.json").write_bytes((TINY / "encoder.json").read_bytes())
    assert load_model(folder).vocabulary == encoder.Vocabulary((TINY / "encoder.json").read_text())


KEPT = {
    "both": {"encoder.json": "encoder.json", "vocab.bpe": "vocab.bpe"},
    "Hugging Face's names": {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"},
    "a table alone": {"encoder.json": "encoder.json"},
    "merges alone": {"vocab.bpe": "vocab.bpe"},
}


@pytest.mark.parametrize("there", KEPT.values(), ids=KEPT)
def test_nothing_is_lost_by_saving_where_it_came_from(tmp_path, there):
    folder = copy_tiny(tmp_path / "m")
    table = json.dumps({token: 999 - i for token, i in json.loads((TINY / "encoder.json").read_text()).items()})
    own = {"encoder.json": table.encode(), "vocab.bpe": (TINY / "vocab.bpe").read_bytes().replace(b"\n", b"\r\n")}
    for name in own:
        (folder / name).unlink()
    write_hparams(read_hparams(folder / "hparams.json"), folder / "hparams.json")  # as we lay it out
    for name, original in there.items():
        (folder / name).write_bytes(own[original])
    before = files(folder)
    save_checkpoint(load_model(folder), folder)
    after = files(folder)
    assert {name: after[name] for name in before} == before
    assert after == before | {original: own[original] for original in there.values()}
    save_checkpoint(load_model(folder), tmp_path / "other")
    names = {*MODEL_FILES} - {"encoder.json", "vocab.bpe"} | {*there.values()}
    assert files(tmp_path / "other") == {name: after[name] for name in names}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_that_are_not_finite_are_refused_and_the_folder_stays(tmp_path, tiny, bad, dtype):
    save_checkpoint(tiny, tmp_path / "m")
    before = files(tmp_path)
    model = GPT2(SMALL, dtype=dtype)
    g = model.h0.ln_2.g
    g.assign(np.where(np.arange(16) == 3, bad, g))
    for folder in (tmp_path / "m", tmp_path / "new"):
        with pytest.raises(
            ValueError, match="^model/h0/ln_2/g has values that are not finite, so the model is not saved"
        ):
            save_checkpoint(model, folder)
    assert files(tmp_path) == before and os.listdir(tmp_path) == ["m"]


def test_the_vocabulary_of_the_folder_stays_with_the_model(tmp_path):
    folder = copy_tiny(tmp_path / "a")
    table = json.loads((folder / "encoder.json").read_text())
    text = json.dumps({token: 999 - i for token, i in table.items()})
    (folder / "encoder.json").write_text(text)
    save_checkpoint(load_model(folder), tmp_path / "b")
    assert (tmp_path / "b" / "encoder.json").read_text() == text
    assert (tmp_path / "b" / "vocab.bpe").read_bytes() == (TINY / "vocab.bpe").read_bytes()


def test_other_files_of_the_folder_stay(tmp_path, tiny):
    folder = tmp_path / "m"
    save_checkpoint(other(), folder)
    others = {"counter": b"7", "model-1000.index": b"x", "samples/a.txt": b"text", "model.ckpt.meta": b"graph"}
    (folder / "samples").mkdir()
    for name, content in others.items():
        (folder / name).write_bytes(content)
    save_checkpoint(tiny, folder)
    found = files(folder)
    assert found.keys() == {*MODEL_FILES, *others}
    assert {name: found[name] for name in others} == others
    assert found[DATA] == (TINY / DATA).read_bytes()
    assert_is_tiny(load_model(folder))


def test_saving_over_the_folder_it_came_from(tmp_path):
    folder = copy_tiny(tmp_path / "m")
    model = load_model(folder)
    model.wpe.assign_add(tf.ones_like(model.wpe))
    save_checkpoint(model, folder)
    np.testing.assert_array_equal(load_model(folder).wpe.numpy(), tiny_weights()["model/wpe"] + 1)
    assert (folder / "encoder.json").read_bytes() == (TINY / "encoder.json").read_bytes()


@pytest.mark.parametrize("path", ["m", "m/", "./m", "deep/er/m", "."])
def test_forms_of_the_path(tmp_path, tiny, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tiny, path)
    assert sorted(os.listdir(tmp_path / path)) == sorted(MODEL_FILES)
    assert_is_tiny(load_model(path))


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_stays_one(tmp_path, tiny, there):
    target = tmp_path / "disk" / "m"
    target.parent.mkdir()
    if there:
        copy_tiny(target)
    (tmp_path / "m").symlink_to(target)
    save_checkpoint(tiny, tmp_path / "m")
    assert (tmp_path / "m").is_symlink()
    assert sorted(os.listdir(target)) == sorted(MODEL_FILES)
    assert sorted(os.listdir(tmp_path)) == ["disk", "m"]


def test_a_file_in_the_way(tmp_path, tiny):
    (tmp_path / "m").write_text("notes")
    for path in ("m", "m/below"):
        with pytest.raises(NotADirectoryError, match=re.escape(str(tmp_path / "m"))):
            save_checkpoint(tiny, tmp_path / path)
    assert files(tmp_path) == {"m": b"notes"}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path, tiny, mask):
    before = os.umask(mask)
    try:
        save_checkpoint(tiny, tmp_path / "m")
        save_checkpoint(GPT2(SMALL, vocabulary=encoder.released(300)), tmp_path / "n")
        save_checkpoint(tiny, tmp_path / "n")
    finally:
        os.umask(before)
    for folder in (tmp_path / "m", tmp_path / "n"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask
        for file in MODEL_FILES:
            assert stat.S_IMODE((folder / file).stat().st_mode) == 0o666 & ~mask, file


def test_float16_variables_are_saved_as_float32(tmp_path):
    import keras

    keras.mixed_precision.set_global_policy("float16")
    try:
        model = GPT2(SMALL)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.wte.dtype == "float16"
    save_checkpoint(model, tmp_path / "m")
    reader = tf.train.load_checkpoint(str(tmp_path / "m" / "model.ckpt"))
    assert set(reader.get_variable_to_dtype_map().values()) == {tf.float32}
    np.testing.assert_array_equal(reader.get_tensor("model/wte"), model.wte.numpy().astype(np.float32))


def test_an_optimizer_is_not_saved(tmp_path, tiny):
    import keras

    model = load_model(TINY)
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)
    save_checkpoint(model, tmp_path / "m")
    assert (tmp_path / "m" / INDEX).read_bytes() == (TINY / INDEX).read_bytes()


STEPS = ["write_hparams", "_write_variables", "os.fsync", "os.rename", "os.replace"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_step_leaves_what_was_there(tmp_path, tiny, monkeypatch, step, existing, error):
    folder = tmp_path / "models" / "m"
    if existing:
        save_checkpoint(other(), folder)
    before = files(tmp_path)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(checkpoint if "." not in step else os, step.removeprefix("os."), fail)
    if step == ("os.rename" if existing else "os.replace"):
        save_checkpoint(tiny, folder)  # this step belongs to the other kind of save
        return
    with pytest.raises(type(error)):
        save_checkpoint(tiny, folder)
    assert files(tmp_path) == before
    assert existing or not folder.exists()
    assert not any(path.name.startswith(".saving-") for path in tmp_path.rglob("*"))


def run(code, *arguments):
    """Run code in another Python; what it prints, by lines."""
    code = "import os, resource, signal, sys\nfrom gpt2tf import checkpoint, load_model, save_checkpoint\n" + code
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FULL_DISK = """
model = load_model(sys.argv[1])
for limit in (100, 20_000, 100_000, 543_935):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for folder in sys.argv[2:]:
        try:
            save_checkpoint(model, folder)
        except OSError as error:
            print(error)
"""


def test_a_full_disk(tmp_path):
    """A limit on the size of a file stands for a full disk, for TensorFlow's writer too."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes").write_text("keep")
    said = run(FULL_DISK, TINY, tmp_path / "m", tmp_path / "new" / "n")
    assert len(said) == 8
    assert all("File too large" in line and "function_node" not in line for line in said)
    assert files(tmp_path) == {"m/notes": b"keep"}
    assert os.listdir(tmp_path) == ["m"]


KILLED = """
def kill(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
for step in sys.argv[2].split():
    for folder in sys.argv[3:]:
        child = os.fork()  # before TensorFlow has started its threads
        if child == 0:
            owner, name = step.rsplit(".", 1)
            setattr(eval(owner), name, kill)
            save_checkpoint(load_model(sys.argv[1]), folder)
            os._exit(0)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
KILLED_AT = ["checkpoint.write_hparams", "checkpoint._write_variables", "checkpoint.tf.raw_ops.MergeV2Checkpoints"]
KILLED_AT += ["os.fsync"]


def test_a_killed_save_leaves_the_old_model(tmp_path):
    old, folder = other(), tmp_path / "m"
    save_checkpoint(old, folder)
    assert run(KILLED, TINY, " ".join(KILLED_AT), folder, tmp_path / "new") == ["9"] * 2 * len(KILLED_AT)
    assert_same_weights(load_model(folder), old)
    assert not (tmp_path / "new").exists()
    save_checkpoint(load_model(TINY), folder)
    assert_is_tiny(load_model(folder))


def test_a_save_that_vanishes_from_under_it(tmp_path, tiny, monkeypatch):
    """The folder that is being saved to is deleted meanwhile: an error, and no half of a model."""
    folder = copy_tiny(tmp_path / "m")
    write = checkpoint._write_variables

    def delete_then_write(*args):
        shutil.rmtree(folder)
        write(*args)

    monkeypatch.setattr(checkpoint, "_write_variables", delete_then_write)
    with pytest.raises(OSError):
        save_checkpoint(tiny, folder)
    assert not (folder / "checkpoint").exists()


@pytest.mark.parametrize("step", range(6))
def test_an_interrupted_replacement_is_never_read_as_a_mix(tmp_path, monkeypatch, step):
    """Cut short between its renames, what a save over a model leaves is the old one, refused, or the new one."""
    old, new = HParams(260, 8, 8, 2, 1), HParams(260, 8, 8, 4, 1)  # they differ in nothing that the shapes show
    vocabulary = encoder.released(260)
    save_checkpoint(GPT2(old, vocabulary=vocabulary), tmp_path / "model")
    replace, calls = os.replace, []

    def interrupted(source, target):
        if len(calls) == step:
            raise KeyboardInterrupt
        calls.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(GPT2(new, vocabulary=vocabulary), tmp_path / "model")
    if step == 0:
        assert load_model(tmp_path / "model").hparams == old
    elif step == 5:  # all is there but the file that names it, which is as it was
        assert load_model(tmp_path / "model").hparams == new
    else:
        with pytest.raises(ValueError, match=r"data-00000-of-00001"):
            load_model(tmp_path / "model")
