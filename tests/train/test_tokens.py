"""Encoding to a file, encoded files, and windows: against NumPy's own files and tokens that are their places."""

import errno
import gzip
import io
import itertools
import os
import pickle
import sys
import zipfile
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder import Encoder, get_encoder
from gpt2tf.train import tokens as data
from gpt2tf.train.text import find_files, is_encoded
from gpt2tf.train.tokens import Windows, encode_corpus, fixed_windows, join_tokens, open_tokens, split

ENC = get_encoder()
END, N_VOCAB = 50256, 50257
TEXTS = ["It's one.\n", "\n Two 日本 🤗", "<|endof text|>three"]
TOKENS = [token for text in TEXTS for token in [*ENC.encode(text), END]]

sizes = st.integers(2, 200)
windows = st.integers(1, 40)
batch_sizes = st.integers(1, 9)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("<|endoftext|>".join(TEXTS), encoding="utf-8")
    return path


# Encoding


def test_a_corpus_becomes_an_array_that_numpy_reads(corpus, tmp_path):
    tokens = encode_corpus(find_files(corpus), ENC, tmp_path / "corpus.npy")
    assert tokens.tolist() == TOKENS and isinstance(tokens, np.memmap)
    stored = np.load(tmp_path / "corpus.npy", mmap_mode="r", allow_pickle=False)
    assert stored.tolist() == TOKENS and stored.dtype == np.uint16
    assert sorted(os.listdir(tmp_path)) == ["corpus.npy", "corpus.txt"]


def test_pieces_of_a_long_document_are_joined(tmp_path):
    text = "Don't stop 'till  you get\n\n enough, 1,000 times. " * 4000
    (tmp_path / "a").write_text(text, encoding="utf-8")
    assert encode_corpus(find_files(tmp_path / "a"), ENC, tmp_path / "a.npy").tolist() == [*ENC.encode(text), END]


@pytest.mark.parametrize("n_vocab, dtype", [(65536, np.uint16), (65537, np.uint32)])
def test_a_larger_vocabulary_has_larger_tokens(corpus, tmp_path, n_vocab, dtype):
    table = {token: token_id for token, token_id in ENC.encoder.items() if token_id != END}
    table |= {f"<|{token_id}|>": token_id for token_id in range(END, n_vocab - 1)} | {"<|endoftext|>": n_vocab - 1}
    tokens = encode_corpus(find_files(corpus), Encoder(table, ENC.bpe_ranks), tmp_path / "a.npy")
    assert tokens.dtype == dtype
    assert tokens.tolist() == [n_vocab - 1 if token == END else token for token in TOKENS]


def test_the_target_may_be_in_the_folder_that_is_read(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    for _ in range(2):
        assert encode_corpus(find_files(tmp_path), ENC, tmp_path / "run" / "tokens.npy").tolist() == TOKENS


def test_of_a_link_the_file_is_replaced(corpus, tmp_path):
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    encode_corpus(find_files(corpus), ENC, tmp_path / "link.npy")
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").tolist() == TOKENS


class Interrupted(Encoder):
    def encode(self, text):
        if "three" in text:
            raise KeyboardInterrupt
        return super().encode(text)


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_an_interrupted_call_leaves_nothing_behind(corpus, tmp_path, before):
    target = tmp_path / "a.npy"
    if before:
        target.write_bytes(before)
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(find_files(corpus), Interrupted(ENC.encoder, ENC.bpe_ranks), target)
    assert sorted(os.listdir(tmp_path)) == ["a.npy"] * bool(before) + ["corpus.txt"]
    assert not before or target.read_bytes() == before


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    resource = pytest.importorskip("resource")
    (tmp_path / "a").write_text("word " * 100_000, encoding="utf-8")  # 200,000 bytes of tokens
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match=r"a\.npy'$") as raised:
            encode_corpus(find_files(tmp_path / "a"), ENC, tmp_path / "a.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == ["a"]


def test_errors_name_what_the_user_named(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/a\.npy'$"):
        encode_corpus(find_files(corpus), ENC, tmp_path / "nowhere" / "a.npy")
    with pytest.raises(FileNotFoundError, match=r"missing\.txt'$"):
        encode_corpus(find_files(tmp_path / "missing.txt"), ENC, tmp_path / "a.npy")
    with pytest.raises(ValueError, match="there is no text in"):
        corpus.write_text("")
        encode_corpus(find_files(corpus), ENC, tmp_path / "a.npy")
    assert os.listdir(tmp_path) == ["corpus.txt"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz"])
def test_the_bar_counts_the_bytes_of_the_data(tmp_path, monkeypatch, name):
    content = '{"text": "words"}\n' * 5000 if name == "a.jsonl" else "text\n" + "日本\n" * 5000
    content = content.encode()
    if name.endswith(".gz"):
        content = gzip.compress(np.random.default_rng(0).integers(97, 123, 50_000, np.uint8).tobytes())
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("sys.stderr", Terminal())
    encode_corpus(find_files(tmp_path / name), ENC, tmp_path / "a.npy")
    size = f"{len(content) / 1000:.1f}k"
    assert "Encoding: 100%" in sys.stderr.getvalue() and f" {size}/{size} [" in sys.stderr.getvalue()


def test_no_bar_where_nobody_looks(corpus, tmp_path, monkeypatch, capsys):
    encode_corpus(find_files(corpus), ENC, tmp_path / "a.npy")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr", Terminal())
    encode_corpus(find_files(corpus), ENC, tmp_path / "a.npy", progress=False)
    assert sys.stderr.getvalue() == ""


# Encoded files


def test_is_encoded(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    assert [is_encoded(name) for name in ("a.npy", "A.NPZ", "a.txt", "npz", tmp_path / "folder.npy")] == [
        *(True, True, False, False, False)
    ]


@pytest.mark.parametrize("dtype", ["int64", "<u2", ">i4", "uint64"])
def test_npy_of_any_integers(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(data, "BLOCK", 4)
    np.save(tmp_path / "a.npy", np.array(TOKENS, dtype))
    (tmp_path / "a.npy").chmod(0o400)
    tokens = open_tokens(tmp_path / "a.npy", N_VOCAB)
    assert tokens.tolist() == TOKENS and isinstance(tokens, np.memmap)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("block", [3, 2**20])
def test_npz_of_the_forks(tmp_path, monkeypatch, save, block):
    monkeypatch.setattr(data, "BLOCK", block)
    chunks = [np.stack(TOKENS[:7]), np.array([], np.int64), np.stack(TOKENS[7:])]
    chunks += [np.array([number]) for number in range(12)]  # arr_10 comes after arr_9
    save(tmp_path / "a.npz", *chunks)
    tokens = open_tokens(tmp_path / "a.npz", N_VOCAB)
    assert tokens.tolist() == TOKENS + list(range(12)) and tokens.dtype == np.uint16
    assert open_tokens(tmp_path / "a.npz", 2**16 + 1).dtype == np.uint32


def test_files_are_joined_in_their_order(tmp_path):
    np.save(tmp_path / "b.npy", np.array([3, 4]))
    np.savez(tmp_path / "a.npz", np.array([1]), np.array([2], np.uint8))
    np.savez(tmp_path / "c.npz", np.array([5, END]))
    tokens = join_tokens(find_files(tmp_path), N_VOCAB)
    assert tokens.tolist() == [1, 2, 3, 4, 5, END] and tokens.dtype == np.uint16
    assert isinstance(join_tokens(find_files(tmp_path / "b.npy"), N_VOCAB), np.memmap)
    np.save(tmp_path / "d.npy", np.array([6, N_VOCAB]))
    with pytest.raises(ValueError, match=rf"d\.npy: token 1 is {N_VOCAB}, outside the vocabulary"):
        join_tokens(find_files(tmp_path), N_VOCAB)


@pytest.mark.parametrize("save", [np.save, np.savez])
@pytest.mark.parametrize("wrong", [-1, N_VOCAB, 2**40])
def test_ids_outside_the_vocabulary(tmp_path, monkeypatch, save, wrong):
    monkeypatch.setattr(data, "BLOCK", 4)
    path = tmp_path / ("a.npz" if save is np.savez else "a.npy")
    save(path, np.array([0, END, 5, 6, 7, wrong, 8]))
    with pytest.raises(ValueError, match=rf"token 5 is {wrong}, outside the vocabulary of {N_VOCAB} tokens; encode"):
        open_tokens(path, N_VOCAB)


@pytest.mark.parametrize("save", [np.save, np.savez])
@pytest.mark.parametrize(
    "array, message",
    [
        (np.zeros(3), r"holds float64 of shape \[3\]; tokens are integers of shape \[tokens\]"),
        (np.zeros((2, 3), int), r"holds int64 of shape \[2, 3\]"),
        (np.zeros((), int), r"holds int64 of shape \[\]"),
        (np.zeros(3, bool), "holds bool"),
        (np.array([[1], [2, 3]], object), "holds object"),
        (np.zeros(0, int), "holds no tokens"),
    ],
    ids=["floats", "matrix", "number", "bools", "objects", "empty"],
)
def test_arrays_that_are_no_tokens(tmp_path, save, array, message):
    path = tmp_path / ("a.npz" if save is np.savez else "a.npy")
    save(path, array)
    with pytest.raises(ValueError, match=message):
        open_tokens(path, N_VOCAB)


def files_that_are_damaged():
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(1000))
    np.savez(archive, np.arange(1000))
    array, archive = array.getvalue(), archive.getvalue()
    yield "short.npy", array[:-1]
    yield "header.npy", array[:50]
    yield "empty.npy", b""
    yield "pickle.npy", pickle.dumps([1, 2])
    yield "text.npy", b"Once upon a time"
    yield "short.npz", archive[:-1]
    yield "half.npz", archive[:4000]
    yield "flipped.npz", archive[:3000] + bytes([archive[3000] ^ 1]) + archive[3001:]
    yield "empty.npz", b"PK\5\6" + bytes(18)
    for name, content in ("other.npz", b"text"), ("inner.npz", array[:-5]):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("arr_0.npy", content)
        yield name, archive.getvalue()


@pytest.mark.parametrize("name, content", [pytest.param(*case, id=case[0]) for case in files_that_are_damaged()])
def test_files_that_are_damaged(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}.*; encode"):
        open_tokens(tmp_path / name, N_VOCAB)


@pytest.mark.parametrize("save, start, size", [(np.save, b"\x93NUMPY", 128), (np.savez, b"PK\1\2", 46)])
def test_no_bit_of_a_header_raises_anything_else(tmp_path, save, start, size):
    """NumPy and zipfile have errors of many kinds. A bit that does no harm may pass."""
    raw = io.BytesIO()
    save(raw, np.arange(100))
    raw, messages = raw.getvalue(), set()
    first = raw.index(start)
    for bit in range(8 * first, 8 * (first + size)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a.npy").write_bytes(damaged)
        try:
            open_tokens(tmp_path / "a.npy", N_VOCAB)
        except ValueError as error:
            messages.add(str(error))
    assert len(messages) > 5 and all("a.npy" in message for message in messages)


# Training and validation


def test_split_gives_views_of_both_ends():
    tokens = np.arange(1000, dtype=np.uint16)
    for share, count in (0.1, 100), (0.25, 250), (0.9, 900), (0, 0):
        train, validation = split(tokens, 64, share)
        assert np.array_equal(np.concatenate([train, validation]), tokens)
        assert len(validation) == count
        assert train.base is tokens and validation.base is tokens


@pytest.mark.parametrize("size, window, kept", [(19, 4, 0), (20, 4, 2), (20, 17, 2), (20, 18, 0), (0, 4, 0)])
def test_a_short_corpus_is_not_split(size, window, kept, caplog):
    train, validation = split(np.arange(size), window)
    assert (len(train), len(validation)) == (size - kept, kept)
    assert len(caplog.messages) == (kept == 0)


@pytest.mark.parametrize("share", [-0.1, 1, float("nan")])
def test_a_share_is_less_than_all(share):
    with pytest.raises(ValueError, match=f"validation is {share}"):
        split(np.arange(100), 4, share)


# Windows


def starts_by_the_book(size, window, seed):
    """The starts of all windows, one after the other, as the docstrings say."""
    for epoch in itertools.count():
        rng = np.random.default_rng([seed, epoch])
        count = max(1, size // window - 1)
        phase = rng.integers(size - window * count)
        yield from phase + window * rng.permutation(count)


@settings(max_examples=150, deadline=None)
@given(sizes, windows, batch_sizes, st.integers(0, 2**64 - 1), st.integers(0, 60))
def test_a_batch_depends_on_seed_and_step_alone(size, window, batch_size, seed, step):
    made = Windows(np.arange(size, dtype=np.uint16), window, batch_size, seed)
    window = min(window, size - 1)
    batch = made.batch(step)
    assert batch.dtype == np.int32 and batch.shape == (batch_size, window + 1)
    starts = list(islice(starts_by_the_book(size, window, seed), step * batch_size, (step + 1) * batch_size))
    assert np.array_equal(batch, np.add.outer(starts, np.arange(window + 1)))
    assert np.array_equal(made.batch(np.int64(step)), batch)  # after the cache has seen other epochs


@settings(max_examples=100, deadline=None)
@given(sizes, windows, st.integers(0, 9))
def test_an_epoch_has_no_token_twice_as_a_target(size, window, epoch):
    made = Windows(np.arange(size), window, 1, seed=3)
    steps = range(epoch * made.epoch_size, (epoch + 1) * made.epoch_size)
    targets = np.concatenate([made.batch(step)[0, 1:] for step in steps])
    assert len(set(targets)) == len(targets) > size - 1 - 2 * made.window
    assert 0 < min(targets) and max(targets) < size


@pytest.mark.parametrize("size, window", [(2, 1), (17, 16), (40, 16), (61, 16)])
def test_every_token_is_a_target_in_some_epoch(size, window):
    made = Windows(np.arange(size), window, 1, seed=0)
    seen = {int(target) for step in range(500) for target in made.batch(step)[0, 1:]}
    assert seen == set(range(1, size))


def test_epochs_differ_in_phase_and_order():
    made = Windows(np.arange(1000), 10, made_size := 99, seed=0)
    assert made.epoch_size == made_size
    starts = [made.batch(epoch)[:, 0] for epoch in range(20)]
    assert len({int(min(epoch)) for epoch in starts}) > 5
    assert all(len(set(epoch % 10)) == 1 for epoch in starts)
    assert not any(np.array_equal(epoch, sorted(epoch)) for epoch in starts)
    assert not np.array_equal(np.argsort(starts[0]), np.argsort(starts[1]))
    assert not np.array_equal(starts[0], Windows(np.arange(1000), 10, 99, seed=1).batch(0)[:, 0])


def test_negative_seeds_are_seeds():
    one, two = (Windows(np.arange(1000), 10, 50, np.int64(seed)).batch(3) for seed in (-1, -2))
    assert not np.array_equal(one, two)


def test_a_billion_tokens():
    tokens = np.broadcast_to(np.uint16(7), 10**9)
    made = Windows(tokens, 1024, 8, seed=0)
    assert made.epoch_size == 976_561
    assert made.batch(0).shape == made.batch(10**9).shape == (8, 1025)


def test_a_short_corpus_makes_the_window_shorter(caplog):
    made = Windows(np.arange(10), 1024, 4, seed=0)
    assert made.window == 9 and made.batch(0).tolist() == [list(range(10))] * 4
    made.batch(1)
    assert caplog.messages == ["the corpus has 10 tokens, the window is now 9 and not 1024"]
    caplog.clear()
    assert Windows(np.arange(10), 9, 4, seed=0).window == 9 and not caplog.messages


@pytest.mark.parametrize(
    "size, window, batch_size, message",
    [
        (1, 4, 1, "the corpus has 1 tokens, and training needs at least 2"),
        (0, 4, 1, "the corpus has 0 tokens"),
        (9, 0, 1, "window is 0; it must be 1 or more"),
        (9, 4, 0, "batch_size is 0; it must be 1 or more"),
    ],
)
def test_windows_that_cannot_be(size, window, batch_size, message):
    with pytest.raises(ValueError, match=message):
        Windows(np.arange(size), window, batch_size, seed=0)
    if size > 1:
        with pytest.raises(ValueError, match=message):
            fixed_windows(np.arange(size), window, batch_size)


def test_steps_are_counted_from_0():
    with pytest.raises(ValueError, match="step is -1"):
        Windows(np.arange(9), 4, 1, seed=0).batch(-1)


@settings(max_examples=150, deadline=None)
@given(sizes, windows, batch_sizes, st.none() | st.integers(0, 9))
def test_fixed_windows(size, window, batch_size, limit):
    batches = list(fixed_windows(np.arange(size, dtype=np.uint16), window, batch_size, limit))
    window = min(window, size - 1)
    assert all(batch.dtype == np.int32 and batch.shape[1] == window + 1 for batch in batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    rows = [row for batch in batches for row in batch.tolist()]
    assert rows == [list(range(row[0], row[0] + window + 1)) for row in rows]
    targets = [target for row in rows for target in row[1:]]
    if limit is None:
        assert targets == list(range(1, len(targets) + 1)) and size - 1 - window < len(targets) < size
    else:
        assert len(rows) == min(limit * batch_size, (size - 1) // window)
        assert targets == sorted(set(targets))


def test_limited_fixed_windows_are_spread_evenly():
    (batch,) = fixed_windows(np.arange(1001), 10, 4, limit=1)
    assert batch[:, 0].tolist() == [0, 250, 500, 750]


def test_one_token_gives_no_fixed_windows():
    assert [list(fixed_windows(np.arange(size), 4, 2)) for size in (0, 1)] == [[], []]
