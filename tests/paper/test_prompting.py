"""The prompts of the paper's tasks to the letter, and what counts of what is generated."""

import json
import types

import numpy as np
import pytest

from encoder import get_encoder
from gpt2tf.locate import BUNDLED
from gpt2tf.paper.prompting import Prompted, answers, summaries, translations
from gpt2tf.paper.sentences import sentences

ENC = get_encoder("shakespeare", BUNDLED)
END = ENC.encoder["<|endoftext|>"]
N_CTX = 256
PAIRS = [{"en": "Good night!", "fr": "Bonne nuit !"}, {"en": "The king\nis dead.", "fr": "Le roi  est mort."}]
ASKED = [{"question": "who killed tybalt", "answer": ["Romeo", "Romeo Montague"]}, {"question": "why", "answer": ["?"]}]


def prompt(task, row):
    """The text that the model goes on from."""
    tokens = task.tokens(row, ENC, N_CTX)
    assert tokens == ENC.encode(ENC.decode(tokens))  # as if it had been encoded in one piece
    return ENC.decode(tokens)


def test_the_prompt_of_a_summary():
    article = {"article": "The king is gone.\n\nNobody knows why.\n", "highlights": "King gone."}
    assert prompt(summaries(), article) == "The king is gone.\n\nNobody knows why.\nTL;DR:"
    assert prompt(summaries(hint=False), article) == "The king is gone.\n\nNobody knows why."


def test_a_long_article_is_cut_at_its_end():
    """So that the hint and 100 tokens fit, of which the last is never fed back."""
    words = " ".join(f"word{number}" for number in range(500))
    for task, hint in [(summaries(), "\nTL;DR:"), (summaries(False), "")]:
        tokens = task.tokens({"article": words}, ENC, N_CTX)
        assert len(tokens) + 100 == N_CTX + 1
        text = ENC.decode(tokens)
        assert text.endswith(hint) and words.startswith(text.removesuffix(hint)) and len(text) > 200
    with pytest.raises(ValueError, match="a model with a larger window"):
        summaries().tokens({"article": words}, ENC, 100)


def test_the_prompt_of_a_translation():
    row = {"en": "A  horse!\nMy kingdom.", "fr": "Un cheval !"}
    start = "Good night! = Bonne nuit !\nThe king is dead. = Le roi est mort.\n"
    assert prompt(translations(PAIRS), row) == start + "A horse! My kingdom. ="
    start = "Bonne nuit ! = Good night!\nLe roi est mort. = The king is dead.\n"
    assert prompt(translations(PAIRS, "fr-en"), row) == start + "Un cheval ! ="
    assert (translations(PAIRS).reference, translations(PAIRS, "fr-en").reference) == ("fr", "en")


def test_the_prompt_of_a_question():
    row = {"question": "who loves\njuliet", "answer": ["Romeo"]}
    start = "Q: who killed tybalt\nA: Romeo\nQ: why\nA: ?\n"
    assert prompt(answers(ASKED), row) == start + "Q: who loves juliet\nA:"
    document = {"context": "Romeo is young.\n\nQ: Who is young?\nA: Romeo\n"}
    assert prompt(answers(ASKED), row | document) == document["context"] + "Q: who loves juliet\nA:"


def test_a_prompt_that_does_not_fit_is_refused_with_its_row():
    row = {"en": "A horse! " * 30, "fr": "Un cheval !"}
    with pytest.raises(ValueError) as refused:
        Prompted(translations(PAIRS), [PAIRS[0], row]).check(ENC, N_CTX)
    n_prompt = len(ENC.encode(translations(PAIRS).prompt(row)[1]))
    assert f"a prompt needs {n_prompt} tokens, and 200 are to follow; together they may be at most 257" in str(
        refused.value
    )
    assert "give fewer or shorter examples" in str(refused.value) and "A horse!" in str(refused.value)
    assert len(str(refused.value)) <= 400
    assert Prompted(translations(PAIRS), PAIRS).check(ENC, N_CTX) == len(prompt_tokens(PAIRS[0]))


def prompt_tokens(row):
    return translations(PAIRS).tokens(row, ENC, N_CTX)


@pytest.mark.parametrize(
    "text, expected",
    [
        (" One. Two! Three? Four.", ["One.", "Two!", "Three?", "Four."]),
        ("It costs 3.50 pounds... Really?! Yes", ["It costs 3.50 pounds...", "Really?!", "Yes"]),
        ('He said "Go." (She went.) They stayed…', ['He said "Go."', "(She went.)", "They stayed…"]),
        ("J. R. Smith of the U.S. economy spoke. Well", ["J. R. Smith of the U.S. economy spoke.", "Well"]),
        ("Oui. M. Dupont a dit « Non ! » Voilà", ["Oui.", "M. Dupont a dit « Non ! »", "Voilà"]),
        ("A title\n\nand a line\n", ["A title", "and a line"]),
        ("Dr. No is cut.", ["Dr.", "No is cut."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_where_a_sentence_ends(text, expected):
    assert sentences(text) == expected
    assert sentences(text, 1) == expected[:1]


def test_what_counts_of_what_is_generated():
    assert summaries().reply(" One. Two.\nThree! Four. Fi") == "One.\nTwo.\nThree!"
    assert summaries().reply(" One and no") == "One and no"
    assert translations(PAIRS).reply(" Le roi est mort. Vive le roi !\nThe") == "Le roi est mort."
    assert translations(PAIRS).reply(" Le roi\nest mort.") == "Le roi"
    assert translations(PAIRS).reply("\nLe roi") == ""
    assert answers(ASKED).reply(" St. Romeo of Verona. He\nQ: why") == "St. Romeo of Verona. He"


class Said:
    """In place of a Generator: says these tokens for each row, up to the stop, and keeps what it was asked."""

    hparams = types.SimpleNamespace(n_ctx=N_CTX, n_layer=4)

    def __init__(self, tokens):
        self.tokens, self.asked = tokens, []

    def generate(self, prompts, length, *, noise, stop, temperature, top_k=0):
        self.asked.append((len(prompts), length, noise, stop, temperature, top_k))
        tokens = self.tokens[:length]
        return [np.array(tokens[: tokens.index(stop) + 1] if stop in tokens else tokens, np.int32) for _ in prompts]


def test_the_settings_of_each_task_and_its_lines():
    said = ENC.encode(" One. Two. Three. Four.\nFive. ") * 20
    (newline,) = ENC.encode("\n")
    rows = [{"article": f"Text {n}.", "highlights": "One"} for n in range(3)]
    generator = Said([*said[:40], END, *said])
    first, last = Prompted(summaries(), rows, batch_size=2, seed=5).made(generator, ENC, range(2))
    assert [asked[:2] + asked[3:] for asked in generator.asked] == [(2, 100, END, 1, 2)] * 2
    line = {"prompt": "Text 2.\nTL;DR:", "generated": ENC.decode(said[:40]), "reply": "One.\nTwo.\nThree."}
    assert (first.count("\n"), json.loads(last)) == (2, line | {"reference": "One"})

    generator = Said([*said, END])
    (part,) = Prompted(translations(PAIRS), PAIRS, batch_size=2).made(generator, ENC, range(1))
    assert [asked[:2] + asked[3:] for asked in generator.asked] == [(2, 200, newline, 0, 0)]
    assert [json.loads(line)["reply"] for line in part.splitlines()] == ["One.", "One."]

    (part,) = Prompted(answers(ASKED), ASKED, batch_size=3).made(generator, ENC, range(1))
    assert generator.asked[-1][:2] + generator.asked[-1][3:] == (3, 32, newline, 0, 0) and part.count("\n") == 2
    line = json.loads(part.splitlines()[0])
    assert line["reply"] == "One. Two. Three. Four." and line["reference"] == ["Romeo", "Romeo Montague"]


def test_the_random_numbers_of_the_last_summaries_are_those_of_a_whole_batch():
    from gpt2tf.noise import RandomStream

    rows = [{"article": f"Text {n}.", "highlights": "One"} for n in range(3)]
    generator = Said([1, 2, 3])
    list(Prompted(summaries(), rows, batch_size=2, seed=5).made(generator, ENC, range(1, 2)))
    np.testing.assert_array_equal(generator.asked[0][2], RandomStream(5, 4, True, 1, 2).noise(100, 2, 1))


def test_what_tells_two_runs_apart():
    runs = [
        Prompted(summaries(), PAIRS),
        Prompted(summaries(False), PAIRS),
        Prompted(translations(PAIRS), PAIRS),
        Prompted(translations(PAIRS, "fr-en"), PAIRS),
        Prompted(translations(PAIRS[:1]), PAIRS),
        Prompted(answers([]), PAIRS),
        Prompted(answers(ASKED), PAIRS),
        Prompted(answers(ASKED), PAIRS[:1]),
        Prompted(answers(ASKED), PAIRS, seed=1),
        Prompted(answers(ASKED), PAIRS, batch_size=2),
    ]
    assert len({json.dumps(run.settings()) for run in runs}) == len(runs)


def test_the_scores_beside_the_papers(tmp_path):
    lines = [{"reply": "le roi est mort.", "reference": "le roi est mort."}] * 2
    (tmp_path / "out").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    results = Prompted(translations(PAIRS, "fr-en"), PAIRS).results(str(tmp_path / "out"))
    assert (results["task"], results["rows"], results["direction"]) == ("translations", 2, "fr-en")
    assert results["scores"] == {"BLEU": pytest.approx(100)} and results["paper"] == {"BLEU": 11.5}
    assert summaries().paper == {"ROUGE-1": 29.34, "ROUGE-2": 8.27, "ROUGE-L": 26.58, "average": 21.4}
    assert summaries(hint=False).paper["average"] == 15.03
