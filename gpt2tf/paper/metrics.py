"""The scores of the paper's summaries, translations and answers, in per cent.

ROUGE and BLEU are those of rouge-score and sacrebleu, which the extra `paper` brings and which are imported where they
are used; exact match and F1 are SQuAD's. The paper names the metrics but not the programs that computed them, nor
their options: those chosen here are what comparisons on the same sets use.
"""

from __future__ import annotations

import collections
import importlib
import re
import string
from collections.abc import Sequence

ROUGE = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeLsum"}  # rouge-score's names


def require(package: str) -> None:
    """Raises ImportError that says how to get it, where a package is missing; to be called before the work begins."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f'the scores need {package} ({error}); pip install "gpt2tf[paper]"') from None


def rouge(replies: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L, the means of their F1 over the texts, and the mean of the three.

    As they are usually given for CNN and Daily Mail: with Porter's stemmer, and ROUGE-L of whole summaries, of which
    each line is a sentence.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE.values()), use_stemmer=True)
    scores = [scorer.score(reference, reply) for reply, reference in zip(replies, references, strict=True)]
    means = {name: _percent([score[kind].fmeasure for score in scores]) for name, kind in ROUGE.items()}
    return means | {"average": sum(means.values()) / len(means)}


def bleu(replies: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU of the corpus, with one reference for each reply: sacrebleu's own settings (13a, mixed case)."""
    from sacrebleu.metrics import BLEU

    return {"BLEU": BLEU().corpus_score(list(replies), [list(references)]).score}


def normalized(answer: str) -> str:
    """An answer as SQuAD compares it: in lower case, without punctuation, without a, an and the, with single spaces."""
    kept = "".join(char for char in answer.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact_match_and_f1(replies: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """How many replies are one of their references, once normalized; and the F1 of the words that they share.

    The F1 of a reply is that with the reference of which it is highest; the mean is taken over the replies.
    """
    pairs = [
        (normalized(reply), [normalized(answer) for answer in answers])
        for reply, answers in zip(replies, references, strict=True)
    ]
    return {
        "exact match": _percent([reply in answers for reply, answers in pairs]),
        "F1": _percent([max(_shared(reply.split(), answer.split()) for answer in answers) for reply, answers in pairs]),
    }


def _shared(ours: list[str], theirs: list[str]) -> float:
    """The F1 of the words of two answers."""
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def _percent(shares: Sequence[float]) -> float:
    return 100 * sum(shares) / len(shares)
