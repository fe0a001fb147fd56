"""Documents of files and folders, against what Python reads from the same bytes at once; pieces against the whole."""

import csv
import gzip
import io
import json
import logging
import os
import threading
import tracemalloc
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from encoder import get_encoder
from gpt2tf.train import rows
from gpt2tf.train import text as corpus
from gpt2tf.train.rows import has_rows
from gpt2tf.train.text import documents, find_files, is_encoded

ENC = get_encoder()
FIELD_LIMIT = csv.field_size_limit()  # of the process, before any test
ODD = ["a", "s", "t", "ll", "re", "L", "é", "1", "½", "'", "’", " ", "  ", "\n", "\t", "\x1c", "\xa0", "\x85", "\u200b"]
ODD += ["!", "..", "\u0301", "日本", "🤗", "\u200d", "<", "|", ">", "<|", "endoftext", "<|endoftext|>", "|>", "\0", "_"]
END = "<|endoftext|>"
ROWS = ["one, two", 'says "hi"\nand goes', "  日本語 🤗", "a,b\n\nc"]


def read(path, **kwargs):
    return ["".join(document) for document in documents(find_files(path), **kwargs)]


@pytest.fixture
def write(tmp_path):
    """Writes text or bytes to a file, and returns its path."""

    def to(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


# Pieces


def pieces_by_document(chunks):
    found = [[]]
    for piece in corpus._pieces(chunks):
        if piece is None:
            found.append([])
        else:
            found[-1].append(piece)
    assert found.pop() == []
    return found


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(ODD), max_size=60).map("".join) | st.text(max_size=60), st.integers(1, 9))
@example("it's'll <|endoftext|>'s", 1)
@example("<|endof<|endoftext|>text|>", 3)
def test_pieces_have_the_tokens_of_the_whole(text, size):
    found = pieces_by_document([text[first : first + size] for first in range(0, len(text), size)])
    whole = text.split("<|endoftext|>")
    assert ["".join(pieces) for pieces in found] == whole
    assert [sum(map(ENC.encode, pieces), []) for pieces in found] == [ENC.encode(document) for document in whole]


@pytest.mark.parametrize(
    "word", ["日本語、", "a.", "x1", "it's ", "\n\n.", "0123456789abcdef-", "é!"], ids=lambda word: ascii(word)
)
def test_text_without_blanks_is_cut_as_well(word):
    text = word * 20_000
    (pieces,) = pieces_by_document([text[first : first + 1000] for first in range(0, len(text), 1000)])
    assert max(map(len, pieces)) < 2100
    assert "".join(pieces) == text
    assert sum(map(ENC.encode, pieces[:3]), []) == ENC.encode("".join(pieces[:3]))


@pytest.mark.parametrize("run", ["A", "7", "#", "\n", "語"], ids=ascii)
def test_endless_sequences_are_cut_where_memory_asks_for_it(run, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST_PIECE", 5000)
    (pieces,) = pieces_by_document([run * 1000] * 100 + ["<|endof"])
    assert max(map(len, pieces)) <= 6000
    assert "".join(pieces) == run * 100_000 + "<|endof"


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.json", "lines.json", "a.tsv.gz"])
def test_a_large_file_is_streamed(write, name):
    text = "It was the best of times, " * 400
    content = {
        "a.jsonl": (json.dumps({"text": text}) + "\n") * 1000,
        "lines.json": (json.dumps({"text": text}, indent=2) + "\n") * 1000,
        "a.json": "[" + (json.dumps({"text": text}) + ",") * 999 + json.dumps({"text": text}) + "]",
    }.get(name, "text\n" + f'"{text}"\n' * 1000)
    path = write(name, gzip.compress(content.encode(), 1) if name.endswith(".gz") else content)
    size = len(content)
    del content
    tracemalloc.start()
    try:
        read_size = sum(len(piece) for document in documents(find_files(path)) for piece in document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read_size > 0.99 * size > 10_000_000
    assert peak < 2_000_000


# Text files


@pytest.mark.parametrize("shift", range(4))
def test_characters_and_newlines_across_the_ends_of_blocks(write, shift):
    raw = b"x" * shift + ("é\r\n日\r\n🤗\n\r" * 20_000).encode()
    assert read(write("a.txt", raw)) == [raw.decode().replace("\r\n", "\n").replace("\r", "\n")]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*ODD, "\r", "\r\n", "\ufeff"]), max_size=40).map("".join), st.integers(1, 20))
def test_files_read_in_small_blocks(tmp_path_factory, text, chunk):
    path = tmp_path_factory.getbasetemp() / "small-blocks"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\0", "").encode())
    whole = text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n").split("<|endoftext|>")
    expected = [document for document in whole if not set(document) <= set(" \t\n\x85\xa0")]
    with mock.patch.object(rows, "CHUNK", chunk):
        if expected:
            assert read(path) == expected
        else:
            with pytest.raises(ValueError, match="there is no text in"):
                read(path)


def test_end_of_text_ends_a_document(write):
    path = write("a", f"{END}one\n{END}\ntwo <|endoftext |>{END}\n \n{END}{END}\n")
    assert read(path) == ["one\n", "\ntwo <|endoftext |>"]


def test_one_byte_order_mark_is_dropped(write):
    assert read(write("a.txt", "\ufeff\ufeffa\ufeff")) == ["\ufeffa\ufeff"]


@pytest.mark.parametrize("shift", [0, 8190, 65535])
def test_bytes_that_are_not_utf8_are_replaced_with_one_note(write, shift, caplog):
    caplog.set_level(logging.INFO)
    write("data/a.txt", b"x" * shift + b"caf\xe9 \xff\xfe <|endoftext|>" + b"x" * 70_000 + b"\xf0\x9f")
    write("data/b.txt", b"\xe9t\xe9")
    path = write("data/c.txt", "\ufffd is no error").parent
    assert read(path) == [
        "x" * shift + "caf\ufffd \ufffd\ufffd ",
        "x" * 70_000 + "\ufffd\ufffd",
        "\ufffdt\ufffd",
        "\ufffd is no error",
    ]
    (note,) = caplog.messages
    assert "7 bytes that are not UTF-8" in note and "2 files" in note and "a.txt" in note


def test_documents_may_be_left_unread(write):
    path = write("a.txt", "first " * 50_000 + "<|endoftext|>second<|endoftext|>third")
    found = documents(find_files(path))
    assert next(next(found)).startswith("first first")
    next(found)
    assert list(next(found)) == ["third"]
    assert list(found) == []


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="there is no /dev/fd")
def test_a_pipe_can_be_read(tmp_path):
    source, sink = os.pipe()
    text = "from a pipe\n" * 20_000

    def fill():
        with open(sink, "wb", buffering=0) as file:
            for part in (b"\xef", b"\xbb\xbf", text.encode()):
                file.write(part)

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        assert read(f"/dev/fd/{source}") == [text]
    finally:
        writer.join()
        os.close(source)


@pytest.mark.parametrize("content", ["", " \n\t\n", "<|endoftext|>\n", "\ufeff"], ids=ascii)
def test_a_file_without_text(write, content):
    with pytest.raises(ValueError, match=r"there is no text in .*a\.txt; name a file or folder that holds some"):
        read(write("a.txt", content))


@pytest.mark.parametrize("content", [b"PK\3\4\0\0", b"\x1f\x8b\x08\0"], ids=ascii)
def test_a_file_that_is_not_text(write, content):
    with pytest.raises(ValueError, match="a.txt is not text, it holds zero bytes; unpack it, or save it as UTF-8"):
        find_files(write("a.txt", content))
    with pytest.raises(ValueError, match=r"a\.gz is damaged \(.*\); get it again"):
        find_files(write("a.gz", content))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "gb18030"])
def test_text_in_another_encoding_is_refused_in_a_folder_too(write, encoding):
    """Its bytes would be learnt as U+FFFD, or the text would be missing."""
    path = write("data/zh.txt", ("早上他走到花园里，看见雪已经化了。" * 3000).encode(encoding))
    write("data/a.txt", "text")
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    for data in (path, path.parent):
        with pytest.raises(
            ValueError, match=rf"zh\.txt is not UTF-8, but looks like {name}; convert it: iconv -f {name}"
        ):
            find_files(data)


def test_text_that_does_not_begin_in_another_encoding_is_refused_at_its_end(write):
    path = write("a.txt", b"plain words, " * 10_000 + "schöne Wörter für später ".encode("latin-1") * 5000)
    with pytest.raises(
        ValueError, match=r"a\.txt is not UTF-8 \(20,000 bytes among 255,000 characters are not\); conv"
    ):
        read(path)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")


# Folders


def test_a_folder_is_read_by_name(write, caplog):
    for name in ["b.txt", "a/z.txt", "a/b/no ending", "c.jsonl", "d.CSV", ".hidden/x.txt", "a/.hidden.txt"]:
        content = {"c.jsonl": '{"text": "c.jsonl"}', "d.CSV": "id,text\n1,d.CSV\n"}.get(name, name)
        write(name, content)
    write("f.Json.GZ", gzip.compress(b'[{"text": "f.Json.GZ"}]'))
    write("g.txt", "\ufeffg.txt".encode("utf-16-be"))
    folder = write("a/model.bin", b"PK\3\4\0").parent.parent
    write("e.png", b"\x89PNG\0")
    assert read(folder) == ["a/b/no ending", "a/z.txt", "b.txt", "c.jsonl", "d.CSV", "f.Json.GZ", "g.txt"]
    (note,) = caplog.messages
    assert "2 files that are not text are left out" in note and "model.bin" in note


def names(path):
    return [os.path.basename(file) for file in find_files(path)]


def test_a_pattern_is_the_files_that_it_matches(write, tmp_path, monkeypatch):
    for name in ["a1.txt", "a2.txt", "b.txt", "sub/a3.txt", "[a]*.txt"]:
        write(name, name)
    monkeypatch.chdir(tmp_path)
    assert names("a*.txt") == ["a1.txt", "a2.txt"]
    assert names("**/a*.txt") == ["a1.txt", "a2.txt", "a3.txt"]
    assert names("[ab]*") == ["a1.txt", "a2.txt", "b.txt"]
    assert names("[a]*.txt") == ["[a]*.txt"]  # it is there, as it is written
    assert names("s*") == ["a3.txt"]
    assert names("**") == ["[a]*.txt", "a1.txt", "a2.txt", "b.txt", "a3.txt"]
    with pytest.raises(FileNotFoundError, match=r"c\*"):
        find_files("c*")


def test_a_folder_or_pattern_of_encoded_files(write, tmp_path, caplog):
    for name in ["b.npz", "a.NPY", "sub/c.npz", "d.png", ".hidden.npz"]:
        write(f"data/{name}", b"\0")
    assert names(tmp_path / "data") == ["a.NPY", "b.npz", "c.npz"]
    assert "1 files that are not text are left out" in caplog.text
    assert names(tmp_path / "data" / "*.npz") == ["b.npz"]
    assert all(map(is_encoded, find_files(tmp_path / "data")))


def test_encoded_files_and_text_do_not_mix(write, tmp_path):
    """One may be the other, encoded."""
    write("data/a.txt", "text")
    write("data/sub/b.npz", b"PK\3\4\0")
    message = (
        r"data has encoded tokens \(.*/sub/b\.npz\) beside text \(.*a\.txt\); name one kind of them, such as '(.*)'"
    )
    with pytest.raises(ValueError, match=message) as raised:
        find_files(tmp_path / "data")
    pattern = str(raised.value).split("'")[1]
    assert names(pattern) == ["b.npz"] and names(tmp_path / "data" / "*.txt") == ["a.txt"]


def test_what_a_run_left_in_a_folder_is_neither(write, tmp_path):
    write("data/a.txt", "text")
    write("data/models/new/tokens.npy", b"\0")
    assert names(tmp_path / "data") == ["a.txt"]
    assert names(tmp_path / "data" / "models" / "new") == ["tokens.npy"]


def test_links_are_followed_but_not_in_circles(write, tmp_path):
    path = write("data/a.txt", "a")
    path.chmod(0o400)
    write("elsewhere/b.txt", "b")
    (tmp_path / "data" / "link.txt").symlink_to(path)
    (tmp_path / "data" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "self").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data link").symlink_to(tmp_path / "data")
    assert read(tmp_path / "data") == read(tmp_path / "data link") == ["a", "a", "b"]


@pytest.mark.parametrize("names, count", [([], 0), ([".hidden"], 0), (["a.png"], 1)], ids=str)
def test_a_folder_without_text(write, tmp_path, names, count):
    for name in names:
        write(name, b"\0")
    with pytest.raises(ValueError, match=f"no file in .* is text, of {count}; name a folder"):
        find_files(tmp_path)


def test_a_folder_of_empty_files(write):
    write("data/a", "")
    with pytest.raises(ValueError, match="there is no text in .*a and 1 other files"):
        read(write("data/b", "\n").parent)


# Rows


def rows_as(kind, texts, newline="\n"):
    """The bytes of a file of a kind, by Python's own writers."""
    objects = [{"id": number, "text": text} for number, text in enumerate(texts)]
    if kind in (".csv", ".tsv"):
        file = io.StringIO(newline="")
        writer = csv.writer(file, delimiter="," if kind == ".csv" else "\t", lineterminator=newline)
        writer.writerows([["id", "text"], *([number, text] for number, text in enumerate(texts)), []])
        return file.getvalue()
    if kind == "long .json":
        return json.dumps(objects)
    if kind == "wide .json":
        return json.dumps(objects, indent=2, ensure_ascii=False).replace("\n", newline)
    if kind == "objects .json":
        return newline.join(json.dumps(row, indent=2).replace("\n", newline) for row in objects)
    return newline.join(map(json.dumps, objects))


KINDS = [".jsonl", ".ndjson", ".csv", ".tsv", "long .json", "wide .json", "objects .json", "lines .json"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=ascii)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_formats_are_the_same_documents(write, newline, encoding, kind):
    raw = rows_as(kind, [row.replace("\n", newline) for row in ROWS], newline).encode(encoding)
    ending = kind.split()[-1]
    assert read(write(f"a{ending}", raw)) == ROWS
    assert read(write(f"A{ending.upper()}.GZ", gzip.compress(raw))) == ROWS
    assert (
        read(write("a.txt", (newline + END).join(ROWS).encode(encoding)))
        == [row + "\n" for row in ROWS[:-1]] + ROWS[-1:]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 2, 7, 50])
def test_rows_across_the_ends_of_what_is_read(write, monkeypatch, kind, chunk):
    path = write(f"a{kind.split()[-1]}", rows_as(kind, ROWS))
    monkeypatch.setattr(rows, "CHUNK", chunk)
    assert read(path) == ROWS


def test_has_rows():
    assert all(map(has_rows, ["a.jsonl", "b.NDJSON", "c.json.gz", "d.csv", "a/e.TSV.GZ"]))
    assert not any(map(has_rows, ["a.txt", "jsonl", "b.json.txt", "c.csv.npz", "d.gz", "json.gz"]))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_rows_may_have_other_columns_and_no_text(write, name):
    content = {
        "a.jsonl": '{"id": 1, "body": "one<|endoftext|>two"}\n\n{"body": "", "id": 2}\n  \n{"body": "\\ud83e\\udd17"}',
        "a.csv": "id,body\n1,one<|endoftext|>two\n\n2,\n3,🤗",
    }[name]
    assert read(write(name, content), text_column="body") == ["one", "two", "🤗"]


def test_half_a_surrogate_pair_in_json_is_replaced(write):
    assert read(write("a.jsonl", r'{"text": "a\ud83e b\udcff"}')) == ["a\ufffd b\ufffd"]


def test_long_fields_and_lines(write):
    text = "word " * 60_000  # 300,000 characters; the csv module takes 131,072 unless it is told
    assert read(write("a.csv", f"text\n{text}\n")) == [text]
    assert read(write("a.jsonl", json.dumps({"text": text}))) == [text]
    assert csv.field_size_limit() == FIELD_LIMIT


@pytest.mark.parametrize(
    "content, message",
    [
        ("id,body\n1,a\n", r"a\.csv has no column 'text' \(its first line: 'id', 'body'\); name another text_column"),
        ("Once upon a time\n", r"a\.csv has no column 'text' \(its first line: 'Once upon a time'\)"),
        ("", r"a\.csv has no column 'text' \(its first line: empty\)"),
        ("id,text\n1,a\n\n2\n", r"a\.csv, line 4, has 1 of 2 columns"),
        ('text\na\n"b"c\n', r"a\.csv, line 3, is not CSV: "),
        ('text\n"b\n', r"a\.csv, line 2, is not CSV: unexpected end of data"),
        ("text\n", "there is no text in .*a.csv"),
    ],
)
def test_csv_that_cannot_be_read(write, content, message):
    with pytest.raises(ValueError, match=message):
        read(write("a.csv", content))
    assert csv.field_size_limit() == FIELD_LIMIT


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2, is not JSON: "),
        ("[" * 100_000, r"a\.jsonl, line 1, is not JSON: "),
        ('\n["a"]', r"""a\.jsonl, line 2, is no object with a 'text', but '\["a"\]'"""),
        ('{"id": 1, "body": "a"}', r"a\.jsonl, line 1, has no text 'text' \(there: 'id': int, 'body': str\); name ano"),
        ('{"text": null}', r"a\.jsonl, line 1, has no text 'text' \(there: 'text': NoneType\)"),
    ],
    ids=["half", "deep", "list", "column", "null"],
)
def test_jsonl_that_cannot_be_read(write, content, message):
    with pytest.raises(ValueError, match=message):
        read(write("a.jsonl", content))


@pytest.mark.parametrize(
    "content, message",
    [
        ('[{"text": "a"},\n {"text": \n', r"a\.json, line \d, is not JSON: "),
        ('[{"text": "a"},\n {"text": oops},\n' + " " * 300_000 + "]", r"a\.json, line 2, is not JSON: Expecting value"),
        ('[{"text": "a"}\n {"text": "b"}]', r"a\.json, line 2, is not JSON: there is no , or \] after an object"),
        ('[{"text": "a"}', r"a\.json, line 1, is not JSON: there is no , or \] after an object"),
        ('[{"text": "a"},', r"a\.json, line 1, is not JSON: "),
        ("[" * 100_000, r"a\.json, line 1, is not JSON: "),
        ('[\n["a"]]', r"""a\.json, line 2, is no object with a 'text', but '\["a"\]'"""),
        ('{"data": [{"text": "a"}]}', r"a\.json, line 1, has no text 'text' \(there: 'data': list\); name another"),
        ('[{"text": 1}]', r"a\.json, line 1, has no text 'text' \(there: 'text': int\)"),
        ("[]", "there is no text in .*a.json"),
        ("", "there is no text in .*a.json"),
        ("Once upon a time", r"a\.json, line 1, is not JSON: "),
    ],
    ids=["half", "word", "comma", "open", "more", "deep", "list", "inside", "number", "none", "empty", "text"],
)
def test_json_that_cannot_be_read(write, content, message):
    with pytest.raises(ValueError, match=message):
        read(write("a.json", content))


def test_tsv_that_cannot_be_read(write):
    with pytest.raises(ValueError, match=r"a\.tsv, line 2, is not TSV with quotes as in CSV: "):
        read(write("a.tsv", 'text\n"b"c\n'))
    with pytest.raises(ValueError, match=r"a\.tsv has no column 'text' \(its first line: 'id,text'\)"):
        read(write("a.tsv", "id,text\n1,a\n"))


def test_a_gz_that_is_damaged_further_on_is_one_line(write):
    raw = gzip.compress(os.urandom(100_000).hex().encode())
    for name in "a.txt.gz", "a.jsonl.gz":
        with pytest.raises(ValueError, match=r"a\..*gz(, line 1, is not JSON| is damaged \()"):
            read(write(name, raw[:-100]))
