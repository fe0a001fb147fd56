"""The published sets of samples: their layout, their settings, and that parts and ends of runs leave no trace."""

import json
import types

import numpy as np
import pytest
from command import header
from recorded import GOLDEN

from encoder import get_encoder
from gpt2tf.paper.rows import growing
from gpt2tf.paper.samples import SETTINGS, SampleSet, read_contexts

ENC = get_encoder("tiny-a", GOLDEN)
END = ENC.encoder["<|endoftext|>"]
N_CTX = 8
CONTEXTS = [ENC.encode("hello"), ENC.encode("a 日"), ENC.encode("b")]


class Counting:
    """In place of a Generator: a row's tokens follow from its prompt and its random numbers, and some rows end."""

    def __init__(self, n_ctx=N_CTX):
        self.hparams, self.asked = types.SimpleNamespace(n_ctx=n_ctx, n_layer=2), []

    def generate(self, prompts, length, *, temperature, top_k, noise, stop):
        self.asked.append((prompts, length, temperature, top_k, noise))
        rows = [(column * 900).astype(int) + sum(prompt) for column, prompt in zip(noise.T, prompts, strict=True)]
        rows = [np.where(row % 7 == 0, END, row % 900).tolist() for row in rows]
        return [np.array(row[: row.index(stop) + 1] if stop in row else row, np.int32) for row in rows]


def text(samples, batches=None):
    return "".join(samples.made(Counting(), ENC, samples.batches() if batches is None else batches))


def generated(samples):
    """The tokens of all samples."""
    generator = Counting()
    list(samples.made(generator, ENC, samples.batches()))
    return [row.tolist() for asked in generator.asked for row in Counting().generate(*asked[:2], **options(asked))]


def options(asked):
    return {"temperature": asked[2], "top_k": asked[3], "noise": asked[4], "stop": None}


def test_the_layout_of_the_unconditional_sets():
    """As the files in gpt-2-samples of openai/gpt-2 are; <|endoftext|> stands where it was made."""
    samples = SampleSet("t07", 3, batch_size=2)
    expected = [f"{header(n)}{ENC.decode(tokens)}\n" for n, tokens in enumerate(generated(samples)[:3], 1)]
    assert text(samples) == "".join(expected)
    assert "<|endoftext|>" in text(SampleSet("t07", 30, batch_size=2))


def test_the_layout_of_the_conditional_sets():
    """Four samples of each context, which is printed before each of them."""
    samples = SampleSet("default", 9, batch_size=2, contexts=CONTEXTS)
    expected, tokens = "", generated(samples)
    for n in range(1, 10):
        context = ["hello", "a 日", "b"][(n - 1) // 4]
        expected += f"{header(n)}{context}\n==================== COMPLETION {n} ====================\n"
        expected += ENC.decode(tokens[n - 1]) + "\n"
    assert text(samples) == expected


def test_the_lines_of_the_output_dataset():
    """ids from 0; the length in tokens, and the text, without <|endoftext|>; the keys in the dataset's order."""
    samples = SampleSet("topk40", 20, batch_size=3, format="jsonl")
    lines = text(samples).splitlines()
    for number, (line, tokens) in enumerate(zip(lines, generated(samples), strict=False)):
        ended = END in tokens
        before = tokens[: tokens.index(END)] if ended else tokens
        record = {"id": number, "ended": ended, "length": len(before), "text": ENC.decode(before)}
        assert line == json.dumps(record)
    assert len(lines) == 20 and len({json.loads(line)["ended"] for line in lines}) == 2
    conditional = SampleSet("topk40", 9, batch_size=3, format="jsonl", contexts=CONTEXTS)
    lines = list(map(json.loads, text(conditional).splitlines()))
    assert [line["context"] for line in lines] == ["hello"] * 4 + ["a 日"] * 4 + ["b"]
    assert list(lines[0]) == ["id", "ended", "length", "text", "context"]


@pytest.mark.parametrize("setting, temperature, top_k", [("default", 1, 0), ("t07", 0.7, 0), ("topk40", 1, 40)])
def test_the_settings_the_window_and_the_random_numbers(setting, temperature, top_k):
    from gpt2tf.noise import RandomStream

    for contexts, length in [(None, 8), (CONTEXTS, 7)]:  # with the start token, or a quarter of it, one over the window
        generator = Counting()
        samples = SampleSet(setting, 5, batch_size=2, seed=9, contexts=contexts)
        list(samples.made(generator, ENC, samples.batches()))
        assert [asked[1:4] for asked in generator.asked] == [(length, temperature, top_k)] * 3
        assert type(generator.asked[0][2]) is type(temperature)  # 1 and 1.0 draw differently
        stream = RandomStream(9, 2, contexts is not None, temperature, top_k)
        for batch, asked in enumerate(generator.asked):
            np.testing.assert_array_equal(asked[4], stream.noise(length, 2, batch))
        prompts = [prompt for asked in generator.asked for prompt in asked[0]]
        assert prompts == [[END]] * 6 if contexts is None else [CONTEXTS[0]] * 4 + [CONTEXTS[1]] * 2
    assert SampleSet(setting).length(1024) == 1024
    assert SampleSet(setting, contexts=CONTEXTS).length(1024) == 769


@pytest.mark.parametrize(
    "nsamples, batch_size, contexts", [(11, 2, None), (9, 4, CONTEXTS), (2, 1, None), (1, 8, None)]
)
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_the_parts_one_after_the_other_are_the_set(nsamples, batch_size, contexts, format):
    samples = SampleSet("topk40", nsamples, batch_size, 3, format, contexts)
    for parts in (1, 2, 3, 7):
        ranges = [samples.batches(part, parts) for part in range(1, parts + 1)]
        assert "".join(text(samples, batches) for batches in ranges) == text(samples)
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    fewer = SampleSet("topk40", 1, batch_size, 3, format, contexts)
    assert text(samples).startswith(text(fewer))


@pytest.mark.parametrize("contexts", [None, CONTEXTS])
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_a_run_that_was_ended_at_any_byte_goes_on_to_the_same_file(tmp_path, format, contexts):
    samples = SampleSet("default", 5, 2, 3, format, contexts)
    path, whole = tmp_path / "out", text(samples).encode()

    def run(until=None):
        with growing(str(path), samples.settings()) as file:
            for part in samples.made(Counting(), ENC, samples.batches()[file.parts : until]):
                file.append(part)

    for batches in range(4):  # that were whole; the next one is written up to some byte
        kept = len(text(samples, range(batches)).encode())
        run(until=batches)
        for end in range(kept, len(whole) + 1, 3):
            with open(path, "ab") as file:
                file.write(whole[kept:end])
            run(until=batches)
            assert path.read_bytes() == whole[:kept]
        with open(path, "ab") as file:
            file.write(whole[kept : kept + 20])
    run()
    assert path.read_bytes() == whole


def test_what_tells_two_sets_apart():
    sets = [
        SampleSet("default"),
        SampleSet("t07"),
        SampleSet("default", 499),
        SampleSet("default", batch_size=2),
        SampleSet("default", seed=1),
        SampleSet("default", format="jsonl"),
        SampleSet("default", contexts=CONTEXTS),
        SampleSet("default", contexts=CONTEXTS[:2]),
    ]
    assert len({json.dumps(samples.settings()) for samples in sets}) == len(sets)
    assert list(SETTINGS) == ["default", "t07", "topk40"]


def test_contexts_are_the_beginnings_of_texts(tmp_path):
    path = tmp_path / "webtext.test.jsonl"
    texts = ["one two three four five", "x", "three"]
    lines = [{"id": 255000 + n, "ended": True, "length": 9, "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    contexts = read_contexts(str(path), 9, 16, ENC)
    assert contexts == [ENC.encode(texts[0])[:4], ENC.encode("x"), ENC.encode("three")[:4]]
    assert len(contexts[0]) == 4 and read_contexts(str(path), 4, 16, ENC) == contexts[:1]
    with pytest.raises(ValueError) as refused:
        read_contexts(str(path), 13, 16, ENC)
    assert str(refused.value) == (f"{path} has 3 contexts, which make 4 samples each; give --nsamples 12 or fewer")
