"""The files of the sets: found by their published names, read, and told from what else a user may have."""

import gzip
import json

import made_sets
import pytest
from made_sets import lines_of

from gpt2tf.paper.data import SOURCES, find, original_tokens, read


@pytest.fixture
def sets(tmp_path):
    return made_sets.write_all(tmp_path)


def test_every_file_is_found_in_the_folder_of_all(sets, tmp_path):
    assert {task: find(task, str(tmp_path)) for task in sets} == {task: str(path) for task, path in sets.items()}
    assert set(sets) == set(SOURCES) - {"text"}


def test_the_papers_split_comes_first(sets, tmp_path):
    valid = tmp_path / "cbtest_NE_valid_2000ex.txt"
    valid.write_bytes(sets["cbt-ne"].read_bytes())
    assert find("cbt-ne", str(tmp_path)) == str(valid)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no simple-examples/data/ptb.test.txt; ptb takes that file"):
        find("ptb", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing; hellaswag takes hellaswag_val.jsonl \(10,042"):
        find("hellaswag", str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "task, items, first",
    [
        ("lambada", 4, (made_sets.LAMBADA[0][: -len(" king")], "king")),
        (
            "cbt-cn",
            3,
            (made_sets.CBT_SENTENCES, made_sets.CBT_QUESTIONS[0][0], "king lord castle house".split(), 0),
        ),
        ("hellaswag", 3, ("The king takes the crown. He", "", made_sets.HELLASWAG[0][1], 0)),
        ("wikitext2", 8, " \n"),
        ("ptb", 3, made_sets.PTB.split("\n")[0] + "\n"),
        ("1bw", 3, made_sets.ONE_BILLION.split("\n")[0] + "\n"),
        ("enwik8", 1, made_sets.ENWIK8),
        ("text8", 1, made_sets.TEXT8),
    ],
)
def test_what_is_read(sets, task, items, first):
    data = read(task, str(sets[task]))
    assert (len(data.items), data.items[0]) == (items, first)
    assert "NOT a whole published file" in data.split


def test_a_whole_published_file_is_known_by_its_count(tmp_path):
    (tmp_path / "lambada_test.jsonl").write_text(lines_of([{"text": "one two"}] * 5153))
    assert read("lambada", str(tmp_path / "lambada_test.jsonl")).split == (
        "lambada_test.jsonl of OpenAI, not preprocessed, as the paper's, all 5,153 passages"
    )
    block = "".join(f"{n} A b .\n" for n in range(1, 21)) + "21 A XXXXX .\tb\t\tb|c\n\n"
    (tmp_path / "cbtest_CN_valid_2000ex.txt").write_text(block * 2000)
    assert read("cbt-cn", str(tmp_path / "cbtest_CN_valid_2000ex.txt")).split == (
        "validation split of CBT-CN, the paper's, all 2,000 questions"
    )


def test_original_tokens_are_words_and_an_end_for_each_line():
    assert original_tokens([" \n", " = a b = \n", " c <unk> . \n", "\n"]) == 1 + 5 + 4 + 1


def test_the_last_five_million_bytes_are_the_split(tmp_path, monkeypatch):
    monkeypatch.setattr("gpt2tf.paper.data.WHOLE", 100_000)
    monkeypatch.setattr("gpt2tf.paper.data.SPLIT", 5_000)
    whole = b"".join(b"ab %c" % (97 + at % 26) for at in range(25_000))
    (tmp_path / "text8").write_bytes(whole)
    data = read("text8", str(tmp_path / "text8"))
    assert (
        b"".join(data.items) == whole[-5_000:]
        and len(data.items) == 5
        and data.split == "the last 5,000 bytes of text8"
    )


def test_the_raw_edition_beside_the_other_is_read_too(sets):
    alone = read("wikitext2", str(sets["wikitext2"]))
    raw = made_sets.WIKITEXT.replace("<unk>", "Lear")
    sets["wikitext2"].with_name("wiki.test.raw").write_text(raw)
    both = read("wikitext2", str(sets["wikitext2"]))
    assert (alone.raw, both.raw) == (None, raw) and both.sha256 != alone.sha256 and both.items == alone.items


QUESTION = "".join(f"{n} A b .\n" for n in range(1, 21)) + "21 A XXXXX .\tb\t\tb|c\n\n"
WRONG = {
    "a web page": ("ptb", "ptb.test.txt", b"\n<!DOCTYPE html><html>404</html>", "is a web page"),
    "nothing": ("text", "a.txt", b" \n", "is empty"),
    "a pointer": ("text", "a.txt", b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
    "a cut line": ("lambada", "x.jsonl", b'{"text": "a b"}\n{"text": "a', "cut or not JSON lines: line 2"),
    "another object": ("lambada", "x.jsonl", b'{"ctx": "a b"}\n', "has no 'text' in line 1"),
    "a list": ("lambada", "x.jsonl", b'{"text": "a b"}\n["text"]\n', "has no 'text' in line 2"),
    "one word": ("lambada", "x.jsonl", b'{"text": "a"}\n', "less than two words"),
    "no LAMBADA": ("lambada", "x.txt", b"It is a text.\n", "neither JSON lines nor in small letters"),
    "training of LAMBADA": ("lambada", "x.txt", b"a b\n" * 10307, "10,307 passages, where the .*training file"),
    "the other kind": ("cbt-cn", "cbtest_NE_test_2500ex.txt", QUESTION.encode(), "is of cbt-ne"),
    "a cut question": ("cbt-cn", "x.txt", (QUESTION + "1 A b .\n2 A").encode(), "question 2 is not 20 sentences"),
    "training of CBT": ("cbt-ne", "x.txt", (QUESTION * 5001).encode(), "5,001 questions, where the test split"),
    "no label": ("hellaswag", "x.jsonl", b'{"ctx": "a", "endings": ["b"]}\n', "no labels"),
    "empty label": ("hellaswag", "x.jsonl", b'{"ctx": "a", "endings": ["b"], "label": ""}\n', "no labels"),
    "the raw edition": ("wikitext2", "wiki.test.tokens", b" \n = A b = \n \n a @-@ b \n", "it is the raw edition"),
    "raw by name": ("wikitext2", "wiki.test.raw", b" \n = A b = \n \n <unk> \n", "it is the raw edition"),
    "no title": ("wikitext103", "wiki.test.tokens", b"no it was <unk>\n", "does not begin with a title"),
    "training of WikiText": (
        "wikitext2",
        "wiki.train.tokens",
        b" = A = \n" + b" <unk> a b c d e f g h \n" * 50_000,
        "where the test split of WikiText-2 has 245,569: is it the training file",
    ),
    "capitals": ("ptb", "ptb.test.txt", b" The <unk> N\n", "not in small letters"),
    "WikiText for PTB": ("ptb", "wiki.test.tokens", b" = A = \n <unk> \n", "not in small letters"),
    "JSON for sentences": ("1bw", "x.jsonl", b'{"text": "a b"}\n', "not a sentence a line"),
    "half of enwik8": (
        "enwik8",
        "enwik8",
        b"<mediawiki " + bytes([65]) * 6_000_000,
        "6,000,011 bytes: it is cut, or not",
    ),
    "a packed enwik8": (
        "enwik8",
        "enwik8.gz",
        gzip.compress(made_sets.ENWIK8),
        "zero bytes: it is cut, or not unpacked",
    ),
    "JSON without an end": ("hellaswag", "x.jsonl", b"[" * 100_000, "not JSON lines: line 1"),
    "a cut line below blank ones": ("lambada", "x.jsonl", b'{"text": "a b"}\n\n\n{"te', "not JSON lines: line 4"),
    "half of a character": ("lambada", "x.jsonl", b'{"text": "a \\ud83d b"}\n', "line 1 is not a whole object"),
    "capitals in text8": ("text8", "text8", b" Anarchism", "not letters from a to z"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_another_file_is_told_in_one_line_with_what_was_expected(tmp_path, case):
    task, name, content, message = WRONG[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read(task, str(tmp_path / name))
    text = str(raised.value)
    assert "\n" not in text and text.startswith(str(tmp_path / name))
    assert case == "a pointer" or text.endswith(f"{task} takes {SOURCES[task].about}")


@pytest.mark.parametrize("task", sorted(SOURCES.keys() - {"enwik8", "text8"}))  # which are bytes
@pytest.mark.parametrize("name, content", [("x", b"\xef\xbb\xbf\n"), ("x", b"\xff\xfe"), ("x.gz", gzip.compress(b" "))])
def test_what_holds_no_text_is_empty(tmp_path, task, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is empty; {task} takes "):
        read(task, str(tmp_path / name))


@pytest.mark.parametrize(
    "changed",
    [{"label": label} for label in ("x", 2, -1, None, [1], 0.7, True)]
    + [{"ctx": " "}, {"endings": [], "label": 0}, {"endings": ["a", {"b": 1}]}],
)
def test_a_question_of_hellaswag_has_a_context_endings_and_the_number_of_one(tmp_path, changed):
    row = {"ctx": "a b", "endings": ["c", "d"], "label": "1"}  # as in some editions
    (tmp_path / "x.jsonl").write_text(lines_of([row, {**row, "label": 0}]))
    assert [question.answer for question in read("hellaswag", str(tmp_path / "x.jsonl")).items] == [1, 0]
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | changed) + "\n")
    with pytest.raises(ValueError, match="has no context, texts and number of one of them in question 2; hellaswag"):
        read("hellaswag", str(tmp_path / "x.jsonl"))


def test_the_plain_text_of_lambada_is_read_and_told(tmp_path):
    (tmp_path / "lambada_test_plain_text.txt").write_text("a b c\nd e signs\n")
    data = read("lambada", str(tmp_path / "lambada_test_plain_text.txt"))
    assert data.items == [("a b", "c"), ("d e", "signs")] and "NOT what the paper used" in data.split


def test_a_question_without_its_answer_counts_as_wrong(tmp_path):
    (tmp_path / "x.txt").write_text(QUESTION.replace("b|c", "d|c") + QUESTION.replace("7 A b .", "7"))
    data = read("cbt-cn", str(tmp_path / "x.txt"))
    assert [question.answer for question in data.items] == [-1, 0] and "; 1 have no candidate that is the" in data.split
    assert data.items[1].context[6] == ""
