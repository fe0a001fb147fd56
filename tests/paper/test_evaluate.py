"""Journals, intervals and reports of evaluations."""

import json
import math

import made_sets
import numpy as np
import pytest
from hugging_face_files import WEIGHTS, write_folder
from recorded import GOLDEN

import encoder
from gpt2tf import load_model
from gpt2tf.hparams import PUBLISHED
from gpt2tf.locate import ModelFiles
from gpt2tf.paper import report
from gpt2tf.paper.data import read
from gpt2tf.paper.evaluate import Journal, Model, Result, Settings, evaluate, limited, make_setup, make_task
from gpt2tf.paper.score import Scorer
from gpt2tf.paper.tables import MEASURED, SAID, TABLE_3
from gpt2tf.paper.task import Figure, Loss, accuracy

TASKS = ["lambada", "cbt-cn", "ptb", "1bw", "hellaswag"]


@pytest.fixture(scope="module")
def scorer():
    return Scorer(load_model(GOLDEN / "tiny-a"), jit_compile=False)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return made_sets.write_all(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def made(scorer, sets):
    """The task of a name on its made set."""
    setup = make_setup(encoder.Encoder.of(scorer.vocabulary), scorer.hparams, None)
    return lambda name, limit=None: make_task(name, limited(read(name, str(sets[name])), limit)[0], setup)


class Counting:
    """A scorer that counts the rows, and after so many does what Ctrl-C does."""

    def __init__(self, scorer, until=math.inf):
        self.scorer, self.until, self.rows = scorer, until, 0

    def score(self, rows, **options):
        for row in rows:
            if self.rows == self.until:
                raise KeyboardInterrupt
            self.rows += 1
            yield from self.scorer.score([row], **options)


# Journals


@pytest.mark.parametrize("name", TASKS)
def test_an_interrupted_evaluation_goes_on_where_it_stopped(made, scorer, tmp_path, name):
    task, path, depends = made(name), tmp_path / "a.journal", {"task": name}
    whole = Counting(scorer)
    expected = evaluate(task, whole)
    half = Counting(scorer, whole.rows // 2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, half, Journal(str(path), depends))
    kept = Journal(str(path), depends).records
    assert 0 < len(kept) < len(task.items)
    rest, done = Counting(scorer), []
    assert repr(evaluate(task, rest, Journal(str(path), depends), done.append)) == repr(expected)  # nan is not nan
    assert sum(done) == len(task.items) and done[0] == len(kept)
    assert rest.rows == sum(len(task.rows(item)) for item in task.items[len(kept) :])
    finished = Counting(scorer)
    assert repr(evaluate(task, finished, Journal(str(path), depends))) == repr(expected) and finished.rows == 0


def test_a_journal_of_something_else_is_refused_with_what_differs(tmp_path):
    path = str(tmp_path / "ptb.journal")
    Journal(path, {"task": "ptb", "data": "a" * 64, "stride": None}).add([1, 2])
    before = (tmp_path / "ptb.journal").read_bytes()
    with pytest.raises(
        ValueError, match=r"ptb.journal is of another evaluation \(stride: None there, 5 here\); name an"
    ):
        Journal(path, {"task": "ptb", "data": "a" * 64, "stride": 5})
    with pytest.raises(ValueError, match=r"\(data: a{12} there, b{12} here\)"):
        Journal(path, {"task": "ptb", "data": "b" * 64, "stride": None})
    with pytest.raises(ValueError, match=r"\(dtype: None there, float32 here\)"):
        Journal(path, {"task": "ptb", "data": "a" * 64, "stride": None, "dtype": "float32"})
    assert (tmp_path / "ptb.journal").read_bytes() == before


@pytest.mark.parametrize("content", [b"[1, 2]\n", b"notes of mine", b"\xff\n", b'{"format": 1, "task": "ptb"}\nnull\n'])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, content):
    (tmp_path / "a.journal").write_bytes(content)
    with pytest.raises(ValueError, match="is no journal of an evaluation"):
        Journal(str(tmp_path / "a.journal"), {"task": "ptb"})
    assert (tmp_path / "a.journal").read_bytes() == content


def test_a_line_that_a_kill_cut_is_made_again(tmp_path):
    path = tmp_path / "a.journal"
    journal = Journal(str(path), {"task": "ptb"})
    journal.add([1, 2.5])
    whole = path.read_bytes()
    path.write_bytes(whole + b"[1, 2")
    again = Journal(str(path), {"task": "ptb"})
    assert again.records == [[1, 2.5]] and path.read_bytes() == whole
    again.add([3, 4])
    assert Journal(str(path), {"task": "ptb"}).records == [[1, 2.5], [3, 4]]


@pytest.mark.parametrize("size", [0, 1, 20, 28])
def test_a_journal_that_a_kill_or_a_full_disk_cut_at_its_beginning_is_begun_again(tmp_path, size):
    path = tmp_path / "a.journal"
    Journal(str(path), {"task": "ptb"})
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert size < len(whole) == 29
    Journal(str(path), {"task": "ptb"}).add([1])
    assert path.read_bytes() == whole + b"[1]\n" and Journal(str(path), {"task": "ptb"}).records == [[1]]


def test_the_fingerprint_of_a_model_changes_with_all_that_numbers_depend_on(folder):
    files = ModelFiles.at(folder)
    found = {files.fingerprint()}
    assert ModelFiles.at(folder).fingerprint() in found
    for name, old, new in ("hparams.json", '"n_head": 4', '"n_head": 2'), ("encoder.json", '"!"', '"\\u0021"'):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
        found.add(ModelFiles.at(folder).fingerprint())
    index = (folder / "model.ckpt.index").read_bytes()
    (folder / "model.ckpt.index").write_bytes(index[:50] + bytes([index[50] ^ 1]) + index[51:])
    assert len({*found, ModelFiles.at(folder).fingerprint()}) == 4


def test_the_fingerprint_of_a_folder_of_hugging_face(tmp_path):
    weights = write_folder(tmp_path / "hf") / WEIGHTS
    before = ModelFiles.at(tmp_path / "hf").fingerprint()
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert ModelFiles.at(tmp_path / "hf").fingerprint() != before


# Intervals


def test_wilsons_interval():
    """The figures of the textbook example: 10 hits of 20 are 29.93 % to 70.07 %."""
    assert accuracy("a", [True, False] * 10, "").interval == pytest.approx((29.93, 70.07), abs=0.005)
    assert accuracy("a", [False] * 20, "").interval == pytest.approx((0, 16.11), abs=0.005)
    assert accuracy("a", [True] * 3, "").value == 100
    for n in range(1, 200):  # rounding leaves no -0.00
        assert accuracy("a", [False] * n, "").interval[0] >= 0 and accuracy("a", [True] * n, "").interval[1] <= 100


def test_the_delta_method_agrees_with_a_bootstrap():
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 50, 400)
    losses = counts * rng.gamma(4, 1, 400)
    draws = rng.integers(0, 400, [4000, 400])
    means = losses[draws].sum(1) / counts[draws].sum(1)
    low, high = Loss.of(losses, counts).perplexity("a", "").interval
    assert math.log(low) == pytest.approx(np.quantile(means, 0.025), rel=0.02)
    assert math.log(high) == pytest.approx(np.quantile(means, 0.975), rel=0.02)
    assert math.isnan(Loss.of([1.0], [2]).bits("a", "").interval[0])
    assert math.isnan(Loss.of([], []).perplexity("a", "").value)


# Tables and reports


def test_what_others_measured_is_of_figures_that_there_are(made):
    for name in TASKS:
        records = [made(name).record(item, _zeros(made(name), item)) for item in made(name).items]
        figures = {figure.name for figure in made(name).figures(records)}
        assert {measured.figure for measured in MEASURED[name]} <= figures
        assert {figure.column for figure in made(name).figures(records)} <= {*TABLE_3, None}
    assert all(m.size in PUBLISHED for measured in MEASURED.values() for m in measured)
    assert all(list(numbers) == list(PUBLISHED) for numbers in TABLE_3.values()) and len(TABLE_3) == 10
    assert set(SAID) | {"hellaswag"} == set(MEASURED)


def _zeros(task, item):
    from gpt2tf.paper.score import Score

    shapes = [(len(row), task.alternatives) for row in task.rows(item)]
    return [Score(np.full(n, -1.0), np.ones(n, int), np.zeros([n, k], int), np.zeros([n, k])) for n, k in shapes]


def result(sets, size="124M"):
    data, part = limited(read("wikitext2", str(sets["wikitext2"])), 3)
    figures = [
        Figure("ppl per original token", 30.0, (29.5, 30.5), "a rule", "WikiText2 PPL", chosen=True),
        Figure("raw, ppl per GPT-2 token", 29.99, (math.nan, math.inf), "another <rule>"),
    ]
    hparams = PUBLISHED["124M"] if size else ModelFiles.at(GOLDEN / "tiny-a").hparams
    settings = Settings("float32", 512, 3)
    return Result("wikitext2", Model("mine", hparams), data, part, settings, figures, {"split": "a & b"})


def test_the_paper_and_others_stand_beside_what_is_ours(sets):
    text = report.as_text(result(sets))
    assert text.startswith("wikitext2: mine, 124M; 3 lines, A PART of what is there\n")
    lines = [line.split() for line in text.split("\n")]
    assert "ppl per original token 30.00 29.50 30.50 29.41".split() in lines
    assert "others: 29.94 raw text, window and stride 1,024 (transformers#13761, llm.c#276)".split() in lines
    assert "split a & b".split() in lines and ["dtype", "float32"] in lines and "invertible de-tokenizers" in text


def test_a_model_of_another_size_has_no_number_of_the_paper(sets):
    text = report.as_text(result(sets, size=None))
    assert "29.41" not in text and "29.94" not in text and "it has no model of this size" in text


def test_the_row_and_its_page(sets):
    row = report.row_as_text([result(sets)], ["ptb", "1bw"])
    assert "WikiText2 PPL (ppl per original token) 30.00* 29.41".split() in [line.split() for line in row.split("\n")]
    assert (
        "PTB PPL - 65.85".split() in [line.split() for line in row.split("\n")]
        and "no file was found for ptb, 1bw" in row
    )
    body = report.as_page_body([result(sets)], ["ptb"])
    assert "<td>29.41</td>" in body and "another &lt;rule&gt;" in body and "a &amp; b" in body and "nan" not in body


def test_a_name_that_is_not_utf8_is_shown_as_bytes(sets):
    found = result(sets)
    found = found._replace(model=found.model._replace(name="m\udce9<"), data=found.data._replace(path="d\udce9<"))
    body = report.as_page_body([found], []).encode().decode()
    assert r"by m\xe9&lt;" in body and r"d\xe9&lt; (sha256" in body


def test_json_has_everything_and_is_json(sets):
    found = json.loads(json.dumps(result(sets).as_json()), parse_constant=pytest.fail)
    assert found["part"] and found["size"] == "124M" and found["items"] == 3 and found["the_paper"]
    assert found["data"]["whole"] is False and found["conventions"] == {"split": "a & b"}
    assert found["figures"][0] == {
        "name": "ppl per original token",
        "value": 30.0,
        "interval": [29.5, 30.5],
        "rule": "a rule",
        "column": "WikiText2 PPL",
        "paper": 29.41,
        "measured_by_others": [],
    }
    assert found["figures"][1]["interval"] == [None, None] and len(found["figures"][1]["measured_by_others"]) == 1
