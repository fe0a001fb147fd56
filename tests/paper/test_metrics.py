"""The scores, as computed by hand."""

import sys

import pytest

from gpt2tf.paper.metrics import bleu, exact_match_and_f1, normalized, require, rouge


def test_rouge_of_a_sentence():
    """the cat sat | the cat ate the fish: 2 words of 3 and 5, 1 pair of 2 and 4, in order 2 of 3 and 5."""
    scores = rouge(["The cat sat."], ["the cat ate the fish"])
    assert scores == pytest.approx({"ROUGE-1": 50, "ROUGE-2": 100 / 3, "ROUGE-L": 50, "average": 400 / 9})


def test_rouge_l_takes_a_summary_line_by_line():
    """Against each line of the reference, what all lines of the reply have of it in order: 4 of its 5 words."""
    scores = rouge(["gamma delta\nalpha beta"], ["alpha beta gamma delta epsilon"])
    assert scores["ROUGE-L"] == pytest.approx(100 * 2 * (4 / 4) * (4 / 5) / (4 / 4 + 4 / 5))


def test_rouge_takes_words_by_their_stems_and_texts_alike():
    assert rouge(["running kings"], ["the king runs"])["ROUGE-1"] == pytest.approx(80)
    assert rouge(["a b", "zz"], ["a b", "yy yy yy yy"])["ROUGE-1"] == pytest.approx(50)
    assert rouge([""], ["word"])["average"] == 0


def test_bleu():
    """Of 5 words 4, of 4 pairs 3, of 3 triples 2, of 2 quadruples 1; the same length."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert bleu(["le roi est mort hier"], ["le roi est mort ici"]) == {"BLEU": pytest.approx(expected)}
    assert bleu(["le roi est mort"], ["le roi est mort"])["BLEU"] == pytest.approx(100)


@pytest.mark.parametrize(
    "answer, plain",
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre, A", "theatre"),
        ("the", ""),
    ],
)
def test_answers_are_compared_as_squad_does(answer, plain):
    assert normalized(answer) == plain


def test_exact_match_and_f1():
    replies = ["the Tower.", "in Paris, France", "nobody", "the"]
    answers = [["Eiffel", "tower"], ["Paris", "Paris Texas"], ["Romeo"], ["an"]]
    # 1; 2 * 1 / (3 + 1) of Paris; 0; nothing is nothing
    assert exact_match_and_f1(replies, answers) == {"exact match": 50, "F1": pytest.approx(100 * 2.5 / 4)}


def test_a_library_that_is_missing_is_named_with_the_extra(monkeypatch):
    require("json")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r'the scores need sacrebleu \(.*\); pip install "gpt2tf\[paper\]"'):
        require("sacrebleu")
