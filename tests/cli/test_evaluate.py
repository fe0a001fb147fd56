"""`gpt2tf evaluate`: results on stdout, in a folder and on a page; Ctrl-C and on again; what is refused."""

import hashlib
import json
import math
import subprocess
import sys

import file_server
import made_sets
import pytest
from command import leaving
from file_server import PAGE, cut, forever, once, web_page
from recorded import GOLDEN, ROOT

from gpt2tf import cli, download

MODEL = ["--model_name", "tiny-a", "--models_dir", str(GOLDEN)]


@pytest.fixture
def evaluate(monkeypatch, capsys):
    """Runs `gpt2tf evaluate` on the recorded model: (exit code, stdout, stderr)."""
    monkeypatch.setattr("sys.argv", ["gpt2tf"])

    def run(*argv):
        return leaving(cli.main, ["evaluate", *MODEL, *map(str, argv)]), *capsys.readouterr()

    return run


@pytest.fixture
def sets(tmp_path):
    return made_sets.write_all(tmp_path / "sets")


@pytest.fixture
def too_early(monkeypatch):
    """Fails the test if TensorFlow is asked for."""

    def silence():
        raise AssertionError("TensorFlow was imported")

    monkeypatch.setattr("gpt2tf.cli.evaluate.silence_tensorflow", silence)


def interrupted_after(monkeypatch, rows):
    """Scoring goes row by row, and Ctrl-C comes after so many."""
    from gpt2tf.paper.score import Scorer

    score = Scorer.score

    def counted(self, given, **options):
        for number, row in enumerate(given):
            if number == rows:
                raise KeyboardInterrupt
            yield from score(self, [row], **options)

    monkeypatch.setattr(Scorer, "score", counted)


def test_a_text(evaluate, tmp_path):
    (tmp_path / "a.txt").write_text("The king is in the house.\n" * 3, encoding="utf-8")
    code, out, err = evaluate("text", "--data", tmp_path / "a.txt")
    assert (
        code == 0 and out.startswith("text: tiny-a; 3 lines\n") and "\nppl per word  " in out and "Traceback" not in err
    )
    assert "stride         32 tokens" in out.replace("stride        32", "stride         32")
    code, out, _ = evaluate("text", "--data", tmp_path / "a.txt", "--json", "--limit", 2, "--stride", 8)
    found = json.loads(out)
    assert (code, found["task"], found["stride"], found["limit"], found["part"]) == (0, "text", 8, 2, True)
    assert [figure["name"] for figure in found["figures"]][:2] == ["ppl per GPT-2 token", "ppl per word"]
    assert found["data"]["sha256"] == hashlib.sha256((tmp_path / "a.txt").read_bytes()).hexdigest()


def test_the_whole_row(evaluate, sets, tmp_path):
    sets["ptb"].unlink()
    folder = tmp_path / "out"
    code, out, err = evaluate("all", "--data", tmp_path / "sets", "--output", folder)
    assert code == 0 and "no file in" in err and "for ptb" in err and "no file was found for ptb\n" in out
    for task in sets.keys() - {"ptb"}:
        assert f"\n{task}: tiny-a; " in f"\n{out}" and json.loads((folder / f"{task}.json").read_text())["task"] == task
    row = out[out.index("column ") :]
    assert row.split("\n")[1].startswith("LAMBADA PPL (ppl of the last word)  ") and "* not of a whole published" in row
    assert row in (folder / "row.txt").read_text() and "stop words" in (folder / "row.txt").read_text()
    page = (folder / "row.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "WikiText103 PPL" in page and "http" not in page.split("<body>")[1]
    whole = json.loads((folder / "row.json").read_text())
    assert whole["missing"] == ["ptb"] and [result["task"] for result in whole["results"]] == [
        t for t in sets if t != "ptb"
    ]
    # And again: all is there already.
    code, again, err = evaluate("all", "--data", tmp_path / "sets", "--output", folder)
    assert (code, again) == (0, out) and f"4 of 4 items are in {folder / 'lambada.journal'} already" in err
    code, out, _ = evaluate("all", "--data", tmp_path / "sets", "--output", folder, "--json")
    assert code == 0 and json.loads(out) == whole


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(evaluate, sets, tmp_path, monkeypatch):
    command = ["lambada", "--data", sets["lambada"], "--output", tmp_path / "out"]
    with monkeypatch.context() as patched:
        interrupted_after(patched, 5)
        code, out, err = evaluate(*command)
    journal = tmp_path / "out" / "lambada.journal"
    assert (code, out) == (
        130,
        "",
    ) and f"2 of 4 items of lambada are kept in {journal}; run the same command again" in err
    code, _, err = evaluate(*command, "--stride", 5)
    assert code == 1 and "is of another evaluation (stride: None there, 5 here)" in err and err.count("\n") == 1
    interrupted_after(monkeypatch, math.inf)  # still row by row, as another batch may round another way
    code, resumed, err = evaluate(*command)
    assert code == 0 and f"2 of 4 items are in {journal} already" in err
    assert resumed == evaluate("lambada", "--data", sets["lambada"])[1]
    assert len(journal.read_text().split("\n")) == 1 + 4 + 1


def test_ctrl_c_without_a_folder_says_what_would_help(evaluate, sets, monkeypatch):
    interrupted_after(monkeypatch, 3)
    code, out, err = evaluate("cbt-cn", "--data", sets["cbt-cn"])
    assert (code, out) == (130, "") and "nothing is kept of cbt-cn; with --output DIR" in err


def test_a_journal_of_another_model_or_other_data_is_refused(evaluate, sets, tmp_path, too_early, folder):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1bw.journal").write_text(json.dumps({"format": 1, "task": "1bw", "model": "another"}) + "\n")
    code, out, err = evaluate("1bw", "--data", sets["1bw"], "--output", tmp_path / "out")
    assert (code, out) == (1, "") and "is of another evaluation" in err and err.count("\n") == 1


def test_a_journal_of_other_flags_is_refused(evaluate, sets, tmp_path):
    command = ["ptb", "--data", sets["ptb"], "--output", tmp_path / "out", "--limit", 1]
    assert evaluate(*command)[0] == 0
    for words, name in (["--limit", 2], "limit"), (["--dtype", "bfloat16"], "dtype"), (["--tf32"], "tf32"):
        code, out, err = evaluate(*command, *words)
        assert (code, out, err.count("\n")) == (1, "", 1) and f"is of another evaluation ({name}: " in err


def test_a_folder_whose_name_is_not_utf8(evaluate, sets, tmp_path):
    folder = tmp_path / "d\udce9"
    folder.mkdir()
    sets["ptb"].rename(folder / "ptb.test.txt")
    assert evaluate("all", "--data", folder, "--output", tmp_path / "out")[0] == 0
    assert "d?/ptb.test.txt" in (tmp_path / "out" / "row.txt").read_text(encoding="utf-8")


def test_one_token_of_raw_text_has_no_figure_and_no_warning(evaluate, tmp_path):
    (tmp_path / "wiki.test.tokens").write_text(" \n = The <unk> = \n")
    code, out, err = evaluate("wikitext2", "--data", tmp_path / "wiki.test.tokens", "--limit", 1, "--json")
    assert code == 0 and json.loads(out)["figures"][-1]["value"] is None and err.count("\n") == 1


def test_two_processes_do_not_write_to_one_folder(evaluate, sets, tmp_path, too_early):
    from gpt2tf.files import locked

    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out", pytest.fail):
        code, _, err = evaluate("1bw", "--data", sets["1bw"], "--output", tmp_path / "out")
    assert code == 1 and "another process writes to" in err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["poetry", "--data", "x"], "invalid choice: 'poetry'"),
        (["ptb"], "--data"),
        (["ptb", "--data", ""], "it is empty"),
        (["ptb", "--data", "ptb.test.txt", "--limit", "0"], "limit is 0; it must be 1 or more"),
        (["ptb", "--data", "ptb.test.txt", "--stride", "0"], "stride is 0"),
        (["ptb", "--data", "ptb.test.txt", "--stride", "64"], "stride is 64; it must be from 1 to 63"),
        (["ptb", "--data", "ptb.test.txt", "--download"], "--download fetches lambada_test.jsonl alone"),
        (["lambada", "--data", "ptb.test.txt", "--download"], "is there already; give the folder"),
        (["all", "--data", "ptb.test.txt"], "is no folder; all takes a folder"),
        (["ptb", "--data", "ptb.test.txt", "--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_bad_usage(evaluate, sets, tmp_path, monkeypatch, too_early, argv, message):
    monkeypatch.chdir(tmp_path / "sets")
    code, out, err = evaluate(*argv)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["ptb", "--data", "nothing.txt"], "there is no file nothing.txt; ptb takes ptb.test.txt of"),
        (["wikitext2", "--data", "."], "has no wikitext-2/wiki.test.tokens; wikitext2 takes that file"),
        (["all", "--data", "."], "has none of the published files: lambada_test.jsonl, cbtest_CN_valid_2000ex.txt"),
        (["ptb", "--data", "page"], "page is a web page"),
        (["text", "--data", "page", "--model_name", "none"], "there is no model 'none'"),
    ],
)
def test_what_cannot_be_evaluated_is_told_before_a_model_is_loaded(
    evaluate, tmp_path, monkeypatch, too_early, argv, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page").write_bytes(PAGE)
    code, out, err = evaluate(*argv)
    assert (code, out, err.count("\n")) == (1, "", 1) and message in err


def test_weights_that_are_not_finite_keep_what_is_done(evaluate, sets, tmp_path, monkeypatch):
    def fail(self, rows, **options):
        raise FloatingPointError("the model's logits are not finite")
        yield

    monkeypatch.setattr("gpt2tf.paper.score.Scorer.score", fail)
    code, out, err = evaluate("ptb", "--data", sets["ptb"], "--output", tmp_path / "out")
    assert (code, out) == (1, "") and "logits are not finite" in err and (tmp_path / "out" / "ptb.journal").exists()
    assert not (tmp_path / "out" / "ptb.json").exists()


def test_help_and_a_wrong_file_take_no_libraries(tmp_path):
    """What is imported before the flags and the files are checked."""
    (tmp_path / "page").write_bytes(PAGE)
    script = """
import sys
from gpt2tf import cli
try:
    cli.main(["evaluate", *sys.argv[1:]])
except SystemExit as left:
    heavy = {"tensorflow", "keras", "numpy", "regex", "tqdm", "requests"} & sys.modules.keys()
    print(left.code, sorted(heavy), file=sys.stderr)
"""
    for argv, code in (["--help"], "0"), (["ptb", "--data", str(tmp_path / "page")], "1"):
        done = subprocess.run([sys.executable, "-c", script, *argv], cwd=ROOT, capture_output=True, text=True)
        assert done.stderr.split("\n")[-2] == f"{code} []"


# Download


@pytest.fixture
def lambada(server, monkeypatch):
    """The server with a LAMBADA of our making, which counts as the published one."""
    content = made_sets.lines_of({"text": text} for text in made_sets.LAMBADA).encode() * 400
    monkeypatch.setitem(file_server.PUBLISHED, download.LAMBADA, content)
    monkeypatch.setitem(download.DATA_SETS, download.LAMBADA, (len(content), hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(download.download_lambada, "__defaults__", (server.base.removesuffix("/models"),))
    return content


def test_lambada_is_fetched_where_it_is_not_there(evaluate, server, lambada, tmp_path):
    server.script[download.LAMBADA] = once(cut, cut)
    folder = tmp_path / "data"
    code, out, _ = evaluate("lambada", "--data", folder, "--download", "--limit", 1)
    assert code == 0 and out.startswith("lambada: tiny-a; 1 passages, A PART")
    assert [path.name for path in folder.iterdir()] == [download.LAMBADA]
    assert (folder / download.LAMBADA).read_bytes() == lambada
    assert set(server.paths) == {f"/gpt-2/data/{download.LAMBADA}"}
    server.forget()
    assert evaluate("lambada", "--data", folder, "--download", "--limit", 1)[0] == 0 and not server.asked


def test_a_file_that_is_there_is_never_replaced(evaluate, server, lambada, tmp_path):
    own = tmp_path / download.LAMBADA
    own.write_text(made_sets.lines_of([{"text": "my own passage"}]))
    before = own.read_bytes()
    assert evaluate("lambada", "--data", tmp_path, "--download")[0] == 0
    assert own.read_bytes() == before and not server.asked


@pytest.mark.parametrize(
    "answer",
    [web_page, file_server.with_content(lambda content: content[:-9] + b"damaged!\n"), file_server.status(404)],
)
def test_what_is_not_the_published_file_is_not_kept(evaluate, server, lambada, tmp_path, too_early, answer):
    server.script[download.LAMBADA] = forever(answer)
    code, out, err = evaluate("lambada", "--data", tmp_path / "data", "--download")
    assert (code, out) == (1, "") and server.base.removesuffix("/models") in err
    assert not (tmp_path / "data" / download.LAMBADA).exists()
    assert "--base_url" not in err  # which the command does not have


def test_the_facts_of_openais_lambada():
    assert download.DATA_SETS == {
        "lambada_test.jsonl": (1819752, "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226")
    }
    assert download.download_lambada.__defaults__ == ("https://openaipublic.blob.core.windows.net/gpt-2",)
