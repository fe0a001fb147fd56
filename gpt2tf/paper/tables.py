"""Table 3 of "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019), and what others measured."""

from __future__ import annotations

from typing import NamedTuple

# Column: {size of the model: the paper's number}. The paper calls the sizes 117M, 345M, 762M and 1542M.
TABLE_3 = {
    "LAMBADA PPL": {"124M": 35.13, "355M": 15.60, "774M": 10.87, "1558M": 8.63},
    "LAMBADA ACC": {"124M": 45.99, "355M": 55.48, "774M": 60.12, "1558M": 63.24},
    "CBT-CN ACC": {"124M": 87.65, "355M": 92.35, "774M": 93.45, "1558M": 93.30},
    "CBT-NE ACC": {"124M": 83.4, "355M": 87.1, "774M": 88.0, "1558M": 89.05},
    "WikiText2 PPL": {"124M": 29.41, "355M": 22.76, "774M": 19.93, "1558M": 18.34},
    "PTB PPL": {"124M": 65.85, "355M": 47.33, "774M": 40.31, "1558M": 35.76},
    "enwik8 BPB": {"124M": 1.16, "355M": 1.01, "774M": 0.97, "1558M": 0.93},
    "text8 BPC": {"124M": 1.17, "355M": 1.06, "774M": 1.02, "1558M": 0.98},
    "WikiText103 PPL": {"124M": 37.50, "355M": 26.37, "774M": 22.05, "1558M": 17.48},
    "1BW PPL": {"124M": 75.20, "355M": 55.72, "774M": 44.575, "1558M": 42.16},
}


class Measured(NamedTuple):
    """A number that somebody else published."""

    figure: str  # the name of the figure here that it is to be compared with
    size: str  # of OpenAI's weights
    value: float
    how: str
    source: str  # "repository#thread"


HARNESS = "lm-evaluation-harness"
RAW = "raw text, window and stride 1,024"
# Of each task.
MEASURED = {
    "lambada": (
        Measured("ppl of the last word, no newline", "124M", 40.0554, "+- 1.4787", f"{HARNESS}#2159"),
        Measured("last word, no newline", "124M", 32.56, "+- 0.65", f"{HARNESS}#2159"),
        Measured("last word", "124M", 26, "the authors' plain text", "transformers#491"),
        Measured("last word, stop words barred", "124M", 31, "the authors' plain text", "transformers#491"),
        Measured("last token", "124M", 46.67, "", "transformers#13761"),
        Measured("last token", "124M", 46.89, "", "openai/gpt-2#131"),
        Measured("ppl of the last word, no newline", "1558M", 10.63, "", f"{HARNESS}#911"),
        Measured("last word", "1558M", 52.66, "the paper's section 3.3, before its filter", "the paper"),
    ),
    "cbt-cn": (Measured("candidate and rest of the sentence", "124M", 84.35, "rule not said", "transformers#13761"),),
    "cbt-ne": (Measured("candidate and rest of the sentence", "124M", 73.65, "rule not said", "transformers#13761"),),
    "wikitext2": (
        Measured("raw, ppl per GPT-2 token", "124M", 29.94, RAW, "transformers#13761, llm.c#276"),
        Measured("raw, ppl per GPT-2 token", "774M", 19.44, RAW, "Hugging Face's guide to perplexity"),
        Measured(
            "raw, ppl per GPT-2 token", "774M", 16.45, "raw text, stride 512", "Hugging Face's guide to perplexity"
        ),
    ),
    "wikitext103": (
        Measured("raw, ppl per GPT-2 token", "124M", 29.94, RAW, "transformers#13761, llm.c#276"),
        Measured(
            "ppl per original token",
            "124M",
            37.37,
            "its own de-tokenizer, a document at a time",
            f"{HARNESS}, in transformers#13761",
        ),
        Measured("ppl per original token", "124M", 48.4, "not de-tokenized", "transformers#483"),
    ),
    "ptb": (
        Measured("raw, ppl per GPT-2 token", "124M", 52.53, "not de-tokenized", "transformers#13786"),
        Measured("ppl per original token", "124M", 79.65, "not de-tokenized", "transformers#13786"),
    ),
    "enwik8": (Measured("bits per byte", "124M", 2.23, "stride 1,024", "transformers#13786"),),
    "text8": (Measured("bits per character", "124M", 2.29, "stride 1,024", "transformers#13786"),),
    "1bw": (Measured("raw, ppl per GPT-2 token", "124M", 45.88, "rule not said", "transformers#13761"),),
    "hellaswag": (
        Measured("acc", "124M", 28.59, "", "llm.c dev/data/hellaswag.py"),
        Measured("acc", "124M", 28.92, "with its clean-up of the text", f"{HARNESS}, by llm.c"),
        Measured("acc_norm", "124M", 29.55, "", "llm.c dev/data/hellaswag.py"),
        Measured("acc_norm", "124M", 31.14, "by characters, not tokens", f"{HARNESS}, by llm.c"),
        Measured("acc", "1558M", 38.42, "", "llm.c dev/data/hellaswag.py"),
        Measured("acc", "1558M", 40.04, "with its clean-up of the text", f"{HARNESS}, by llm.c"),
        Measured("acc_norm", "1558M", 48.93, "", "llm.c dev/data/hellaswag.py"),
        Measured("acc_norm", "1558M", 50.89, "by characters, not tokens", f"{HARNESS}, by llm.c"),
    ),
}

_UNITS = (
    "3.1: the log-probability of the set by its own units, after invertible de-tokenizers, which were not published; "
    "openai/gpt-2#78: the loss is scaled before it is exponentiated. Window and stride are not said"
)
# What the paper says of its own conventions, and what it does not.
SAID = {
    "lambada": "3.3: a version without preprocessing; 1558M finds 52.66 % before and 63.24 % after a stop-word filter. "
    "Which words, and whether the word or its last token is to be found, is not said",
    "cbt-cn": "3.2: by the probability of each choice and of the rest of the sentence given it; the validation split, "
    "as a book of the test split is in WebText; de-tokenized, not said how",
    "wikitext2": _UNITS,
    "ptb": f"{_UNITS}; the edition with <unk> ({HARNESS}#5)",
    "enwik8": "3.1: the log-probability by bytes; split, window and stride are not said",
    "text8": "3.1: the log-probability by characters; split, window and stride are not said",
    "1bw": f"{_UNITS}, nor which part",
}
SAID |= {"cbt-ne": SAID["cbt-cn"], "wikitext103": _UNITS}
