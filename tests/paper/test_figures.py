"""Every figure of every task against a slow calculation of its own, by NumPy's forward pass, on sets of our making."""

import math

import made_sets
import numpy as np
import oracle
import pytest
from recorded import GOLDEN

import encoder
from gpt2tf import load_model
from gpt2tf.checkpoint import load_weights
from gpt2tf.locate import BUNDLED
from gpt2tf.paper.data import read
from gpt2tf.paper.evaluate import evaluate, limited, make_setup, make_task
from gpt2tf.paper.score import Scorer

CLOSE = 2e-5  # of float32 scores to float64 ones: relative, of losses of some nats


class Model:
    """A model, and the log-probabilities of all tokens by an independent forward pass."""

    def __init__(self, folder):
        self.model = load_model(folder)
        self.hparams = self.model.hparams
        self.weights = {name: value.astype(np.float64) for name, value in dict(load_weights(folder)[1]).items()}
        self.enc = encoder.Encoder.of(self.model.vocabulary)
        self.end = self.enc.encoder["<|endoftext|>"]
        self.scorer = Scorer(self.model, jit_compile=False)

    def log_softmax(self, ids):
        """[seq] -> [seq, vocab]"""
        logits = oracle.forward(self.weights, self.hparams.n_head, np.array(ids))
        return (
            logits
            - logits.max(-1, keepdims=True)
            - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        )

    def logs(self, ids):
        """Of each token but the first, given all before it."""
        return self.log_softmax(ids[:-1])[np.arange(len(ids) - 1), ids[1:]]

    def figures(self, task, path, stride=None, limit=None):
        data, _ = limited(read(task, str(path)), limit)
        made = make_task(task, data, make_setup(self.enc, self.hparams, stride))
        return {figure.name: figure for figure in evaluate(made, self.scorer)}


@pytest.fixture(scope="module")
def bundled():
    return Model(f"{BUNDLED}/shakespeare")


@pytest.fixture(scope="module")
def tiny_a():
    return Model(str(GOLDEN / "tiny-a"))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return made_sets.write_all(tmp_path_factory.mktemp("sets"))


def numbers(figures, *names):
    return [figures[name].value for name in names]


def near(*expected):
    return pytest.approx(expected, rel=CLOSE * 10)


# Texts


def windowed(model, ids, stride):
    """The loss of all tokens but the first, each in the first window of n_ctx tokens that has it."""
    total = 0.0
    for at in range(1, len(ids)):
        window = max(0, math.ceil((at + 1 - model.hparams.n_ctx) / stride))
        total -= model.log_softmax(ids[window * stride : at])[-1, ids[at]]
    return total


def side_by_side(model, ids):
    """(loss, tokens) in windows without context, whose first tokens are not scored."""
    parts = [ids[at : at + model.hparams.n_ctx] for at in range(0, len(ids), model.hparams.n_ctx)]
    logs = [model.logs(part) for part in parts if len(part) > 1]
    return -sum(map(np.sum, logs)), sum(map(len, logs))


@pytest.mark.parametrize("task", ["wikitext2", "ptb"])
def test_a_text_by_original_tokens_and_its_raw_figure(bundled, sets, task):
    text, written = {"p": (made_sets.PTB, made_sets.PTB_WRITTEN)}.get(
        task[0], (made_sets.WIKITEXT, made_sets.WIKITEXT_WRITTEN)
    )
    raw = text if task == "ptb" else "\n\n".join(line + "\n" if line.strip() else "" for line in text.split("\n")[:-1])
    ids = [bundled.end, *bundled.enc.encode(written)]
    assert len(ids) <= bundled.hparams.n_ctx  # one long pass holds it
    loss, original = -bundled.logs(ids).sum(), len(text.split()) + text.count("\n")
    raw_loss, raw_tokens = side_by_side(bundled, bundled.enc.encode(raw))
    found = numbers(
        bundled.figures(task, sets[task]),
        "ppl per original token",
        "ppl per GPT-2 token",
        "raw, ppl per GPT-2 token",
    )
    assert found == near(math.exp(loss / original), math.exp(loss / (len(ids) - 1)), math.exp(raw_loss / raw_tokens))


def test_sentences_know_nothing_of_each_other(bundled, sets):
    rows = [[bundled.end, *bundled.enc.encode(line + "\n")] for line in made_sets.ONE_BILLION_WRITTEN.split("\n")[:-1]]
    loss = -sum(bundled.logs(row).sum() for row in rows)
    original = len(made_sets.ONE_BILLION.split()) + 3
    raw_loss, raw_tokens = side_by_side(bundled, bundled.enc.encode(made_sets.ONE_BILLION))
    found = numbers(bundled.figures("1bw", sets["1bw"]), "ppl per original token", "raw, ppl per GPT-2 token")
    assert found == near(math.exp(loss / original), math.exp(raw_loss / raw_tokens))


def test_bits_are_of_bytes_and_characters(bundled, sets):
    figures = bundled.figures("text8", sets["text8"])
    loss = -bundled.logs([bundled.end, *bundled.enc.encode(made_sets.TEXT8.decode())]).sum()
    assert numbers(figures, "bits per character") == near(loss / math.log(2) / len(made_sets.TEXT8))
    valid, rest = made_sets.ENWIK8.split(b"\xff\x80")
    single = [bundled.enc.encoder[bundled.enc.byte_encoder[byte]] for byte in (0xFF, 0x80)]
    ids = [bundled.end, *bundled.enc.encode(valid.decode()), *single, *bundled.enc.encode(rest.decode())]
    loss = -bundled.logs(ids).sum()
    assert numbers(bundled.figures("enwik8", sets["enwik8"]), "bits per byte") == near(
        loss / math.log(2) / len(made_sets.ENWIK8)
    )


@pytest.mark.parametrize("stride", [None, 20, 63])
def test_a_long_text_by_windows(tiny_a, tmp_path, stride):
    (tmp_path / "a.txt").write_text("The king of Ångström went – home. " * 8)
    text = (tmp_path / "a.txt").read_text()
    ids = [tiny_a.end, *tiny_a.enc.encode(text)]
    assert len(ids) > 2 * tiny_a.hparams.n_ctx
    loss = windowed(tiny_a, ids, stride or 32)
    figures = tiny_a.figures("text", tmp_path / "a.txt", stride)
    n_bytes = len(text.encode())
    expected = [math.exp(loss / n) for n in (len(ids) - 1, len(text.split()), n_bytes)]
    names = "ppl per GPT-2 token", "ppl per word", "ppl per byte", "bits per byte"
    assert numbers(figures, *names) == near(*expected, loss / n_bytes / math.log(2))


def test_the_raw_figure_by_windows(tiny_a, sets):
    raw_loss, raw_tokens = side_by_side(tiny_a, tiny_a.enc.encode(made_sets.PTB))
    assert raw_tokens > 64
    assert numbers(tiny_a.figures("ptb", sets["ptb"]), "raw, ppl per GPT-2 token") == near(
        math.exp(raw_loss / raw_tokens)
    )


def test_the_raw_figure_takes_the_raw_edition_of_the_same_lines(bundled, tmp_path):
    path = made_sets.write_all(tmp_path)["wikitext2"]
    path.with_name("wiki.test.raw").write_text(made_sets.WIKITEXT.replace("<unk>", "Lear"))
    raw_loss, raw_tokens = side_by_side(bundled, bundled.enc.encode("\n\n = The King of Lear = \n"))
    assert numbers(bundled.figures("wikitext2", path, limit=2), "raw, ppl per GPT-2 token") == near(
        math.exp(raw_loss / raw_tokens)
    )


def test_a_limit_takes_the_first_lines(bundled, sets):
    line = made_sets.PTB.split("\n")[0]
    loss = -bundled.logs([bundled.end, *bundled.enc.encode(made_sets.PTB_WRITTEN.split("\n")[0] + "\n")]).sum()
    found = numbers(bundled.figures("ptb", sets["ptb"], limit=1), "ppl per original token")
    assert found == near(math.exp(loss / (len(line.split()) + 1)))


# Choices


def lambada_by_hand(model, text, front):
    """[loss of the word, tokens, loss of the last token, four times right]"""
    context, word = front + text.replace("“", '"').replace("”", '"').rpartition(" ")[0], text.rpartition(" ")[2]
    target = model.enc.encode(" " + word)
    ids = [*model.enc.encode(context), *target][-model.hparams.n_ctx :]
    table = model.log_softmax(ids[:-1])[-len(target) :]  # [tokens of the word, vocab]
    losses = -table[np.arange(len(target)), target]
    barred = [
        id
        for id in range(len(model.enc.decoder))
        if model.enc.decode([id]).lower()[1:] in STOP_WORDS_OF_NLTK and model.enc.decode([id])[0] == " "
    ]
    free = table.copy()
    free[:, barred] = -np.inf
    hits, free_hits = table.argmax(-1) == target, free.argmax(-1) == target
    return [losses.sum(), len(target), losses[-1], hits.all(), hits[-1], free_hits.all(), free_hits[-1]]


@pytest.mark.parametrize("which", ["bundled", "tiny_a"])  # the window of tiny-a is shorter than the passages
def test_lambada(which, request, sets):
    model = request.getfixturevalue(which)
    figures = model.figures("lambada", sets["lambada"])
    for front, end in ("\n", ""), ("", ", no newline"):
        loss, tokens, last, *hits = np.array(
            [lambada_by_hand(model, text, front) for text in made_sets.LAMBADA], float
        ).T
        names = "ppl of the last word", "ppl of the last token", "ppl per token of the last word"
        expected = [np.exp(loss.mean()), np.exp(last.mean()), np.exp(loss.sum() / tokens.sum())]
        assert numbers(figures, *(name + end for name in names)) == near(*expected)
        names = "last word", "last token", "last word, stop words barred", "last token, stop words barred"
        assert numbers(figures, *(name + end for name in names)) == [100 * np.mean(hit) for hit in hits]


def test_barring_stop_words_changes_what_is_right(bundled, tmp_path):
    """The likeliest word after this is a stop word, and the likeliest that is none is the last."""
    text = "Come, sir, I will speak with"
    table = bundled.log_softmax(bundled.enc.encode("\n" + text))[-1]
    words = [bundled.enc.decode([id]) for id in np.argsort(-table)[:40]]
    assert words[0].strip() in STOP_WORDS_OF_NLTK
    word = next(w for w in words if w.strip() and w.strip() not in STOP_WORDS_OF_NLTK and w[0] == " ")
    (tmp_path / "x.jsonl").write_text(made_sets.lines_of([{"text": text + word}]))
    assert len(bundled.enc.encode(word)) == 1
    found = numbers(bundled.figures("lambada", tmp_path / "x.jsonl"), "last word", "last word, stop words barred")
    first = next(w for w in words if not (w[0] == " " and w.strip().lower() in STOP_WORDS_OF_NLTK))
    assert found == [0, 100 if first == word else 0] and first == word


def test_the_childrens_book_test(bundled, sets):
    context = '"Good morning, my lord," said the King. The house wasn\'t far from the castle.'
    context += " He saw a man (or a woman) there."
    context += "".join(f" {sentence[:-2]}." for sentence in made_sets.CBT_SENTENCES[3:])
    written = [
        ('"I will see the ', ',"' + ' said he, "and I don\'t care!"'),
        ("And the ", "'s daughter was at home."),
        ("At last he came to the ", ""),
    ]
    together, alone = [], []
    for (_, answer, choices), (before, after) in zip(made_sets.CBT_QUESTIONS, written, strict=True):
        start = [bundled.end, *bundled.enc.encode(f"{context} {before}".rstrip(" "))]
        sums = []
        for choice in choices.split("|"):
            word, rest = bundled.enc.encode(f" {choice}"), bundled.enc.encode(after)
            logs = bundled.logs([*start, *word, *rest][-bundled.hparams.n_ctx :])
            behind = len(word) + len(rest)
            sums.append((logs[-behind:].sum(), logs[-behind:][: len(word)].sum()))
        best = [choices.split("|")[np.argmax(column)] for column in zip(*sums, strict=True)]
        together.append(best[0] == answer)
        alone.append(best[1] == answer)
    found = numbers(bundled.figures("cbt-cn", sets["cbt-cn"]), "candidate and rest of the sentence", "candidate alone")
    assert found == [100 * np.mean(together), 100 * np.mean(alone)]


def test_hellaswag(bundled, sets):
    hits = []
    for context, endings, label in made_sets.HELLASWAG:
        logs = []
        for ending in endings:
            end = bundled.enc.encode(" " + ending)
            logs.append(bundled.logs([*bundled.enc.encode(context), *end])[-len(end) :])
        hits.append((np.argmax([log.sum() for log in logs]) == label, np.argmax([log.mean() for log in logs]) == label))
    assert numbers(bundled.figures("hellaswag", sets["hellaswag"]), "acc", "acc_norm") == list(100 * np.mean(hits, 0))


# NLTK's older list, sorted, as a check of the one in the code.
STOP_WORDS_OF_NLTK = set(
    "a about above after again against all am an and any are as at be because been before being below between both "
    "but by can did do does doing don down during each few for from further had has have having he her here hers "
    "herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on "
    "once only or other our ours ourselves out over own s same she should so some such t than that the their theirs "
    "them themselves then there these they this those through to too under until up very was we were what when "
    "where which while who whom why will with you your yours yourself yourselves".split()
)


def test_the_list_of_stop_words():
    from gpt2tf.paper.choice import STOP_WORDS

    assert STOP_WORDS == STOP_WORDS_OF_NLTK and len(STOP_WORDS) == 127
