"""The vocabulary in Hugging Face's tokenizer.json, and the tokens that were added to one.

An added token has an id behind the table, and a text that no typed text is encoded to. In the table it is spelt as its
text, or, where that would be read as the characters of `bytes_to_unicode`, in those.
"""

from __future__ import annotations

import json
from pathlib import Path

TOKENIZER = "tokenizer.json"
ADDED = "added_tokens.json"  # {text: id}, of old versions


def read_tokenizer(path: Path, text: str, alphabet: dict[int, str]) -> tuple[str, str]:
    """Returns the texts of a table and of merges that are those of a tokenizer.json.

    path: what errors call it; text: what it holds; alphabet: `bytes_to_unicode()`. Raises ValueError for a damaged file
    and for a tokenizer that is not GPT-2's.
    """
    found = _parse(path, text)
    model = found.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError(f"{path} is not the byte pair encoding of GPT-2: its model is not of the type BPE")
    split = found.get("pre_tokenizer")
    settings = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    if not isinstance(split, dict) or any(split.get(name, value) != value for name, value in settings.items()):
        raise ValueError(
            f"{path} is not the byte pair encoding of GPT-2: its pre_tokenizer is {json.dumps(split)[:80]}, "
            f"and must be {json.dumps(settings)}"
        )
    if found.get("normalizer") is not None:
        raise ValueError(f"{path} is not the byte pair encoding of GPT-2: it has a normalizer")
    table, merges = model.get("vocab"), model.get("merges")
    if not isinstance(table, dict) or not isinstance(merges, list):
        raise ValueError(f"{path} is damaged: it lacks vocab or merges")
    pairs = [pair if isinstance(pair, str) else " ".join(map(str, pair)) for pair in merges]
    return with_added(json.dumps(table), added_tokens(path, text), alphabet), "\n".join(["#version: 0.2", *pairs, ""])


def added_tokens(path: Path, text: str) -> dict[str, int]:
    """Returns the ids of the tokens that a tokenizer.json or added_tokens.json adds. Raises ValueError for damage."""
    found = _parse(path, text)
    try:
        if path.name == TOKENIZER:
            found = {token["content"]: token["id"] for token in found.get("added_tokens") or ()}
    except (TypeError, KeyError):
        raise ValueError(f"{path} is damaged: its added_tokens are not contents and ids") from None
    if not all(type(token_id) is int for token_id in found.values()):
        raise ValueError(f"{path} is damaged: its added tokens have ids that are not whole numbers")
    return found


def with_added(text: str, added: dict[str, int], alphabet: dict[int, str]) -> str:
    """Returns a table with the tokens whose ids it lacks; to the letter as it was where there are none."""
    table = json.loads(text)
    ids = set(table.values())
    new = {
        _spelling(token, table, alphabet): token_id
        for token, token_id in sorted(added.items(), key=lambda item: item[1])
        if token_id not in ids
    }
    return json.dumps(table | new) if new else text


def _spelling(token: str, table: dict[str, int], alphabet: dict[int, str]) -> str:
    in_alphabet = "".join(map(alphabet.__getitem__, token.encode("utf-8", "replace")))
    return in_alphabet if set(token) <= set(alphabet.values()) and in_alphabet not in table else token


def _parse(path: Path, text: str) -> dict:
    try:
        found = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or incomplete, not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it does not hold an object")
    return found
