"""What the README says is so."""

import dataclasses
import os
import pathlib
import re
import shlex

import pytest
from command import header
from recorded import read_cases

from encoder import get_encoder
from gpt2tf import cli
from gpt2tf.hparams import FORMER_NAMES
from gpt2tf.locate import BUNDLED
from gpt2tf.paper.data import SOURCES
from gpt2tf.paper.tables import TABLE_3
from gpt2tf.train.settings import Settings

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_command_prints_what_the_readme_shows(capsys, monkeypatch):
    """And that is what the original printed for the same flags: a case of golden/trained/samples.json."""
    section = README.split("## Run it")[1]
    command = re.search(r"^python sample\.py (.*)$", section, re.MULTILINE)[1]
    shown = re.search(r"^```\n(=+ SAMPLE 1 .*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="0"):
        cli.main(shlex.split(command), command="sample")
    assert capsys.readouterr().out == shown
    enc = get_encoder("shakespeare", BUNDLED)
    words = iter(shlex.split(command))
    flags = {"top_k": "0", "top_p": "1", "temperature": "1"} | {word[2:]: next(words) for word in words}
    texts = [
        enc.decode(case["tokens"])
        for case in read_cases("trained")
        if all(str(case[name]) == flags[name] for name in ("prompt", "seed", "length", "top_k", "top_p", "temperature"))
    ]
    assert [f"{header(1)}{text}\n{'=' * 80}\n" for text in texts] == [shown]


def test_the_readme_counts_the_texts_that_are_equal():
    section = README.split("## Same seed, same text")[1].split("\n## ")[0]
    count = {}
    for case in read_cases("trained"):
        flags = f"--top_k {case['top_k']}"
        flags += f" --top_p {case['top_p']}" if case["top_p"] < 1 else ""
        flags += f" --temperature {case['temperature']}" if case["temperature"] != 1 else ""
        count.setdefault(flags, []).append("rounding" not in case)
    assert len(count) == 3
    for flags, equal in count.items():
        assert re.search(rf"^\| `{flags}` \| {sum(equal)} of {len(equal)}( seeds)? \|$", section, re.MULTILINE)


def test_every_flag_is_in_the_readme(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"], command="sample")
    flags = set(re.findall(r"--\w+", capsys.readouterr().out)) - {"--help"}
    table = README.split("## Command line")[1].split("\n## ")[0]
    assert flags <= set(re.findall(r"--\w+", table))


def test_every_difference_in_the_readme_is_pinned_by_a_test():
    table = README.split("## Differences from the original")[1].split("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) > 10
    for row in rows:
        pins = [pin.strip(" `") for pin in row[-1].split(",")]
        assert all(f"def {pin}(" in tests for pin in pins), row


def test_every_setting_of_training_is_in_the_readme_with_its_default():
    for field in dataclasses.fields(Settings):
        default = "n_ctx" if field.default is None else "off" if field.default is False else field.default
        assert f"| `--{field.name}` | {default} | {field.metadata['help']} |\n" in README


def test_every_task_and_flag_of_evaluate_is_in_the_readme(capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--help"])
    section = README.split("## Reproducing the paper")[1].split("\n## ")[0]
    assert set(re.findall(r"--\w+", capsys.readouterr().out)) - {"--help"} <= set(re.findall(r"--\w+", section))
    for task, source in SOURCES.items():
        assert f"`{task}`" in section or f"evaluate {task} " in section
        assert all(f"`{os.path.basename(file)}`" in section or f"`{file}`" in section for file in source.files)


def test_the_papers_numbers_are_those_that_are_printed():
    section = README.split("## Reproducing the paper")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.split("\n")]
    assert ["model", *TABLE_3] in rows
    for former, size in FORMER_NAMES.items():
        row = next(row for row in rows if row[0] == f"{former}, the paper")
        assert [float(cell) for cell in row[1:]] == [numbers[size] for numbers in TABLE_3.values()]
        assert any(row[0] == f"`{size}`, here" for row in rows)
