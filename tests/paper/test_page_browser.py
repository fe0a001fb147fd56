"""Pages in a headless Chromium: what is seen, pointed at, walked through by keys, copied, found and printed."""

import json
import math
import re

import numpy as np
import pytest
from browser import CHROMIUM, browsing
from scored import ENCODER, made_text

from gpt2tf.paper.page import scored_texts

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

ARABIC = "اللغة العربية من أكثر اللغات انتشاراً في العالم، ويتحدثها أكثر من الناس"
FAMILY = "👩\u200d👩\u200d👧\u200d👦"
TEXT = (
    f"One line of it.\n{ARABIC}\n{FAMILY} and e\u0301\n\n\tif x < 3: \x00\x1b\u202ebc\r\n"
    + "A long line. " * 400
    + "\nThe end"
)
WORDS = " ".join(f"{FAMILY} {flag} न\u0947 e\u0301" for flag in ("🇫🇷", "👍🏽"))
HOSTILE = "</script><script>window.evil = 1</script><img src=x onerror='window.evil=1'><!-- \u2028 \u202e\0"


@pytest.fixture(scope="module")
def tab():
    with browsing() as tab:
        yield tab


@pytest.fixture
def show(tab, tmp_path):
    """Opens a page of texts at a size of 1000 x 800, with the pointer away from everything."""

    def show(*texts, title="Title", change=lambda source: source):
        path = tmp_path / "page.html"
        path.write_text(change(scored_texts(title, texts, ENCODER)), encoding="utf-8", newline="\n")
        tab.size(1000, 800)
        tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        tab.messages.clear()
        tab.requests.clear()
        tab.open(path)
        tab.settled()

    return show


@pytest.fixture
def panel(tab):
    """The words of the panel; None where it is not shown."""
    return lambda: tab.run("panel.innerText === '' ? null : panel.innerText.replace(/\\s+/g, ' ')")


def current(tab):
    """The text of the sign that the panel is about."""
    return tab.run("[...document.querySelectorAll('.on')].map(e => e.textContent).join('|')")


def copied(tab):
    """What a copy of the selection gives; None where the page leaves it to the browser."""
    return tab.run(
        "(() => { const clipboardData = new DataTransfer();"
        " const event = new ClipboardEvent('copy', { clipboardData, cancelable: true, bubbles: true });"
        " document.dispatchEvent(event);"
        " return event.defaultPrevented ? clipboardData.getData('text/plain') : null; })()"
    )


def percent(log_probability):
    """As the page writes it: three digits."""
    return float(f"{100 * math.exp(log_probability):.3g}")


# What is seen


def test_a_page_is_whole_and_quiet(tab, show):
    show(made_text(TEXT, "A heading"))
    assert tab.messages == [] and len(tab.requests) == 1
    assert tab.run("document.title") == "Title"
    spans = tab.run("[...document.querySelectorAll('.c [data-t]')].map(e => [+e.dataset.t, e.className])")
    assert len(spans) > 100 and {kind for _, kind in spans} <= {"none", *(f"s{level}" for level in range(8))}
    shown = tab.run("[...document.querySelectorAll('.l')].slice(0, 5).map(e => e.innerText.trim())")
    assert shown[:3] == ["One line of it.", ARABIC, f"{FAMILY} and e\u0301"]


def test_each_token_has_the_shade_of_its_surprise(tab, show):
    text = made_text("One two three four five six")
    show(text)
    kinds = tab.run("[...document.querySelectorAll('.c [data-t]')].map(e => e.className)")
    bits = -text.score.log_probabilities / math.log(2)
    assert kinds == ["none", *(f"s{np.searchsorted([1, 2, 4, 6, 8, 10, 13], b, 'right')}" for b in bits[1:])]


def test_hostile_text_is_text(tab, show):
    show(made_text(HOSTILE * 3, HOSTILE), title=HOSTILE)
    assert tab.messages == [] and len(tab.requests) == 1
    assert tab.run("[typeof window.evil, document.querySelectorAll('img').length, document.scripts.length]") == [
        "undefined",
        0,
        2,
    ]
    tab.press("Tab")
    for _ in range(30):
        tab.press("ArrowRight")
    assert tab.run("[typeof window.evil, document.querySelectorAll('img').length, panel.innerText === '']") == [
        "undefined",
        0,
        False,
    ]
    assert tab.messages == []


def test_any_character_stays_itself_and_each_sign_has_its_tokens(tab, show):
    rng = np.random.default_rng(1)
    codes = [*range(0x3000), *range(0xFDD0, 0xFE30), *range(0xFFF0, 0x10000), *rng.integers(0xE000, 0x110000, 3000)]
    text = made_text("".join(map(chr, codes)) + WORDS)
    show(text)
    tab.run("dispatchEvent(new Event('beforeprint'))")  # upon which all tokens are made
    assert tab.messages == []
    signs = tab.run(
        "[...document.querySelectorAll('.c [data-t]')].map(span => [+span.dataset.t, [...span.childNodes].map("
        "node => node.data ?? String.fromCodePoint(parseInt(node.dataset.c, 16))).join('')])"
    )
    firsts = [token for token, _ in signs]
    assert firsts == sorted(set(firsts)) and len(firsts) > 10000
    for (token, shown), following in zip(signs, [*firsts[1:], len(text.tokens)], strict=True):
        assert ENCODER.decode(text.tokens[token:following]) == shown


def test_the_policy_stops_a_script_that_is_not_the_page_s(tab, show):
    show(made_text("a"), change=lambda source: source.replace("<main>", "<script>window.evil = 1</script><main>"))
    assert tab.run("typeof window.evil") == "undefined" and any("Content Security" in text for text in tab.messages)


def test_light_and_dark(tab, show):
    pages = {}
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        show(made_text(TEXT))
        tab.press("Tab")
        tab.press("ArrowRight")
        pages[scheme] = tab.run(
            "[document.body, panel, document.querySelector('.s3'), document.querySelector('.s7')]"
            ".map(e => getComputedStyle(e)).map(s => [s.color, s.backgroundColor])"
        )
    for light, dark in zip(pages["light"], pages["dark"], strict=True):
        for colour, ground, brighter in (*light, True), (*dark, False):
            assert (
                sum(map(int, re.findall(r"\d+", ground)[:3])) > sum(map(int, re.findall(r"\d+", colour)[:3]))
            ) is brighter


def test_the_surprise_of_a_line_stands_beside_it(tab, show):
    text = made_text("One line.\nAnother one")
    show(text)
    margins = tab.run("[...document.querySelectorAll('.m')].map(e => [e.dataset.m, e.title])")
    ends = [ENCODER.decode(text.tokens[: at + 1]).count("\n") for at in range(len(text.tokens))]
    second = -text.score.log_probabilities[ends.index(1) + 1 :] / math.log(2)
    assert margins[1] == [f"{second.mean():.1f}", f"{second.sum():.1f} bits in {len(second)} tokens"]


def test_shading_leaves_letters_as_wide_as_they_are(tab, show):
    """Tokens of an Arabic word are cut inside of it, where its letters join."""
    show(made_text(ARABIC))
    widths = tab.run(
        "(() => { const line = document.querySelector('.c'); const range = document.createRange();"
        " const width = () => { range.selectNodeContents(line); return range.getBoundingClientRect().width; };"
        " const shaded = width(); const count = line.childElementCount; line.textContent = line.textContent;"
        " return [count, shaded, width()]; })()"
    )
    assert widths[0] > 20 and widths[1] == pytest.approx(widths[2], abs=1) and widths[2] > 100


def test_lines_go_their_own_way(tab, show):
    show(made_text(f"left\n{ARABIC}\n123 {ARABIC}\n" + f"{ARABIC} " * 60 + "left"))
    directions = tab.run("[...document.querySelectorAll('.c')].map(e => getComputedStyle(e).direction)")
    assert directions[:3] == ["ltr", "rtl", "rtl"] and set(directions[3:]) == {"rtl"} and len(directions) > 4


@pytest.mark.parametrize("width", [360, 1000])
def test_nothing_is_wider_than_the_screen(tab, show, width):
    show(made_text("x" * 3000 + "\n" + TEXT, "word" * 100), title="T" * 500)
    tab.size(width, 700)
    tab.press("Tab")
    tab.press("ArrowRight")
    tab.settled()
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    left, right, top, bottom = tab.run(
        "(() => { const r = panel.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; })()"
    )
    assert 0 <= left < right <= width and top < bottom <= 700
    for _ in range(40):
        tab.press("ArrowDown")
    assert tab.run(
        "(r => r.bottom <= panel.getBoundingClientRect().top || r.top >= panel.getBoundingClientRect().bottom)"
        "(document.getElementById('now').getBoundingClientRect())"
    )


def test_without_a_script_the_text_is_there(tab, show):
    show(made_text(TEXT), change=lambda source: source.replace('"use strict"', '"use  strict"'))
    assert any("Content Security" in text for text in tab.messages)
    shown = tab.run("document.querySelector('.text').innerText")
    assert shown.startswith(f"One line of it.\n{ARABIC}\n{FAMILY}") and shown.endswith("The end")


# By keys


def test_keys_walk_the_tokens(tab, show, panel):
    text = made_text("One two three\nfour five")
    show(text, made_text("The other text"))
    assert tab.run("document.querySelectorAll('[tabindex], a, button, input').length") == 2
    tab.press("Tab")
    assert tab.run("document.activeElement.className") == "text" and panel() is None
    for at, token in enumerate(text.tokens):
        tab.press("ArrowRight")
        assert current(tab) == ENCODER.decode([token]).replace("\n", "")
        assert f"id {token}" in panel()
        assert ("not scored" in panel()) is (at == 0)
    tab.press("ArrowRight")
    assert current(tab) == " five"  # the text ends
    tab.press("Home")
    assert current(tab) == "four"
    tab.press("ArrowLeft")
    tab.press("ArrowLeft")
    assert current(tab) == " three"
    tab.press("ArrowDown")
    assert current(tab) in ("four", " five")
    tab.press("ArrowUp")
    assert current(tab) in ("One", " two", " three")
    tab.press("End")
    assert current(tab) == ""  # the end of the line
    assert tab.run("document.querySelector('.text').getAttribute('aria-activedescendant')") == "now"
    assert tab.run("panel.getAttribute('aria-live')") == "polite"
    tab.press("Escape")
    assert panel() is None and current(tab) == ""
    tab.press("Tab")
    tab.press("ArrowRight")
    assert current(tab) == "The"


def test_in_a_line_from_right_to_left_the_left_arrow_goes_on(tab, show):
    text = made_text(ARABIC)
    show(text)
    tab.press("Tab")
    places = []
    for key in ["ArrowRight", *["ArrowLeft"] * 5]:
        tab.press(key)
        places.append(tab.run("document.getElementById('now').getBoundingClientRect().right"))
    assert places == sorted(places, reverse=True) and len(set(places)) == 6


def test_up_and_down_go_through_a_long_line(tab, show):
    show(made_text("A long line of words. " * 800 + "\nThe end"))
    tab.press("Tab")
    tab.press("ArrowRight")
    tops = []
    for _ in range(60):
        tab.press("ArrowDown")
        tops.append(tab.run("document.getElementById('now').getBoundingClientRect().top + scrollY"))
    assert all(5 < below - above < 60 for above, below in zip(tops, tops[1:], strict=False))
    assert tab.run("document.getElementById('now').getBoundingClientRect().bottom <= innerHeight")


def test_the_panel_has_the_numbers_of_the_score(tab, show, panel):
    text = made_text("One two three four five")
    show(text)
    tab.press("Tab")
    for at, token in enumerate(text.tokens):
        tab.press("ArrowRight")
        if at == 0:
            continue
        own, rank = float(text.score.log_probabilities[at]), int(text.score.ranks[at])
        facts = tab.run("panel.querySelector('.facts').textContent").split(" · ")
        assert float(facts[0].removesuffix(" %")) == pytest.approx(percent(own), rel=1e-2)
        assert facts[1:] == [f"rank {rank:,}", f"{-own / math.log(2):.2f} bits", f"id {token}"]
        rows = tab.run(
            "[...panel.querySelectorAll('tr')].map(row => [row.cells[0].textContent, row.cells[2].textContent,"
            " row.querySelector('.bar').getBoundingClientRect().width / row.cells[1].clientWidth, row.className])"
        )
        assert len(rows) == 5
        for (name, shown, _, kind), other, log_probability in zip(
            rows, text.score.alternatives[at], text.score.alternative_log_probabilities[at], strict=True
        ):
            assert float(shown.removesuffix(" %")) == pytest.approx(percent(log_probability), rel=1e-2)
            assert (kind == "chosen") == (other == token)
            word = ENCODER.decode_bytes([int(other)]).decode("utf-8", "replace")
            assert not word.isalnum() or not word.isascii() or name == word
        bars = [bar for *_, bar, _ in rows]
        assert bars == sorted(bars, reverse=True)


def test_tokens_of_one_sign_are_told_together(tab, show, panel):
    text = made_text(f"a {FAMILY}.")
    show(text)
    tab.press("Tab")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    inside = text.tokens[1:-1]
    if current(tab) == " ":
        tab.press("ArrowRight")
        inside = inside[1:]
    assert current(tab).strip() == FAMILY and len(inside) > 5
    assert panel().startswith(f"{len(inside)} tokens make this sign: together ")
    together = float(text.score.log_probabilities[len(text.tokens) - 1 - len(inside) : -1].sum(dtype=np.float64))
    shown = re.search(r"together (\S+) %", panel())[1]
    assert float(shown) == pytest.approx(100 * math.exp(together), rel=0.1)
    assert all(f"id {token}" in panel() for token in inside) and r"\xf0" in panel()


# By pointer


def test_pointing_shows_and_a_click_keeps(tab, show, panel):
    text = made_text("One two three four")
    show(text)
    tab.point("[data-t='1'].s0, .c [data-t='1']")
    assert f"id {text.tokens[1]}" in panel() and current(tab) == " two"
    assert tab.run("panel.getAttribute('aria-live')") == "off"
    tab.point("h1")
    assert panel() is None
    tab.point(".c [data-t='1']")
    tab.press("Escape")
    assert panel() is None
    tab.point(".c [data-t='2']", click=True)
    tab.point(".c [data-t='3']")
    assert current(tab) == " four"
    tab.point("h1")
    assert current(tab) == " three"
    tab.point("h1", click=True)
    assert panel() is None


def test_a_tap_shows_and_scrolling_by_hand_goes_where_it_goes(tab, show, panel):
    text = made_text("One two three four\n" * 80)
    show(text)
    tab.size(360, 700)
    tab.send("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        tab.run("void (window.tapped = new Promise(done => addEventListener('click', () => done(), { once: true })))")
        tab.touch(tab.middle(".c [data-t='1']"))
        tab.run("tapped")
        assert current(tab) == " two" and f"id {text.tokens[1]}" in panel()
        for times in 1, 2:
            tab.touch(*((180, y) for y in range(400, 90, -10)))
            tab.settled()
            assert tab.run("scrollY") == pytest.approx(300 * times, abs=40 * times) and current(tab) == " two"
    finally:
        tab.send("Emulation.setTouchEmulationEnabled", enabled=False)


# The text as text


def test_what_is_copied_is_the_text(tab, show):
    show(made_text(TEXT))
    tab.press("Tab")
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="a", code="KeyA", windowsVirtualKeyCode=65, modifiers=2)
    assert copied(tab) == TEXT
    tab.run("getSelection().selectAllChildren(document.querySelectorAll('.c')[3])")
    assert copied(tab) == "\n"
    tab.run(
        "getSelection().setBaseAndExtent(document.querySelectorAll('.c')[0], 1, document.querySelectorAll('.c')[1], 0)"
    )
    assert copied(tab) == " line of it.\n"
    tab.run("getSelection().selectAllChildren(document.querySelector('h1'))")
    assert copied(tab) is None


def test_bytes_that_are_no_text_are_seen_and_copied_as_such(tab, show):
    show(made_text([64, 94, 187, 222, 64]))
    marks = tab.run("[...document.querySelectorAll('i')].map(e => getComputedStyle(e, '::before').content)")
    assert [json.loads(mark) for mark in marks] == [r"\xa1", r"\xff", r"\x80"]
    tab.run("getSelection().selectAllChildren(document.querySelector('.c'))")
    assert copied(tab) == "a\ufffd\ufffd\ufffda"


def test_what_is_far_away_is_found_and_made_when_it_comes_into_sight(tab, show):
    show(made_text("A line of words.\n" * 2000 + "needle\n"))
    made = "document.querySelectorAll('.rendered').length"
    before = tab.run(made)
    assert 0 < before < tab.run("document.querySelectorAll('.b').length") / 2
    assert tab.run("window.find('needle')")
    tab.settled()
    assert tab.run(made) > before
    assert (
        tab.run("getSelection().toString() || document.querySelector('.b:last-child').innerText.slice(-7)").strip()
        == "needle"
    )


def test_all_is_printed(tab, show):
    show(made_text("A line of words.\n" * 2000))
    tab.send("Page.printToPDF")
    assert tab.run("document.querySelectorAll('.b:not(.rendered)').length") == 0


# Speed


@pytest.mark.timing
@pytest.mark.parametrize(
    "line",
    ["It was the best of times, it was the worst of times.\n", "It was the best of times, ", f"{ARABIC}\n", "ab\n"],
    ids=["lines", "one line", "Arabic", "short lines"],
)
def test_a_megabyte_is_there_in_three_seconds(tab, show, line):
    text = (line * (10**6 // len(line.encode()) + 1)).encode()[: 10**6].decode("utf-8", "ignore")
    show(made_text(text))
    shown = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert tab.run("document.querySelectorAll('.c [data-t]').length") > 100
    ready = tab.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert max(tab.run(shown), ready) < 3000
    began = tab.run("performance.now()")
    tab.press("Tab")
    tab.press("ArrowRight")
    tab.press("ArrowDown")
    tab.run("scrollTo(0, document.body.scrollHeight / 2)")
    tab.settled()
    assert tab.run("panel.innerText") and tab.run("performance.now()") - began < 1500
