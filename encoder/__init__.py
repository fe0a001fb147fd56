"""Byte pair encoding of GPT-2: encoder/encoder.py, and the files of a vocabulary: encoder/vocabulary.py."""

from .encoder import Encoder, get_encoder, get_pairs
from .vocabulary import (
    END_OF_TEXT,
    RELEASED_SIZE,
    Vocabulary,
    bytes_to_unicode,
    read_vocabulary,
    real_tokens,
    released,
    write_vocabulary,
)

__all__ = [
    "END_OF_TEXT",
    "RELEASED_SIZE",
    "Encoder",
    "Vocabulary",
    "bytes_to_unicode",
    "get_encoder",
    "get_pairs",
    "read_vocabulary",
    "real_tokens",
    "released",
    "write_vocabulary",
]
