"""The text of a training corpus: files and folders in, documents out, in pieces. Needs no TensorFlow.

Takes the place of src/load_dataset.py in nshepperd/gpt-2, the best known fork of openai/gpt-2. Differences: no file is
read as a whole, and the pieces have the tokens of the whole; `<|endoftext|>`, as users of that fork type it, ends a
document.
"""

from __future__ import annotations

import collections
import errno
import glob
import itertools
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator

import regex

from gpt2tf import encoder
from gpt2tf.files import naming
from gpt2tf.formats.hugging_face_config import weights_file
from gpt2tf.locate import VOCABULARY_FILES
from gpt2tf.train.reader import ESCAPED, NotText, not_utf8, text_reader, too_many
from gpt2tf.train.rows import texts

LONGEST_PIECE = 2**20  # characters; the encoder takes some 300 bytes of memory for each of a single word's
TOKENS = "tokens.npy"  # in the folder of a run, the corpus as it was encoded
ENCODED = (".npy", ".npz")

# The last place where text can be cut without changing a token. Encoder.pat matches from left to right, never looks
# back, looks ahead only from white space, and its tokens end where letters, digits or signs end.
# One place is doubtful: an apostrophe before a letter is either the last of some signs or starts a contraction.
LAST_CUT = regex.compile(r"(?r)\p{L}(?=\P{L})|\p{N}(?=\P{N})|[^\s\p{L}\p{N}'](?=[\s\p{L}\p{N}])")
BLANK = regex.compile(r"\s*")
SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that was not UTF-8, or half of an escaped pair in JSON

log = logging.getLogger(__name__)


def find_files(path: str | os.PathLike) -> list[str]:
    """The files that DATA stands for: text, or tokens that are encoded already (see `is_encoded`).

    path: a file of any name; a folder: all files in it and in its folders; or a pattern of such paths, `data/*.npz`.
    They come in the order of their names. Hidden files and, with a note, files that are not text, models and runs are
    left out of a folder.
    Raises ValueError for text in other encodings than those of `text_reader`, for what is no text, and for text beside
    encoded .npz and .npy; OSError for what cannot be read.
    """
    path = os.fspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        if os.path.isfile(path) and not is_encoded(path):  # from a pipe, whatever comes is text
            _check_text(path)
        return [path]
    roots = [path] if os.path.isdir(path) else sorted(glob.glob(path, recursive=True))
    if not roots:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    there = list(dict.fromkeys(file for root in roots for file in _walk(root, ())))
    encoded = [file for file in there if is_encoded(file)]
    files = [file for file in there if not is_encoded(file) and _is_text(file)]
    if files and encoded:
        pattern = os.path.join(os.path.dirname(encoded[0]), "*" + os.path.splitext(encoded[0])[1])
        raise ValueError(
            f"{path} has encoded tokens ({encoded[0]}) beside text ({files[0]}); name one kind of them, "
            f"such as {shlex.quote(pattern)}"
        )
    files = files or encoded
    skipped = sorted(set(there).difference(files))
    if not files:
        raise ValueError(f"no file in {path} is text, of {len(there)}; name a folder of text, .jsonl or .csv files")
    if skipped:
        log.warning("%s: %d files that are not text are left out, %s the first", path, len(skipped), skipped[0])
    return files


def is_encoded(path: str | os.PathLike) -> bool:
    """Whether DATA is already encoded, by its name: a .npy or .npz file."""
    return os.fspath(path).lower().endswith(ENCODED) and not os.path.isdir(path)


def _walk(path: str, above: tuple[str, ...]) -> Iterator[str]:
    """All files in a folder that are not hidden, by name; links are followed, but not back into a folder above."""
    if not os.path.isdir(path):
        yield path
    elif os.path.realpath(path) not in above:
        names = sorted(os.listdir(path))
        if all(name in names for name in VOCABULARY_FILES) or weights_file(
            path
        ):  # it may be the folder of this very run
            log.info("%s holds a model and is left out", path)
            return
        if above and TOKENS in names:  # of a run that was not saved: the text beside it, encoded
            log.info("%s holds a run and is left out", path)
            return
        for name in names:
            if not name.startswith("."):
                yield from _walk(os.path.join(path, name), (*above, os.path.realpath(path)))


def _check_text(path: str) -> None:
    with naming(path), open(path, "rb") as stream:
        text_reader(stream, path)


def _is_text(path: str) -> bool:
    try:
        if os.path.isfile(path):
            _check_text(path)
            return True
    except NotText:
        pass
    return False


def documents(
    files: list[str], text_column: str = "text", advance: Callable[[int], object] = lambda count: None
) -> Iterator[Iterator[str]]:
    """The documents of files, each as pieces of text that are encoded one by one to the tokens of the whole.

    files: text, or .jsonl, .ndjson, .json, .csv and .tsv, each of whose rows has a document in `text_column`, or .gz of
    any of these. In all of them:

    - the text `<|endoftext|>` ends a document, too; documents of nothing but white space are left out;
    - the encoding is that of `text_reader`; "\\r\\n" and "\\r" become "\\n", and a byte that is not UTF-8 becomes
      U+FFFD, with one note;
    - a piece has at most LONGEST_PIECE + rows.CHUNK characters. A longer sequence of only letters, only digits, only
      signs or only white space is cut all the same, at the cost of a token or two.

    Each document is to be read before the next one is asked for; what is left of it is skipped.
    advance: called with the number of bytes of each read.
    Raises ValueError for files without text, in another encoding, with a missing column or a broken line (with file and
    line); OSError for what cannot be read.
    """
    replaced = collections.Counter()  # file: characters
    empty = True
    for file in files:
        counts = collections.Counter()  # of characters
        for chunks in texts(file, text_column, advance):
            pieces = _pieces(_replace_surrogates(chunks, counts))
            for piece in pieces:
                # A piece ends in a character that is no white space, unless it is the last one.
                if piece is not None and not BLANK.fullmatch(piece):
                    document = itertools.chain([piece], iter(pieces.__next__, None))
                    yield document
                    collections.deque(document, maxlen=0)
                    empty = False
        if too_many(counts["escaped"], counts["read"]):  # it did not begin so
            raise not_utf8(file, f"{counts['escaped']:,} bytes among {counts['read']:,} characters are not")
        if counts["replaced"]:
            replaced[file] = counts["replaced"]
    if replaced:
        log.info(
            "note: %d bytes that are not UTF-8 were replaced by U+FFFD, in %d files, %s the first",
            *(replaced.total(), len(replaced), next(iter(replaced))),
        )
    if empty:
        others = f" and {len(files) - 1} other files" if len(files) > 1 else ""
        raise ValueError(f"there is no text in {files[0]}{others}; name a file or folder that holds some")


def _pieces(chunks: Iterable[str]) -> Iterator[str | None]:
    """Text in pieces that can be encoded one by one, with None for each `<|endoftext|>` and for the end."""
    held = ""
    for chunk in chunks:
        *ended, held = (held + chunk).split(encoder.END_OF_TEXT)
        for text in ended:
            yield text
            yield None
        known = max(0, len(held) - len(encoder.END_OF_TEXT))  # the rest may be half of an <|endoftext|>
        cut = LAST_CUT.search(held, 0, known)
        size = cut.end() if cut else known if known >= LONGEST_PIECE else 0
        if size:
            yield held[:size]
            held = held[size:]
    yield held
    yield None


def _replace_surrogates(chunks: Iterable[str], counts: collections.Counter) -> Iterator[str]:
    for chunk in chunks:
        counts["escaped"] += chunk.count(ESCAPED)
        chunk, count = SURROGATE.subn("\ufffd", chunk)
        counts["replaced"] += count
        counts["read"] += len(chunk)
        yield chunk
