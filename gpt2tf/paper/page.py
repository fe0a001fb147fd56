"""Pages: HTML documents that need nothing else, and the page of scored texts, on which each token is shaded.

The style is page.css. A page of texts holds them as they are, to be read, found, selected and printed without a script;
page.js makes tokens of what comes into sight, so that a long text is there at once. What is known of the tokens is
packed into arrays of numbers for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt2tf.paper.layout import EDGES, Layout, shade
from gpt2tf.paper.visible import escape, token_name

if TYPE_CHECKING:
    from gpt2tf import encoder
    from gpt2tf.paper.score import Score

HERE = Path(__file__).parent
HELP = (
    "Point at a token, or go to the text by Tab and to a token by the arrow keys, Home and End, for its probability, "
    "rank and alternatives; a click or tap keeps them there, Escape takes them away. The number beside a line is the "
    "mean surprise of its tokens in bits."
)


class Text(NamedTuple):
    """A text to be shown."""

    heading: str | None
    tokens: Sequence[int]  # the ids
    score: Score  # of these tokens


def document(title: str, body: str, script: str = "") -> str:
    """A whole page around `body`, which is HTML: the style of page.css, light and dark, nothing from a network.

    title: text, which may hold anything; `visible.escape` makes HTML of such text. script: the only JavaScript that a
    browser runs on this page. The page is to be written as UTF-8.
    """
    style = (HERE / "page.css").read_text(encoding="utf-8")
    sources = {"style-src": style} | ({"script-src": script} if script else {})
    allowed = "".join(f"{kind} 'sha256-{_sha256(source)}'; " for kind, source in sources.items())
    policy = f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def _sha256(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def scored_texts(title: str, texts: Sequence[Text], enc: encoder.Encoder) -> str:
    """The page of scored texts: tokens shaded by surprise, with probability, rank and alternatives when pointed at.

    enc: of the model that scored them. All scores have equally many alternatives, or none. A token with NaN has no
    shade. Tokens that only together make a sign, as those of an emoji, are shown in one place with one shade.
    """
    bytes_of = _Bytes(enc)
    layouts = [
        Layout([bytes_of[token] for token in text.tokens], _bits(text.score.log_probabilities)) for text in texts
    ]
    token, line, sections = 0, 0, []
    for text, layout in zip(texts, layouts, strict=True):
        heading = "" if text.heading is None else f'<h2 dir="auto">{escape(text.heading)}</h2>'
        totals = _totals([layout]) if len(texts) > 1 else ""
        # One stop of Tab for the whole text, in a role in which screen readers let arrow keys pass.
        sections.append(
            f'<section>{heading}{totals}<div class="text" lang="" tabindex="0" role="textbox" aria-readonly="true" '
            f'aria-multiline="true" aria-label="{escape(text.heading or title)}" aria-describedby="help">'
            f"{layout.html(token, line)}</div></section>"
        )
        token, line = token + len(text.tokens), line + len(layout.line_bits)
    data = json.dumps(_data(texts, layouts, bytes_of)).replace("<", r"\u003c")
    body = (
        f'<header><h1 dir="auto">{escape(title)}</h1>{_totals(layouts)}{_legend()}<p id="help">{HELP}</p></header>\n'
        f'<main>{"".join(sections)}</main>\n<div id="panel" role="status"></div>\n'
        f'<script type="application/json" id="data">{data}</script>'
    )
    return document(title, body, (HERE / "page.js").read_text(encoding="utf-8"))


class _Bytes(dict):
    """The bytes of tokens by their ids; of an id without a token, as models with padded tables have, its number."""

    def __init__(self, enc: encoder.Encoder):
        self.enc = enc

    def __missing__(self, token: int) -> bytes:
        try:
            raw = self.enc.decode_bytes([int(token)])
        except KeyError:
            raw = f"<{token}>".encode()
        self[token] = raw
        return raw


def _bits(log_probabilities: np.ndarray) -> np.ndarray:
    """The surprise of log probabilities in nats; rounding makes some of them larger than 0."""
    return np.maximum(np.asarray(log_probabilities, np.float64) / -math.log(2), 0)


def _data(texts: Sequence[Text], layouts: Sequence[Layout], bytes_of: _Bytes) -> dict:
    """What page.js knows of the tokens and lines of all texts in a row.

    `ids` and `names` are of the distinct tokens; `tokens` [tokens] and `alternatives` [tokens, n] are indexes of them.
    `bits` [tokens] and `alternativeBits` [tokens, n] are their surprise, the latter in float16. The rest is Layout's.
    """
    scores = [text.score for text in texts]
    tokens = _joined(text.tokens for text in texts).astype(np.int64)  # [tokens]
    alternatives = _joined(np.ravel(score.alternatives) for score in scores).astype(np.int64)  # [tokens * n]
    their_bits = _bits(_joined(np.ravel(score.alternative_log_probabilities) for score in scores))  # [tokens * n]
    ids, indexes = np.unique(np.concatenate([tokens, alternatives]), return_inverse=True)
    return {
        "edges": EDGES,
        "ids": ids.tolist(),
        "names": [token_name(bytes_of[token]) for token in ids.tolist()],
        "tokens": _packed(indexes[: len(tokens)]),
        "bits": _packed(_joined(layout.bits for layout in layouts).astype("<f4")),
        "ranks": _packed(_joined(score.ranks for score in scores)),
        "widths": _packed(_joined(layout.widths for layout in layouts)),
        "lineBits": _packed(_joined(layout.line_bits for layout in layouts).astype("<f4")),
        "lineTokens": _packed(_joined(layout.line_tokens for layout in layouts)),
        "n": len(alternatives) // max(1, len(tokens)),
        "alternatives": _packed(indexes[len(tokens) :]),
        "alternativeBits": _packed(their_bits.clip(max=np.finfo("<f2").max).astype("<f2").view("<u2")),
    }


def _joined(arrays: Iterable) -> np.ndarray:
    return np.concatenate([[], *arrays])


def _packed(array: np.ndarray) -> list:
    """[kind of array in JavaScript, its bytes in base64]; whole numbers take the smallest kind that has them."""
    if array.dtype == np.float32:
        kind = "Float32Array"
    else:
        size = next(size for size in (1, 2, 4) if array.size == 0 or array.max() < 256**size)
        kind, array = f"Uint{8 * size}Array", array.astype(f"<u{size}")
    return [kind, base64.b64encode(array.tobytes()).decode()]


def _totals(layouts: Sequence[Layout]) -> str:
    """Tokens, perplexity, bits per byte; the last two of the tokens that have a probability."""
    known = [~np.isnan(layout.bits) for layout in layouts]
    bits = sum(layout.bits[some].sum() for layout, some in zip(layouts, known, strict=True))
    size = sum(layout.lengths[some].sum() for layout, some in zip(layouts, known, strict=True))
    count = sum(int(some.sum()) for some in known)
    figures = {"tokens": f"{sum(len(layout.bits) for layout in layouts):,}"}
    figures |= {"bytes": f"{sum(int(layout.lengths.sum()) for layout in layouts):,}"}
    if count and size:
        with np.errstate(over="ignore"):
            figures |= {"perplexity": f"{np.exp2(bits / count):,.2f}", "bits per byte": f"{bits / size:.3f}"}
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<dl class="totals">{items}</dl>'


def _legend() -> str:
    """The shades, and the probabilities that each is for."""
    bounds = [f"{100 * 2.0**-edge:.2g} %" for edge in EDGES]
    names = [*(f"&gt; {bound}" for bound in bounds), "less"]
    items = [f'<span class="{shade(edge)}">{name}</span>' for edge, name in zip((0, *EDGES), names, strict=True)]
    return f'<p class="legend"><span>probability</span>{"".join(items)}</p>'
