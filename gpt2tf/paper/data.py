"""The files of the paper's sets as they are published: found, told from others by size and first lines, and read.

Sizes and counts are of the published files; where a number has no source here, the README says so.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from gpt2tf.files import refuse_pointer
from gpt2tf.train.reader import read_text

WEB_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
SPLIT = 5_000_000  # bytes at the end of enwik8 and text8 that are the test split (Salesforce's prep_enwik8.py)
WHOLE = 100_000_000  # bytes of enwik8 and of text8
THOUSAND = 1_000  # bytes in an item of these, kB
BLANK = "XXXXX"  # what the Children's Book Test asks for
CONTEXT = 20  # sentences in front of a question
PART = "NOT a whole published file"  # in the words for a split of one that is cut, or is the user's own


class Data(NamedTuple):
    """What was read of a set."""

    path: str
    sha256: str  # of all that was read
    split: str  # which one it is, in words
    items: list  # passages, questions, or lines with their ends
    unit: str  # "passages"
    raw: str | None = None  # of WikiText, the text of the raw edition that lies beside the file

    @property
    def whole(self) -> bool:
        """Whether it is a split as it was published."""
        return PART not in self.split


class Passage(NamedTuple):
    """Of LAMBADA: the last word is to be found."""

    context: str
    word: str


class Question(NamedTuple):
    """A text that goes on in one of several ways, of which one is right."""

    context: str | list[str]  # of the Children's Book Test 20 sentences
    text: str  # of the Children's Book Test the sentence with the blank
    choices: list[str]
    answer: int


class Source(NamedTuple):
    """Where the file of a task is, and what reads it."""

    files: tuple[str, ...]  # as the published archives have them, the paper's split first
    read: Callable[[str, bytes], Data]
    about: str  # what is expected, for who gave something else


def find(task: str, path: str) -> str:
    """The file of a task: `path` itself, or the published name in the folder `path`.

    Raises FileNotFoundError that names what was looked for.
    """
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file {path}; {task} takes {SOURCES[task].about}")
        return path
    if not SOURCES[task].files:
        raise FileNotFoundError(f"{path} is a folder; {task} takes {SOURCES[task].about}")
    for file in SOURCES[task].files:
        for name in (file, os.path.basename(file)):
            if os.path.isfile(os.path.join(path, name)):
                return os.path.join(path, name)
    raise FileNotFoundError(f"{path} has no {' or '.join(SOURCES[task].files)}; {task} takes that file")


def read(task: str, path: str) -> Data:
    """The set of a task, of the file at path.

    Raises OSError; ValueError for what is not that file, with what was expected.
    """
    source = SOURCES[task]
    refuse_pointer(path)
    with open(path, "rb") as file:
        raw = file.read()
    if task != "text" and WEB_PAGE.match(raw):
        raise ValueError(f"{path} is a web page, an error of a server perhaps; {task} takes {source.about}")
    if not raw.strip():
        raise ValueError(f"{path} is empty; {task} takes {source.about}")
    return source.read(path, raw)


def _data(path: str, raw: bytes, split: str, items: list, unit: str) -> Data:
    return Data(path, hashlib.sha256(raw).hexdigest(), split, items, unit)


def _text(path: str, task: str, raw: bytes) -> str:
    text = read_text(io.BytesIO(raw), path)
    if not text.strip():  # but for a byte order mark, or packed
        raise _wrong(path, task, "is empty")
    return text


def lines_of(text: str) -> list[str]:
    """Its lines with their ends, which are newlines alone."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _wrong(path: str, task: str, why: str) -> ValueError:
    return ValueError(f"{path} {why}; {task} takes {SOURCES[task].about}")


def _counted(path: str, task: str, found: int, unit: str, published: dict[str, int]) -> str:
    """The split by the number of what it has. published: {split: number}. Raises ValueError for far more than that."""
    for split, number in published.items():
        if found == number:
            return f"{split}, all {found:,} {unit}"
    largest = max(published, key=published.get)
    if found > 2 * published[largest]:  # training files have four times as much or more
        than = f"where the {largest} has {published[largest]:,}"
        raise _wrong(path, task, f"has {found:,} {unit}, {than}: is it the training file?")
    return f"{PART}: {found:,} {unit}, and the {largest} has {published[largest]:,}"


def _with_capitals(lines: list[str], capitals: str = "[A-Z]") -> float:
    """The share of the lines that have any."""
    return sum(bool(re.search(capitals, line)) for line in lines) / len(lines)


def _objects(path: str, task: str, text: str, fields: dict[str, type]) -> list[dict]:
    """The objects of JSON lines. fields: {name: its type} that each must have."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # raises for "\ud83d", half of a character
        except (ValueError, RecursionError):
            raise _wrong(path, task, f"is cut or not JSON lines: line {number} is not a whole object") from None
        lacking = [
            name for name, kind in fields.items() if not isinstance(row, dict) or not isinstance(row.get(name), kind)
        ]
        if lacking:
            raise _wrong(path, task, f"has no {' and '.join(map(repr, lacking))} in line {number}")
        found.append(row)
    return found


def _lambada(path: str, raw: bytes) -> Data:
    text = _text(path, "lambada", raw)
    if text.lstrip().startswith("{"):
        texts = [row["text"] for row in _objects(path, "lambada", text, {"text": str})]
        kind = "lambada_test.jsonl of OpenAI, not preprocessed, as the paper's"
    else:
        texts = list(filter(str.strip, text.split("\n")))
        if _with_capitals(texts) > 0.1:
            raise _wrong(path, "lambada", "is neither JSON lines nor in small letters")
        kind = "lambada_test_plain_text.txt of LAMBADA's authors, preprocessed, which is NOT what the paper used"
    passages = [Passage(*line.strip().rsplit(None, 1)) for line in texts if len(line.split()) > 1]
    if len(passages) < len(texts):
        raise _wrong(path, "lambada", "has a passage of less than two words")
    split = _counted(path, "lambada", len(passages), "passages", {kind: 5153})
    return _data(path, raw, split if kind in split else f"{kind}; {split}", passages, "passages")


def _cbt(kind: str):
    def read_questions(path: str, raw: bytes) -> Data:
        task, other = f"cbt-{kind.lower()}", {"CN": "NE", "NE": "CN"}[kind]
        if f"_{other}_" in os.path.basename(path):
            raise _wrong(path, task, f"is of cbt-{other.lower()}")
        questions = []
        blocks = [block.split("\n") for block in re.split(r"\n\s*\n", _text(path, task, raw).strip())]
        for at, block in enumerate(blocks, 1):
            numbers, _, sentences = zip(*(line.partition(" ") for line in block), strict=True)
            query, *fields = re.split(r"\t+", sentences[-1].strip())
            if list(numbers) != [str(n) for n in range(1, CONTEXT + 2)] or len(fields) != 2 or BLANK not in query:
                why = f"is cut or another file: question {at} is not 20 sentences, numbered, and a 21st with {BLANK}, "
                raise _wrong(path, task, f"{why}its answer and candidates behind tabs")
            answer, choices = fields[0], fields[1].split("|")
            context = [sentence.strip() for sentence in sentences[:-1]]
            questions.append(Question(context, query, choices, choices.index(answer) if answer in choices else -1))
        lost = sum(question.answer < 0 for question in questions)
        note = f"; {lost:,} have no candidate that is the answer, and count as wrong" if lost else ""
        published = {f"validation split of CBT-{kind}, the paper's": 2000, f"test split of CBT-{kind}": 2500}
        split = _counted(path, task, len(questions), "questions", published) + note
        return _data(path, raw, split, questions, "questions")

    return read_questions


def _hellaswag(path: str, raw: bytes) -> Data:
    questions = []
    text = _text(path, "hellaswag", raw)
    for number, row in enumerate(_objects(path, "hellaswag", text, {"ctx": str, "endings": list}), 1):
        context, endings, label = row["ctx"], row["endings"], str(row.get("label", ""))
        if not label:
            raise _wrong(path, "hellaswag", "has no labels, as the test split")
        fits = re.fullmatch("[0-9]{1,9}", label) and int(label) < len(endings)
        if not (fits and context.strip() and all(isinstance(ending, str) for ending in endings)):
            raise _wrong(path, "hellaswag", f"has no context, texts and number of one of them in question {number}")
        questions.append(Question(context, "", endings, int(label)))
    split = _counted(path, "hellaswag", len(questions), "questions", {"validation split of HellaSwag": 10042})
    return _data(path, raw, split, questions, "questions")


def _wikitext(task: str, edition: str):
    def read_articles(path: str, raw: bytes) -> Data:
        text = _text(path, task, raw)
        lines = lines_of(text)
        title = next(filter(str.strip, lines))
        if not re.match(r" = [^=].* = $", title.rstrip("\n")):
            raise _wrong(path, task, "does not begin with a title as ' = Robert Boulter = '")
        if path.endswith(".raw") or "<unk>" not in text:
            raise _wrong(path, task, "has no <unk>: it is the raw edition, which is read when it lies beside the other")
        published = {f"test split of {edition}": 245_569}
        split = _counted(path, task, original_tokens(lines), "tokens (words, and an end for each line)", published)
        beside = os.path.join(os.path.dirname(path), "wiki.test.raw")
        unknown = text.count("<unk>") / len(text.split())
        data = _data(path, raw, f"{split}; {unknown:.1%} of the words are <unk>", lines, "lines")
        if os.path.exists(beside):
            with open(beside, "rb") as file:
                raw += file.read()
                file.seek(0)
                data = data._replace(raw=read_text(file, beside), sha256=hashlib.sha256(raw).hexdigest())
        return data

    return read_articles


def _ptb(path: str, raw: bytes) -> Data:
    lines = lines_of(_text(path, "ptb", raw))
    if _with_capitals(lines, "[A-MO-Z]") > 0.1 or not any(" N " in line or "<unk>" in line for line in lines):
        raise _wrong(path, "ptb", "is not in small letters with <unk> and N, as Mikolov's edition is")
    published = {"test split of Penn Treebank, Mikolov's edition": 82_430}
    split = _counted(path, "ptb", original_tokens(lines), "tokens (words, and an end for each line)", published)
    return _data(path, raw, split, lines, "lines")


def _one_billion(path: str, raw: bytes) -> Data:
    lines = lines_of(_text(path, "1bw", raw))
    if lines[0].startswith(("{", " ")) or re.match(r"1 .*", lines[0]) and "\t" in "".join(lines[:30]):
        raise _wrong(path, "1bw", "is not a sentence a line")
    published = {"news.en.heldout-00000-of-00050 of the One Billion Word Benchmark": 159_658}
    split = _counted(path, "1bw", original_tokens(lines), "tokens (words, and an end for each sentence)", published)
    return _data(path, raw, split, lines, "sentences")


def original_tokens(lines: list[str]) -> int:
    """The words of the lines, and an end for each line, as language models of words count."""
    return sum(len(line.split()) + 1 for line in lines)


def _last_bytes(task: str, begins: re.Pattern, expected: str):
    def read_split(path: str, raw: bytes) -> Data:
        if SPLIT < len(raw) != WHOLE or b"\0" in raw:
            size = f"{len(raw):,} bytes" if SPLIT < len(raw) != WHOLE else "zero bytes"
            raise _wrong(path, task, f"has {size}: it is cut, or not unpacked")
        if len(raw) == WHOLE and not begins.match(raw) or task == "text8" and re.search(rb"[^a-z \n]", raw):
            raise _wrong(path, task, f"is not {expected}")
        part = raw[-SPLIT:] if len(raw) == WHOLE else raw
        if task == "text8":
            part = part.rstrip(b"\n")
        name = f"the last {SPLIT:,} bytes of {task}"
        split = name if len(part) == SPLIT else f"{PART}: {len(part):,} bytes, and {name} are meant"
        chunks = [part[at : at + THOUSAND] for at in range(0, len(part), THOUSAND)]
        return _data(path, raw, split, chunks, "kB")

    return read_split


def _any_text(path: str, raw: bytes) -> Data:
    return _data(path, raw, "all of the file", lines_of(_text(path, "text", raw)), "lines")


R13 = "1-billion-word-language-modeling-benchmark-r13output/heldout-monolingual.tokenized.shuffled/"
SOURCES = {
    "lambada": Source(
        ("lambada_test.jsonl", "lambada_test_plain_text.txt"),
        _lambada,
        'OpenAI\'s lambada_test.jsonl (5,153 lines {"text": ...}, 1,819,752 bytes; --download fetches it), or the '
        "authors' lambada_test_plain_text.txt",
    ),
    "cbt-cn": Source(
        ("CBTest/data/cbtest_CN_valid_2000ex.txt", "CBTest/data/cbtest_CN_test_2500ex.txt"),
        _cbt("CN"),
        "cbtest_CN_valid_2000ex.txt (the paper's split) or cbtest_CN_test_2500ex.txt of CBTest.tgz",
    ),
    "cbt-ne": Source(
        ("CBTest/data/cbtest_NE_valid_2000ex.txt", "CBTest/data/cbtest_NE_test_2500ex.txt"),
        _cbt("NE"),
        "cbtest_NE_valid_2000ex.txt (the paper's split) or cbtest_NE_test_2500ex.txt of CBTest.tgz",
    ),
    "wikitext2": Source(
        ("wikitext-2/wiki.test.tokens",), _wikitext("wikitext2", "WikiText-2"), "wiki.test.tokens of wikitext-2-v1.zip"
    ),
    "ptb": Source(("simple-examples/data/ptb.test.txt",), _ptb, "ptb.test.txt of Mikolov's simple-examples.tgz"),
    "enwik8": Source(
        ("enwik8",),
        _last_bytes("enwik8", re.compile(rb"<mediawiki "), "the first 100,000,000 bytes of a dump of Wikipedia"),
        "enwik8 unpacked (100,000,000 bytes), or its test split alone (5,000,000 bytes)",
    ),
    "text8": Source(
        ("text8",),
        _last_bytes("text8", re.compile(rb"[a-z ]"), "letters from a to z and spaces alone"),
        "text8 unpacked (100,000,000 bytes of a to z and space), or its test split alone (5,000,000 bytes)",
    ),
    "wikitext103": Source(
        ("wikitext-103/wiki.test.tokens",),
        _wikitext("wikitext103", "WikiText-103"),
        "wiki.test.tokens of wikitext-103-v1.zip",
    ),
    "1bw": Source(
        (f"{R13}news.en.heldout-00000-of-00050",), _one_billion, "news.en.heldout-00000-of-00050 of the r13 archive"
    ),
    "hellaswag": Source(
        ("hellaswag_val.jsonl",), _hellaswag, "hellaswag_val.jsonl (10,042 lines with ctx, endings, label)"
    ),
    "text": Source((), _any_text, "a file of text"),
}
