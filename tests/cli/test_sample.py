"""`sample.py` from flags to text. test_sample_errors.py has what it refuses, test_process.py its surroundings."""

import atexit
import gzip
import json

import numpy as np
import pytest
from command import FOUR, FOUR_TEXT, LONG, MODEL, header
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded import GOLDEN

from encoder import get_encoder
from gpt2tf import cli
from gpt2tf.cli import sample as cli_sample

RECORDED = json.loads((GOLDEN / "tiny-a" / "samples.json").read_text(encoding="utf-8"))["cases"]
# One recorded case of each kind; test_sample.py replays them all.
CASES = {
    (case["prompt"] is None, type(case["temperature"]), case["top_k"] > 0, case["top_p"] < 1): case
    for case in RECORDED
    if case["source"] == "9b63575" and "rounding" not in case and case["batch_size"] == 1
}
END = "=" * 80 + "\n"


@pytest.mark.parametrize("case", CASES.values())
def test_same_flags_same_text_as_the_original(sample, case):
    names = ["seed", "length", "temperature", "top_k", "top_p"]
    flags = [f"--{name}={case[name]}" for name in names] + [f"--nsamples={case['nruns']}"]
    if case["prompt"] is not None:
        flags += ["--prompt", case["prompt"]]
    code, out, err = sample(*MODEL, *flags)
    texts = [text for run in case["texts"] for text in run]
    expected = "".join(f"{header(number)}{text}\n" for number, text in enumerate(texts, 1))
    assert (code, out) == (0, expected + (END if case["prompt"] is not None else ""))
    assert err == ""


@pytest.mark.parametrize(
    "text",
    ["-x", "--length", "--help", "hello, world", "123", "None", "[1, 2]", "a\nb\n", "naïve — 日本語", "<|endoftext|>"],
)
@pytest.mark.parametrize("joined", [False, True])
def test_prompt_is_the_literal_text(sample, text, joined):
    prompt = [f"--prompt={text}"] if joined else ["--prompt", text]
    code, out, err = sample(*FOUR, "--format", "jsonl", *prompt)
    record = json.loads(out)
    assert (code, record["prompt"], err) == (0, text, "")
    assert len(record["tokens"]) == 4


@pytest.mark.parametrize("text", ["\ud83d!", "x\udce9y"])
def test_what_is_not_text_is_replaced(sample, text):
    code, out, err = sample(*FOUR, "--format=jsonl", "--prompt", text, "--stop", "\udce9")
    record = json.loads(out)
    assert code == 0
    assert record["prompt"] == text.replace("\ud83d", "\ufffd").replace("\udce9", "\ufffd")
    assert record["stop"] == "\ufffd"
    assert "not UTF-8 were replaced by U+FFFD" in err


@pytest.mark.parametrize(
    "content, prompt",
    [
        *[
            (b"hello\n", "hello"),
            (b"hello\r\n", "hello"),
            (b"a\n\n", "a\n"),
            (b"caf\xe9", "caf\ufffd"),
            (b"\n\n", "\n"),
        ],
        *[(b"a\r\nb\rc\r\n", "a\nb\nc"), (b"\xef\xbb\xbfa\r\n\r\n", "a\n")],
        *(("\ufeffé\r\n日🤗\r\n".encode(encoding), "é\n日🤗") for encoding in ("utf-16-le", "utf-16-be", "utf-32-le")),
    ],
)
def test_prompt_file_and_stdin(sample, stdin, tmp_path, content, prompt):
    (tmp_path / "prompt").write_bytes(content)
    from_file = sample(*FOUR, "--format=jsonl", "--prompt_file", tmp_path / "prompt")
    stdin(content)
    assert sample(*FOUR, "--format=jsonl", "--prompt-file", "-") == from_file
    assert json.loads(from_file[1])["prompt"] == prompt
    assert ("U+FFFD" in from_file[2]) == ("\ufffd" in prompt)


def test_a_packed_prompt(sample, tmp_path):
    (tmp_path / "prompt.txt.gz").write_bytes(gzip.compress("a\r\né\r\n".encode("utf-16")))
    out = sample(*FOUR, "--format=jsonl", "--prompt_file", tmp_path / "prompt.txt.gz")[1]
    assert json.loads(out)["prompt"] == "a\né"


def test_piped_prompts_are_answered_one_by_one(sample, stdin):
    stdin(b"hello\r\n\n" + LONG.encode() + b"\ncaf\xe9\nhello")
    code, out, err = sample(*FOUR, "--interactive")
    texts = out.split(header(1))
    assert code == 0 and texts[0] == "" and len(texts) == 4
    assert all(text.endswith("\n" + END) for text in texts[1:])
    alone = sample(*FOUR, "--prompt", "hello")[1]
    assert header(1) + texts[1] == alone
    assert texts[3] != texts[1]  # the random stream goes on, as in the original's session
    assert err.count("Model prompt >>> ") == 6  # the last finds the end of stdin
    assert "\nPrompt should not be empty!\n" in err
    assert "\nsample.py: the prompt has 70 tokens; the model's window has 64, so shorten the prompt\n" in err
    assert "replaced by U+FFFD" in err


def test_no_piped_prompt_is_no_error(sample, stdin):
    stdin(b"")
    assert sample(*FOUR, "--interactive")[:2] == (0, "")


def test_default_lengths(sample):
    def length(*flags):
        return len(json.loads(sample(*MODEL, "--format=jsonl", "--seed=1", *flags)[1])["tokens"])

    assert length() == 64
    assert length("--prompt=hello") == 32
    assert length("--length=0") == 0
    assert length("--prompt", "x" * 64, "--length=1") == 1  # the last token is never fed back


@pytest.mark.parametrize("nsamples, batch_size", [(3, 2), (4, 2), (1, 3)])
def test_nsamples_need_not_fill_the_last_batch(sample, nsamples, batch_size):
    code, out, _ = sample(*FOUR, f"--nsamples={nsamples}", f"--batch-size={batch_size}", "--format=jsonl")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [record["sample"] for record in records] == list(range(1, nsamples + 1))
    more = sample(*FOUR, "--nsamples=4", f"--batch_size={batch_size}", "--format=jsonl")[1].splitlines()
    assert out.splitlines() == more[:nsamples]


@pytest.mark.parametrize(
    "nsamples, batch_size, flags", [(11, 2, ["--prompt=hello", "--stop= a"]), (7, 1, []), (1, 2, [])]
)
def test_shards_together_are_one_run(sample, nsamples, batch_size, flags):
    flags = [*FOUR, f"--nsamples={nsamples}", f"--batch_size={batch_size}", "--format=jsonl", *flags]
    code, whole, _ = sample(*flags)
    shards = [sample(*flags, f"--shard={part}/3") for part in (1, 2, 3)]
    assert [code, *(code for code, _, _ in shards)] == [0, 0, 0, 0]
    assert [err for _, _, err in shards] == ["", "", ""]
    lines = [line for _, out, _ in shards for line in out.splitlines()]
    assert sorted(lines, key=lambda line: json.loads(line)["sample"]) == whole.splitlines()
    of_the_first = [json.loads(line)["sample"] for line in shards[0][1].splitlines()]
    assert of_the_first == [n for n in range(1, nsamples + 1) if (n - 1) // batch_size % 3 == 0]


def test_shards_in_text(sample):
    flags = [*FOUR, "--prompt=hello", "--nsamples=3"]
    whole = sample(*flags)[1].removesuffix(END).split(header(2))
    second = whole[1].split(header(3))[0]
    assert sample(*flags, "--shard=2/2") == (0, header(2) + second + END, "")
    assert sample(*flags, "--shard=1/1")[1] == sample(*flags)[1]
    assert sample(*flags, "--shard=4/4") == (0, "", "")  # of three batches it gets none


def test_dashes_and_underscores_are_the_same(sample):
    flags = ["--top-k=0", "--batch-size", 2, "--include-prefix", "--prompt", "a-b_c"]
    assert sample(*FOUR, *flags) == sample(*FOUR, *[str(flag).replace("-k", "_k") for flag in flags])


def test_temperature_0_is_the_likeliest_token(sample):
    likeliest = header(1) + ' were"\ufffd first""""""\n'  # what the original prints with --top_k 1
    assert sample(*MODEL, "--length=10", "--seed=1", "--temperature=0")[1] == likeliest
    assert sample(*MODEL, "--length=10", "--seed=2", "--temperature=0")[1] == likeliest


def test_top_k_above_the_vocabulary_is_off_but_draws_as_the_original_did(sample):
    code, out, _ = sample(*FOUR, "--top_k=2147483647")
    assert code == 0 and out != sample(*FOUR)[1]


def test_fresh_seed_is_printed_and_repeats_the_run(sample):
    code, out, err = sample(*MODEL, "--length=20")
    assert code == 0 and err.startswith("sample.py: seed ")
    again = sample(*MODEL, "--length=20", "--seed", err.split()[-1])
    assert again == (0, out, "")


def test_jsonl_holds_what_repeats_the_sample(sample):
    flags = ["--top_k=3", "--temperature=1.0", "--top_p=0.9", "--batch_size=2", "--stop=zz", "--truncate"]
    record = json.loads(sample(*FOUR, *flags, "--format=jsonl", "--prompt=hello", "--include_prefix")[1])
    assert record.pop("text").startswith("hello")
    assert len(record.pop("tokens")) == 4
    assert record == {
        "sample": 1, "prompt": "hello", "seed": 1, "model_name": "tiny-a", "dtype": "float32", "length": 4,
        "temperature": 1.0, "top_k": 3, "top_p": 0.9, "batch_size": 2, "stop": "zz", "truncate": True,
    }  # fmt: skip
    assert isinstance(record["temperature"], float)


def test_stop_cuts_generated_text_only(sample):
    whole = json.loads(sample(*FOUR, "--format=jsonl")[1])
    assert whole["text"] == FOUR_TEXT
    cut = json.loads(sample(*FOUR, "--format=jsonl", "--stop", "to")[1])
    assert cut["text"] == " $ in"
    assert cut["tokens"] == whole["tokens"][:2]  # the token that spells " into" says more than the text
    assert json.loads(sample(*FOUR, "--format=jsonl", "--stop", " $")[1])["tokens"] == []
    assert sample(*FOUR, "--stop", "-never")[1] == sample(*FOUR)[1]
    prompted = sample(*FOUR, "--prompt", "hello", "--include_prefix", "--stop", "hello")[1]
    assert prompted == sample(*FOUR, "--prompt", "hello", "--include_prefix")[1]


@pytest.mark.parametrize("flags", [[], ["--stop=first"], ["--stop=zz", "--include_prefix"], ["--length=0"]])
def test_words_that_are_shown_as_they_come_make_the_whole_sample(sample, stdin, flags):
    flags = [*MODEL, "--seed=1", "--length=40", *flags]
    stdin(b"hello\n")
    assert sample(*flags, "--interactive")[1] == sample(*flags, "--prompt=hello")[1]


def test_a_batch_ends_when_all_its_samples_have_met_stop(sample, tiny_generator, monkeypatch):
    stream, made = tiny_generator.stream, []

    def counted(*args, **options):
        for piece in stream(*args, **options):
            made.append(len(piece[0]))
            yield piece

    monkeypatch.setattr(tiny_generator, "stream", counted)
    flags = [*MODEL, "--seed=1", "--length=60", "--batch_size=2", "--temperature=0"]
    assert sample(*flags, "--stop=never")[0] == 0
    assert sum(made) == 60
    made.clear()
    assert sample(*flags, "--stop= first")[1] == header(1) + ' were"\ufffd\n'
    assert sum(made) == cli_sample.CHUNK


def test_truncate_cuts_at_the_end_of_text_that_was_generated(sample, tiny_generator, monkeypatch):
    monkeypatch.setattr(tiny_generator, "stream", lambda *_, **__: iter([[np.array([720, 656, 999, 1])]]))
    flags = ["--prompt", "<|endoftext|>", "--include_prefix"]
    assert '\n<|endoftext|> $ into<|endoftext|>"\n' in sample(*FOUR, *flags)[1]
    assert "\n<|endoftext|> $ into\n" in sample(*FOUR, *flags, "--truncate")[1]
    assert json.loads(sample(*FOUR, "--truncate", "--format=jsonl")[1])["tokens"] == [720, 656]


ENC = get_encoder("tiny-a", GOLDEN)
END_OF_TEXT = 999
# Tokens of one byte: of characters of one to four bytes, of U+FFFD itself, and such as are in no character.
BYTES = [ENC.encoder[ENC.byte_encoder[byte]] for byte in "aé€🙂\ufffd".encode() + b"\xff\x80\xe2\xf0\x90"]


def whole(tokens, end, stop):
    """The text and the tokens of a sample, from all its tokens at once."""
    if end in tokens:
        tokens = tokens[: tokens.index(end)]
    text = ENC.decode(tokens)
    if stop and stop in text:
        text = text[: text.index(stop)]
        while tokens and ENC.decode(tokens[:-1]).startswith(text):
            tokens = tokens[:-1]
    return text, tokens


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(BYTES) | st.integers(0, 999), max_size=30),
    st.lists(st.integers(0, 4), max_size=20),
    st.none() | st.tuples(st.integers(0, 30), st.integers(1, 6)) | st.text("ae€🙂\ufffd ", min_size=1, max_size=3),
    st.sampled_from([None, END_OF_TEXT]),
)
@example(ENC.encode(" into the"), [1] * 9, "o t", None)  # from inside a token to inside another one
@example([*ENC.encode("aaa"), *ENC.encode("ab")], [1] * 9, "aab", None)  # begins anew within what looked like its start
@example([BYTES[3], BYTES[0]], [1], "a", None)  # behind a character that is cut in two
def test_a_sample_that_grows_is_the_text_of_all_its_tokens(tokens, sizes, stop, end):
    if isinstance(stop, tuple):  # a part of the text
        stop = ENC.decode(tokens)[stop[0] :][: stop[1]] or None
    text, fewest = whole(tokens, end, stop)
    sample, taken, before = cli_sample.Sample(1, ENC, end, stop), 0, ""
    for size in sizes:
        sample.add(tokens[taken : taken + size])
        taken += size
        assert text.startswith(sample.text) and sample.text.startswith(before)
        before = sample.text
        if not sample.done and stop is None:  # all but what may be the start of a character
            assert ENC.decode(tokens[:taken]) in (sample.text, sample.text + "\ufffd")
    sample.add(tokens[taken:], last=True)
    assert (sample.text, sample.tokens, sample.done) == (text, fewest, True)


def test_prompt_that_ends_in_a_space_gets_a_note(sample):
    assert "ends in a space" in sample(*FOUR, "--prompt=hello ")[2]
    assert sample(*FOUR, "--prompt=hello\n")[2] == ""


@pytest.mark.parametrize("flags", [["--length=-1"], ["--shard=1/2"], ["--model_name=nowhere"], ["--help"]])
def test_a_program_that_calls_the_command_keeps_its_own_way_out(monkeypatch, capsys, flags):
    """Whatever the command ends with, the functions that the program wants called when it exits are not called yet."""
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: pytest.fail("the program's exit functions were called"))
    with pytest.raises(SystemExit):
        cli.main(flags, command="sample")
