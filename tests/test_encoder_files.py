"""What get_encoder reads, and what it refuses: damaged, incomplete, mixed up and missing files."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import encoder.encoder as encoder_module
from encoder import get_encoder

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
        ({"encoder": TABLE.replace(b": 999}", b': 999, "zyx": 1000}')}, "no merge makes 1 of the tokens, 'zyx'"),
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


def test_more_special_tokens_are_allowed(tmp_path):
    write_model(tmp_path, encoder=TABLE.replace(b": 999}", b': 999, "<|user|>": 1000}'))
    assert get_encoder("broken", tmp_path).decode([1000]) == "<|user|>"


@pytest.mark.parametrize(("name", "file"), [("encoder", "encoder.json"), ("merges", "vocab.bpe")])
def test_missing_file(tmp_path, name, file):
    write_model(tmp_path, **{name: None})
    reason = re.escape(str(tmp_path / "broken" / file)) + " is missing; .*get the file again"
    with pytest.raises(FileNotFoundError, match=reason):
        get_encoder("broken", tmp_path)


def test_packaged_files_name_their_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_module, "__file__", str(tmp_path / "encoder.py"))
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
