"""De-tokenizers: from the text of a published set, where everything stands apart, to text as people write it, and back.

The paper used "invertible de-tokenizers" and did not publish them. Invertible means that the probability of the text
that comes out is that of the set. These are so by construction: whether a space between two characters is turned (taken
away where it is, put in where it is not) depends on the characters of the line and on the spaces of the original to the
right, both of which the inverse knows too, as it goes from right to left. And a symbol of the set ("@-@") and the sign
that people write ("-") change places where people would read the sign so, and only there. So a rule may be wrong about
a text, which then looks odd ("a ,b" stays so), but never loses what was there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

CLITICS = {"'s", "'m", "'d", "'re", "'ve", "'ll"}
# Before their period the spacing is left as it is: they are written with it, in these sets too.
ABBREVIATIONS = (
    "Mr Mrs Ms Dr St Mt Ft Jr Sr No Nos Inc Ltd Co Corp Bros vs Lt Col Gen Sgt Capt Maj Adm Cmdr Rev Prof Gov Sen Rep "
    "Hon Pres Ave Blvd Rd Jan Feb Mar Apr Jun Jul Aug Sept Sep Oct Nov Dec etc"
).split()
ABBREVIATED = re.compile(rf"(?:[A-Za-z]\.[A-Za-z]|(?:^|[^A-Z])[A-Z]|{'|'.join(ABBREVIATIONS)})$")
LONGEST = max(map(len, ABBREVIATIONS))
MONEY = "$£€#"
JOINED = {"@-@": "-", "@,@": ",", "@.@": "."}  # of WikiText: what stood between two parts of a word or number
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}  # of Stanford's tokenizer, with which the Children's Book Test was made
QUOTES = {"``": '"', "''": '"'}
# One character for each while a line is worked on: noncharacters of Unicode, which no text has.
SYMBOLS = dict(zip([*JOINED, *BRACKETS, *QUOTES], map(chr, range(0xFDD0, 0xFDD7)), strict=True))
HYPHEN, COMMA, POINT, LEFT, RIGHT, OPENING, CLOSING = SYMBOLS.values()


class Gap(NamedTuple):
    """A place between two characters of a line, spaces not counted."""

    chars: str  # of the line, without its spaces
    at: int  # the place is before this one
    end: int  # where the next space of the original is

    @property
    def left(self) -> str:
        return self.chars[self.at - 1]

    @property
    def right(self) -> str:
        return self.chars[self.at]

    @property
    def token(self) -> str:
        """What follows up to the next space."""
        return self.chars[self.at : self.end]

    def around(self, sign: str, fits: Callable[[str], bool]) -> bool:
        """Whether it is a place beside `sign`, between two characters that fit."""
        for place in (self.at, self.at - 1):
            if self.chars[place] == sign and 0 < place < len(self.chars) - 1:
                return fits(self.chars[place - 1]) and fits(self.chars[place + 1])
        return False


def _in_word(char: str) -> bool:
    return char.isalnum() or char in "<>"  # of <unk>


def _clitic(gap: Gap) -> bool:
    """Before the second half of "it 's", "players '"."""
    if gap.token == "'":
        return gap.left == "s"
    return gap.token.lower() in CLITICS and (gap.left.isalnum() or gap.left in ">.")


def _moses_not(gap: Gap) -> bool:
    """In "don 't", as WikiText and the One Billion Words have it."""
    return gap.token == "'t" and gap.left == "n"


def _penn_not(gap: Gap) -> bool:
    """In "do n't", as Penn Treebank and the Children's Book Test have it."""
    return gap.token == "n't" and gap.left.isalpha()


def _english(gap: Gap) -> bool:
    """What the sets with punctuation have in common."""
    left, right, token = gap.left, gap.right, gap.token
    if token in {",", ";", ":", "?", "!", ")", "]", "..."}:
        return True
    if token == ".":
        return left != "." and not ABBREVIATED.search(gap.chars[max(0, gap.at - LONGEST) : gap.at])
    if right == "'":
        return _clitic(gap)
    if token == "%":
        return left.isdigit()
    if left in MONEY:
        return right.isdigit()
    return left in "([" or gap.around(":", str.isdigit)


def _straight_quotes(gap: Gap) -> bool:
    """Beside a quotation mark, on the inner side: the first, third, ... of a line opens."""
    if gap.token == '"':
        return gap.chars.count('"', 0, gap.at) % 2 == 1
    return gap.left == '"' and gap.chars.count('"', 0, gap.at) % 2 == 1


def _one_billion(gap: Gap) -> bool:
    return _english(gap) or _moses_not(gap) or _straight_quotes(gap)


def _wikitext(gap: Gap) -> bool:
    for sign in (HYPHEN, COMMA, POINT):
        if sign in (gap.left, gap.right):
            return gap.around(sign, _in_word if sign == HYPHEN else str.isdigit)
    if gap.left == gap.right == "=":  # "= = Title = ="
        return gap.chars[0] == gap.chars[-1] == "="
    if gap.around("–", str.isdigit) or gap.around("/", str.isalnum) or gap.around("°", str.isalnum):
        return True
    return _one_billion(gap)


def _ptb(gap: Gap) -> bool:
    """It is in small letters, its numbers are N, and periods are left only in abbreviations."""
    if gap.left in MONEY:
        return gap.token == "N"
    return _clitic(gap) or _penn_not(gap)


def _cbt(gap: Gap) -> bool:
    if gap.right == CLOSING or gap.left == OPENING:
        return "'" not in (gap.left, gap.right) and "`" not in (gap.left, gap.right)
    return gap.token == RIGHT or gap.left == LEFT or _penn_not(gap) or _english(gap)


class Detokenizer(NamedTuple):
    """A de-tokenizer of a set, and its inverse. Both take a text of any number of lines."""

    name: str
    turns: Callable[[Gap], bool]  # whether a space at this place is turned
    where: re.Pattern  # of the places that may be turned; there is nothing to be asked at others
    symbols: dict[str, str] = {}  # what the set writes for a sign: {"@-@": "-"}
    edges: bool = False  # its lines begin and end with a space

    def __call__(self, text: str) -> str:
        """The text as people write it."""
        return _by_lines(self._line, text)

    def inverse(self, text: str) -> str:
        """The set's text of what `__call__` made of it."""
        return _by_lines(self._line_back, text)

    def _line(self, line: str) -> str:
        chars, gaps = _parted(self._marked(line))
        out = self._turned(chars, gaps, back=False)
        return self._written(self._exchanged(chars, out), out)

    def _line_back(self, line: str) -> str:
        chars, gaps = _parted(self._marked(line))
        chars = self._exchanged(chars, gaps)
        return self._written(chars, self._turned(chars, gaps, back=True))

    def _marked(self, line: str) -> str:
        """With one character for each symbol."""
        for spelling in self.symbols:
            line = line.replace(spelling, SYMBOLS[spelling])
        return line

    def _turned(self, chars: str, gaps: list[int], back: bool) -> list[int]:
        """The number of spaces at each place, turned. back: it is the original's that comes out."""
        out, end = list(gaps), len(chars)
        if self.edges:
            for at in {0, len(chars)}:
                out[at] = _turn(gaps[at])
        places = {match.start() for match in self.where.finditer(chars)} | {at for at, n in enumerate(gaps) if n}
        for at in sorted(places - {0, len(chars)}, reverse=True):
            if self.turns(Gap(chars, at, end)):
                out[at] = _turn(gaps[at])
            if (out if back else gaps)[at]:
                end = at
        return out

    def _exchanged(self, chars: str, out: list[int]) -> str:
        """With symbols for their signs and signs for their symbols, where people would read the sign so."""
        if not self.symbols:
            return chars
        signs = {SYMBOLS[spelling]: sign for spelling, sign in self.symbols.items()}
        result = list(chars)
        for at, char in enumerate(chars):
            if char in signs or char in signs.values():
                symbol = _symbol_at(chars, out, at, signs.get(char, char))
                if symbol and char in (SYMBOLS[symbol], self.symbols[symbol]):
                    result[at] = self.symbols[symbol] if char in signs else SYMBOLS[symbol]
        return "".join(result)

    def _written(self, chars: str, gaps: list[int]) -> str:
        spellings = {SYMBOLS[spelling]: spelling for spelling in self.symbols}
        parts = [" " * n + spellings.get(char, char) for char, n in zip(chars, gaps, strict=False)]
        return "".join(parts) + " " * gaps[-1]


def _by_lines(change: Callable[[str], str], text: str) -> str:
    *lines, rest = text.split("\n")
    return "\n".join([*map(change, lines), rest if rest in ("", " ") else change(rest)])  # no line follows a last "\n"


def _parted(line: str) -> tuple[str, list[int]]:
    """The characters without the spaces, and the number of spaces before each and at the end."""
    pieces = line.split(" ")
    chars = "".join(pieces)
    gaps, at = [0] * (len(chars) + 1), 0
    for piece in pieces[:-1]:
        at += len(piece)
        gaps[at] += 1
    return chars, gaps


def _turn(spaces: int) -> int:
    return {0: 1, 1: 0}.get(spaces, spaces)


def _symbol_at(chars: str, out: list[int], at: int, sign: str) -> str | None:
    """The spelling for which people write `sign` here. Of its neighbours it sees only what no exchange can change."""
    before, after = chars[at - 1 : at] if at else "", chars[at + 1 : at + 2]
    if sign == '"':
        if {before, after} & {"'", "`"}:
            return None
        if not out[at + 1] and after and (out[at] or not before or before in f"({LEFT}[-"):
            return "``"
        closes = not out[at] and before and (out[at + 1] or not after or not after.isalnum())
        return "''" if closes else None
    if sign in BRACKETS.values():
        return "-LRB-" if sign == "(" else "-RRB-"
    fits = _in_word if sign == "-" else str.isdigit
    return f"@{sign}@" if not (out[at] or out[at + 1]) and before and after and fits(before) and fits(after) else None


ENGLISH = rf"(?=[],;:?!).'%])|(?<=[(\[:{MONEY}])"
WIKITEXT = Detokenizer(
    "wikitext",
    _wikitext,
    re.compile(rf'{ENGLISH}|(?=["–/°=])|(?<=["–/°={HYPHEN}{COMMA}{POINT}])|(?=[{HYPHEN}{COMMA}{POINT}])'),
    JOINED,
    edges=True,
)
PTB = Detokenizer("ptb", _ptb, re.compile(rf"(?=')|(?=n't)|(?<=[{MONEY}])"), edges=True)
ONE_BILLION = Detokenizer("1bw", _one_billion, re.compile(rf'{ENGLISH}|(?=")|(?<=")'))
CBT = Detokenizer(
    "cbt",
    _cbt,
    re.compile(rf"{ENGLISH}|(?=n't)|(?=[{RIGHT}{CLOSING}])|(?<=[{LEFT}{OPENING}])"),
    BRACKETS | QUOTES,
)
