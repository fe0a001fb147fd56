"""Where the tokens of a text stand on a page: in lines, in blocks, and several of them in one sign.

A sign is what a reader takes for one character: a letter with its accents, all that makes an emoji. A block is
`<div class="b">` with the text of some lines, or with a piece of a long one; in it an element `<i>` stands for a
character that is marked. page.js makes the tokens of a block when it comes into sight.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import regex

from gpt2tf.paper.visible import mark

EDGES = (1, 2, 4, 6, 8, 10, 13)  # bits at which the next darker shade begins; page.css has the shades
LONGEST = 2000  # characters of a line in one block, because a browser lays out a line as a whole
BLOCK = 4000  # characters after which the next line begins a block
LINES = 100
JOINT = 16  # tokens in one sign; accents can be heaped up without an end
SIGN = regex.compile(r"\r|\X")
FLAG = regex.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f")  # of Scotland, say, spelt in tags
ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}
SEEN = "\n\t"  # by what they do to the text


def shade(bits: float) -> str:
    """The class of a surprise: s0 to s7, or none for NaN."""
    return "none" if math.isnan(bits) else f"s{sum(bits >= edge for edge in EDGES)}"


class Block(NamedTuple):
    start: int  # its first character
    end: int  # behind its last one
    line: int  # its first line, counted in the text
    begins: bool  # whether that line begins with it
    direction: str  # "ltr" or "rtl" for a piece of a long line; "" for lines, each of which tells its own


class Layout:
    """The layout of one text.

    Args:
        tokens: the bytes of its tokens.
        bits: their surprise, float [tokens], NaN for a token without one.

    Has `widths` [tokens]: how much of the text a sign takes, at its first token, and 0 at the others. A mark counts as
    1, other characters as many as they have units of UTF-16. Of the lines it has `line_bits` and `line_tokens` [lines]:
    the sum of the surprise, and how many tokens it is of; a token belongs to the line in which it begins.
    """

    def __init__(self, tokens: Sequence[bytes], bits: np.ndarray):
        self.bits = np.asarray(bits, np.float64)  # [tokens]
        self.lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))  # [tokens], bytes
        self.text = b"".join(tokens).decode("utf-8", "surrogateescape")
        codes = np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), "<u4")  # [chars]
        self.marks = _marks(self.text, codes)

        sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)  # [chars], bytes in UTF-8
        sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # bytes that are not UTF-8
        char_starts, token_starts = _starts(sizes), _starts(self.lengths)[:-1]  # bytes
        chars = np.searchsorted(char_starts, token_starts, "right") - 1  # [tokens], the character it begins in
        first = self._first(chars, (char_starts[chars] == token_starts) & (self.lengths > 0))  # [tokens]
        self.sign_tokens, self.sign_starts = np.flatnonzero(first), chars[first]  # [signs]
        self.begins = np.zeros(len(codes) + 1, bool)  # [chars + 1], whether a sign begins there
        self.begins[self.sign_starts] = True

        units = 1 + ((codes >= 0x10000) & ~np.isin(codes, [ord(char) for char in self.marks]))  # [chars]
        self.widths = np.zeros(len(tokens), np.int64)
        self.widths[first] = np.diff(_starts(units)[np.append(self.sign_starts, len(codes))])

        self.line_ends = np.append(np.flatnonzero(codes == ord("\n")) + 1, len(codes))  # [lines], characters
        lines = np.searchsorted(self.line_ends, chars, "right").clip(max=len(self.line_ends) - 1)  # [tokens]
        known = ~np.isnan(self.bits)
        self.line_tokens = np.bincount(lines[known], minlength=len(self.line_ends))
        self.line_bits = np.bincount(lines[known], self.bits[known], minlength=len(self.line_ends))

    def _first(self, chars: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """[tokens] whether a sign begins with each. whole: whether a character does."""
        inside = np.zeros(len(self.text) + 1, bool)
        if not self.text.isascii():
            for found in SIGN.finditer(self.text):
                if found.end() - found.start() > 1:
                    inside[found.start() + 1 : found.end()] = True
        first = whole & ~inside[chars]
        begun = 0
        for token in np.flatnonzero(~first).tolist():
            if token and first[token - 1]:
                begun = token - 1
            if token - begun >= JOINT and whole[token]:
                first[token] = True
        return first

    def html(self, token: int, line: int) -> str:
        """The blocks in HTML, with no white space but that of the text.

        token, line: how many stand before the text on its page.
        """
        escapes = ESCAPES | {ord(char): _marked(char, name) for char, name in self.marks.items()}
        parts = []
        for block in self.blocks():
            first = token + int(self.sign_tokens[np.searchsorted(self.sign_starts, block.start)])
            attributes = f' dir="{block.direction}"' if block.direction else ""
            attributes += "" if block.begins else " data-on"
            shown = self.text[block.start : block.end].translate(escapes)
            parts.append(f'<div class="b" data-t="{first}" data-l="{line + block.line}"{attributes}>{shown}</div>')
        return "".join(parts)

    def blocks(self) -> Iterator[Block]:
        block = None
        for piece in self._pieces():
            long = block and (block.direction or block.end - block.start >= BLOCK or piece.line - block.line >= LINES)
            if block is None or (long or piece.direction) and self.begins[piece.start]:
                if block:
                    yield block
                block = piece
            else:
                block = block._replace(end=piece.end)
        if block:
            yield block

    def _pieces(self) -> Iterator[Block]:
        """Each line, a long one in pieces."""
        start = 0
        for line, end in enumerate(self.line_ends.tolist()):
            direction = _direction(self.text[start:end]) if end - start > LONGEST else ""
            begins = True
            while end - start > LONGEST:
                cut = self._cut(start, end)
                yield Block(start, cut, line, begins, direction)
                start, begins = cut, False
            if start < end:  # nothing stands behind a last "\n"
                yield Block(start, end, line, begins, direction)
            start = end

    def _cut(self, start: int, end: int) -> int:
        """Where a piece may end: before a blank if there is one, between signs."""
        blank = self.text.rfind(" ", start + LONGEST // 2, start + LONGEST)
        wanted = start + LONGEST if blank < 0 else blank
        sign = int(np.searchsorted(self.sign_starts, wanted, "right")) - 1
        if self.sign_starts[sign] <= start:  # one sign is as long as a piece
            sign += 1
        return min(end, int(self.sign_starts[sign])) if sign < len(self.sign_starts) else end


def _starts(sizes: np.ndarray) -> np.ndarray:
    """[n + 1] where each of n things begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _marks(text: str, codes: np.ndarray) -> dict[str, str]:
    """The marks of the characters in a text. The tags that spell a flag have none, unless there are others as well."""
    found = {char: name for char in map(chr, np.unique(codes).tolist()) if (name := mark(char)) and char not in SEEN}
    tags = {char for char in found if "\U000e0020" <= char <= "\U000e007f"}
    if tags and not tags & set(FLAG.sub("", text)):
        found = {char: name for char, name in found.items() if char not in tags}
    return found


def _marked(char: str, name: str) -> str:
    code = 0xFFFD if 0xDC80 <= ord(char) <= 0xDCFF else ord(char)
    return f'<i data-c="{code:x}" data-m="{html.escape(name)}"></i>'


def _direction(line: str) -> str:
    """The direction of a line, which its pieces might tell otherwise one by one."""
    kinds = map(unicodedata.bidirectional, line)
    return "rtl" if next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L" else "ltr"
