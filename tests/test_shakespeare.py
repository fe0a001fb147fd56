"""The model in the package: it is small, opens everywhere, has learnt its plays, and can be taught another text."""

import math
import re

import numpy as np
import pytest
from recorded import GOLDEN
from tolerances import SHAKESPEARE_NARROW_NLL

from encoder import get_encoder
from gpt2tf import cli, find_model, load_model
from gpt2tf.locate import BUNDLED
from gpt2tf.train.fit import cross_entropy

FOLDER = find_model("shakespeare", "no such folder")
README = (GOLDEN.parent.parent / "gpt2tf" / "models" / "shakespeare" / "README.md").read_text(encoding="utf-8")
TEXT = (GOLDEN / "shakespeare" / "winters_tale.txt").read_text(encoding="utf-8")  # of the part kept for validation
TRIGRAM = 4.2551  # nats a token of TEXT, by tests/trigram.py from the part that was trained on


@pytest.fixture(scope="module")
def tokens():
    return np.array(get_encoder("shakespeare", BUNDLED).encode(TEXT))


@pytest.fixture(scope="module")
def shakespeare():
    return load_model(FOLDER)


def windows(tokens, n_ctx):
    """[rows, n_ctx + 1]"""
    rows = (len(tokens) - 1) // n_ctx
    return np.stack([tokens[row * n_ctx : (row + 1) * n_ctx + 1] for row in range(rows)])


def log_probabilities(model, rows):
    """Of each target of the windows, [rows, n_ctx]."""
    return -cross_entropy(rows[:, 1:], model(rows[:, :-1])["logits"]).numpy()


def test_it_is_small_and_complete():
    files = {path.name: path.stat().st_size for path in (GOLDEN.parent.parent / "gpt2tf/models/shakespeare").iterdir()}
    assert set(files) == {
        "README.md", "checkpoint", "encoder.json", "hparams.json", "vocab.bpe",
        "model.ckpt.index", "model.ckpt.data-00000-of-00001",
    }  # fmt: skip
    assert files["model.ckpt.data-00000-of-00001"] <= 8_000_000


def test_it_beats_the_trigram_on_text_it_has_not_seen(shakespeare, tokens):
    rows = windows(tokens, shakespeare.hparams.n_ctx)
    loss = -log_probabilities(shakespeare, rows).mean()
    assert loss < TRIGRAM - 0.1
    stated = float(re.search(r"validation loss \| (\d\.\d+)", README)[1])
    assert abs(loss - stated) < 0.5  # of one scene, where the README has all of the text kept for validation


def test_a_longer_memory_helps(shakespeare, tokens):
    """The same tokens are likelier after all of a window than after eight of its tokens: it has learnt to look back."""
    rows = windows(tokens, shakespeare.hparams.n_ctx)
    after_all = log_probabilities(shakespeare, rows)[:, -64:].mean()
    after_eight = log_probabilities(shakespeare, rows[:, -(64 + 8) :])[:, -64:].mean()
    assert after_all > after_eight + 0.02


@pytest.mark.parametrize("dtype", SHAKESPEARE_NARROW_NLL)
def test_narrow_weights_keep_its_probabilities(dtype):
    from gpt2tf.bench.speed import log_probability_difference

    difference = log_probability_difference(FOLDER, dtype, seq=64, jit_compile=False)
    assert 0 < difference < SHAKESPEARE_NARROW_NLL[dtype]


def test_it_writes_plays(sample):
    code, out, err = sample(
        "--model_name", "shakespeare", "--models_dir=none", "--seed=1", "--top_k=40", "--length=200"
    )
    assert code == 0
    assert re.search(r"^[A-Z][A-Za-z ]+\.$", out, re.MULTILINE)  # a line that says who speaks
    words = re.findall(r"[a-z]+", out.lower())
    known = set(re.findall(r"[a-z]+", TEXT.lower()))
    assert sum(word in known for word in words) > 0.5 * len(words)


def test_a_sample_ends_before_a_stop_text(sample):
    flags = [
        "--model_name=shakespeare",
        "--models_dir=none",
        "--prompt=ROMEO.\n",
        "--seed=3",
        "--length=120",
        "--top_k=40",
    ]
    _, whole, _ = sample(*flags)
    _, stopped, _ = sample(*flags, "--stop", "\n\n")
    head, _, _ = whole.split("=\n", 1)[1].partition("\n\n")
    assert stopped.split("=\n", 1)[1] == head + "\n" + "=" * 80 + "\n"


def test_fine_tuning_lowers_the_loss_on_a_new_text_and_the_result_samples(tmp_path, sample, capsys):
    new = tmp_path / "new.txt"
    new.write_text("The quick brown fox jumps over the lazy dog; the dog sleeps on, and the fox is gone.\n" * 60)
    flags = ["--model_name=shakespeare", "--run_name=fox", f"--models_dir={tmp_path}", "--steps=6", "--window=32"]
    flags += ["--batch_size=4", "--learning_rate=1e-3", "--evaluate_every=1", "--validation=0.2", "--dropout=0"]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["finetune", str(new), *flags])
    losses = [float(loss) for loss in re.findall(r"validation (\S+)", capsys.readouterr().out)]
    assert len(losses) == 6 and losses[-1] < losses[0] - 1 and all(map(math.isfinite, losses))
    code, out, _ = sample(
        "--model_name=fox", f"--models_dir={tmp_path}", "--prompt=The quick", "--length=10", "--seed=1"
    )
    assert code == 0 and "SAMPLE 1" in out


def test_it_is_named_where_a_published_model_is_missing(refused, tmp_path):
    code, line = refused("--models_dir", tmp_path)
    assert code == 1 and "gpt2tf download 124M" in line and "--model_name shakespeare" in line
