"""What get_encoder reads, and what it refuses: damaged, incomplete, mixed up and missing files."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import encoder.vocabulary as vocabulary_module
from encoder import Encoder, Vocabulary, get_encoder, read_vocabulary, real_tokens, released

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
TINY = GOLDEN / "tiny-a"
MERGES = (TINY / "vocab.bpe").read_bytes()
TABLE = (TINY / "encoder.json").read_bytes()
WITHOUT_TOKEN = TABLE.replace(b'"arch": 998, "<|endoftext|>": 999', b'"<|endoftext|>": 998')


def write_model(folder: Path, **changed: bytes | None) -> dict[str, Path]:
    """Writes the files of tiny-a, with some contents changed or (None) left out, to models `folder`/broken."""
    paths = {"encoder": folder / "broken" / "encoder.json", "merges": folder / "broken" / "vocab.bpe"}
    (folder / "broken").mkdir(exist_ok=True)
    for name, path in paths.items():
        content = changed.get(name, (TINY / path.name).read_bytes())
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    return paths


def refusal(folder: Path, **changed: bytes | None) -> str:
    """Returns the message of the error that the one changed file gives, having checked that it names the file."""
    paths = write_model(folder, **changed)
    with pytest.raises(ValueError) as caught:
        get_encoder("broken", folder)
    message = str(caught.value)
    assert any(str(paths[name]) in message for name in changed), message
    assert "get the file again" in message
    return message


def read_sound(folder: Path, **changed: bytes) -> None:
    """Checks that the changed files still are the same vocabulary."""
    write_model(folder, **changed)
    read, sound = get_encoder("broken", folder), get_encoder("tiny-a", GOLDEN)
    assert (read.encoder, read.bpe_ranks) == (sound.encoder, sound.bpe_ranks)


def test_model_folder_is_read():
    tiny = get_encoder("tiny-a", str(GOLDEN))
    assert len(tiny.encoder) == 1000
    assert tiny.decode(tiny.encode("Größe 日本 \x00 hello")) == "Größe 日本 \x00 hello"


def test_truncated_merges(tmp_path):
    size = len(MERGES)
    for cut in {*range(0, size, 11), *range(40), *range(size - 80, size - 1)}:
        refusal(tmp_path, merges=MERGES[:cut])
    read_sound(tmp_path, merges=MERGES[:-1])  # the original drops the last merge here


def test_truncated_encoder(tmp_path):
    size = len(TABLE)
    for cut in {*range(0, size, 29), *range(40), *range(size - 80, size)}:
        refusal(tmp_path, encoder=TABLE[:cut])


@pytest.mark.parametrize("cut", [200000, 456290, 456316])
def test_truncated_release(tmp_path, cut):
    refusal(
        tmp_path,
        merges=(ROOT / "encoder" / "vocab.bpe").read_bytes()[:cut],
        encoder=(ROOT / "encoder" / "encoder.json").read_bytes(),
    )


@pytest.mark.parametrize(("name", "sound"), [("merges", MERGES), ("encoder", TABLE)])
def test_a_changed_byte_is_found_or_harmless(tmp_path, name, sound):
    rng = random.Random(0)
    harmless = 0
    for _ in range(250):
        place = rng.randrange(len(sound))
        changed = bytearray(sound)
        changed[place] ^= rng.randrange(1, 256)
        try:
            read_sound(tmp_path, **{name: bytes(changed)})
            harmless += 1  # in the first line's comment, or one blank for another
        except ValueError:
            refusal(tmp_path, **{name: bytes(changed)})
    assert harmless < 10


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"merges": b"<!DOCTYPE html>\n<html>Not Found</html>\n"}, "starts with '<!DOCTYPE html>'"),
        ({"encoder": b"<!DOCTYPE html>\n<html>Not Found</html>\n"}, "not JSON"),
        ({"merges": b""}, "starts with ''"),
        ({"encoder": b""}, "not JSON"),
        ({"merges": TABLE}, "not a table of merges"),
        ({"encoder": MERGES}, "not JSON"),
        ({"encoder": TABLE, "merges": (ROOT / "encoder" / "vocab.bpe").read_bytes()}, "lacks 49257 tokens"),
        ({"encoder": b"[1, 2]"}, "not a table of token ids"),
        ({"encoder": b"{}"}, "lacks 1000 tokens"),
        ({"encoder": TABLE.replace(b": 998", b": 998.0")}, "not a table of token ids"),
        ({"encoder": TABLE.replace(b'"!": 0', b'"!": false')}, "not a table of token ids"),
        ({"encoder": TABLE.replace(b": 998", b": 997")}, "ids are not the numbers 0 to 999"),
        ({"encoder": TABLE.replace(b": 999", b": 1000")}, "ids are not the numbers 0 to 999"),
        ({"encoder": TABLE.replace(b": 0,", b": -1,")}, "ids are not the numbers 0 to 999"),
        ({"encoder": WITHOUT_TOKEN}, "lacks 1 tokens, 'arch'"),
        ({"encoder": TABLE.replace(b"<|endoftext|>", b"<|endoftexu|>")}, "lacks 1 tokens, '<|endoftext|>'"),
        ({"merges": MERGES.replace(b"ar ch\n", b"")}, "no merge makes 1 of the tokens, 'arch'"),
        ({"merges": MERGES + b"h e\n"}, "line 745, 'h e'"),
        ({"merges": MERGES + b"\n"}, "line 745, ''"),
        ({"merges": MERGES.replace(b"ar ch\n", b"arch\n")}, "line 744, 'arch'"),
        ({"merges": MERGES.replace(b"ar ch\n", b"ar c h\n")}, "line 744, 'ar c h'"),
        ({"merges": MERGES.replace(b"ar ch\n", b"ar chx\n")}, "line 744, 'ar chx'"),
        ({"merges": MERGES.replace(b"0.2\n", b"0.2\nar ch\n")}, "line 2, 'ar ch'"),
        ({"merges": MERGES.replace("Ġ t\n".encode(), b"\xc4 t\n")}, "byte 14 is not UTF-8"),
    ],
)
def test_damage_is_named(tmp_path, changed, reason):
    assert reason in refusal(tmp_path, **changed)


def test_merges_with_windows_newlines(tmp_path):
    read_sound(tmp_path, merges=MERGES.replace(b"\n", b"\r\n"))


ADDED = ["<|user|>", "[PAD]", "<s>", "<|im start|>", "zyx", "<café>", "日本", "\t", "arch arch", "two\nlines"]


@pytest.mark.parametrize("place", [999, 1000], ids=["before <|endoftext|>", "after"])
@pytest.mark.parametrize("token", ADDED)
def test_an_added_token_of_any_spelling_decodes_to_its_text_and_is_never_typed(tmp_path, token, place):
    table = TABLE.replace(b', "<|endoftext|>": 999}', b"")
    tokens = [token, "<|endoftext|>"] if place == 999 else ["<|endoftext|>", token]
    table += "".join(f", {json.dumps(t)}: {999 + i}" for i, t in enumerate(tokens)).encode() + b"}"
    write_model(tmp_path, encoder=table)
    enc, plain = get_encoder("broken", tmp_path), get_encoder("tiny-a", GOLDEN)
    assert enc.decode([place]) == token
    assert enc.decode([258, place, 220, 258]) == f"he{token} he"
    text = f"he {token}he{token}"
    assert enc.encode(text) == plain.encode(text) and enc.decode(enc.encode(text)) == text


def test_an_added_token_in_the_characters_of_the_file(tmp_path):
    write_model(tmp_path, encoder=TABLE.replace(b": 999}", b': 999, "\\u0120<sep>": 1000}'))
    assert get_encoder("broken", tmp_path).decode([1000]) == " <sep>"


def test_added_tokens_at_the_front(tmp_path):
    """As the tokenizers of Hugging Face are trained; a merge that is missing is noticed there, too."""
    table = {"<s>": 0, "<|endoftext|>": 1, "<pad>": 2}
    table |= {token: token_id + 3 for token, token_id in list(json.loads(TABLE).items())[:-1]}
    write_model(tmp_path, encoder=json.dumps(table).encode())
    assert get_encoder("broken", tmp_path).decode([0, 261, 2, 1]) == "<s>he<pad><|endoftext|>"
    message = refusal(tmp_path, encoder=json.dumps(table).encode(), merges=MERGES.replace(b"ar ch\n", b""))
    assert "no merge makes 1 of the tokens, 'arch'" in message


def test_a_byte_order_mark_is_no_part_of_the_files(tmp_path):
    read_sound(tmp_path, encoder=b"\xef\xbb\xbf" + TABLE, merges=b"\xef\xbb\xbf" + MERGES)


# The contents of a vocabulary


CONTENTS = {
    "the original's names": {"encoder.json": TABLE, "vocab.bpe": MERGES},
    "Hugging Face's": {"vocab.json": TABLE, "merges.txt": MERGES},
    "both": {"encoder.json": TABLE, "vocab.bpe": MERGES, "vocab.json": b"{}", "merges.txt": b""},
    "mixed": {"encoder.json": TABLE, "merges.txt": MERGES},
    "as Windows writes": {"encoder.json": b"\xef\xbb\xbf" + TABLE, "vocab.bpe": MERGES.replace(b"\n", b"\r\n")},
    "a table alone": {"vocab.json": TABLE},
    "merges alone": {"vocab.bpe": MERGES},
}


def folder_of(files, folder):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("files", CONTENTS.values(), ids=CONTENTS)
def test_a_vocabulary_is_written_as_it_was_read(tmp_path, files):
    found = read_vocabulary(folder_of(files, tmp_path / "a"))
    found.write(folder_of({}, tmp_path / "b"))
    table = files.get("encoder.json", files.get("vocab.json"))
    merges = files.get("vocab.bpe", files.get("merges.txt"))
    expected = {"encoder.json": table, "vocab.bpe": merges}
    written = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert written == {name: content for name, content in expected.items() if content is not None}
    assert found.size == (1000 if table else None)
    assert len(repr(found)) < 100  # of a megabyte
    if table and merges:
        sound = get_encoder("tiny-a", GOLDEN)
        for enc in (Encoder.of(found), get_encoder("a", tmp_path)):
            assert (enc.encoder, enc.bpe_ranks) == (sound.encoder, sound.bpe_ranks)
    else:
        with pytest.raises(FileNotFoundError, match="vocab.bpe is missing" if table else "encoder.json is missing"):
            Encoder.of(found)


def test_a_folder_without_a_vocabulary(tmp_path):
    assert read_vocabulary(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="there is no folder .*nowhere"):
        read_vocabulary(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["encoder.json", "vocab.bpe", "vocab.json", "merges.txt"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1042301\n"
    folder = folder_of({name: pointer}, tmp_path / "model")
    for read in (lambda: read_vocabulary(folder), lambda: get_encoder("model", tmp_path)):
        with pytest.raises(ValueError) as caught:
            read()
        expected = f"{folder / name} is not the file itself but a pointer of Git LFS to it; get it with: git lfs pull"
        assert str(caught.value) == expected


def test_a_damaged_table_is_refused_where_it_is_read(tmp_path):
    folder = folder_of({"vocab.json": TABLE[:-9]}, tmp_path / "model")
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder))}.vocab.json is damaged.*; get the file again"):
        read_vocabulary(folder)


def test_the_released_vocabulary_is_the_packaged_files():
    found = released()
    assert found.size == 50257
    assert found.table.encode() == (ROOT / "encoder" / "encoder.json").read_bytes()
    assert found.merges.encode() == (ROOT / "encoder" / "vocab.bpe").read_bytes()
    assert (released(1000).table, released(1000).merges) == (TABLE.decode(), MERGES.decode())
    with pytest.raises(ValueError, match="n_vocab is 50258; the released vocabulary can be cut to 257 up to 50257"):
        released(50258)


@pytest.mark.parametrize(
    "vocabulary, n_vocab, real",
    [
        (None, 300, 300),
        (Vocabulary(TABLE.decode()), 1000, 1000),
        (Vocabulary(TABLE.decode()), 1024, 1000),
        (Vocabulary(TABLE.decode()), 300, 300),
        (Vocabulary(None, MERGES.decode()), 300, 300),
    ],
)
def test_rows_beyond_the_table_are_no_tokens(vocabulary, n_vocab, real):
    assert real_tokens(vocabulary, n_vocab) == real


@pytest.mark.parametrize(("name", "file"), [("encoder", "encoder.json"), ("merges", "vocab.bpe")])
def test_missing_file(tmp_path, name, file):
    write_model(tmp_path, **{name: None})
    reason = re.escape(str(tmp_path / "broken" / file)) + " is missing; .*get the file again"
    with pytest.raises(FileNotFoundError, match=reason):
        get_encoder("broken", tmp_path)


def test_packaged_files_name_their_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary_module, "PACKAGE", tmp_path)
    with pytest.raises(FileNotFoundError, match="install gpt2tf again"):
        get_encoder()


# A fresh interpreter


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **env}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_locale_does_not_matter():
    code = (
        "import locale, encoder; print(locale.getpreferredencoding(False)); "
        "print(encoder.get_encoder().encode('caf\\u00e9'), encoder.get_encoder('tiny-a', 'tests/golden').encode('he'))"
    )
    name, ids = run_python(code, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0").splitlines()
    assert name.upper().replace("-", "") != "UTF8"
    assert ids == "[66, 1878, 2634] [258]"


def test_no_tensorflow():
    code = "import sys, encoder; encoder.get_encoder().encode('x'); print({'tensorflow', 'keras'} & {*sys.modules})"
    assert run_python(code) == "set()"
