"""The tokens of a training corpus: text in, windows out. Needs no TensorFlow.

Takes the place of src/load_dataset.py in nshepperd/gpt-2; the .npz files that it and gpt-2-simple write are read.
Differences: the corpus is streamed to a file and stays there; the real id of `<|endoftext|>` follows every document;
the windows of a step depend only on the seed and the step, so that a run can be resumed anywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tqdm import tqdm

from gpt2tf import encoder
from gpt2tf.checks import at_least, fraction
from gpt2tf.files import replacing
from gpt2tf.train.text import documents

BLOCK = 2**20  # tokens checked at a time
DAMAGE = (  # what NumPy and the modules under it raise for a file that is not as they wrote it, beside ValueError
    *(KeyError, TypeError, EOFError, RuntimeError, SyntaxError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, struct.error),
)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """What a run is trained on.

    tokens: ids of shape [tokens]; enc: the vocabulary they are of; identity: numbers that tell it from another corpus.
    """

    tokens: np.ndarray
    enc: encoder.Encoder
    identity: Mapping[str, int]


def encode_corpus(
    files: list[str], enc: encoder.Encoder, target: str | os.PathLike, text_column: str = "text", progress: bool = True
) -> np.ndarray:
    """Encode files to the .npy file `target`, and return its tokens as `open_tokens` does.

    files, text_column and errors: as for `documents`. The id of `<|endoftext|>` follows each document, also
    the last one. The tokens are uint16, or uint32 for a vocabulary of more than 65,536.
    progress: a bar of the bytes read, if stderr is a terminal.
    The file gets its name when it is complete; an interrupted call leaves nothing behind.
    """
    n_vocab, end = len(enc.encoder), enc.encoder[encoder.END_OF_TEXT]
    dtype = _dtype(n_vocab)
    size = sum(os.path.getsize(file) for file in files)
    bar = tqdm(desc="Encoding", total=size, unit="B", unit_scale=True, disable=None if progress else True)
    target = os.path.realpath(target)  # of a link, the file is replaced and not the link
    with bar, replacing(target) as file:
        _write_header(file, dtype, 0)
        start = file.tell()
        for document in documents(files, text_column, bar.update):
            for piece in document:
                file.write(np.asarray(enc.encode(piece), dtype))
            file.write(np.asarray([end], dtype))
        _write_header(file, dtype, (file.tell() - start) // dtype.itemsize)
    return open_tokens(target, n_vocab)


def open_tokens(path: str | os.PathLike, n_vocab: int) -> np.ndarray:
    """Tokens of shape [tokens] from a .npy file, mapped into memory, or an .npz file, read into it.

    An .npz file holds one or more arrays, joined in their order, as nshepperd/gpt-2 encode.py and
    gpt-2-simple write them; they are read as uint16, or uint32 for a vocabulary of more than 65,536.
    Raises ValueError unless the file is whole and all are one-dimensional integers in [0, n_vocab); OSError.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            if file.read(2) == b"PK":
                return _read_npz(path, n_vocab)
            file.seek(0)
            dtype, count = _read_header(file, path)
            offset = file.tell()
        if os.path.getsize(path) < offset + count * dtype.itemsize:
            raise ValueError(f"{path} is cut short: it announces {count:,} tokens; encode the text again")
        if not count:
            raise ValueError(f"{path} holds no tokens; encode a text that is not empty")
        tokens = np.memmap(path, dtype, "r", offset, (count,))  # [tokens]
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged ({error}); encode the text again") from None
    for first in range(0, count, BLOCK):
        _check_ids(tokens[first : first + BLOCK], first, n_vocab, path)
    return tokens


def join_tokens(files: list[str], n_vocab: int) -> np.ndarray:
    """Tokens of shape [tokens] from files of `open_tokens`, in their order: of several in memory, as one array.

    Raises as `open_tokens` does.
    """
    parts = [open_tokens(file, n_vocab) for file in files]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, dtype=_dtype(n_vocab), casting="unsafe")  # [tokens]


def split(tokens: np.ndarray, window: int, validation: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """The tokens to train on and those for validation, a share at the end of the corpus; views, no copies.

    A corpus so short that fewer than two tokens would be for validation, or fewer than window + 1 for training,
    is all for training, with a note; the other part is empty. Raises ValueError for a share outside [0, 1).
    """
    count = int(len(tokens) * fraction("validation", validation))
    if validation and (count < 2 or len(tokens) - count < window + 1):
        log.warning("the corpus of %d tokens is too short to keep some for validation; all are trained on", len(tokens))
        count = 0
    return tokens[: len(tokens) - count], tokens[len(tokens) - count :]


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """The windows of each training step: a function of (seed, step) alone.

    An epoch lays a grid of windows over the tokens, shifted by a random phase, and visits them in a random order.
    Each token is a target once in an epoch, except fewer than two windows of tokens at the ends of the corpus; the next
    epoch cuts the text at other places. Batches are filled across the ends of epochs.

    tokens: ids of shape [tokens]. window: targets in a window; with fewer than window + 1 tokens it becomes one less
    than their number, with a note. Raises ValueError for fewer than two tokens.
    """

    tokens: np.ndarray
    window: int
    batch_size: int
    seed: int

    def __post_init__(self):
        _check_sizes(self.window, self.batch_size)
        size = len(self.tokens)
        if size < 2:
            raise ValueError(f"the corpus has {size} tokens, and training needs at least 2; add text")
        if size < self.window + 1:
            log.warning("the corpus has %d tokens, the window is now %d and not %d", size, size - 1, self.window)
            object.__setattr__(self, "window", size - 1)

    @property
    def epoch_size(self) -> int:
        """The windows in an epoch."""
        return _epoch_size(len(self.tokens), self.window)

    def batch(self, step: int) -> np.ndarray:
        """The windows of a step, counted from 0: int32 of shape [batch, window + 1]."""
        first = int(at_least(0)("step", step)) * self.batch_size
        places = [divmod(number, self.epoch_size) for number in range(first, first + self.batch_size)]
        starts = [_starts(len(self.tokens), self.window, self.seed, epoch)[place] for epoch, place in places]
        return _gather(self.tokens, starts, self.window)


def fixed_windows(tokens: np.ndarray, window: int, batch_size: int, limit: int | None = None) -> Iterator[np.ndarray]:
    """Windows for validation, always the same: int32 of shape [batch, window + 1].

    They come in the order of the text, and each token is a target at most once. The last batch may be smaller, because
    all of a short text counts: weigh the batches by their rows. Tokens at the end that fill no window are left out; a
    text shorter than a window is one shorter window. Fewer than two tokens give no batch.

    limit: at most this many batches, of windows spread evenly over the tokens.
    """
    _check_sizes(window, batch_size)
    window = max(1, min(window, len(tokens) - 1))
    count = max(0, len(tokens) - 1) // window
    kept = count if limit is None else min(count, max(0, limit) * batch_size)
    starts = [number * count // kept * window for number in range(kept)]
    return (_gather(tokens, starts[first : first + batch_size], window) for first in range(0, kept, batch_size))


def _check_sizes(window: int, batch_size: int) -> None:
    at_least(1)("window", window)
    at_least(1)("batch_size", batch_size)


def _gather(tokens: np.ndarray, starts: Iterable[int], window: int) -> np.ndarray:
    return np.stack([tokens[start : start + window + 1] for start in starts]).astype(np.int32)  # [batch, window + 1]


def _epoch_size(size: int, window: int) -> int:
    """Windows in every epoch, whatever its phase: one fewer than would fit, so that the grid can be shifted."""
    return max(1, size // window - 1)


@functools.lru_cache(maxsize=2)  # the current epoch's, and the next one's where a batch goes across
def _starts(size: int, window: int, seed: int, epoch: int) -> np.ndarray:
    """Where the windows of an epoch start, in the order of the visit: int64 of shape [windows]."""
    rng = np.random.default_rng([int(seed) % 2**64, epoch])  # default_rng takes no negative seed
    count = _epoch_size(size, window)
    phase = rng.integers(size - count * window)  # the largest is the last that leaves room for all, and one token
    return phase + window * rng.permutation(count)


def _dtype(n_vocab: int) -> np.dtype:
    return np.dtype("<u2" if n_vocab <= 2**16 else "<u4")


def _write_header(file, dtype: np.dtype, count: int) -> None:
    """Writes the start of a .npy file, which has the same 128 bytes of length for any count."""
    file.seek(0)
    shape = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, shape)


def _read_header(file, path: str) -> tuple[np.dtype, int]:
    """The dtype and the number of tokens in a .npy file, which is then read up to the first of them."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, *DAMAGE) as error:
        raise ValueError(f"{path} is no array of NumPy, or damaged ({error}); encode the text again") from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"{path} holds {dtype} of shape {list(shape)}; tokens are integers of shape [tokens]")
    return dtype, shape[0]


def _read_npz(path: str, n_vocab: int) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        headers = {}
        for name in archive.namelist():
            with archive.open(name) as file:
                headers[name] = _read_header(file, f"{path}: {name}")
        tokens = np.empty(sum(count for _, count in headers.values()), _dtype(n_vocab))  # [tokens]
        end = 0
        for name, (dtype, count) in headers.items():
            with archive.open(name) as file:
                _read_header(file, path)
                while count:
                    raw = file.read(min(count, BLOCK) * dtype.itemsize)
                    if len(raw) < min(count, BLOCK) * dtype.itemsize:
                        raise EOFError(f"{name} is cut short")
                    block = np.frombuffer(raw, dtype)
                    _check_ids(block, end, n_vocab, path)
                    tokens[end : end + block.size] = block
                    end += block.size
                    count -= block.size
    if not end:
        raise ValueError(f"{path} holds no tokens; encode a text that is not empty")
    return tokens


def _check_ids(block: np.ndarray, first: int, n_vocab: int, path: str) -> None:
    """Raises ValueError for an id outside the vocabulary; `first`: the place of the block in the corpus."""
    if block.min() < 0 or block.max() >= n_vocab:
        place = int(np.argmax((block < 0) | (block >= n_vocab)))
        raise ValueError(
            f"{path}: token {first + place} is {block[place]}, outside the vocabulary of {n_vocab} tokens; "
            "encode the text again for this model"
        )
