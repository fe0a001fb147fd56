"""Byte pair encoding of GPT-2; see encoder/encoder.py."""

from .encoder import END_OF_TEXT, Encoder, bytes_to_unicode, get_encoder, get_pairs, write_vocabulary

__all__ = ["END_OF_TEXT", "Encoder", "bytes_to_unicode", "get_encoder", "get_pairs", "write_vocabulary"]
