"""The reader of text, for prompts and corpora: bytes in, characters out. Needs nothing but the standard library.

Difference from the original, which decoded in the locale's encoding: text that is not UTF-8 is never taken for it.
"""

from __future__ import annotations

import codecs
import functools
import gzip
import io
import os
import re
import shlex
import unicodedata
import zlib
from collections.abc import Callable, Collection
from typing import BinaryIO

from gpt2tf.files import clean, naming

PACKED = ".gz"
HEAD = 2**16  # bytes that tell the encoding: some pages, so that a title page in ASCII does not stand for the book
# How much of a text may be something else than UTF-8. In an encoding of one byte a character, the accents are 1 to 4 %
# of a text in French, German or Spanish, and the quotation marks alone are 1 % of an English novel; of UTF-8 that was
# damaged here and there it is far less than a thousandth. A few bytes may be what is left of a character that was cut.
SHARE = 1 / 200
FEW = 3
UTF8 = "utf-8-sig"  # with a mark or without one
MARKS = {  # of UTF-32 before those of UTF-16, with one of which it begins
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
ESCAPE = "gpt2tf.escape"  # the name of an error handler, as "surrogateescape" but for any encoding
ESCAPED = "\udcff"
CONTROL = re.compile(rb"[\x01-\x07\x0b\x0e-\x19\x1c-\x1f\x7f]")  # not those of lines, pages, files and terminals

WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
RUSSIAN, UKRAINIAN = "абвгдежзийклмнопрстуфхцчшщъыьэюяё", "абвгдежзийклмнопрстуфхцчшщьюяєіїґ"
EUROPEAN = ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áéíóöőúüű")
# Tried in its place: charset_normalizer, which takes French and Spanish for Central European and would have them
# converted to wrong accents; of the tests' 172 texts it names 157.
# The letters beside a to z of languages that are often written in an encoding. Small ones, because those of KOI8-R are
# the capitals of WINDOWS-1251.
ALPHABETS = {
    "WINDOWS-1252": ("éèàùçêâîôûëïœ", "äöüß", "áéíóúñü¿¡", "àèéìòù", "áâãàçéêíóôõú", "åäöæøé", "àéèíïóòúüç"),
    "WINDOWS-1250": EUROPEAN,
    "ISO-8859-2": EUROPEAN,
    "WINDOWS-1254": ("çğıöşüâ",),
    "WINDOWS-1253": ("αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώ",),
    "WINDOWS-1251": (RUSSIAN, UKRAINIAN),
    "KOI8-R": (RUSSIAN,),
    "KOI8-U": (UKRAINIAN,),
    "IBM866": (RUSSIAN,),
}
LATIN = ("WINDOWS-1252", "WINDOWS-1250", "ISO-8859-2", "WINDOWS-1254")
SIGNS = "‘’“”„«»–—…·°§№"  # between the letters of any language
MIXED = re.compile(r"[A-Za-z][^\0-\x7f]|[^\0-\x7f][A-Za-z]")
# Of an encoding: its codec, and the standard of its characters with the first bytes of those that are in common use.
LEVELS = {
    "EUC-KR": ("cp949", "euc_kr", (*range(0xA1, 0xA4), *range(0xB0, 0xC9))),
    "GB18030": ("gb18030", "gb2312", (*range(0xA1, 0xA4), *range(0xB0, 0xD8))),
    "BIG5": ("cp950", "cp950", tuple(range(0xA1, 0xC7))),
    "EUC-JP": ("euc_jp", "euc_jp", (*range(0xA1, 0xA6), *range(0xB0, 0xD0))),
    "SHIFT_JIS": ("cp932", "euc_jp", (*range(0xA1, 0xA6), *range(0xB0, 0xD0))),
}
LEAST = 0.9  # of the characters are common ones in the encoding that a text looks to be in


class NotText(ValueError):
    """What is no text in any encoding."""


def text_reader(stream: BinaryIO, name: str, live: bool = False) -> io.TextIOWrapper:
    """The text of a binary stream, which is unpacked if its name ends in .gz.

    It is UTF-8, or UTF-16 or UTF-32 if a byte order mark says so. The mark is not text, every end of a line is "\\n",
    and a byte that does not belong there becomes a lone surrogate.
    live: no more is waited for than the line that is read; what comes first tells the encoding.
    Raises ValueError for text in another encoding, with its name if that can be told and the command that converts it;
    NotText for what is none; ValueError, also while it is read, for a damaged .gz.
    """
    codecs.register_error(ESCAPE, lambda error: (ESCAPED * (error.end - error.start), error.end))
    stream = gzip.GzipFile(fileobj=stream) if name.lower().endswith(PACKED) else stream
    raw = _Headed(stream.read1 if live else stream.read, name)
    return io.TextIOWrapper(io.BufferedReader(raw, HEAD), _encoding(raw.head, name), ESCAPE)


def read_text(stream: BinaryIO, name: str) -> str:
    """The whole of what `text_reader` reads, with U+FFFD for what does not belong there, and a note of it."""
    with naming(name):
        return clean(text_reader(stream, name).read())


class _Headed(io.RawIOBase):
    """A stream that shows its first bytes before they are read. source: gives up to so many bytes, none at the end."""

    def __init__(self, source: Callable[[int], bytes], name: str):
        self.source, self.name = source, name
        self.head = self._read(HEAD)

    def readable(self):
        return True

    def readinto(self, buffer):
        raw = self.head[: len(buffer)] or self._read(len(buffer))
        self.head = self.head[len(raw) :]
        buffer[: len(raw)] = raw
        return len(raw)

    def _read(self, size: int) -> bytes:
        try:
            with naming(self.name):
                return self.source(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self.name} is damaged ({error}); get it again, or pack the text again") from None


def _encoding(head: bytes, name: str) -> str:
    """The codec of a text that begins with these bytes. Raises as `text_reader` does."""
    codec = next((codec for mark, codec in MARKS.items() if head.startswith(mark)), UTF8)
    text = _decoded(head, codec, ESCAPE)
    wrong = text.count(ESCAPED)
    fits = not too_many(wrong, len(head)) and "\0" not in text
    # No text has many of these: then the bytes are no characters, but may be halves of some, also where all are ASCII.
    controls = b"\0" in head or too_many(len(CONTROL.findall(head)), len(head))
    if fits and (codec != UTF8 or not controls):
        return codec
    # In UTF-16 of a script that has zero bytes at all, half of the bytes are zero or control characters.
    stray = not wrong and 0 < head.count(0) <= len(head) / 4 and not CONTROL.search(head)
    encoding = None if stray else _looks_like(head, controls)
    if encoding:
        raise ValueError(f"{name} is not UTF-8, but looks like {encoding}; {_conversion(name, encoding)}")
    if fits:
        return codec
    if controls:
        why = "zero bytes" if b"\0" in head else "control characters"
        raise NotText(f"{name} is not text, it holds {why}; unpack it, or save it as UTF-8")
    raise not_utf8(name, f"{wrong:,} of its first {len(head):,} bytes are not")


def too_many(wrong: int, size: int) -> bool:
    """Whether so many wrong bytes among `size` are more than damage."""
    return wrong > max(FEW, SHARE * size)


def not_utf8(name: str, why: str) -> ValueError:
    """The error of a text in an encoding that cannot be told."""
    return ValueError(f"{name} is not UTF-8 ({why}); {_conversion(name)}, where -c -f UTF-8 drops what is not UTF-8")


def _conversion(name: str, encoding: str = "ITS_ENCODING") -> str:
    """`convert it: iconv ...`"""
    command = f"iconv -f {encoding} -t UTF-8"
    root, ending = os.path.splitext(name)
    if ending.lower() == PACKED:
        root, ending = os.path.splitext(root)
        command = f"gunzip -c {shlex.quote(name)} | {command}"
    elif name != "stdin":
        command += f" {shlex.quote(name)}"
    return f"convert it: {command}" + (f" > {shlex.quote(f'{root}.utf8{ending}')}" if name != "stdin" else "")


def _decoded(head: bytes, codec: str, errors: str) -> str:
    """The text of these bytes, less a character of which more is to come."""
    return codecs.getincrementaldecoder(codec)(errors).decode(head, final=len(head) < HEAD)


def _looks_like(head: bytes, wide: bool) -> str | None:
    """iconv's name of the encoding in which nearly all characters are common ones, or None.

    wide: whether only those come into question where every character has two bytes or four.
    Where two fit alike it is the first: what is all Hangul in EUC-KR is Chinese in GB18030, but hardly the reverse.
    """
    levels = {encoding: _characters(*standard) for encoding, (_, *standard) in LEVELS.items()}
    eastern = frozenset().union(*levels.values())
    shares = {encoding: _share(_decoded(head, encoding, "replace"), _Wide(eastern)) for encoding in WIDE}
    if not wide:
        for encoding, level in levels.items():
            shares[encoding] = _share(_beyond_ascii(_decoded(head, LEVELS[encoding][0], "replace")), level)
        for encoding, alphabets in ALPHABETS.items():
            text = _decoded(head, encoding, "replace")
            # No word has letters of such an alphabet and Latin ones.
            text = text.lower() if encoding in LATIN else MIXED.sub("\ufffd", text)
            shares[encoding] = max(_share(_beyond_ascii(text), alphabet + SIGNS) for alphabet in alphabets)
    best = max(shares, key=shares.get)
    return best if shares[best] >= LEAST else None


def _beyond_ascii(text: str) -> list[str]:
    return [char for char in text if char > "\x7f"]


def _share(text: Collection[str], common: Collection[str]) -> float:
    return sum(char in common for char in text) / max(1, len(text))


@functools.cache  # of many files in another encoding each would wait for it
def _characters(codec: str, firsts: tuple[int, ...]) -> frozenset[str]:
    """Those of two bytes, of which the first is one of `firsts`."""
    pairs = (bytes([first, second]) for first in firsts for second in range(0x40, 0xFF))
    return frozenset(char for pair in pairs for char in pair.decode(codec, "ignore") if char > "\x7f")


class _Wide(frozenset):
    """The common characters of UTF-16 and UTF-32: some of Eastern Asia, and what is assigned in other alphabets."""

    def __contains__(self, char):
        alphabetic = char < "\u1000" or "\u2000" <= char < "\u2100"
        return super().__contains__(char) or char in "\t\n\r" or (alphabetic and unicodedata.category(char)[0] != "C")
