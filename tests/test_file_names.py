"""Names of files and folders: whatever they are, models are found, read, saved, logged; what lies near is said."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
from checkpoint_files import TINY, assert_is_tiny, copy_tiny, tiny_weights, write_checkpoint
from command import FOUR
from file_server import assert_complete, fetch, serving
from recorded import ROOT

from encoder import get_encoder
from gpt2tf import cli, find_model, load_model, save_checkpoint
from gpt2tf.checkpoint import Weights, write_state
from gpt2tf.hparams import write_hparams
from gpt2tf.locate import find_prefix
from gpt2tf.train.loop import Report, _Scalars
from gpt2tf.train.text import find_files
from gpt2tf.train.tokens import encode_corpus, open_tokens

INDEX, DATA = "model.ckpt.index", "model.ckpt.data-00000-of-00001"
NAMES = ["a b", "Größe 日本", "x[1]", "[", "a*b?", r"back\slash", "caf\udce9", "[caf\udce9]", "'\"'", "a\nb", "-", "~"]
NAMES += ["$HOME", "%s{}", "ram:", "n" * 255, ".hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_folder(tmp_path, tiny, name):
    """New, and once more over what is there; in a folder of such a name; and as a path of bytes."""
    folder = tmp_path / name / name
    for _ in range(2):
        save_checkpoint(tiny, folder)
        assert_is_tiny(load_model(os.fsencode(folder)))
        assert sorted(os.listdir(folder.parent)) == [name]
        assert (folder / DATA).read_bytes() == (TINY / DATA).read_bytes()
    assert find_model(name, tmp_path / name) == str(folder)


def test_a_relative_name_is_no_file_system_of_tensorflow(tmp_path, tiny, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tiny, "ram://m")
    assert_is_tiny(load_model("ram://m"))
    assert os.listdir("ram:/m")


@pytest.mark.parametrize("name", ["x[1]-7", "caf\udce9-7", "Größe-7", "a\"b'-7", r"a\b-7"])
def test_any_name_of_a_checkpoint(tmp_path, name):
    """Of several, the one that TensorFlow's own words in the file `checkpoint` name."""
    write_checkpoint(tmp_path / "model", tiny_weights())
    for file in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.{file}").rename(tmp_path / f"{name}.{file}")
    write_checkpoint(tmp_path / "model-9", {name: value + 1 for name, value in tiny_weights().items()})
    shutil.copyfile(TINY / "hparams.json", tmp_path / "hparams.json")
    state = tf.compat.v1.train.generate_checkpoint_state_proto
    if "\udce9" in name:
        text = 'model_checkpoint_path: "/elsewhere/caf\\351-7"\n'
    else:
        text = str(state("/elsewhere", f"/elsewhere/{name}"))
    (tmp_path / "checkpoint").write_text(text)
    if "\\" not in name:  # which would be a folder's on the machine that wrote it
        assert find_prefix(tmp_path) == str(tmp_path / name)
    assert_is_tiny(load_model(tmp_path / f"{name}.index"))


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_run_has_its_logs(tmp_path, name):
    scalars = _Scalars(tmp_path / name)
    scalars.write(Report(1, 2.0, 1.0, 1e-3, 10.0, 0.0, saved=True))
    assert os.listdir(tmp_path) == [name]
    assert len(os.listdir(tmp_path / name / "logs")) == 1


@pytest.mark.parametrize("name", ["a b", "caf\udce9", "a\nb", "[x]"])
def test_what_cannot_be_written_is_said_whatever_its_name(tmp_path, name, tiny, monkeypatch):
    (tmp_path / name / "logs").parent.mkdir()
    (tmp_path / name / "logs").touch()
    with pytest.raises(OSError, match=r"logs: Not a directory$") as error:
        _Scalars(tmp_path / name)
    assert str(error.value).startswith(f"cannot write {tmp_path / name / 'logs'}: ")
    write = tf.raw_ops.SaveV2

    def into_a_file(prefix, **rest):
        pathlib.Path(os.fsdecode(prefix)).parent.joinpath("file").touch()
        write(prefix=prefix.replace(b"model.ckpt_part", b"file/x"), **rest)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", into_a_file)
    with pytest.raises(OSError, match=r": file/x.*Not a directory$"):
        save_checkpoint(tiny, tmp_path / name)
    assert os.listdir(tmp_path / name) == ["logs"]


@pytest.mark.parametrize("name", ["x[1]", "caf\udce9", "a\nb"])
def test_downloads_into_any_folder(tmp_path, monkeypatch, name):
    with serving(tmp_path / name / "tiny-a", monkeypatch) as server:
        fetch(server)
        assert_complete(server)
        server.forget()
        (server.folder / INDEX).write_bytes(b"damaged")
        fetch(server)
        assert_complete(server)
    assert_is_tiny(load_model(server.folder))


def test_damage_is_said_in_one_line_whatever_the_name(tmp_path):
    folder = copy_tiny(tmp_path / "caf\udce9 [x]")
    raw = (folder / DATA).read_bytes()
    (folder / DATA).write_bytes(raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:])
    with pytest.raises(ValueError, match="get the file again") as error:
        load_model(folder)
    assert str(error.value).startswith(f"{folder / DATA}: ")


def test_a_temporary_folder_that_is_a_pattern_too(tmp_path, monkeypatch):
    (tmp_path / "[tmp]").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "[tmp]"))
    assert_is_tiny(load_model(TINY))
    with pytest.raises(OSError, match="set TMPDIR to one"):
        Weights(str(copy_tiny(tmp_path / "[x]") / "model.ckpt"))


TRAIN = """
import os, sys
import tensorflow as tf
tf.config.run_functions_eagerly(True)
from gpt2tf import cli
assert sys.getfilesystemencoding() == "ascii"
os._exit = sys.exit
for name in sys.argv[3:]:
    for more in (["--hparams", sys.argv[1] + "/hparams.json", "--steps=1"], ["--steps=2", "--resume"]):
        try:
            cli.main(None, ["train", sys.argv[2], "--models_dir", sys.argv[1], "--run_name", name, *more])
        except SystemExit as left:
            assert not left.code, name
"""


def test_a_locale_of_another_encoding(tmp_path):
    """Names in UTF-8, and in no encoding, where Python takes all names for ASCII."""
    from training import ONE_LAYER

    place = tmp_path / "Größe"
    place.mkdir()
    write_hparams(ONE_LAYER, place / "hparams.json")
    names = ["é".encode(), b"\xe9", b"[\xe9]\xc3\xa9"]
    data = tmp_path / "text-\udce9.txt"
    data.write_text("the cat sat on the mat. " * 20)
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRAIN, place, data, *names]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert set(os.listdir(os.fsencode(place))) == {*names, b"hparams.json"}
    for name in map(os.fsdecode, names):
        assert find_prefix(place / name) == str(place / name / "model-2")
        assert load_model(place / name).hparams == ONE_LAYER
        assert len(os.listdir(place / name / "logs")) == 2 and (place / name / "training-2.npz").exists()


@pytest.fixture
def run_folder(tmp_path):
    """models/n30 with the saves of three steps."""
    folder = copy_tiny(tmp_path / "models" / "n30")
    for step in (100, 200, 1000):
        for file in ("index", "data-00000-of-00001"):
            shutil.copyfile(folder / f"model.ckpt.{file}", folder / f"model-{step}.{file}")
    for file in (INDEX, DATA):
        (folder / file).unlink()
    write_state(folder / "checkpoint", "model-200")
    return folder


def test_a_step_that_is_not_there_is_answered_by_those_that_are(run_folder):
    models = run_folder.parent
    held = f"{run_folder} holds model-100, model-200, model-1000"
    with pytest.raises(FileNotFoundError) as error:
        find_model("n30/model-15", models)
    assert str(error.value) == (
        f"there is no model 'n30/model-15' in {models}; {held}: the newest is --model_name n30/model-1000"
    )
    with pytest.raises(FileNotFoundError, match=f"; {held}: the newest is --model_name {run_folder}/model-1000$"):
        find_model(f"{run_folder}/model-15", "nowhere")
    with pytest.raises(FileNotFoundError, match=f"{held}: the newest is --model_name {run_folder}/model-1000$"):
        find_model("model-15", run_folder)
    with pytest.raises(FileNotFoundError, match=f"no {run_folder}/model-15.index; {held}$"):
        load_model(run_folder / "model-15")
    assert find_prefix(find_model("n30/model-1000", models)) == str(run_folder / "model-1000")


def test_a_folder_of_models_is_answered_by_their_names(run_folder):
    models = run_folder.parent
    for number in range(12):
        copy_tiny(models / f"m{number:02}")
    held = f"{models} holds 3 others, " + ", ".join([f"m{number:02}" for number in range(3, 12)] + ["n30"])
    with pytest.raises(FileNotFoundError, match=f"no model.ckpt.index in it; {held}; name one of them$"):
        load_model(models)
    with pytest.raises(FileNotFoundError, match=f"no model '{models}/m99' in nowhere; {held}$"):
        find_model(f"{models}/m99", "nowhere")
    with pytest.raises(FileNotFoundError, match="gpt2tf download 355M"):
        find_model(f"{models}/345M", "nowhere")


def test_models_in_a_folder_whose_name_is_a_pattern_are_listed(tmp_path):
    copy_tiny(tmp_path / "models[1]" / "mine")
    with pytest.raises(FileNotFoundError, match=r"\(there: mine\)"):
        find_model("124M", tmp_path / "models[1]")


TEXT_FILES = ["a b", "Größe 日本", "x[1]", "caf\udce9", "'\"'", "a\nb", "-x", "n" * 255, "~", "$HOME"]


@pytest.mark.parametrize("name", TEXT_FILES)
def test_any_name_of_a_prompt_file_and_of_an_output(tmp_path, sample, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("hello")
    alone = sample(*FOUR, "--prompt=hello")
    assert sample(*FOUR, f"--prompt_file={name}") == alone
    for _ in range(2):
        assert sample(*FOUR, "--prompt=hello", f"--output={name}") == (0, "", "")
        assert (tmp_path / name).read_text() == alone[1] and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["n" * 256, "é" * 128])
def test_names_that_are_too_long(refused, capsys, name, tmp_path):
    for flags in (["--output", name], ["--prompt_file", name]):
        assert refused(*FOUR, *flags) == (1, f"{name}: File name too long")
    code, line = refused("--model_name", name, "--models_dir", tmp_path)
    assert code == 1 and line.startswith("there is no model ")
    with pytest.raises(SystemExit) as left:
        cli.main(None, ["train", "text.txt", "--run_name", name, "--hparams=h.json"])
    assert left.value.code == 2
    assert re.search(
        r"^gpt2tf train: argument --run_name: '.*' is 256 bytes long; .* at most 255$", capsys.readouterr().err
    )


def test_an_error_that_names_a_file_is_one_line(refused, tmp_path):
    assert refused(*FOUR, "--output", tmp_path / "a\nb" / "c")[1] == f"{tmp_path}/a b/c: No such file or directory"


@pytest.mark.parametrize("name", TEXT_FILES)
def test_any_name_of_data(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_text("hello")
    vocabulary = get_encoder("tiny-a", TINY.parent)
    for data in (tmp_path / name, tmp_path / name / name):
        tokens = encode_corpus(find_files(data), vocabulary, tmp_path / name / ".tokens.npy")
        assert vocabulary.decode(tokens) == "hello<|endoftext|>"
        assert open_tokens(tmp_path / name / ".tokens.npy", 1000).tolist() == tokens.tolist()
        assert set(os.listdir(tmp_path / name)) == {".tokens.npy", name}
