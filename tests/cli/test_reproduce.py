"""`gpt2tf reproduce` from flags to files and scores. test_samples.py and test_prompting.py have what is in them."""

import json
import sys

import pytest
from command import leaving
from recorded import GOLDEN

from gpt2tf import cli
from gpt2tf.cli import reproduce as cli_reproduce

TINY = ["--model_name", "tiny-a", "--models_dir", GOLDEN]
BUNDLED = ["--model_name", "shakespeare"]
SAMPLES = ["samples", *TINY, "--seed=3", "--nsamples=5", "--batch_size=2"]
ROWS = {
    "articles": [{"article": "The king has left. Nobody knows why.", "highlights": "King gone."}] * 3,
    "pairs": [{"en": "Good night!", "fr": "Bonne nuit !"}, {"en": "He is dead.", "fr": "Il est mort."}],
    "questions": [{"question": "who killed tybalt", "answer": ["Romeo"]}, {"question": "why", "answer": "?"}],
}


@pytest.fixture(scope="module")
def bundled():
    from gpt2tf import Generator, load_model
    from gpt2tf.locate import BUNDLED

    return Generator(load_model(f"{BUNDLED}/shakespeare"), jit_compile=False)


@pytest.fixture
def data(tmp_path):
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


@pytest.fixture
def reproduce(monkeypatch, capsys, data, tiny_generator, bundled):
    """Runs `gpt2tf reproduce` with words, in the folder of the data: (exit code, stdout, stderr)."""

    def load(files, args, first):
        return bundled if args.model_name == "shakespeare" else tiny_generator

    monkeypatch.chdir(data)
    monkeypatch.setattr(cli_reproduce, "_load", load)
    monkeypatch.setattr("sys.argv", ["gpt2tf"])

    def run(*argv):
        return leaving(cli.main, ["reproduce", *map(str, argv)]), *capsys.readouterr()

    return run


@pytest.fixture
def refused(reproduce, monkeypatch):
    """Runs it with words that must be refused in one line before TensorFlow is there: (exit code, line)."""

    def run(*argv):
        code, out, err = reproduce(*argv)
        assert (out, err.count("\n")) == ("", 1), err
        return code, err.removeprefix(f"gpt2tf reproduce {argv[0]}: ").rstrip("\n")

    def too_late():
        raise AssertionError("TensorFlow was imported")

    monkeypatch.setattr(cli_reproduce, "silence_tensorflow", too_late)
    return run


@pytest.mark.parametrize("setting, flags", [("t07", ["--temperature=0.7"]), ("topk40", ["--top_k=40"])])
def test_the_unconditional_samples_are_those_of_sample_py(reproduce, sample, data, setting, flags):
    made = reproduce(*SAMPLES, "--setting", setting, "--output=out.txt")
    assert made == (0, "", "")
    expected = sample(*TINY, "--seed=3", "--nsamples=5", "--batch_size=2", "--length=64", *flags)[1]
    assert (data / "out.txt").read_bytes().decode() == expected


def test_the_conditional_samples_are_those_of_sample_py(reproduce, sample, data):
    """Each begins with a quarter of the window, and fills the rest."""
    (data / "contexts.jsonl").write_text(json.dumps({"text": "hello hello hello hello"}) + "\n", encoding="utf-8")
    flags = [*TINY, "--seed=3", "--nsamples=4", "--batch_size=2"]
    assert reproduce("samples", *flags, "--contexts=contexts.jsonl", "--output=out.txt", "--format=jsonl")[0] == 0
    lines = [json.loads(line) for line in (data / "out.txt").read_text(encoding="utf-8").splitlines()]
    (context,) = {line["context"] for line in lines}
    records = sample(*flags, "--prompt", context, "--length=49", "--truncate", "--format=jsonl")[1].splitlines()
    records = list(map(json.loads, records))
    assert [line["text"] for line in lines] == [record["text"] for record in records]
    assert [line["length"] for line in lines] == [len(record["tokens"]) for record in records]
    assert [line["id"] for line in lines] == [0, 1, 2, 3]


def test_shards_and_a_run_that_was_ended_make_the_file_of_one_run(reproduce, data, tiny_generator, monkeypatch):
    assert reproduce(*SAMPLES, "--output=whole.txt")[0] == 0
    whole = (data / "whole.txt").read_bytes()
    for part in (1, 2, 3, 4):
        assert reproduce(*SAMPLES, f"--shard={part}/4", f"--output=part-{part}.txt")[:2] == (0, "")
    assert b"".join(path.read_bytes() for path in sorted(data.glob("part-*"))) == whole
    assert (data / "part-1.txt").read_bytes() == b""  # of three batches it gets none

    generate, made = tiny_generator.generate, []

    def interrupted(prompts, *args, **options):
        made.append(len(prompts))
        if len(made) == 2:
            raise KeyboardInterrupt
        return generate(prompts, *args, **options)

    monkeypatch.setattr(tiny_generator, "generate", interrupted)
    assert reproduce(*SAMPLES, "--output=out.txt") == (130, "", "")
    kept = (data / "out.txt").read_bytes()
    assert kept and whole.startswith(kept) and len(kept) < len(whole)
    with open(data / "out.txt", "ab") as file:
        file.write(b"==== SAM")
    assert reproduce(*SAMPLES, "--output=out.txt") == (0, "", "")
    assert (data / "out.txt").read_bytes() == whole and made == [2] * 4
    assert reproduce(*SAMPLES, "--output=out.txt")[2].endswith(": out.txt has all there is to make\n")
    assert (data / "out.txt").read_bytes() == whole and made == [2] * 4


def test_a_file_of_other_settings_is_refused_by_name_and_kept(reproduce, refused, data):
    for flags, what in [
        (["--seed=4"], "seed 3 and not 4"),
        (["--setting=t07"], 'setting "default" and not "t07"'),
        (["--shard=1/2"], "shard [1, 1] and not [1, 2]"),
        (["--dtype=int8", "--nsamples=6"], 'dtype "float32" and not "int8", nsamples 5 and not 6'),
    ]:
        if not (data / "out.txt").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cli_reproduce, "silence_tensorflow", lambda: None)
                assert reproduce(*SAMPLES, "--output=out.txt")[0] == 0
        before = (data / "out.txt").read_bytes()
        code, line = refused(*SAMPLES, *flags, "--output=out.txt")
        assert (code, line) == (2, f"out.txt was begun with {what}; give another --output, or remove the file")
        assert (data / "out.txt").read_bytes() == before
    (data / "mine.txt").write_text("mine")
    code, line = refused(*SAMPLES, "--output=mine.txt")
    assert code == 2 and "mine.txt is there already" in line and (data / "mine.txt").read_text() == "mine"


def test_a_model_that_was_trained_meanwhile_is_another_one(reproduce, data, folder):
    flags = ["samples", "--nsamples=1", "--output=out.txt", "--model_name", folder]
    assert reproduce(*flags)[0] == 0
    (index,) = folder.glob("*.index")
    raw = index.read_bytes()
    index.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    code, _, err = reproduce(*flags)
    assert code == 2 and "out.txt was begun with checkpoint" in err


TASKS = {
    "summaries": (["--data=articles.jsonl", "--batch_size=2"], ["ROUGE-1", "ROUGE-2", "ROUGE-L", "average"]),
    "translations": (["--data=pairs.jsonl", "--examples=pairs.jsonl"], ["BLEU"]),
    "answers": (["--data=questions.jsonl", "--examples=questions.jsonl"], ["exact match", "F1"]),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_from_data_to_scores(reproduce, data, task):
    flags, names = TASKS[task]
    code, out, err = reproduce(task, *BUNDLED, *flags, "--output=out.jsonl")
    assert (code, err) == (0, "")
    lines = (data / "out.jsonl").read_text(encoding="utf-8").splitlines()
    rows = ROWS[flags[0].removeprefix("--data=").removesuffix(".jsonl")]
    assert len(lines) == len(rows)
    for line in map(json.loads, lines):
        assert list(line) == ["prompt", "generated", "reply", "reference"]
    assert out.startswith(f"{task}, {len(rows)} rows;") and "\nassumed: " in out
    assert all(f"\n{name} " in out for name in names)

    code, again, err = reproduce(task, *BUNDLED, *flags, "--output=out.jsonl", "--json")
    assert code == 0 and err.endswith("has all there is to make\n")
    results = json.loads(again)
    assert list(results["scores"]) == list(results["paper"]) == names
    for name, score in results["scores"].items():
        assert f"{name:<12}{score:6.2f}  ({results['paper'][name]})\n" in out

    assert reproduce(task, *BUNDLED, *flags, "--limit=1", "--output=one.jsonl", "--json")[0] == 0
    assert (data / "one.jsonl").read_text(encoding="utf-8") == lines[0] + "\n"


def test_a_task_that_was_ended_goes_on(reproduce, data, bundled, monkeypatch):
    flags = ["summaries", *BUNDLED, "--data=articles.jsonl", "--batch_size=1", "--limit=2"]
    whole = reproduce(*flags, "--output=whole.jsonl", "--json")
    generate, made = bundled.generate, []

    def interrupted(*args, **options):
        made.append(1)
        if len(made) == 2:
            raise KeyboardInterrupt
        return generate(*args, **options)

    monkeypatch.setattr(bundled, "generate", interrupted)
    assert reproduce(*flags, "--output=out.jsonl") == (130, "", "")
    assert len((data / "out.jsonl").read_bytes().splitlines()) == 1
    assert reproduce(*flags, "--output=out.jsonl", "--json") == whole and len(made) == 3
    assert (data / "out.jsonl").read_bytes() == (data / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(
    "words, code, what",
    [
        (["samples"], 2, "the following arguments are required: --output"),
        ([*SAMPLES, "--output=o", "--setting=t08"], 2, "invalid choice: 't08'"),
        ([*SAMPLES, "--output=o", "--nsamples=0"], 2, "nsamples is 0; it must be 1 or more"),
        ([*SAMPLES, "--output=o", f"--nsamples={10**30}"], 2, "it must be from 1 to 2147483647"),
        ([*SAMPLES, "--output=o", "--shard=3/2"], 2, "'3/2' is not K/N"),
        ([*SAMPLES, "--output=o", "--batch_size=1000000000"], 2, "batch_size is 1000000000; a sample needs"),
        ([*SAMPLES, "--output=no/o"], 1, "no/o: No such file or directory"),
        ([*SAMPLES, "--output=."], 2, ". is no ordinary file"),
        ([*SAMPLES, "--output=o", "--contexts=no.jsonl"], 1, "no.jsonl: No such file or directory"),
        ([*SAMPLES, "--output=o", "--contexts=pairs.jsonl"], 1, "pairs.jsonl, line 1 has no text as 'text'"),
        ([*SAMPLES, "--output=o", "--model_name=nowhere"], 1, "there is no model 'nowhere'"),
        (["summaries", *TINY, "--data=articles.jsonl", "--output=o"], 1, "a prompt needs"),
        (["summaries", *BUNDLED, "--data=pairs.jsonl", "--output=o"], 1, "line 1 has no text as 'article'"),
        (["translations", *BUNDLED, "--data=pairs.jsonl", "--output=o"], 2, "required: --examples"),
        (["answers", *BUNDLED, "--data=questions.jsonl", "--output=o"], 1, "'who killed tybalt' has no context, and"),
        (["answers", *BUNDLED, "--data=questions.jsonl", "--output=o", "--limit=0"], 2, "limit is 0"),
    ],
)
def test_bad_usage_is_refused_in_one_line(refused, data, words, code, what):
    before = sorted(path.name for path in data.iterdir())
    found, line = refused(*words)
    assert found == code and what in line
    assert sorted(path.name for path in data.iterdir()) == before


@pytest.mark.parametrize("task, package", [("summaries", "rouge_score"), ("translations", "sacrebleu")])
def test_a_library_that_is_missing_is_named_before_the_work(refused, monkeypatch, task, package):
    monkeypatch.setitem(sys.modules, package, None)
    code, line = refused(task, *BUNDLED, *TASKS[task][0], "--output=o")
    assert code == 1 and f"the scores need {package} (" in line and line.endswith('; pip install "gpt2tf[paper]"')


def test_help(reproduce):
    code, out, _ = reproduce("--help")
    assert code == 0 and all(name in out for name in ("samples", *TASKS))
    for name in ("samples", *TASKS):
        assert reproduce(name, "--help")[0] == 0
    code, out, err = reproduce()
    assert (code, out) == (2, "") and err == "gpt2tf reproduce: the following arguments are required: what\n"
