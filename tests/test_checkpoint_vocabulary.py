"""A model and its vocabulary: rows of wte beyond the table, files that are missing or renamed, added tokens."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from checkpoint_files import TINY, copy_tiny, tiny_weights
from command import header
from training import assert_same, values

import encoder
from gpt2tf import GPT2, Generator, HParams, load_model, sample_sequence, save_checkpoint
from gpt2tf.locate import ModelFiles
from gpt2tf.train.start import Job, read_corpus, start

N_VOCAB = 1024  # a round number of rows, for the 1,000 tokens of tiny-a
FLAGS = ["--seed=1", "--length=4", "--prompt=he"]
OPTIONS = [{}, {"top_k": 40}, {"top_k": 1010}, {"top_p": 0.9}, {"temperature": 0}]


def padded_weights():
    """tiny-a's, with rows in wte of which some would be the likeliest of all if they were tokens."""
    wte = tiny_weights()["model/wte"]
    return tiny_weights() | {"model/wte": np.concatenate([wte, -3 * wte[:12], 3 * wte[:12]])}


@pytest.fixture(scope="module")
def padded():
    weights, hparams = padded_weights(), HParams(n_vocab=N_VOCAB, n_ctx=64, n_embd=48, n_head=4, n_layer=3)
    return GPT2(hparams, initial_value=lambda name, shape: weights[name], vocabulary=encoder.read_vocabulary(TINY))


@pytest.fixture
def padded_folder(padded, tmp_path):
    save_checkpoint(padded, tmp_path / "padded")
    return tmp_path / "padded"


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_beyond_the_table_are_never_sampled(padded, padded_folder, tiny, tiny_generator, options):
    noise = np.random.default_rng(0).random([30, 4])
    prompts = [[258], [5, 1023], [7], [1]]  # a row beyond may stand in a prompt
    generators = [Generator(padded, jit_compile=False), Generator(padded_folder, jit_compile=False)]
    found = [generator.generate(prompts, 30, noise=noise, **options) for generator in generators]
    assert np.array_equal(*found) and np.max(found) < 1000
    loop = sample_sequence(padded, length=30, context=[[258]], noise=noise[:, :1], **options)
    assert loop[0, 1:].tolist() == found[0][0].tolist()
    expected = tiny_generator.generate([[258]], 30, noise=noise[:, :1], **options)
    assert found[0][0].tolist() == expected[0].tolist()


def test_of_an_unknown_vocabulary_every_row_is_a_token(padded):
    weights = {v.path: v.numpy() for v in padded.variables}
    model = GPT2(padded.hparams, initial_value=lambda name, shape: weights[name])
    noise = np.random.default_rng(0).random([60, 1])
    for found in (
        Generator(model, jit_compile=False).generate([[258]], 60, noise=noise)[0],
        sample_sequence(model, length=60, context=[[258]], noise=noise)[0, 1:],
    ):
        assert found.max() >= 1000


def test_a_padded_model_at_the_command_line(sample, padded_folder):
    code, out, err = sample("--model_name", padded_folder, *FLAGS)
    expected = sample("--model_name", TINY, *FLAGS)
    assert (code, out) == expected[:2]
    said = f"{padded_folder}: its vocabulary has 1000 tokens; the 24 rows of wte beyond are never sampled"
    assert err.splitlines()[0] == f"sample.py: {said}"


def test_a_padded_model_is_trained_and_sampled_from(eagerly, padded_folder, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 60)
    settings = {"steps": 2, "window": 8, "sample_every": 1, "sample_length": 30}
    job = Job(tmp_path / "text.txt", tmp_path / "new", ModelFiles.at(padded_folder), settings)
    samples = [report.sample for report in start(job, read_corpus(job)).reports()]
    assert len(samples) == 2 and np.max(samples) < 1000
    model = load_model(tmp_path / "new")
    assert (model.hparams.n_vocab, model.vocabulary) == (N_VOCAB, encoder.read_vocabulary(TINY))


def test_hugging_faces_names_and_a_forks_field_at_the_command_line(sample, folder):
    for name, other in ("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt"):
        (folder / name).rename(folder / other)
    hparams = json.loads((folder / "hparams.json").read_text())
    (folder / "hparams.json").write_text(json.dumps(hparams | {"scale": 2}))
    code, out, err = sample("--model_name", folder, *FLAGS)
    assert (code, out) == sample("--model_name", TINY, *FLAGS)[:2]
    said = f"sample.py: {folder / 'hparams.json'}: ignoring 'scale', which this GPT-2 does not have"
    assert [line for line in err.splitlines() if "hparams" in line] == [said]


def test_an_added_token_with_a_space_is_printed(sample, tmp_path, padded):
    """In place of the likeliest one, which is id 1000 and more where all rows are tokens."""
    table = json.loads((TINY / "encoder.json").read_text()) | {f"<|im {i}|>": 1000 + i for i in range(24)}
    weights = {v.path: v.numpy() for v in padded.variables}
    vocabulary = encoder.Vocabulary(json.dumps(table), (TINY / "vocab.bpe").read_text())
    model = GPT2(padded.hparams, initial_value=lambda name, shape: weights[name], vocabulary=vocabulary)
    save_checkpoint(model, tmp_path / "added")
    code, out, err = sample("--model_name", tmp_path / "added", "--temperature=0", "--format=jsonl", *FLAGS)
    record = json.loads(out)
    assert code == 0 and max(record["tokens"]) >= 1000
    assert record["text"] == encoder.Encoder.of(vocabulary).decode(record["tokens"])
    assert f"<|im {max(record['tokens']) - 1000}|>" in record["text"]


@pytest.mark.parametrize("file", ["encoder.json", "vocab.bpe"])
def test_half_a_vocabulary_cannot_be_sampled_from_by_text(refused, folder, file):
    (folder / file).unlink()
    assert refused("--model_name", folder) == (1, f"{folder / file} is missing; get the file again")
    tokens = Generator(folder, jit_compile=False).generate([[258]], 3, seed=1)[0]  # but by ids
    assert len(tokens) == 3


def test_an_unknown_vocabulary_is_refused_by_the_name_of_what_would_have_been_taken(refused, folder):
    for file in ("encoder.json", "vocab.bpe"):
        (folder / file).unlink()
    code, line = refused("--model_name", folder)
    assert code == 1
    assert line == (
        f"{folder} has no encoder.json and vocab.bpe, and the released vocabulary has 50257 tokens where its model has "
        "1000; put the files of its own vocabulary there (of a Hugging Face model tokenizer.json, or vocab.json and "
        "merges.txt)"
    )


def test_the_released_vocabulary_is_taken_with_a_note_for_its_size_alone(sample, tmp_path):
    model = GPT2(HParams(n_vocab=50257, n_ctx=8, n_embd=2, n_head=1, n_layer=1))
    save_checkpoint(model, tmp_path / "plain")
    code, out, err = sample("--model_name", tmp_path / "plain", "--length=0", "--seed=1")
    assert (code, out) == (0, header(1) + "\n")
    note = f"sample.py: {tmp_path / 'plain'} has no encoder.json and vocab.bpe; using the released vocabulary"
    assert err.splitlines().count(note) == 1


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 543936\n"


@pytest.mark.parametrize("data", ["text.txt", "text/b.txt", "rows.jsonl", "tokens.npy", "tokens.npz"])
def test_a_pointer_of_git_lfs_is_no_data(tmp_path, data):
    path = tmp_path / data
    path.parent.mkdir(exist_ok=True)
    (path.parent / "a.txt").write_text("the cat sat on the mat. " * 30)
    path.write_text(POINTER)
    given = path.parent if data == "text/b.txt" else path
    job = Job(given, tmp_path / "new", ModelFiles.at(TINY))
    with pytest.raises(ValueError) as caught:
        read_corpus(job)
    said = f"{path} is not the file itself but a pointer of Git LFS to it; get it with: git lfs pull"
    assert str(caught.value) == said and not (tmp_path / "new").exists()


def test_a_text_about_git_lfs_is_data(tmp_path):
    (tmp_path / "text.txt").write_text(POINTER + "the cat sat on the mat. " * 60)
    assert len(read_corpus(Job(tmp_path / "text.txt", tmp_path / "new", ModelFiles.at(TINY))).tokens) > 100


def test_the_vocabulary_does_not_depend_on_where_its_folder_is(tmp_path):
    folder = copy_tiny(tmp_path / "m")
    model = load_model(folder)
    shutil.rmtree(folder)
    save_checkpoint(model, tmp_path / "n")
    assert (tmp_path / "n" / "vocab.bpe").read_bytes() == (TINY / "vocab.bpe").read_bytes()
    assert_same(values(load_model(pathlib.Path(tmp_path, "n"))), values(model))


def test_a_vocabulary_that_is_not_the_models_is_refused_where_it_is_given(tmp_path):
    hparams = HParams(n_vocab=300, n_ctx=8, n_embd=8, n_head=2, n_layer=1)
    model, large = GPT2(hparams), encoder.released(400)
    for give in (lambda: GPT2(hparams, vocabulary=large), lambda: setattr(model, "vocabulary", large)):
        with pytest.raises(ValueError, match="has 400 tokens, its model has 300; put the files of one model together"):
            give()
    with pytest.raises(TypeError, match="vocabulary is 5; it must be an encoder.Vocabulary"):
        model.vocabulary = 5
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere"):
        model.vocabulary = encoder.read_vocabulary(tmp_path / "nowhere")
    assert model.vocabulary is None


def test_saving_over_a_vocabulary_says_that_it_stays(tmp_path, caplog):
    hparams = HParams(n_vocab=300, n_ctx=8, n_embd=8, n_head=2, n_layer=1)
    save_checkpoint(GPT2(hparams, vocabulary=encoder.released(300)), tmp_path / "model")
    before = (tmp_path / "model" / "encoder.json").read_bytes()
    save_checkpoint(GPT2(hparams), tmp_path / "model")
    assert (tmp_path / "model" / "encoder.json").read_bytes() == before
    assert "keeps the vocabulary that is there" in caplog.text
    save_checkpoint(GPT2(hparams), tmp_path / "other")
    assert "gets no encoder.json and vocab.bpe" in caplog.text
