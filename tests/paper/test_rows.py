"""JSON lines in, and a file that grows by whole parts: at whatever byte a run was ended, it comes out the same."""

import gzip
import json

import pytest

from gpt2tf.paper.rows import growing, read_rows, record_of

PARTS = ["first\n", "zweiter, ü and 日本\n\n", "12\n", "the fourth\n"]
SETTINGS = {"seed": 1, "shard": (1, 2), "contexts": None}
FIELDS = {"text": "text", "answer": "texts", "context": "optional"}


def run(path, settings=SETTINGS, until=None):
    """Write what is missing of the parts up to `until`; how many were there before."""
    with growing(str(path), settings) as file:
        there = file.parts
        for part in PARTS[there:until]:
            file.append(part)
    return there


def record(path):
    return path.parent / f".{path.name}.run"


WHOLE = "".join(PARTS).encode()


def test_a_run_in_one_go_and_one_that_has_all_it_needs(tmp_path):
    path = tmp_path / "out"
    assert run(path) == 0 and path.read_bytes() == WHOLE
    before = record(path).read_bytes()
    assert str(record(path)) == record_of(str(path))
    assert run(path) == 4 and path.read_bytes() == WHOLE and record(path).read_bytes() == before


def test_at_every_byte_of_the_file(tmp_path):
    """Also those that lie before what the record counts, which a power cut may take."""
    path = tmp_path / "out"
    run(path)
    known = record(path).read_bytes()
    for end in range(len(WHOLE) + 1):
        path.write_bytes(WHOLE[:end])
        there = run(path)
        assert there == sum(len("".join(PARTS[:n]).encode()) <= end for n in range(1, 5))
        assert (path.read_bytes(), record(path).read_bytes()) == (WHOLE, known)


def test_at_every_byte_of_the_record(tmp_path):
    """What is in the file and does not count yet is made again; without the settings nothing is touched."""
    path = tmp_path / "out"
    run(path)
    known = record(path).read_bytes()
    header = known.index(b"\n") + 1
    for end in range(len(known)):
        record(path).write_bytes(known[:end])
        path.write_bytes(WHOLE)
        if end < header:
            with pytest.raises(FileExistsError, match=f"{path} cannot be gone on with, as its record is damaged"):
                run(path)
            assert (path.read_bytes(), record(path).read_bytes()) == (WHOLE, known[:end])
        else:
            assert run(path) == known[header:end].count(b"\n")
            assert (path.read_bytes(), record(path).read_bytes()) == (WHOLE, known)


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"x\n", b"-1\n", b"1\n", b"\n", b"6.0\n", b"\xb2\n"])
def test_a_record_with_something_else_in_it_counts_up_to_there(tmp_path, damage):
    path = tmp_path / "out"
    run(path)
    known = record(path).read_bytes()
    lines = known.splitlines(keepends=True)
    for number in (2, 3, 4):  # of the lines with sizes the second and those behind it
        record(path).write_bytes(b"".join([*lines[:number], damage, *lines[number + 1 :]]))
        assert run(path) == number - 1
        assert (path.read_bytes(), record(path).read_bytes()) == (WHOLE, known)


@pytest.mark.parametrize("first", [b"x", b'{"seed":', b"[]", b"3", b"null", b"\0\0", b"\xff", b"[" * 10**5])
def test_a_record_without_settings_is_damaged(tmp_path, first):
    path = tmp_path / "out"
    run(path)
    record(path).write_bytes(first + b"\n7\n")
    with pytest.raises(FileExistsError, match="its record is damaged; give another --output, or remove the file"):
        run(path)
    assert (path.read_bytes(), record(path).read_bytes()) == (WHOLE, first + b"\n7\n")


@pytest.mark.parametrize("until", range(5))
def test_a_part_that_was_written_and_does_not_count_yet(tmp_path, until):
    path = tmp_path / "out"
    run(path, until=until)
    with open(path, "ab") as file:
        file.write(b"half a part, \xe6\x97")
    assert run(path) == until and path.read_bytes() == WHOLE


def test_the_record_alone_is_no_obstacle(tmp_path):
    path = tmp_path / "out"
    run(path)
    path.unlink()
    assert run(path, SETTINGS | {"seed": 2}) == 0 and path.read_bytes() == WHOLE
    path.write_bytes(b"")
    record(path).write_bytes(record(path).read_bytes()[:3])
    assert run(path) == 0 and path.read_bytes() == WHOLE


def test_another_file_or_one_of_other_settings_is_named_and_kept(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"a letter to my mother\n")
    with pytest.raises(
        FileExistsError, match=f"^{path} is there already, and is not of such a run; remove it, or give"
    ):
        run(path)
    assert path.read_bytes() == b"a letter to my mother\n" and not record(path).exists()
    path.unlink()
    run(path, until=2)
    before = path.read_bytes(), record(path).read_bytes()
    with pytest.raises(FileExistsError) as refused:
        run(path, {"seed": 2, "shard": (1, 2), "contexts": "9f"})
    what = 'was begun with seed 1 and not 2, contexts null and not "9f"; give another --output, or remove the file'
    assert str(refused.value) == f"{path} {what}"
    assert (path.read_bytes(), record(path).read_bytes()) == before


def test_what_is_no_ordinary_file_is_refused(tmp_path):
    for path in ("/dev/null", tmp_path):
        with pytest.raises(FileExistsError, match=f"{path} is no ordinary file"):
            run(path)
    with pytest.raises(FileNotFoundError) as missing:
        run(tmp_path / "no" / "out")
    assert missing.value.filename == str(tmp_path / "no" / "out")


def test_a_link_leads_to_the_file(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "out")
    assert run(tmp_path / "link", until=2) == 0 and run(tmp_path / "there" / "out") == 2
    assert (tmp_path / "link").read_bytes() == WHOLE and (tmp_path / "link").is_symlink()


def test_two_at_one_file(tmp_path):
    path = tmp_path / "out"
    with growing(str(path), SETTINGS) as file:
        file.append(PARTS[0])
        with pytest.raises(BlockingIOError, match=f"another process is writing {path}"):
            run(path)
        for part in PARTS[1:]:
            file.append(part)
    assert path.read_bytes() == WHOLE


def lines(tmp_path, *objects, name="rows.jsonl"):
    raw = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in objects).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_with_their_fields(tmp_path, name):
    first = {"id": 3, "text": "caf\u00e9 \ud83d", "answer": "one"}
    path = lines(tmp_path, first, "", {"text": "b", "answer": ["x", "y"], "context": "c"}, name=name)
    expected = [{"text": "café \ufffd", "answer": ["one"]}, {"text": "b", "answer": ["x", "y"], "context": "c"}]
    assert read_rows(path, FIELDS) == expected and read_rows(path, FIELDS, limit=1) == expected[:1]


@pytest.mark.parametrize(
    "bad, what",
    [
        ("{", "is not JSON (Expecting property name"),
        ("[" * 10**5, "is not JSON (maximum recursion depth"),
        ("[1]", "is not an object"),
        ({"text": "b"}, "has no text as 'answer'"),
        ({"text": 1, "answer": "x"}, "has no text as 'text'"),
        ({"text": " \n", "answer": "x"}, "has no text as 'text'"),
        ({"text": "b", "answer": []}, "has no text as 'answer'"),
        ({"text": "b", "answer": ["x", None]}, "has no text as 'answer'"),
        ({"text": "b", "answer": "x", "context": 3}, "has no text as 'context'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, what):
    path = lines(tmp_path, {"text": "a", "answer": "x"}, bad)
    with pytest.raises(ValueError) as refused:
        read_rows(path, FIELDS)
    assert f"{path}, line 2 {what}" in str(refused.value)
    assert str(refused.value).endswith('each line must be like {"text": "...", "answer": ["..."]}')
    assert read_rows(path, FIELDS, limit=1) == [{"text": "a", "answer": ["x"]}]


def test_an_empty_file_and_one_that_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="rows.jsonl is empty; each line must be like"):
        read_rows(lines(tmp_path), FIELDS)
    (tmp_path / "rows.jsonl").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(ValueError, match="rows.jsonl is not text"):
        read_rows(str(tmp_path / "rows.jsonl"), FIELDS)
