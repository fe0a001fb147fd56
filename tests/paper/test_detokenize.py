"""De-tokenizers: what people would write, and the way back from it without a loss."""

import made_sets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2tf.paper.detokenize import CBT, ONE_BILLION, PTB, WIKITEXT

ALL = [WIKITEXT, PTB, ONE_BILLION, CBT]
NAMES = [detokenizer.name for detokenizer in ALL]


@pytest.mark.parametrize(
    "detokenizer, text, written",
    [
        (WIKITEXT, made_sets.WIKITEXT, made_sets.WIKITEXT_WRITTEN),
        (PTB, made_sets.PTB, made_sets.PTB_WRITTEN),
        (ONE_BILLION, made_sets.ONE_BILLION, made_sets.ONE_BILLION_WRITTEN),
        (
            CBT,
            "`` Well , '' said Mr. Jones , `` I do n't know -LRB- yet -RRB- ! ''",
            '"Well," said Mr. Jones, "I don\'t know (yet)!"',
        ),
        (
            CBT,
            "`` No ! '' she cried .\n`` Mine , and the lords ' house .",
            '"No!" she cried.\n"Mine, and the lords\' house.',
        ),
    ],
)
def test_text_as_people_write_it(detokenizer, text, written):
    assert detokenizer(text) == written and detokenizer.inverse(written) == text


@pytest.mark.parametrize(
    "detokenizer, text",
    [
        # What stands apart or together against the rule stays told from what does so by the rule.
        (WIKITEXT, " foo, bar and foo , bar . baz. Qux St. and St . \n"),
        (WIKITEXT, " 1,000 and 1 @,@ 000 and 1 , 000 ; a-b and a @-@ b and a - b ; 1.5 and 1 @.@ 5 \n"),
        (WIKITEXT, ' " a " b " c \n "d" " e" \n'),
        (WIKITEXT, " '' ' 's' \n \n\n  two  blanks   three \n"),
        (WIKITEXT, "= = a = =\n == b == \n = c = = \n"),
        (PTB, " it 's it's was n't wasn't don 't s ' s' $N $ N\n"),
        (ONE_BILLION, 'He said "a" and " b " , "c " .\n( d ) (e)\n'),
        (CBT, "( a ) -LRB- b -RRB- \" c \" `` d '' ``e'' `` ``\n"),
        *((detokenizer, edge) for detokenizer in ALL for edge in ("", " ", "\n", " \n", "\n ", " a", "a ", "\n\n \n")),
    ],
)
def test_what_is_odd_is_not_lost(detokenizer, text):
    assert detokenizer.inverse(detokenizer(text)) == text


def test_different_texts_are_written_differently():
    texts = [
        "St .",
        "St.",
        "a , b",
        "a, b",
        "a ,b",
        "a,b",
        "1 @,@ 0",
        "1,0",
        "1 , 0",
        "1 ,0",
        "a @-@ b",
        "a-b",
        "a - b",
    ]
    assert len({WIKITEXT(text) for text in texts}) == len(texts)


# The grammar of the sets: tokens with a blank between two, in lines.
WORDS = st.sampled_from("the King 1 590 U.S. St. No <unk> a I i.e. s naïve 東京 co e.g".split())
MOSES = st.sampled_from(
    [*", . ; : ? ! ( ) [ ] \" ' 's 't 're % $ £ – — - / & ... ° # = + *".split(), "@-@", "@,@", "@.@"]
)
PENN = st.sampled_from("N <unk> 's n't 're ' $ # % & \\* mr. u.s. companies was ca do N\\/N a.m.".split())
STANFORD = st.sampled_from(", . ; : ? ! `` '' ` ' 's n't 'll -LRB- -RRB- -- ... do was Mr. X".split())


def lines(tokens, edge=""):
    """Lines of a set: tokens with one blank between two."""
    line = st.lists(tokens, max_size=12).map(lambda found: edge + " ".join(found) + (edge if found else ""))
    return st.lists(line, max_size=4).map(lambda found: "".join(f"{line}\n" for line in found))


GRAMMARS = {
    "wikitext": lines(WORDS | MOSES, " "),
    "ptb": lines(PENN, " "),
    "1bw": lines(WORDS | MOSES),
    "cbt": lines(WORDS | STANFORD),
}


@pytest.mark.parametrize("detokenizer", ALL, ids=NAMES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_inverse_gives_the_text_of_the_set_back(detokenizer, data):
    text = data.draw(GRAMMARS[detokenizer.name])
    assert detokenizer.inverse(detokenizer(text)) == text


# And far beyond the grammars: any characters but those that a set uses for something of its own.
@pytest.mark.parametrize("detokenizer", [WIKITEXT, PTB, ONE_BILLION], ids=NAMES[:3])
@given(
    text=st.text(alphabet=st.sampled_from("ab1sNt',.-@\"%$()[]=/:–°;<> \n") | st.characters(codec="utf-8"), max_size=30)
)
@settings(max_examples=250, deadline=None)
def test_the_inverse_gives_any_text_back(detokenizer, text):
    assert detokenizer.inverse(detokenizer(text)) == text


def test_a_long_line_is_quick():
    import time

    line = ' He said , " the U.S. team @-@ mates didn \'t know ( 1 @,@ 000 ) . "' * 1500
    began = time.monotonic()
    assert WIKITEXT.inverse(WIKITEXT(line)) == line and time.monotonic() - began < 10
