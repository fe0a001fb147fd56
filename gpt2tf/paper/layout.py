"""Where the tokens of a text stand on a page: signs that several tokens make, lines and their surprise, blocks.

A line is `<div class="l">` with its surprise and its text; the browser numbers what is in the text: an element `<i>`, which
stands for a character that is marked, is one, and other characters are as many as they have units of UTF-16.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import regex

from gpt2tf.paper.visible import mark

EDGES = (1, 2, 4, 6, 8, 10, 13)  # bits at which the next darker shade begins; page.css has the shades
LONGEST = 2000  # characters of a line in one piece, because a browser lays out a piece as a whole
BLOCK = 4000  # characters that become tokens together when they come into sight,
LINES = 60  # or pieces
JOINT = 16  # tokens that may be one sign, as those of an emoji are; accents can be heaped up without an end
SIGN = regex.compile(r"\r|\X")  # one character to a reader: a letter and its accents, all that makes an emoji
SPECIAL = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("\n"): '<i data-c="a" class="n"></i>'}


def shade(bits: float) -> str:
    """The class of a surprise: s0 to s7, or none for NaN."""
    return "none" if math.isnan(bits) else f"s{sum(bits >= edge for edge in EDGES)}"


class Layout:
    """The layout of one text.

    Args:
        tokens: the bytes of its tokens.
        bits: their surprise, float [tokens], NaN for a token without one.

    widths [tokens]: how much of the numbered text a sign takes, at its first token; 0 at the others.
    """

    def __init__(self, tokens: Sequence[bytes], bits: np.ndarray):
        self.bits = np.asarray(bits, np.float64)  # [tokens]
        self.lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))  # [tokens], bytes
        self.text = b"".join(tokens).decode("utf-8", "surrogateescape")
        self.codes = codes = np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), "<u4")  # [chars]
        self.marks = {chr(code): name for code in np.unique(codes).tolist() if (name := mark(chr(code)))}
        self.marks.pop("\n", None)
        self.marks.pop("\t", None)

        size = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)  # [chars], bytes in UTF-8
        size[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1
        char_starts = _sums(size)  # [chars + 1], bytes
        token_starts = _sums(self.lengths)[:-1]  # [tokens], bytes
        self.place = np.searchsorted(char_starts, token_starts, "right") - 1  # [tokens], the character it begins in
        self.first = self._first(char_starts[self.place] == token_starts)  # [tokens], whether a sign begins with it

        units = 1 + (codes >= 0x10000) - np.isin(codes, [ord(c) for c in self.marks if ord(c) >= 0x10000])  # [chars]
        starts = np.append(self.place[self.first], len(codes))
        self.widths = np.zeros(len(tokens), np.int64)
        self.widths[self.first] = np.diff(_sums(units)[starts])
        self.sign_starts = starts[:-1]  # [signs], characters

    def _first(self, whole: np.ndarray) -> np.ndarray:
        """[tokens] whether each begins a sign, of whether it begins a character."""
        inside = np.zeros(len(self.text) + 1, bool)
        if not self.text.isascii():
            for found in SIGN.finditer(self.text):
                if found.end() - found.start() > 1:
                    inside[found.start() + 1 : found.end()] = True
        first = whole & ~inside[self.place] & (self.lengths > 0)
        first[:1] = True
        begun = 0
        for token in np.flatnonzero(~first).tolist():
            if first[token - 1]:
                begun = token - 1
            if token - begun >= JOINT and whole[token]:
                first[token] = True
        return first

    def html(self, first: int) -> str:
        """The text in HTML, without white space that is not its own. first: the number of its first token on the page."""
        escapes = SPECIAL | {ord(c): self._marked(c, name) for c, name in self.marks.items()}
        first_at = dict(zip(self.sign_starts.tolist(), np.flatnonzero(self.first).tolist(), strict=True))
        parts, chars, pieces = [], BLOCK, 0
        for margin, start, end, attributes in self._pieces():
            if (chars >= BLOCK or pieces >= LINES) and start in first_at:
                parts.append(f'{"</div>" if parts else ""}<div class="b" data-t="{first + first_at[start]}">')
                chars = pieces = 0
            shown = self.text[start:end].translate(escapes)
            parts.append(f'<div class="l">{margin}<div class="c" {attributes}>{shown}</div></div>')
            chars, pieces = chars + end - start, pieces + 1
        return "".join(parts) + "</div>" * bool(parts)

    @staticmethod
    def _marked(char: str, name: str) -> str:
        code = 0xFFFD if 0xDC80 <= ord(char) <= 0xDCFF else ord(char)
        return f'<i data-c="{code:x}" data-m="{html.escape(name)}"></i>'

    def _pieces(self) -> Iterator[tuple[str, int, int, str]]:
        """(margin, start, end, attributes) of each line, or of each piece of a long one."""
        ends = np.append(np.flatnonzero(self.codes == ord("\n")) + 1, len(self.codes))  # [lines]
        line = np.searchsorted(ends, self.place, "right").clip(max=len(ends) - 1)  # [tokens], the one it begins in
        known = ~np.isnan(self.bits)
        counts = np.bincount(line[known], minlength=len(ends)).tolist()
        sums = np.bincount(line[known], self.bits[known], minlength=len(ends)).tolist()
        start = 0
        for end, count, bits in zip(ends.tolist(), counts, sums, strict=True):
            if start == end:
                continue  # behind a last "\n"
            margin = _margin(count, bits)
            attributes = 'dir="auto"' if end - start <= LONGEST else f'dir="{_direction(self.text[start:end])}"'
            while end - start > LONGEST:
                cut = self._cut(start, end)
                yield margin, start, cut, attributes
                margin, start = "", cut
            if start < end:
                yield margin, start, end, attributes
            start = end

    def _cut(self, start: int, end: int) -> int:
        """Where a piece of a long line may end: before a blank if there is one, between signs."""
        blank = self.text.rfind(" ", start + LONGEST // 2, start + LONGEST)
        wanted = start + LONGEST if blank < 0 else blank
        sign = int(np.searchsorted(self.sign_starts, wanted, "right")) - 1
        if self.sign_starts[sign] <= start:  # a sign of its own length
            sign += 1
        return min(end, int(self.sign_starts[sign])) if sign < len(self.sign_starts) else end


def _sums(sizes: np.ndarray) -> np.ndarray:
    """[n + 1] where each of n things begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _margin(count: int, bits: float) -> str:
    """The surprise of a line, as the mean of its tokens."""
    if not count:
        return ""
    title = f"{bits:,.1f} bits in {count:,} token{'s' * (count > 1)}"
    return f'<span class="m {shade(bits / count)}" data-m="{bits / count:.1f}" title="{title}"></span>'


def _direction(line: str) -> str:
    """What dir="auto" would find for a whole line, of which each piece would find its own."""
    kinds = map(unicodedata.bidirectional, line)
    return "rtl" if next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L" else "ltr"
