"""Where a sentence ends: one simple rule, for what a model generates."""

from __future__ import annotations

import re

# After . ! ? or … and the quotation marks and brackets that close there, before white space or the end of the text; but
# not after the dot of a single letter, as in "J. Smith" and "the U.S. economy". And at the end of a line.
END = re.compile(r"""(?:[!?…]|(?<!\b[^\W\d_])\.)["'”’)\]]*(?:\s?»)?(?=\s|\Z)|\n""")


def sentences(text: str, most: int | None = None) -> list[str]:
    """The first `most` sentences of a text, or all, without the white space around them. What is left is one too."""
    found, start = [], 0
    for end in [*(match.end() for match in END.finditer(text)), len(text)]:
        sentence, start = text[start:end].strip(), end
        if sentence:
            found.append(sentence)
    return found[:most]
