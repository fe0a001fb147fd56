"""`gpt2tf train` and `gpt2tf finetune` from flags to a model that `sample.py` opens."""

import dataclasses
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from command import leaving
from recorded import GOLDEN
from training import ONE_LAYER, assert_same, values

import encoder
from gpt2tf import GPT2, HParams, cli, load_model, save_checkpoint
from gpt2tf.checkpoint import write_state
from gpt2tf.cli import sample as cli_sample
from gpt2tf.cli import train as cli_train
from gpt2tf.files import locked
from gpt2tf.hparams import write_hparams
from gpt2tf.train import saves
from gpt2tf.train.loop import Run
from gpt2tf.train.settings import Settings
from gpt2tf.train.tokens import Windows

TEXT = "the cat sat on the mat. the dog sat on the log. " * 30
QUICK = ["--steps=4", "--batch_size=2", "--window=8", "--evaluate_every=2", "--seed=1"]


@pytest.fixture
def place(tmp_path):
    """A folder with a text, and the sizes of a small model."""
    (tmp_path / "text.txt").write_text(TEXT)
    write_hparams(ONE_LAYER, tmp_path / "hparams.json")
    return tmp_path


@pytest.fixture
def gpt2tf(monkeypatch, capsys, place, eagerly):
    """Runs a command of `gpt2tf` on the text of `place`, into its folder: (exit code, stdout, stderr)."""

    monkeypatch.setattr(encoder, "write_vocabulary", _write_vocabulary(encoder.write_vocabulary))

    def run(command, *flags, data="text.txt", name="new"):
        words = [command, place / data, "--models_dir", place, "--run_name", name, *flags]
        return leaving(cli.main, list(map(str, words))), *capsys.readouterr()

    return run


def _write_vocabulary(write):
    """As `write`, but a small vocabulary is made once and copied."""
    made = {}

    def copy(folder, n_vocab):
        folder = pathlib.Path(folder)
        if n_vocab not in made:
            write(folder, n_vocab)
            made[n_vocab] = {file: (folder / file).read_bytes() for file in ("encoder.json", "vocab.bpe")}
        for file, content in made[n_vocab].items():
            (folder / file).write_bytes(content)

    return copy


@pytest.fixture
def train(gpt2tf, place):
    """`gpt2tf train` of the small model."""
    return lambda *flags, **where: gpt2tf("train", f"--hparams={place / 'hparams.json'}", *QUICK, *flags, **where)


@pytest.fixture
def refused(gpt2tf, place, monkeypatch):
    """Runs what must be refused in one line before TensorFlow is there: (exit code, line). Leaves no model behind."""

    def too_late():
        raise AssertionError("TensorFlow was imported")

    monkeypatch.setattr(cli_train, "silence_tensorflow", too_late)

    def run(*flags, **where):
        code, out, err = gpt2tf(*flags, **where)
        assert (out, err.count("\n")) == ("", 1), err
        return code, err.removeprefix(f"gpt2tf {flags[0]}: ").rstrip("\n")

    return run


LINE = re.compile(r"step (\d+)  loss \d+\.\d{4}(  validation \d+\.\d{4})?  [\d,]+ tokens/s  (\d+:)?\d\d:\d\d left")


def test_train_prints_lines_and_makes_a_model(train, place, sample):
    code, out, err = train()
    assert code == 0
    lines = [LINE.fullmatch(line) for line in out.splitlines()]
    assert [(int(line[1]), bool(line[2])) for line in lines] == [(2, True), (4, True)]
    said = [line.removeprefix("gpt2tf train: ") for line in err.splitlines()]
    assert re.fullmatch(r"[\d,]+ tokens", said[0])
    assert re.fullmatch(r"8,368 parameters; training takes about \d+\.\d GB of memory", said[1])
    assert said[2:] == [f"sample from it: gpt2tf sample --model_name new --models_dir {place}"]
    assert load_model(place / "new").hparams == ONE_LAYER
    assert saves.saved_step(place / "new") == 4
    code, out, _ = sample("--model_name=new", "--models_dir", place, "--length=3", "--seed=1")
    assert code == 0 and "SAMPLE 1" in out


def test_the_same_seed_trains_the_same_model(train, place):
    outcomes = {}
    for name, flags in (("a", []), ("b", []), ("c", ["--seed=2"])):
        assert train(*flags, name=name)[0] == 0
        outcomes[name] = values(load_model(place / name))
    assert_same(outcomes["a"], outcomes["b"])
    assert not np.array_equal(outcomes["a"]["model/wpe"], outcomes["c"]["model/wpe"])


def test_finetuning_lowers_the_validation_loss(gpt2tf, place, sample):
    flags = ["--model_name", GOLDEN / "tiny-a", "--window=32", "--batch_size=2", "--steps=8", "--evaluate_every=4"]
    code, out, err = gpt2tf("finetune", *flags, "--learning_rate=3e-3", "--validation=0.2", name="cats")
    losses = [float(loss) for loss in re.findall(r"validation (\S+)", out)]
    assert code == 0 and len(losses) == 2
    assert losses[0] > losses[1] + 0.5 and losses[1] < 6
    for file in ("encoder.json", "vocab.bpe"):
        assert (place / "cats" / file).read_bytes() == (GOLDEN / "tiny-a" / file).read_bytes()
    code, out, _ = sample("--model_name=cats", "--models_dir", place, "--length=3", "--seed=1", "--prompt=the cat")
    assert code == 0


def adamw(model, batches, rate, warmup, steps):
    """Trains by TensorFlow 1's formula of Adam with the defaults of `finetune`, in float64: its decay, clip, schedule.

    Yields the weights after each update.
    """
    beta_1, beta_2, epsilon, decay, final = 0.9, 0.999, 1e-8, 0.01, 0.1
    weights = {name: value.astype(np.float64) for name, value in values(model).items()}
    m, s = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for step, tokens in enumerate(batches):
        with tf.GradientTape() as tape:
            logits = model(tokens[:, :-1])["logits"]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits))
        found = tape.gradient(loss, [v.value for v in model.variables])
        g = {v.path: tf.convert_to_tensor(x).numpy().astype(float) for v, x in zip(model.variables, found, strict=True)}
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        assert norm > 1
        done = (step - warmup) / (steps - warmup)
        cosine = final + (1 - final) * (1 + np.cos(np.pi * done)) / 2
        now = rate * ((step + 1) / (warmup + 1) if step < warmup else cosine)
        for v in model.variables:
            name = v.path
            m[name] += (1 - beta_1) * (g[name] / norm - m[name])
            s[name] += (1 - beta_2) * ((g[name] / norm) ** 2 - s[name])
            if len(v.shape) > 1:
                weights[name] -= now * decay * weights[name]
            corrected = now * np.sqrt(1 - beta_2 ** (step + 1)) / (1 - beta_1 ** (step + 1))
            weights[name] -= corrected * m[name] / (np.sqrt(s[name]) + epsilon)
            v.assign(weights[name])
    return weights


def test_finetuning_is_adamw_as_in_tensorflow_1(gpt2tf, place):
    flags = ["--steps=5", "--warmup=2", "--learning_rate=1e-3", "--batch_size=2", "--window=16", "--seed=1"]
    flags += ["--dropout=0", "--validation=0"]
    assert gpt2tf("finetune", "--model_name", GOLDEN / "tiny-a", *flags)[0] == 0
    windows = Windows(np.load(place / "new" / "tokens.npy"), 16, 2, seed=1)
    model = load_model(GOLDEN / "tiny-a", dropout=0.0)
    expected = adamw(model, map(windows.batch, range(5)), rate=1e-3, warmup=2, steps=5)
    for name, found in values(load_model(place / "new")).items():
        if not name.endswith("c_attn/b"):  # the keys' changes nothing: its gradient is rounding
            assert np.abs(found - expected[name]).max() < 1e-2 * 1e-3, name  # a hundredth of a step


def test_only_train_transformer_layers_trains_nothing_else(gpt2tf, place):
    flags = ["--model_name", GOLDEN / "tiny-a", *QUICK, "--steps=1", "--only_train_transformer_layers"]
    assert gpt2tf("finetune", *flags)[0] == 0
    before, after = values(load_model(GOLDEN / "tiny-a")), values(load_model(place / "new"))
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {"model/wte", "model/wpe", "model/ln_f/g", "model/ln_f/b"}
    assert saves.read_saved(place / "new").settings.freeze == "embeddings,ln_f"


def test_resume_goes_on_with_the_settings_of_the_run(gpt2tf, train, place):
    assert train("--dropout=0.3", "--steps=6", "--save_every=1", "--evaluate_every=1", name="parts")[0] == 0
    code, out, err = gpt2tf("train", "--resume", name="parts")
    assert code == 1 and "has had 6 updates; give more --steps than that" in err.splitlines()[-1]
    code, out, err = gpt2tf("train", "--resume", "--steps=8", name="parts")
    assert code == 0 and [line.split("  ")[0] for line in out.splitlines()] == ["step 7", "step 8"]
    assert f"using {place / 'parts' / 'tokens.npy'}, in which the text was encoded before" in err
    settings = saves.read_saved(place / "parts").settings
    assert settings == Settings(steps=8, batch_size=2, window=8, evaluate_every=1, seed=1, dropout=0.3, save_every=1)


def test_resume_refuses_what_is_not_the_run_that_was_saved(gpt2tf, train, place):
    assert train("--steps=1")[0] == 0

    def cut(folder):
        saved = folder / "training-1.npz"
        saved.write_bytes(saved.read_bytes()[:1000])

    for number, (change, flags, part) in enumerate([
        (lambda folder: (place / "text.txt").write_text(TEXT + "more"), [], "text.txt is not what"),
        (lambda folder: (place / "text.txt").write_text(TEXT), ["--optimizer=adafactor"], "state is of other settings"),
        (cut, [], "training-1.npz is damaged"),
        (lambda folder: (folder / "training-1.npz").unlink(), [], "training-1.npz is missing"),
        (lambda folder: (folder / "model-1.data-00000-of-00001").unlink(), [], "00001 is missing"),
    ]):  # fmt: skip
        copy = place / f"copy-{number}"
        shutil.copytree(place / "new", copy)
        change(copy)
        before = sorted(os.listdir(copy))
        code, out, err = gpt2tf("train", "--resume", "--steps=2", *flags, name=copy.name)
        assert (code, out) == (1, "") and part in err.splitlines()[-1] and "Traceback" not in err
        assert sorted(os.listdir(copy)) == before


def test_resume_with_a_damaged_encoding(gpt2tf, train, place):
    assert train("--steps=1")[0] == 0
    path = place / "new" / "tokens.npy"
    whole = path.read_bytes()
    for step, content in enumerate([whole[:300], b"", None], start=2):
        path.write_bytes(content) if content is not None else path.unlink()
        assert gpt2tf("train", "--resume", f"--steps={step}")[0] == 0
        assert path.read_bytes() == whole
    path.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    code, _, err = gpt2tf("train", "--resume", "--steps=5")
    assert code == 1 and f"or if it is, remove {path}" in err.splitlines()[-1]


def test_resume_with_other_tokens_is_refused(gpt2tf, train, place):
    tokens = np.arange(200, dtype=np.uint16) % 300
    np.save(place / "ids.npy", tokens)
    assert train("--steps=1", data="ids.npy")[0] == 0
    np.save(place / "ids.npy", tokens[::-1])
    code, _, err = gpt2tf("train", "--resume", "--steps=2", data="ids.npy")
    assert code == 1 and "ids.npy is not what" in err.splitlines()[-1]
    np.save(place / "ids.npy", tokens)
    assert gpt2tf("train", "--resume", "--steps=2", data="ids.npy")[0] == 0


def test_every_setting_is_a_flag_with_help(capsys):
    for command in ("train", "finetune"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        out = " ".join(capsys.readouterr().out.split())
        for field in dataclasses.fields(Settings):
            help = field.metadata["help"]
            assert re.search(rf"--{field.name}( [A-Z]+)? {re.escape(help)}", out), field.name
            if field.default not in (None, False, ""):
                assert re.search(rf"{re.escape(help)} \({re.escape(str(field.default))}\)", out), field.name


@pytest.mark.parametrize(
    "flags, parts",
    [
        (["--steps=0"], ["--steps: steps is 0; it must be 1 or more"]),
        (["--steps=many"], ["'many' is not a whole number"]),
        (["--batch_size=1.5"], ["'1.5' is not a whole number"]),
        (["--window=0"], ["window is 0; it must be 1 or more"]),
        (["--learning_rate=0"], ["learning_rate is 0.0; it must be above 0"]),
        (["--learning-rate=nan"], ["learning_rate is nan; it must be above 0"]),
        (["--learning_rate=inf"], ["learning_rate is inf; it must be above 0 and at most 1e+30"]),
        (["--weight_decay=1e39"], ["weight_decay is 1e+39; it must be from 0 to 1e+30"]),
        (["--steps=10000000000"], ["steps is 10000000000; it must be from 1 to 2147483647"]),
        (["--sample_length=10000000000"], ["sample_length is 10000000000; it must be from 1 to 2147483647"]),
        (["--epsilon=0"], ["epsilon is 0.0; it must be 1e-30 or more"]),
        (["--dropout=1"], ["dropout is 1.0; it must be from 0 to below 1"]),
        (["--optimizer=sgd"], ["optimizer is 'sgd'; it must be one of adamw, adafactor"]),
        (["--dtype=int8"], ["dtype is 'int8'; it must be one of float32, bfloat16"]),
        (["--freeze=h0,head"], ["'head'", "embeddings, wte"]),
        (["--seed=-1"], ["seed is -1; it must be from 0 to 4294967295"]),
        (["--early_stop=2", "--evaluate_every=0"], ["early_stop", "evaluate_every"]),
        (["--validation=1"], ["validation is 1.0; it must be from 0 to below 1"]),
        (["--strategy=multiworker"], ["TF_CONFIG"]),
        (["--strategy=all"], ["strategy is 'all'; it must be one of one, mirrored, multiworker"]),
        (["--run_name=a/b"], ["'a/b' is no name of a folder"]),
        (["--run_name=.."], ["'..' is no name"]),
        (["--run_name="], ["'' is no name"]),
        (["--lenght=3"], ["--lenght=3", "--help lists the flags"]),
        (["--text_column="], ["--text_column", "empty"]),
        (["extra"], ["unrecognized arguments: extra"]),
    ],
)
def test_bad_usage(refused, place, flags, parts, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    code, line = refused("train", "--hparams", place / "hparams.json", *flags)
    assert code == 2
    assert [part for part in parts if part not in line] == []
    assert not (place / "new").exists()


def test_train_needs_sizes_and_a_name(refused, place, capsys):
    code, line = refused("train")
    assert code == 2 and "give --hparams FILE, the sizes of the new model, or --resume" in line
    for argv, part in (["train", "x"], "--run_name"), (["finetune", "--run_name=x"], "DATA"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(argv)
        assert part in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["model.ckpt.index", "checkpoint"])
def test_a_model_is_not_overwritten(refused, place, missing):
    shutil.copytree(GOLDEN / "tiny-a", place / "new")
    (place / "new" / missing).unlink()
    code, line = refused("train", "--hparams", place / "hparams.json")
    assert code == 2 and f"{place / 'new'} holds a model; give --resume to go on with it, or another --run_name" in line


@pytest.mark.parametrize("vocabulary", ["none", "of another model"])
@pytest.mark.parametrize("sizes", ["in a file", "of the variables"])
def test_the_vocabulary_of_another_model_is_refused(gpt2tf, place, sizes, vocabulary):
    """Its ids are out of range, which a compiled function does not notice."""
    hparams = HParams(n_vocab=300, n_ctx=16, n_embd=768, n_head=12, n_layer=1)
    save_checkpoint(GPT2(hparams, initial_value=lambda _, shape: np.zeros(shape, np.float32)), place / "mixed")
    for file in ("encoder.json", "vocab.bpe", *(["hparams.json"] if sizes != "in a file" else [])):
        (place / "mixed" / file).unlink(missing_ok=True)
    said = "the released vocabulary has 50257 tokens where its model has 300; put the files of its own vocabulary there"
    if vocabulary != "none":
        encoder.write_vocabulary(place / "mixed", 400)
        said = "has 400 tokens, its model has 300; put the files of one model together"
    code, out, err = gpt2tf("finetune", "--model_name=mixed")
    assert (code, out) == (1, "") and said in err.splitlines()[-1]
    assert not (place / "new" / "checkpoint").exists()


def test_resume_of_a_model_that_no_run_saved_is_refused(refused, place):
    shutil.copytree(GOLDEN / "tiny-a", place / "plain")
    code, line = refused("train", "--resume", name="plain")
    assert code == 1 and "model.ckpt is no save of a run; start one from it with finetune, --model_name" in line


def test_a_folder_that_another_run_writes_to_is_refused(train, place):
    """Each would remove the other's saves."""
    (place / "new").mkdir()
    with locked(place / "new", busy=None):
        code, _, err = train()
    assert (code, err.count("\n")) == (1, 1)
    assert f"another run is writing to {place / 'new'}; give another --run_name, or wait" in err
    assert not any((place / "new").iterdir())
    assert train("--steps=1")[0] == 0


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_resume_without_a_run_is_refused(refused, place, name):
    (place / "empty").mkdir()
    code, line = refused("train", "--resume", name=name)
    assert code == 1 and f"{place / name} holds no run to resume; leave --resume out to start one" in line


@pytest.mark.parametrize(
    "content, part",
    [
        (None, "No such file or directory"),
        ("{", "it is not JSON"),
        ("[]", "must hold an object"),
        ('{"n_vocab": 300}', "lacks n_ctx"),
        ('{"n_vocab": 300, "n_ctx": 16, "n_embd": 15, "n_head": 2, "n_layer": 1}', "n_head 2 does not divide"),
        ('{"n_vocab": 256, "n_ctx": 16, "n_embd": 16, "n_head": 2, "n_layer": 1}', "n_vocab is 256"),
        ('{"n_vocab": 50258, "n_ctx": 16, "n_embd": 16, "n_head": 2, "n_layer": 1}', "257 up to 50257"),
    ],
)
def test_damaged_hparams(refused, place, content, part):
    path = place / "sizes.json"
    if content is not None:
        path.write_text(content)
    code, line = refused("train", "--hparams", path)
    assert code == 1 and part in line and not (place / "new" / "checkpoint").exists()


def test_data_that_is_not_there_or_holds_nothing(refused, place):
    (place / "nothing.txt").write_text(" \n")
    (place / "none").mkdir()
    np.save(place / "none.npy", np.zeros(0, np.uint16))
    np.save(place / "large.npy", np.array([1, 300]))
    for data, part in (
        ("missing.txt", "missing.txt: No such file"),
        ("nothing.txt", "there is no text in"),
        ("none", "is text, of 0; name a folder of text"),
        ("none.npy", "holds no tokens"),
        ("large.npy", "token 1 is 300"),
    ):
        code, line = refused("train", "--hparams", place / "hparams.json", data=data)
        assert code == 1 and part in line, data
        assert not (place / "new" / "checkpoint").exists()
    assert not (place / "new" / "tokens.npy").exists()


def test_folder_that_cannot_be_written(refused, place):
    (place / "file").write_text("")
    code, line = refused("train", "--hparams", place / "hparams.json", "--models_dir", place / "file")
    assert code == 1 and line == f"{place / 'file' / 'new'}: Not a directory"


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--window=17"], "window is 17; the model's n_ctx is 16"),
        (["--freeze=embeddings,h0-h1,ln_f"], "leaves nothing to train"),
        (["--learning_rate=1e30", "--clip=0", "--save_every=1"], "give a lower --learning_rate"),
    ],
)
def test_what_only_the_model_tells_fails_in_one_line(train, flags, part):
    code, _, err = train(*flags)
    assert code == 1 and part in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize("command", ["sample", "finetune"])
def test_a_run_that_saves_again_while_it_is_opened(train, gpt2tf, place, sample, monkeypatch, command):
    """The save that the command found is gone when its weights are read."""
    assert train("--steps=1", name="live")[0] == 0
    module = {"sample": cli_sample, "finetune": cli_train}[command]

    def save_again():
        for file in place.glob("live/*-1.*"):
            file.rename(file.with_name(file.name.replace("-1.", "-2.")))
        write_state(place / "live" / "checkpoint", "model-2")

    monkeypatch.setattr(module, "silence_tensorflow", save_again)
    if command == "sample":
        code, _, err = sample("--model_name=live", "--models_dir", place, "--length=3")
    else:
        code, _, err = gpt2tf("finetune", "--model_name=live", "--steps=1")
    assert code == 0 and f"loading {place / 'live' / 'model-2'}" in err


def test_encoded_data_and_columns(train, place):
    np.savez(place / "ids.npz", np.arange(200) % 300)
    (place / "rows.jsonl").write_text("\n".join(json.dumps({"story": "the cat sat. " * 9}) for _ in range(9)))
    assert train("--steps=1", data="ids.npz", name="a")[0] == 0
    assert not (place / "a" / "tokens.npy").exists()
    assert train("--steps=1", "--text_column=story", data="rows.jsonl", name="b")[0] == 0
    assert (place / "b" / "tokens.npy").exists()


def test_a_folder_and_a_pattern_of_encoded_files(train, gpt2tf, place):
    """As in nshepperd/gpt-2 and gpt-2-simple."""
    (place / "ids").mkdir()
    np.savez(place / "ids" / "b.npz", np.arange(100, 200))
    np.savez(place / "ids" / "a.npz", np.arange(100))
    np.save(place / "one.npy", np.arange(200))
    for data, name in (("ids", "a"), ("ids/*.npz", "b"), ("one.npy", "c")):
        assert train("--steps=1", data=data, name=name)[0] == 0
    assert_same(values(load_model(place / "a")), values(load_model(place / "b")))
    assert_same(values(load_model(place / "a")), values(load_model(place / "c")))
    assert gpt2tf("train", "--resume", "--steps=2", data="ids", name="b")[0] == 0
    code, _, err = gpt2tf("train", "--resume", "--steps=3", data="ids/a.npz", name="b")
    assert code == 1 and "ids/a.npz is not what" in err.splitlines()[-1]


def test_a_column_where_nothing_has_columns_is_refused(refused, train, place):
    np.save(place / "ids.npy", np.arange(200))
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text(TEXT)
    for data in ("text.txt", "ids.npy", "texts"):
        for column in ("story", "text"):
            code, line = refused("train", "--hparams", place / "hparams.json", "--text_column", column, data=data)
            assert (
                code == 1 and f"text_column is {column!r}, but nothing in {place / data} has columns; leave it" in line
            )


def test_rows_and_text_in_a_folder(train, gpt2tf, place):
    """And a .gz that changed is noticed."""
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text(TEXT)
    rows = [{"story": TEXT}, {"story": "the end."}]
    (place / "texts" / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    assert train("--steps=1", "--text_column=story", data="texts")[0] == 0
    enc = encoder.get_encoder("new", place)
    assert enc.decode(np.load(place / "new" / "tokens.npy")) == "<|endoftext|>".join([TEXT, TEXT, "the end.", ""])
    (place / "texts" / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows[:1]).encode()))
    code, _, err = gpt2tf("train", "--resume", "--steps=2", data="texts")
    assert code == 1 and f"{place / 'texts'} is not what {place / 'new'} was trained on" in err.splitlines()[-1]


def test_text_in_another_encoding_is_refused(refused, place):
    (place / "zh.txt").write_bytes(("早上他走到花园里，看见雪已经化了。" * 500).encode("utf-16-le"))
    code, line = refused("train", "--hparams", place / "hparams.json", data="zh.txt")
    assert code == 1 and "looks like UTF-16LE; convert it: iconv -f UTF-16LE -t UTF-8" in line
    assert not (place / "new").exists()


def test_each_note_on_a_folder_of_texts_appears_once(train, gpt2tf, place):
    for name, content in ("a.txt", TEXT.encode() + b"\xff"), ("b.png", b"\x89PNG\0"):
        (place / "texts").mkdir(exist_ok=True)
        (place / "texts" / name).write_bytes(content)
    shutil.copytree(GOLDEN / "tiny-a", place / "texts" / "model")
    _, _, err = train("--steps=1", data="texts")
    of_files = ["1 files that are not text are left out", "texts/model holds a model and is left out"]
    assert [err.count(note) for note in [*of_files, "1 bytes that are not UTF-8"]] == [1, 1, 1]
    _, _, err = gpt2tf("train", "--resume", "--steps=2", data="texts")
    assert [err.count(note) for note in [*of_files, "the text was encoded before"]] == [1, 1, 1]


def test_models_in_a_folder_of_texts_are_no_texts(train, gpt2tf, place):
    """Or the saves of a run in that folder would change its corpus."""
    flags = ["--models_dir", place / "texts" / "models", "--run_name=new"]
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text(TEXT)
    assert train("--steps=1", *flags, data="texts")[0] == 0
    tokens = (place / "texts" / "models" / "new" / "tokens.npy").read_bytes()
    assert gpt2tf("train", "--resume", "--steps=2", *flags, data="texts")[0] == 0
    assert train("--steps=1", data="texts")[0] == 0
    assert (place / "new" / "tokens.npy").read_bytes() == tokens


def test_out_of_memory_is_said_with_what_to_do(train, monkeypatch):
    def allocate(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "Out of memory while trying to allocate 99 bytes.")

    monkeypatch.setattr(Run, "_after_update", allocate)
    code, _, err = train()
    assert code == 1 and "out of memory; give a smaller --batch_size" in err.splitlines()[-1]


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_the_run_goes_on_later(train, gpt2tf, place, monkeypatch):
    update = Run._after_update
    expected = train("--steps=6", name="whole")
    assert expected[0] == 0

    def interrupting(run, report, stopping):
        if report.step == 2:
            threading.Timer(0, interrupt).start()
            threading.Event().wait(0.5)  # until the main thread has seen it
        return update(run, report, stopping)

    monkeypatch.setattr(Run, "_after_update", interrupting)
    code, out, err = train("--steps=6")
    assert code == 130
    assert "stopping after this update, which is saved; Ctrl-C again leaves at once" in err
    assert saves.saved_step(place / "new") == 3  # it had begun to report the second
    monkeypatch.setattr(Run, "_after_update", update)
    assert gpt2tf("train", "--resume")[0] == 0
    assert_same(values(load_model(place / "new")), values(load_model(place / "whole")))


def test_second_ctrl_c_leaves_at_once(train, place, monkeypatch):
    released = threading.Event()

    def endless(*_):
        threading.Timer(0.1, interrupt).start()
        threading.Timer(0.6, interrupt).start()
        released.wait(20)
        raise SystemExit

    monkeypatch.setattr(Run, "_after_update", endless)
    code, out, err = train()
    released.set()
    assert (code, out) == (130, "") and "Ctrl-C again leaves at once, without saving" in err
    assert not (place / "new" / "checkpoint").exists()


@pytest.mark.parametrize("why", ["No space left on device", "not writable"])
def test_stdout_that_takes_no_lines_does_not_end_the_run(train, place, monkeypatch, why):
    """The result of a run is its folder."""
    monkeypatch.setattr("sys.stdout", open("/dev/full", "w") if "space" in why else open(os.devnull))
    code, out, err = train()
    assert code == 0 and err.count(f"stdout: {why}; training goes on without it") == 1
    assert saves.saved_step(place / "new") == 4


def test_process(place):
    """Help without TensorFlow; a closed pipe, which ends nothing; a kill, after which the folder opens and goes on."""
    command = "import sys; sys.modules.update(tensorflow=None, keras=None); from gpt2tf.cli import main; main()"
    for name in ("train", "finetune"):
        asked = subprocess.run(
            [sys.executable, "-c", command, name, "--help"], capture_output=True, text=True, check=True
        )
        assert "--accumulate" in asked.stdout and asked.stderr == ""
    command = [sys.executable, "-c", "from gpt2tf.cli import main; main()", "train", str(place / "text.txt")]
    flags = [f"--models_dir={place}", "--run_name=new", f"--hparams={place / 'hparams.json'}", *QUICK]
    env = os.environ | {"PYTHONPATH": str(GOLDEN.parent.parent)}
    process = subprocess.Popen(
        [*command, *flags, "--steps=1000000", "--save_every=1", "--evaluate_every=1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert LINE.fullmatch(process.stdout.readline().rstrip("\n"))
    process.stdout.close()
    said = process.stderr.readline(), process.stderr.readline(), process.stderr.readline()
    assert said[2] == "gpt2tf train: stdout: Broken pipe; training goes on without it\n"
    step = saves.saved_step(place / "new")
    while saves.saved_step(place / "new") < step + 5:  # it does
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    assert process.communicate(timeout=60)[1] == ""
    assert saves.read_saved(place / "new").progress["step"] == saves.saved_step(place / "new") >= step + 5
    assert np.isfinite(values(load_model(place / "new"))["model/wte"]).all()


def test_a_start_that_fails_leaves_no_empty_folder(gpt2tf, place):
    (place / "bad.json").write_text("[{")
    code, out, err = gpt2tf("finetune", f"--model_name={GOLDEN / 'tiny-a'}", data=place / "bad.json")
    assert (code, out) == (1, "") and "is not JSON" in err and not (place / "new").exists()
