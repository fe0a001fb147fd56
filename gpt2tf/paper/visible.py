"""Text made visible: what is not seen, or acts on what is beside it, is named by a mark."""

from __future__ import annotations

import html
import unicodedata

CONTROLS = (  # the abbreviations of ASCII
    "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI "
    "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
).split()
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # the categories of controls, formats, surrogates and separators of lines
JOINERS = "\u200c\u200d"  # of Cf, but they shape the letters and emoji beside them
SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"  # of Cf, but seen


def mark(char: str) -> str | None:
    r"""What is shown in place of a character that is not seen, or that acts on its neighbours; None of any other.

    "ESC" of an escape, "U+202E" of a right-to-left override, r"\xff" of a byte that is not UTF-8, for which the lone
    surrogate of Python's "surrogateescape" stands.
    """
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return rf"\x{code - 0xDC00:02x}"
    if char in JOINERS or char in SIGNS or unicodedata.category(char) not in HIDDEN:
        return None
    return CONTROLS[code] if code < len(CONTROLS) else "DEL" if code == 127 else f"U+{code:04X}"


def escape(text: str) -> str:
    """Text as HTML, with marks."""
    return html.escape("".join(mark(char) or char for char in text))


def token_name(raw: bytes) -> str:
    r"""What a token is called where it stands alone: its blanks are marked as well, each mark between two NUL.

    b" a\n" is "\0␣\0a\0\\n\0".
    """
    shown = []
    for char in raw.decode("utf-8", "surrogateescape"):
        name = {" ": "␣", "\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(char) or mark(char)
        kind = unicodedata.category(char)
        if name is None and (kind == "Zs" or char in JOINERS):
            name = f"U+{ord(char):04X}"
        if name is None and kind[0] == "M" and not shown:
            char = f"\u25cc{char}"  # the dotted circle carries an accent that has no letter
        shown.append(char if name is None else f"\0{name}\0")
    return "".join(shown)
