"""`gpt2tf score`, and `sample.py --html`: figures of a text, of each line, pages, and what is refused."""

import contextlib
import gzip
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from command import leaving
from recorded import GOLDEN, ROOT

import gpt2tf
from encoder import get_encoder
from gpt2tf import cli
from gpt2tf.cli import score as cli_score
from gpt2tf.locate import BUNDLED

MODEL = ["--model_name", "shakespeare", "--models_dir", "nowhere"]
TEXT = "KING:\nWhat is thy name? It is \u2014 thy name, \U0001f600.\n"
FIGURES = {"tokens", "log_probability", "mean_log_probability", "perplexity", "bits_per_byte"}


@pytest.fixture(scope="module")
def scorer():
    return gpt2tf.Scorer(f"{BUNDLED}/shakespeare", jit_compile=False)


@pytest.fixture(scope="module")
def enc():
    return get_encoder("shakespeare", BUNDLED)


@pytest.fixture
def score(monkeypatch, capsys, scorer, enc):
    """Runs `gpt2tf score` with words on the bundled model, loaded once: (exit code, stdout, stderr)."""
    monkeypatch.setattr("sys.argv", ["gpt2tf"])
    monkeypatch.setattr(cli_score, "load", lambda *_: (scorer, enc))

    def run(*argv):
        return leaving(cli.main, ["score", *map(str, argv)]), *capsys.readouterr()

    return run


@pytest.fixture
def refused(score, monkeypatch):
    """Runs `gpt2tf score` with words that are refused in a line before a model is loaded: (exit code, line)."""

    def run(*argv):
        monkeypatch.setattr(cli_score, "load", None)
        code, out, err = score(*argv)
        assert (out, err.count("\n")) == ("", 1)
        return code, err

    return run


def expected(scorer, enc, text, **options):
    """(log-probability of all tokens, how many are scored, the bytes that they spell)"""
    tokens = enc.encode(text)
    (found,) = scorer.score([tokens], **options)
    known = ~np.isnan(found.log_probabilities)
    spelt = enc.decode_bytes([token for token, some in zip(tokens, known, strict=True) if some])
    return float(found.log_probabilities[known].astype(np.float64).sum()), int(known.sum()), spelt


@pytest.mark.parametrize("start", [False, True])
def test_the_figures_of_a_text(score, scorer, enc, tmp_path, start):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    code, out, _ = score(tmp_path / "text.txt", *MODEL, *(["--start"] if start else []))
    total, tokens, spelt = expected(scorer, enc, TEXT, start=start)
    assert spelt.decode() == TEXT if start else TEXT.endswith(spelt.decode())
    found = {line[:22].rstrip(): float(line[22:].replace(",", "")) for line in out.splitlines()}
    assert code == 0 and found == {
        "tokens scored": tokens,
        "mean log-probability": round(total / tokens, 4),
        "perplexity per token": round(math.exp(-total / tokens), 2),
        "perplexity per word": pytest.approx(math.exp(-total / len(spelt.decode().split())), abs=0.01),
        "perplexity per byte": pytest.approx(math.exp(-total / len(spelt)), abs=1e-4),
        "bits per byte": round(-total / len(spelt) / math.log(2), 4),
    }


def test_each_line_of_json_comes_back_with_its_score(score, scorer, enc, tmp_path):
    records = [{"text": TEXT, "id": 7}, TEXT, {"note": None, "text": "", "score": "old"}, {"text": "A"}]
    lines = [json.dumps(record) for record in records]
    (tmp_path / "in.jsonl").write_text("\n\n".join(lines), encoding="utf-8")  # blank lines are left out
    code, out, err = score(tmp_path / "in.jsonl", *MODEL)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [{**record, "score": None} for record in found] == [
        {"text": TEXT, "id": 7, "score": None},
        {"text": TEXT, "score": None},
        {"note": None, "text": "", "score": None},
        {"text": "A", "score": None},
    ]
    total, tokens, spelt = expected(scorer, enc, TEXT)
    assert (
        found[0]["score"]
        == found[1]["score"]
        == {
            "tokens": tokens,
            "log_probability": pytest.approx(total, rel=1e-6),
            "mean_log_probability": pytest.approx(total / tokens, rel=1e-6),
            "perplexity": pytest.approx(math.exp(-total / tokens), rel=1e-5),
            "bits_per_byte": pytest.approx(-total / len(spelt) / math.log(2), rel=1e-6),
        }
    )
    nothing = dict.fromkeys(FIGURES) | {"tokens": 0, "log_probability": 0.0}
    assert found[2]["score"] == found[3]["score"] == nothing


def test_a_perplexity_beyond_all_numbers_is_none_in_json(score, scorer, monkeypatch, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps("ABC"))
    whole = scorer.score

    def unlikely(*args, **options):
        return (score._replace(log_probabilities=score.log_probabilities * 1e4) for score in whole(*args, **options))

    monkeypatch.setattr(scorer, "score", unlikely)
    found = json.loads(score(tmp_path / "in.jsonl", *MODEL)[1], parse_constant=pytest.fail)["score"]
    assert found["perplexity"] is None and found["mean_log_probability"] < -1e4


def test_other_places_and_formats(score, stdin, tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT.encode("utf-16"))
    expected = score(tmp_path / "a.txt", *MODEL)[1]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert score(tmp_path / "b.txt.gz", *MODEL)[1] == expected
    stdin(TEXT.encode())
    assert score("-", *MODEL)[1] == expected
    stdin(json.dumps({"body": TEXT}).encode())
    line = score("-", *MODEL, "--format", "jsonl", "--text_column", "body", "--output", tmp_path / "out.jsonl")
    assert line[:2] == (0, "")
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert record["body"] == TEXT and f"{record['score']['mean_log_probability']:.4f}" in expected


def test_samples_go_in_as_they_come_out(score, sample, stdin):
    words = ["--format", "jsonl", "--nsamples", "2", "--seed", "1", "--length", "12", "--prompt", "KING"]
    code, out, _ = sample("--model_name", "tiny-a", "--models_dir", GOLDEN, *words)
    stdin(out.encode())
    scored = [json.loads(line) for line in score("-", *MODEL, "--format", "jsonl")[1].splitlines()]
    for given, record in zip(map(json.loads, out.splitlines()), scored, strict=True):
        assert record["score"].keys() == FIGURES and {**record, "score": None} == {**given, "score": None}


def test_what_comes_by_a_pipe_is_scored_before_the_pipe_ends(tmp_path):
    """The reader closes after a line, which ends the command quietly."""
    line = json.dumps({"text": TEXT}) + "\n"
    command = [sys.executable, "-m", "gpt2tf", "score", "-", "--format", "jsonl", *MODEL]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            process.stdin.write(line * 600)  # which the pipe holds
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["text"] == TEXT
            process.stdout.close()
            process.stdin.write(line * 5000)
        except BrokenPipeError:
            pass
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


def test_a_page_of_lines_and_one_of_samples(score, sample, scorer, enc, monkeypatch, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps("<script>alert(1)</script>") + "\n" + json.dumps(TEXT) + "\n")
    code, out, err = score(tmp_path / "in.jsonl", *MODEL, "--html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert (code, err, out.count("\n")) == (0, "", 2)
    assert "Line 1" in page and "Line 2" in page and "<script>alert" not in page and "What is thy name" in page
    monkeypatch.setattr(cli_score, "load", lambda *_: (gpt2tf.Scorer(GOLDEN / "tiny-a", jit_compile=False), enc))
    words = ["--model_name", "tiny-a", "--models_dir", GOLDEN, "--nsamples", 2, "--seed", 1, "--length", 4]
    plain = sample(*words)
    assert sample(*words, "--html", tmp_path / "b.html")[:2] == plain[:2]
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "Sample 1" in page and "Sample 2" in page and "Sample 3" not in page


def test_bad_usage(refused, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text(TEXT, encoding="utf-8")
    for words, message in [
        ([], "the following arguments are required: FILE"),
        ([text, "--stride", "0"], "stride is 0; it must be 1 or more"),
        ([text, "--stride", "256"], "stride is 256; it must be from 1 to 255"),
        ([text, "--dtype", "int8"], "invalid choice: 'int8'"),
        ([text, "--format", "csv"], "invalid choice: 'csv'"),
        ([text, "--format", "jsonl", "--text_column", "score"], "the results take the place of a field 'score'"),
        ([text, "--html", text], "are the same file; name different ones"),
        ([text, "--output", tmp_path / "x", "--html", tmp_path / "x"], "are the same file"),
    ]:
        code, err = refused(*words, *MODEL)
        assert code == 2 and message in err, words
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_cannot_be_read(refused, stdin, monkeypatch, tmp_path):
    for empty in b"", b"\xff\xfe":
        stdin(empty)
        code, err = refused("-", *MODEL, "--start")
        assert code == 1 and err.endswith("stdin is empty; there is no token to score\n")
    monkeypatch.setattr("sys.stdin", None)
    assert "stdin is empty" in refused("-", *MODEL)[1]
    code, err = refused(tmp_path / "none.txt", *MODEL)
    assert code == 1 and f"{tmp_path / 'none.txt'}: No such file" in err
    (tmp_path / "latin.txt").write_bytes("déjà vu, très français, où ça?".encode("latin-1") * 20)
    code, err = refused(tmp_path / "latin.txt", *MODEL)
    assert code == 1 and "is not UTF-8, but looks like WINDOWS-1252" in err
    assert [path.name for path in tmp_path.iterdir()] == ["latin.txt"]


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"text": "a"', "line 2, is not JSON"),
        ("[" * 100_000, "line 2, is not JSON"),
        ('{"body": "a"}', "line 2, has no text 'text' (there: body); name it by --text_column"),
        ('{"text": 3}', "line 2, has no text 'text' (there: text)"),
        ("12", "line 2, has no text 'text' (there: int)"),
    ],
)
def test_a_bad_line_is_named(score, tmp_path, line, message):
    (tmp_path / "in.jsonl").write_text(json.dumps(TEXT) + "\n" + line + "\n")
    code, out, err = score(tmp_path / "in.jsonl", *MODEL, "--output", tmp_path / "out", "--html", tmp_path / "page")
    assert code == 1 and message in err and err.count("\n") == 1 and out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_text_without_a_token_to_score(score, tmp_path):
    (tmp_path / "a.txt").write_text("A")
    code, out, err = score(tmp_path / "a.txt", *MODEL)
    assert (code, out) == (1, "") and "the text has 1 tokens, none to be scored; --start scores the first" in err
    code, out, err = score(tmp_path / "a.txt", *MODEL, "--start")
    assert code == 0 and out.startswith("tokens scored         1\n")


def test_numbers_that_are_large_or_of_nothing(score, stdin):
    stdin("\u1780\u1781\u1782".encode())  # of a script that is not in the plays
    out = score("-", *MODEL)[1]
    assert re.search(r"^perplexity per word   \d\.\d\de\+\d+$", out, re.MULTILINE)
    stdin(b" \n \n")
    assert "perplexity per word   nan\n" in score("-", *MODEL)[1]


def test_a_page_of_samples_without_end_is_refused(sample, tmp_path):
    code, out, err = sample("--nsamples", 0, "--html", tmp_path / "x.html")
    assert (code, out) == (2, "") and "--html waits for the last sample" in err


def test_the_readme_shows_what_is_printed(score, stdin):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Score texts")[1].split("\n## ")[0]
    text, words = re.search(r'^echo "(.*)" \| gpt2tf score (.*)$', section, re.MULTILINE).groups()
    stdin(f"{text}\n".encode())
    code, out, _ = score(*words.split())
    shown = re.search(r"^```\n(tokens scored.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    for line, other in zip(out.splitlines(), shown.splitlines(), strict=True):
        assert line[:22] == other[:22]
        assert float(line[22:].replace(",", "")) == pytest.approx(float(other[22:].replace(",", "")), rel=1e-3)
    assert set(re.findall(r"--\w+", score("--help")[1])) - {"--help"} <= set(re.findall(r"--\w+", section))
