"""What `sample.py` refuses, how it fails, and what becomes of its files then."""

import os
import signal
import threading
import time

import pytest
from checkpoint_files import copy_tiny, write_checkpoint
from command import FOUR, FOUR_TEXT, LONG, MODEL, header

import encoder
from gpt2tf.cli import sample as cli_sample


@pytest.mark.parametrize(
    "flags, parts",
    [
        (["--lenght=5"], ["--lenght=5", "--help"]),
        (["117M"], ["117M", "--help"]),
        (["--prompt", "two", "words"], ["words", "quotes"]),
        (["--top"], ["--top"]),
        (["--prompt"], ["--prompt: expected one argument"]),
        (["--length=-5"], ["--length", "-5", "0 or more"]),
        (["--length=1.5"], ["--length", "'1.5' is not a whole number"]),
        (["--length", "1" * 5000], ["--length", "is not a whole number"]),
        (["--length=1000000000"], ["1 tokens", "1000000000", "at most 65", "64 or less"]),
        (["--prompt=hello", "--length=63"], ["3 tokens", "63", "at most 65", "62 or less"]),
        (["--prompt", LONG, "--length=1"], ["70 tokens", "64"]),
        (["--prompt", "x" * 64, "--length=2"], ["64 tokens", "1 or less"]),
        (["--prompt="], ["prompt is empty", "leave it out"]),
        (["--prompt_file=/dev/null"], ["prompt is empty"]),
        (["--temperature=nan"], ["--temperature", "nan", "0 (arg-max)", "1e-05"]),
        (["--temperature=inf"], ["--temperature", "inf", "1e+09"]),
        (["--temperature=-1"], ["--temperature", "-1"]),
        (["--temperature=1e-6"], ["1e-06", "1e-05"]),
        (["--temperature", "1" + "0" * 400], ["1e+09"]),
        (["--temperature=hot"], ["'hot' is not a number"]),
        (["--top_p=1.5"], ["--top_p", "1.5", "from 0 to 1"]),
        (["--top_p=nan"], ["--top_p", "nan"]),
        (["--top_k=-1"], ["--top_k", "-1", "0 (off)"]),
        (["--top_k=1e9"], ["--top_k", "'1e9' is not a whole number"]),
        (["--top_k", "9" * 400], ["--top_k", "2147483647"]),
        (["--seed=4294967296"], ["--seed", "4294967296", "4294967295"]),
        (["--seed=-1"], ["--seed", "-1"]),
        (["--nsamples=-1"], ["--nsamples", "-1", "0 (without end) or more"]),
        (["--batch_size=0"], ["--batch_size", "0", "1 or more"]),
        (["--batch_size", "1" + "0" * 30], ["batch_size", "bytes", "at the very most"]),
        (["--format=xml"], ["'xml'", "jsonl"]),
        (["--stop="], ["--stop", "empty"]),
        (["--output="], ["--output", "empty"]),
        (["--model_name="], ["--model_name", "empty"]),
        (["--interactive", "--prompt=x"], ["--prompt", "--interactive"]),
        (["--interactive", "--nsamples=0"], ["--nsamples 0", "1 or more"]),
        (["--strategy=multiworker"], ["--strategy", "'multiworker'", "mirrored"]),
        (["--seed=1", "--shard=0/2"], ["--shard", "'0/2' is not K/N with K from 1 to N", "2/8"]),
        (["--seed=1", "--shard=3/2"], ["--shard", "'3/2' is not K/N"]),
        (["--seed=1", "--shard=2"], ["--shard", "'2' is not K/N"]),
        (["--seed=1", "--shard", "1/" + "9" * 5000], ["--shard", "is not K/N"]),
        (["--shard=1/2"], ["--shard needs a --seed", "the same for all parts"]),
        (["--seed=1", "--shard=1/2", "--interactive"], ["--shard", "--prompt in place of --interactive"]),
    ],
)  # fmt: skip
def test_bad_usage(refused, flags, parts):
    code, line = refused(*MODEL, *flags)
    assert code == 2
    assert [part for part in parts if part not in line] == []


@pytest.mark.parametrize("content", ["{", "[]", '{"n_vocab": 1000}', '{"n_vocab": "x"}'])
def test_damaged_hparams(refused, folder, content):
    (folder / "hparams.json").write_text(content)
    code, line = refused("--model_name", folder)
    assert code == 1 and line.startswith(str(folder / "hparams.json"))


@pytest.mark.parametrize("missing", ["model.ckpt.index", "model.ckpt.data-00000-of-00001", "encoder.json", "vocab.bpe"])
def test_missing_file(refused, folder, missing):
    (folder / missing).unlink()
    code, line = refused("--model_name", folder)
    assert code == 1 and missing in line and "again" in line


def test_vocabulary_of_another_model(refused, folder):
    encoder.write_vocabulary(folder, 50257)
    code, line = refused("--model_name", folder)
    assert code == 1 and "50257 tokens, its model has 1000" in line


def test_missing_model_says_what_is_there_and_how_to_get_it(refused, folder, monkeypatch):
    monkeypatch.setenv("MODELS", str(folder.parent))
    code, line = refused("--models_dir=$MODELS")
    assert code == 1 and f"no model '124M' in {folder.parent} (there: copy)" in line
    assert line.endswith(f"gpt2tf download 124M --models_dir {folder.parent}")
    monkeypatch.setenv("HOME", str(folder.parent.parent))
    assert "(there: copy)" in refused("--models_dir", "~/models", "--model_name", "345M")[1]
    assert "gpt2tf download 355M" in refused("--models_dir", "~/models", "--model_name", "345M")[1]
    assert refused("--models_dir", "a b")[1].endswith("--models_dir 'a b'")
    folder.rename(folder.parent / "124M")
    assert refused("--models_dir", "~/models", "--model_name", "117M")[1].endswith("--model_name 124M")


@pytest.mark.parametrize("name", ["", "model.ckpt", "model.ckpt.index"])
def test_model_called_by_path(sample, folder, name):
    loading = f"sample.py: loading {folder / 'model.ckpt'}\n"
    assert sample(f"--model_name={folder / name}", "--length=0", "--seed=1") == (0, header(1) + "\n", loading)


def test_weights_that_are_not_numbers(sample, tmp_path, tiny):
    values = {v.path: v.numpy() for v in tiny.variables}
    values["model/ln_f/g"] = values["model/ln_f/g"] * float("nan")
    write_checkpoint(copy_tiny(tmp_path / "nan") / "model.ckpt", values)
    kept = tmp_path / "kept"
    kept.write_text("old")
    flags = ["--length=4", "--seed=1", "--output", kept]
    code, out, err = sample("--model_name", tmp_path / "nan", *flags)
    assert (code, out) == (1, "") and "logits are not finite" in err.splitlines()[-1]
    assert kept.read_text() == "old" and sorted(os.listdir(tmp_path)) == ["kept", "nan"]


def test_output(sample, tmp_path):
    path, link = tmp_path / "samples", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("samples")
    assert sample(*FOUR, "--prompt=naïve", "--include_prefix", "--output", link) == (0, "", "")
    assert path.read_text(encoding="utf-8").startswith(header(1) + "naïve")
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "samples"]
    assert sample(*FOUR, "--output=/dev/null") == (0, "", "")
    assert sample(*FOUR, "--output=-") == sample(*FOUR)


@pytest.mark.parametrize("path, why", [("missing/x", "No such file"), (".", "Is a directory")])
def test_output_that_cannot_be_written_is_refused_before_the_work(refused, tmp_path, path, why):
    code, line = refused(*FOUR, "--output", tmp_path / path)
    assert code == 1 and line.startswith(f"{tmp_path / path}: {why}")


def test_output_onto_a_full_disk(sample):
    assert sample(*FOUR, "--output=/dev/full") == (1, "", "sample.py: /dev/full: No space left on device\n")


def test_a_prompt_in_another_encoding(refused, stdin, tmp_path):
    raw = "Am frühen Morgen hörte er die Vögel über den Dächern.".encode("latin-1")
    (tmp_path / "a.txt").write_bytes(raw)
    (tmp_path / "a.gz").write_bytes(raw)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    stdin(raw)
    looks = "is not UTF-8, but looks like WINDOWS-1252; convert it: iconv -f WINDOWS-1252 -t UTF-8"
    assert refused(*FOUR, "--prompt_file=-") == (1, f"stdin {looks}")
    for name, line in (("a.txt", looks), ("a.gz", "is damaged ("), ("a.png", "is not text, it holds zero bytes")):
        code, said = refused(*FOUR, "--prompt_file", tmp_path / name)
        assert code == 1 and said.startswith(f"{tmp_path / name} {line}")


def test_unreadable_prompt_file(refused, tmp_path):
    assert refused(*FOUR, "--prompt_file", tmp_path) == (1, f"{tmp_path}: Is a directory")
    assert refused(*FOUR, "--prompt_file", tmp_path / "x") == (1, f"{tmp_path / 'x'}: No such file or directory")


@pytest.mark.timing
@pytest.mark.parametrize("finished", [0, 2])
def test_ctrl_c_ends_a_long_batch_at_once_and_keeps_finished_samples(
    sample, tiny_generator, monkeypatch, tmp_path, finished
):
    path = tmp_path / "samples"
    path.write_text("old")
    stream, made = tiny_generator.stream, []

    def endless_in_the_end(*args, **options):
        if len(made) == finished:
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            time.sleep(20)
        made.append(1)
        return stream(*args, **options)

    monkeypatch.setattr(tiny_generator, "stream", endless_in_the_end)
    started = time.monotonic()
    code, out, err = sample(*FOUR, "--nsamples=0", "--output", path, "--format=jsonl")
    assert (code, out, err) == (130, "", "")
    assert time.monotonic() - started < 10
    assert len(path.read_text().splitlines()) == max(finished, 1)
    assert (path.read_text() == "old") == (finished == 0)
    assert os.listdir(tmp_path) == ["samples"]


def test_output_to_the_file_that_stdout_goes_to_adds_to_it(sample, tmp_path):
    log = tmp_path / "log"
    link = tmp_path / "stdout"  # as /dev/stdout, which a fault must not replace
    link.symlink_to("/proc/self/fd/1")
    stdout = os.dup(1)
    with open(log, "w") as file:
        file.write("old\n")
        file.flush()
        os.dup2(file.fileno(), 1)
    try:
        assert sample(*FOUR, "--output", link) == (0, "", "")
        assert sample(*FOUR, "--output", log) == (0, "", "")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert log.read_text() == "old\n" + 2 * f"{header(1)}{FOUR_TEXT}\n"


def test_full_stdout(sample, monkeypatch):
    monkeypatch.setattr("sys.stdout", open("/dev/full", "w"))
    assert sample(*FOUR) == (1, "", "sample.py: stdout: No space left on device\n")


def test_no_stdin(sample, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)  # as Python has it when it is closed
    assert sample(*FOUR)[0] == 0
    assert sample(*FOUR, "--interactive") == (0, "", "")
    assert sample(*FOUR, "--prompt_file=-")[0] == 2


def test_ctrl_c_while_the_flags_are_made(sample, monkeypatch):
    def interrupted(parser):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_sample, "add_flags", interrupted)
    assert sample() == (130, "", "")
