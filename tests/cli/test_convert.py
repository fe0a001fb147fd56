"""`gpt2tf convert`: both ways byte for byte, and a target that appears whole or not at all."""

import sys

import pytest
from checkpoint_files import MODEL_FILES, TINY
from hugging_face_files import HF, WEIGHTS, write_folder
from recorded import GOLDEN

from gpt2tf import cli
from gpt2tf.locate import BUNDLED


@pytest.fixture
def convert(monkeypatch, capsys):
    """Runs `gpt2tf convert` with words: (exit code, stderr)."""
    monkeypatch.setattr("sys.argv", ["gpt2tf"])

    def run(*argv):
        with pytest.raises(SystemExit) as left:
            cli.main(argv=["convert", *map(str, argv)])
        out, err = capsys.readouterr()
        assert out == ""
        return left.value.code or 0, err

    return run


@pytest.mark.parametrize("source", [TINY, f"{BUNDLED}/shakespeare"], ids=["tiny-a", "bundled"])
def test_there_and_back_is_the_same_to_the_byte(convert, tmp_path, source):
    assert convert(source, tmp_path / "hf", "--to", "hf")[0] == 0
    assert convert(tmp_path / "hf", tmp_path / "new" / "back", "--to", "openai")[0] == 0
    for file in MODEL_FILES:
        expected, found = (f"{source}/{file}", tmp_path / "new" / "back" / file)
        with open(expected, "rb") as old:
            same = old.read() == found.read_bytes()
        assert same, file
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "new"]


@pytest.mark.parametrize("to, name", [("keras", "k.keras"), ("saved_model", "served")])
def test_what_is_no_source_is_named(convert, tmp_path, to, name):
    assert convert(TINY, tmp_path / name, "--to", to)[0] == 0
    code, err = convert(tmp_path / name, tmp_path / "new", "--to", "openai")
    what = {"keras": "is a Keras file; keras.models.load_model opens it", "saved_model": "is a SavedModel"}[to]
    assert code == 1 and f"{tmp_path / name} {what}" in err and err.count("\n") == 1


def test_a_target_that_is_there_is_refused(convert, tmp_path):
    (tmp_path / "there").mkdir()
    code, err = convert(TINY, tmp_path / "there", "--to", "hf")
    assert code == 2 and "is there already" in err and not any((tmp_path / "there").iterdir())


def test_what_cannot_be_read_leaves_nothing(convert, tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    code, err = convert(folder, tmp_path / "new" / "target", "--to", "openai")
    assert code == 1 and err.count("\n") == 1 and not (tmp_path / "new").exists()


def test_what_cannot_be_written_leaves_nothing(convert, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpt2tf.formats.hugging_face.write_config", fail)
    code, err = convert(TINY, tmp_path / "target", "--to", "hf")
    assert code == 1 and f"{tmp_path / 'target'}: No space left" in err and not any(tmp_path.iterdir())


def test_a_library_that_is_missing_is_named(convert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    code, err = convert(HF, tmp_path / "x", "--to", "openai")
    assert code == 1 and "pip install --upgrade safetensors" in err and not any(tmp_path.iterdir())


def test_bad_usage(convert, tmp_path):
    assert convert(TINY, tmp_path / "x")[0] == 2
    assert convert(TINY, tmp_path / "x", "--to", "gguf")[0] == 2
    assert convert(TINY, tmp_path / "x", "--to", "keras")[0] == 2
    code, err = convert("nowhere", tmp_path / "x", "--to", "hf", "--models_dir", GOLDEN)
    assert code == 1 and HF.name in err and "tiny-a" in err and not any(tmp_path.iterdir())
