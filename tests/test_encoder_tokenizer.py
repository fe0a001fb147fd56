"""tokenizer.json and added_tokens.json: the same ids as from the two files, and tokens that were added to them."""

import json

import pytest
from recorded import GOLDEN

from encoder import Encoder, bytes_to_unicode, get_encoder, read_vocabulary

TINY = GOLDEN / "tiny-a"
TABLE = json.loads((TINY / "encoder.json").read_text(encoding="utf-8"))
MERGES = (TINY / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
ADDED = {"<|im start|>": 1000, "[PAD]": 1001, "日本": 1002, " the": 1003, "Ã©": 1004}
TEXTS = ["Hello world", "naïve 日本", " the <|im start|>", "[PAD] Ã©", "it's  1,234\n"]


def tokenizer(**changed):
    added = [{"id": token_id, "content": token} for token, token_id in {"<|endoftext|>": 999, **ADDED}.items()]
    model = {"type": "BPE", "vocab": TABLE, "merges": MERGES}
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    found = {"added_tokens": added, "normalizer": None, "pre_tokenizer": split, "model": model}
    return json.dumps(found | changed)


def read(folder):
    return Encoder(*read_vocabulary(folder).tables())


def assert_is_tiny_with_added(enc):
    tiny = get_encoder("tiny-a", GOLDEN)
    for text in TEXTS:  # no typed text makes an added token
        assert enc.encode(text) == tiny.encode(text)
    for token, token_id in ADDED.items():
        assert enc.decode([token_id]) == token
    assert enc.decode([999, 1001]) == "<|endoftext|>[PAD]" and len(enc.encoder) == 1005


@pytest.mark.parametrize("pairs", [MERGES, [merge.split(" ") for merge in MERGES]], ids=["strings", "pairs"])
def test_one_file(tmp_path, pairs):
    (tmp_path / "tokenizer.json").write_text(tokenizer(model={"type": "BPE", "vocab": TABLE, "merges": pairs}))
    assert_is_tiny_with_added(read(tmp_path))


def test_tokens_added_to_two_files(tmp_path):
    (tmp_path / "vocab.json").write_bytes((TINY / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((TINY / "vocab.bpe").read_bytes())
    assert read_vocabulary(tmp_path) == read_vocabulary(TINY)  # to the letter
    (tmp_path / "added_tokens.json").write_text(json.dumps(ADDED))
    assert_is_tiny_with_added(read(tmp_path))
    (tmp_path / "added_tokens.json").unlink()
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    assert_is_tiny_with_added(read(tmp_path))


def test_added_tokens_survive_the_original_files(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    (tmp_path / "original").mkdir()
    read_vocabulary(tmp_path).write(tmp_path / "original")
    assert_is_tiny_with_added(read(tmp_path / "original"))


def test_half_a_pair_is_not_taken_for_a_vocabulary(tmp_path):
    (tmp_path / "vocab.json").write_bytes((TINY / "encoder.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(tokenizer())
    assert_is_tiny_with_added(read(tmp_path))


def test_every_character_of_the_table_can_be_added(tmp_path):
    """As HF does it: one that is a token already has that token's id, and is no new one."""
    added = [{"id": TABLE[char], "content": char} for char in bytes_to_unicode().values()]
    (tmp_path / "tokenizer.json").write_text(tokenizer(added_tokens=added))
    assert read(tmp_path).encoder == TABLE


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": {"type": "WordPiece", "vocab": TABLE}}, "not of the type BPE"),
        ({"model": {"type": "BPE", "vocab": TABLE}}, "lacks vocab or merges"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre_tokenizer"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"added_tokens": [{"content": "x"}]}, "added_tokens"),
        ({"added_tokens": [{"content": "x", "id": "y"}]}, "whole numbers"),
        ({"added_tokens": [{"content": "<x>", "id": 2000}]}, "are not the numbers 0 to 1000"),
        ({"model": {"type": "BPE", "vocab": TABLE, "merges": MERGES[:-50]}}, "incomplete"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, changed, message):
    (tmp_path / "tokenizer.json").write_text(tokenizer(**changed))
    with pytest.raises(ValueError, match=message) as refused:
        get_encoder(tmp_path.name, tmp_path.parent)
    assert str(tmp_path / "tokenizer.json") in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_damage(tmp_path, file):
    (tmp_path / "vocab.json").write_bytes((TINY / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((TINY / "vocab.bpe").read_bytes())
    for content, message in (
        ('{"model":', "not JSON"),
        ("[]", "object"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    ):
        (tmp_path / file).write_text(content)
        with pytest.raises(ValueError, match=message) as refused:
            read_vocabulary(tmp_path)
        assert str(tmp_path / file) in str(refused.value)
