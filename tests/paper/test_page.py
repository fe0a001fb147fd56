"""Pages as they are written, without a browser: what is in them, and that nothing in a text acts on them."""

import base64
import hashlib
import html.parser
import json
import math
import re

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from scored import ENCODER, made_score, made_text

from gpt2tf.paper import page
from gpt2tf.paper.layout import BLOCK, EDGES, JOINT, LINES, LONGEST, Layout, shade
from gpt2tf.paper.page import Text, document, scored_texts
from gpt2tf.paper.visible import escape, token_name

HOSTILE = "</script><script>evil()</script><!-- \" ' <img src=x onerror=evil()> &lt; </title></style> ]]> \u2028\u2029"
WORLD = (
    "اللغة العربية من أكثر اللغات انتشاراً\nעברית, ו-GPT-2\nहिन्दी क्षत्रिय\n👩‍👩‍👧‍👦 👍🏽 🇫🇷 e\u0301\n\n"
    "def f(x):\n\tif x < 3:\r\n\x00\x1b[31m\u202eevil\u202c\ufeff\u200b\x85\x7f\U000e0041 \ufffd\n"
)
BYTES = [94, 187, 222, 447, 13, 222]  # the tokens of single bytes, 0xa1 0xff 0x80, and of the first two of three


class Reader(html.parser.HTMLParser):
    """What a browser finds: its tags, the text of each element `title` and `h1`, and the text in blocks, as copied."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self.titles, self.blocks, self._inside = [], "", [], [], None
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag != "i":
            self._inside = "block" if attributes.get("class") == "b" else tag
        if self._inside == "block":
            if tag == "i":
                self.text += chr(int(attributes["data-c"], 16))
            else:
                self.blocks.append(attributes)

    def handle_endtag(self, tag):
        self._inside = self._inside if tag == "i" else None

    def handle_data(self, found):
        if self._inside == "block":
            self.text += found
        if self._inside in ("title", "h1", "h2"):
            self.titles.append(found)


def packed(source):
    """The data of a page, its arrays unpacked."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', source, re.DOTALL)[1])
    kinds = {"Uint8Array": "u1", "Uint16Array": "<u2", "Uint32Array": "<u4", "Float32Array": "<f4"}
    is_array = {name for name, value in data.items() if isinstance(value, list) and value and value[0] in kinds}
    arrays = {name: np.frombuffer(base64.b64decode(data[name][1]), kinds[data[name][0]]) for name in is_array}
    return data | arrays


# A document


def test_a_document_allows_its_own_style_and_script_and_no_network():
    source = document("T", "<p>body</p>", "let a = '<b>';\n")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', source)[1]
    allowed = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed[f"{tag}-src"] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'" and "unsafe" not in policy
    assert "<body>\n<p>body</p>\n" in source
    assert "script-src" not in document("T", "")


def test_nothing_is_fetched():
    source = scored_texts("t", [made_text("text")], ENCODER)
    assert not re.search(r"https?:|@import|url\(|\bsrc=|\bhref=", source)


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_script_and_style_cannot_end_early(name):
    assert not re.search(r"<!--|</(script|style)", (page.HERE / name).read_text(encoding="utf-8"))


def test_a_title_may_hold_anything():
    source = document(HOSTILE + "\udcff\0\x1b", "")
    source.encode()
    reader = Reader(source)
    assert [tag for tag, _ in reader.tags if tag in ("script", "img", "title")] == ["title"]
    assert "".join(reader.titles).startswith("</script><script>evil()")
    assert "".join(reader.titles).endswith(r"U+2028U+2029\xffNULESC")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a<b>&'\"", "a&lt;b&gt;&amp;&#x27;&quot;"),
        ("\0\t\n\x1b\x7f\x85", "NULTABLFESCDELU+0085"),
        ("\u202ea\u2066\u200f\u200b\ufeff\u00ad", "U+202EaU+2066U+200FU+200BU+FEFFU+00AD"),
        ("\u2028\u2029\U000e0041", "U+2028U+2029U+E0041"),
        ("\udcff\udc80", r"\xff\x80"),
        ("\ud800", "U+D800"),
        ("\u0600\u200d\u200ce\u0301", "\u0600\u200d\u200ce\u0301"),  # seen, or needed beside letters
    ],
)
def test_what_is_not_seen_has_a_mark(text, shown):
    assert escape(text) == shown


@pytest.mark.parametrize(
    "raw, name",
    [
        (b" the", "\0␣\0the"),
        (b"\n\n\t\r", "\0\\n\0\0\\n\0\0\\t\0\0\\r\0"),
        ("é\u0301".encode(), "é\u0301"),
        ("\u0301".encode(), "\u25cc\u0301"),
        ("\u200d\u00a0".encode(), "\0U+200D\0\0U+00A0\0"),
        (b"\xf0\x9f", "\0\\xf0\0\0\\x9f\0"),
        (b"\0\\x00", "\0NUL\0\\x00"),
    ],
)
def test_names_of_tokens(raw, name):
    assert token_name(raw) == name


# The text of a page


@pytest.mark.parametrize("text", ["", "a", "\n", "\n\n\na\n", WORLD, HOSTILE, "\r\n" * 3, "x" * 9000, WORLD * 40])
def test_the_text_is_all_there(text):
    reader = Reader(scored_texts("t", [made_text(text)], ENCODER))
    assert reader.text == text


def test_bytes_that_are_not_text_are_all_there():
    raw = ENCODER.decode_bytes(BYTES)
    source = scored_texts("t", [made_text(BYTES)], ENCODER)
    assert Reader(source).text == "".join(
        c if ord(c) < 0xDC80 else "\ufffd" for c in raw.decode("utf-8", "surrogateescape")
    )
    for byte in (0xA1, 0xFF, 0x80):
        assert rf'data-m="\x{byte:02x}"' in source


def test_a_text_is_inert():
    texts = [made_text(HOSTILE, HOSTILE), made_text(HOSTILE)]
    source = scored_texts(HOSTILE, texts, ENCODER)
    tags = [tag for tag, _ in Reader(source).tags]
    assert "img" not in tags and tags.count("script") == 2 and tags.count("title") == tags.count("style") == 1
    assert not [name for _, attributes in Reader(source).tags for name in attributes if name.startswith("on")]
    names = packed(source)["names"]
    assert "</" in names and "</" not in re.search(r'id="data">(.*)', source)[1].split("</script>")[0]


def test_blocks_are_of_a_size_that_a_browser_takes_at_a_time():
    long = "word " * 3000
    text = f"{'a' * 79}\n" * 200 + long + "\n" + "b\n" * 500 + "c" * 10000
    texts = made_text(text)
    layout = Layout([ENCODER.decode_bytes([token]) for token in texts.tokens], np.zeros(len(texts.tokens)))
    blocks = list(layout.blocks())
    assert [block.start for block in blocks[1:]] == [block.end for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].end) == (0, len(text))
    for block in blocks:
        piece = text[block.start : block.end]
        assert len(piece) <= BLOCK + LONGEST and piece.count("\n") <= LINES + 1
        assert block.line == text[: block.start].count("\n")
        assert block.begins == (block.start == 0 or text[block.start - 1] == "\n")
        assert block.begins or piece[0] == " " or "c" in piece
        assert bool(block.direction) == (max(map(len, piece.split("\n"))) >= LONGEST // 2)
    assert len(blocks) < len(text) / LONGEST * 2 + 500 / LINES + 3


def test_the_pieces_of_a_line_have_its_direction():
    rtl, ltr = "123 עברית " * 600, "1 abc " * 500 + "עברית " * 500
    source = scored_texts("t", [made_text(f"{rtl}\n{ltr}\nshort")], ENCODER)
    directions = [block.get("dir") for block in Reader(source).blocks]
    assert set(directions) == {"rtl", "ltr", None}
    assert directions == sorted(directions, key=["rtl", "ltr", None].index)  # each line in a row


# Signs

cut = st.lists(
    st.sampled_from([*"ab \n\r\t", "é", "e\u0301", "न", "\u0947", "👍", "🏽", "👩\u200d👧", "🇫🇷", "\0", "語"]),
    max_size=12,
)


@given(cut.map("".join), st.lists(st.integers(0, 80), max_size=JOINT - 2), st.binary(max_size=2))
def test_tokens_share_a_sign_where_none_of_them_makes_one(text, places, bad):
    raw = text.encode() + bad
    ends = sorted([*(min(place, len(raw)) for place in places), len(raw)])  # some tokens may have no bytes
    tokens = [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    layout = Layout(tokens, np.zeros(len(tokens)))
    text = raw.decode("utf-8", "surrogateescape")
    boundaries = {
        len(text[: found.start()].encode("utf-8", "surrogateescape")) for found in regex.finditer(r"\r|\X", text)
    }
    begun, first = 0, []
    for token in tokens:
        first.append(bool(token) and begun in boundaries)
        begun += len(token)
    assert (layout.widths > 0).tolist() == first
    assert layout.widths.sum() == len(text.encode("utf-16-le", "surrogatepass")) // 2
    if raw:
        assert "".join(text[block.start : block.end] for block in layout.blocks()) == text


def test_tokens_without_bytes_belong_to_the_sign_before_them():
    tokens = [*[b""] * 40, b"a", *[b""] * 40, b"b", b""]
    widths = Layout(tokens, np.zeros(len(tokens))).widths
    assert np.flatnonzero(widths).tolist() == [40, 81]


def test_accents_without_an_end_are_cut():
    tokens = [b"a", *["\u0301".encode()] * 1000]
    widths = Layout(tokens, np.zeros(1001)).widths
    assert np.diff(np.flatnonzero(widths)).max() == JOINT and widths.sum() == 1001


def test_tags_are_seen_unless_they_spell_a_flag():
    scotland = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    assert not Layout([scotland.encode()], np.zeros(1)).marks
    assert len(Layout([scotland.encode(), "\U000e0068\U000e0069".encode()], np.zeros(2)).marks) == 8


# Numbers


def test_the_numbers_are_those_of_the_scores():
    texts = [made_text(WORLD, "A"), made_text("Another one.\nAnd more", "B")]
    data = packed(scored_texts("t", texts, ENCODER))
    tokens = [*texts[0].tokens, *texts[1].tokens]
    own = np.concatenate([text.score.log_probabilities for text in texts])
    theirs = np.concatenate([text.score.alternative_log_probabilities for text in texts])
    assert [data["ids"][index] for index in data["tokens"]] == tokens
    assert [data["names"][index] for index in data["tokens"]] == [token_name(ENCODER.decode_bytes([t])) for t in tokens]
    np.testing.assert_allclose(data["bits"], -own / math.log(2), rtol=1e-6)
    assert data["ranks"].tolist() == [*texts[0].score.ranks, *texts[1].score.ranks]
    assert data["n"] == 5
    others = np.concatenate([text.score.alternatives for text in texts]).ravel()
    assert np.array(data["ids"])[data["alternatives"]].tolist() == others.tolist()
    np.testing.assert_allclose(data["alternativeBits"].view("<f2"), -theirs.ravel() / math.log(2), rtol=1e-3)


def test_the_surprise_of_each_line():
    text = made_text("One line.\n\n\nAnother, long one\n")
    data = packed(scored_texts("t", [text], ENCODER))
    sums, counts, line = [0.0] * 5, [0] * 5, 0
    for token, log_probability in zip(text.tokens, text.score.log_probabilities, strict=True):
        if not np.isnan(log_probability):
            sums[line] -= log_probability / math.log(2)
            counts[line] += 1
        line += ENCODER.decode([token]).count("\n")
    np.testing.assert_allclose(data["lineBits"], sums, rtol=1e-6)
    assert data["lineTokens"].tolist() == counts and counts[1] == 0  # the token "\n\n" begins in the first line


def test_totals():
    text = made_text("naïve")
    figures = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", scored_texts("t", [text], ENCODER))
    known = text.score.log_probabilities[1:].astype(np.float64)
    size = len("naïve".encode()) - len(ENCODER.decode_bytes(text.tokens[:1]))
    assert figures == [
        ("tokens", str(len(text.tokens))),
        ("bytes", "6"),
        ("perplexity", f"{np.exp(-known.mean()):,.2f}"),
        ("bits per byte", f"{-known.sum() / math.log(2) / size:.3f}"),
    ]


def test_without_alternatives_without_tokens_without_texts():
    assert packed(scored_texts("t", [made_text("ab cd", n=0)], ENCODER))["n"] == 0
    assert packed(scored_texts("t", [], ENCODER))["tokens"].size == 0
    assert "perplexity" not in scored_texts("t", [made_text("")], ENCODER)


def test_certain_and_impossible_tokens():
    score = made_score([1, 2, 3])._replace(log_probabilities=np.array([1e-7, -np.inf, -1e-9], np.float32))
    data = packed(scored_texts("t", [Text(None, [1, 2, 3], score)], ENCODER))
    assert data["bits"][0] == 0 and np.isinf(data["bits"][1]) and data["bits"][2] < 1e-8


def test_an_id_without_a_token_is_shown_by_its_number():
    score = made_score([1, 2])
    score.alternatives[1, 4] = 50300  # a padded table has such rows
    data = packed(scored_texts("t", [Text(None, [1, 2], score)], ENCODER))
    assert data["names"][data["ids"].index(50300)] == "<50300>"


# Colours


def schemes():
    """The colours by their names, of light and of dark."""
    style = (page.HERE / "page.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return {name: dict(re.findall(r"--(\w+): (#\w{6});", text)) for name, text in (("light", light), ("dark", dark))}


def linear(colour):
    """[3] linear light. Source: IEC 61966-2-1, as in WCAG 2."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_on_every_shade(scheme):
    colours = schemes()[scheme]
    shades = [colours[f"s{level}"] for level in range(len(EDGES) + 1)]
    assert min(contrast(colours["text"], other) for other in [*shades, colours["page"], colours["raised"]]) >= 4.5
    assert min(contrast(colours[name], colours["page"]) for name in ("muted", "accent")) >= 4.5
    assert contrast(colours["muted"], colours["raised"]) >= 4.5
    assert shades[0] == colours["page"]


# What is left of red, green and blue to people without one kind of cones. Source: Viénot, Brettel, Mollon 1999
BLIND = {
    "none": np.eye(3),
    "protan": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "deutan": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
}


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shades_are_even_steps_of_lightness_to_any_eye(scheme, blind):
    colours = schemes()[scheme]
    lights = [BLIND[blind] @ linear(colours[f"s{level}"]) for level in range(len(EDGES) + 1)]
    lightness = [116 * np.cbrt(light @ [0.2126, 0.7152, 0.0722]) - 16 for light in lights]  # L* of CIELAB
    steps = np.diff(lightness) * (-1 if scheme == "light" else 1)
    assert steps.min() > 3 and steps.max() < 7


def test_the_legend_says_what_a_shade_is_for():
    assert [shade(bits) for bits in (0, 0.99, 1, 12.9, 13, math.inf, math.nan)] == [
        "s0",
        "s0",
        "s1",
        "s6",
        "s7",
        "s7",
        "none",
    ]
    legend = re.search(r'<p class="legend">(.*?)</p>', scored_texts("t", [], ENCODER))[1]
    shown = dict(re.findall(r'<span class="(s\d)">(.*?)</span>', legend))
    assert list(shown) == [f"s{level}" for level in range(len(EDGES) + 1)]
    assert shown["s0"] == "&gt; 50 %" and shown["s1"] == "&gt; 25 %" and shown["s7"] == "less"
