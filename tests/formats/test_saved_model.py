"""The SavedModel, loaded without gpt2tf and by TensorFlow 1's session: the Generator's tokens, errors for the rest."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from asking import prompts_of
from recorded import ROOT, context_of, lists, recorded
from tolerances import TINY_FLOAT32, relative
from training import ONE_LAYER, initial_value

import gpt2tf
from gpt2tf import GPT2, Generator, encoder, sampling_noise
from gpt2tf.formats.saved_model import NO_TOKEN, SIGNATURE, write_saved_model

N_CTX = 64
REFUSED = tf.errors.InvalidArgumentError


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """The recorded model."""
    path = tmp_path_factory.mktemp("served") / "gpt2" / "1"
    write_saved_model(tiny, path)
    return path


@pytest.fixture(scope="module")
def signatures(folder):
    return tf.saved_model.load(str(folder)).signatures


def request_of(prompts, noise, temperature=1, top_k=0, top_p=1, stop=NO_TOKEN, padding=0):
    """The arguments of the signature generate as lists and numbers."""
    width = max(map(len, prompts))
    tokens = [[*prompt, *[padding] * (width - len(prompt))] for prompt in prompts]
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop}
    return {"tokens": tokens, "lengths": list(map(len, prompts)), "noise": noise, **options}


def answer(signatures, request):
    """The new tokens of each row."""
    tensors = {name: tf.constant(value, SIGNATURE[name].dtype) for name, value in request.items()}
    found = signatures["generate"](**tensors)
    tokens, lengths = found["tokens"].numpy(), found["lengths"].numpy()
    assert tokens.shape == np.shape(request["noise"])[::-1] or not tokens.size
    assert np.array_equal(tokens == NO_TOKEN, np.arange(tokens.shape[1]) >= lengths[:, None])
    return [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]


def test_logits_of_any_batch_and_length(signatures, tiny):
    for shape in ((1, 1), (3, 7), (2, N_CTX)):
        tokens = np.random.default_rng(0).integers(0, 1000, shape)
        found = signatures["logits"](tokens=tf.constant(tokens, tf.int32))["logits"]
        assert relative(found, tiny(tokens)["logits"]) < TINY_FLOAT32
    with pytest.raises(REFUSED, match="a sequence of.*65.*longer than n_ctx, 64"):
        signatures["logits"](tokens=tf.zeros([1, 65], tf.int32))
    with pytest.raises(REFUSED, match="token.*1000.*the vocabulary has 1000 tokens"):
        signatures["logits"](tokens=tf.constant([[1, 1000]]))


@pytest.mark.parametrize("case", recorded("tiny-a"))
def test_generates_the_recorded_runs(signatures, case):
    batch_size, length = case["batch_size"], case["length"]
    options = {name: case[name] for name in ("temperature", "top_k", "top_p")}
    for run, tokens in enumerate(case["runs"]):
        noise = sampling_noise(*map(tuple, case["op_seeds"]), length=length, batch_size=batch_size, run=run)
        assert answer(signatures, request_of([context_of(case, 1000)] * batch_size, noise, **options)) == tokens


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"temperature": 0.9, "top_k": 50, "top_p": 0.95}])
def test_prompts_of_different_lengths_are_as_the_generators(signatures, tiny_generator, options):
    prompts, noise = prompts_of(1, 20, 3, 16, 2), np.random.default_rng(1).random([24, 5])
    expected = lists(tiny_generator.generate(prompts, 24, noise=noise, **options))
    for padding in (0, -1, 10**6):  # which is not looked at
        assert answer(signatures, request_of(prompts, noise, padding=padding, **options)) == expected
    for row, prompt in enumerate(prompts):
        assert answer(signatures, request_of([prompt], noise[:, [row]], **options)) == [expected[row]]


def test_a_stop_ends_its_row_and_no_other(signatures, tiny_generator):
    prompts, noise = prompts_of(4, 11, 7), np.random.default_rng(4).random([20, 3])
    free = lists(tiny_generator.generate(prompts, 20, noise=noise))
    for row in range(3):
        for at in (0, 8, 19):
            stop = free[row][at]
            expected = [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in free]
            assert answer(signatures, request_of(prompts, noise, stop=stop)) == expected


@pytest.mark.parametrize("lengths", [(1,), (N_CTX,), (5, 40)])
def test_the_whole_window_is_used(signatures, tiny_generator, lengths):
    prompts, length = prompts_of(*lengths), N_CTX + 1 - max(lengths)
    noise = np.random.default_rng(2).random([length, len(prompts)])
    expected = lists(tiny_generator.generate(prompts, length, noise=noise))
    assert answer(signatures, request_of(prompts, noise)) == expected


def test_length_0_gives_no_tokens(signatures):
    assert answer(signatures, request_of([[1], [2, 3]], np.zeros([0, 2]))) == [[], []]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": [0, 2]}, r"a prompt\\?'s length is\] \[0\] \[; it must be from 1 to\] \[3\]"),
        ({"lengths": [4, 2]}, r"a prompt\\?'s length is\] \[4\] \[; it must be from 1 to\] \[3\]"),
        ({"lengths": [3]}, r"lengths has\] \[1\] \[numbers and tokens has rows:\] \[2\]"),
        ({"tokens": np.zeros([2, 65]), "lengths": [65, 1]}, r"length is\] \[65\] \[; it must be from 1 to\] \[64\]"),
        ({"tokens": np.zeros([0, 3])}, "there are no prompts"),
        ({"tokens": [[1, 2, 3], [1, 1000, 3]]}, r"token\] \[1000\] .*the vocabulary has 1000 tokens"),
        ({"tokens": [[1, -1, 3], [1, 2, 3]]}, r"token\] \[-1\]"),
        ({"noise": np.zeros([63, 2])}, r"prompt has\] \[3\] .* length is\] \[63\] .*may be at most\] \[65\]"),
        ({"noise": np.zeros([4, 3])}, r"noise is \[length, batch\]:\] \[4 3\] .*rows:\] \[2\]"),
        ({"noise": [[0, 1]]}, r"noise is\] \[1\] \[; it must be from 0 to below 1\]"),
        ({"noise": [[0, float("nan")]]}, r"noise is\] \[nan\]"),
        ({"temperature": -0.5}, r"temperature is\] \[-0.5\] .*from 1e-05 to\] \[1e\+09\]"),
        ({"temperature": float("nan")}, r"temperature is\] \[nan\]"),
        ({"top_k": -1}, r"top_k is\] \[-1\] \[; it must be 0"),
        ({"top_p": 1.5}, r"top_p is\] \[1.5\] \[; it must be from 0 to 1"),
        ({"stop": 1000}, r"stop is\] \[1000\] .*below\] \[1000\]"),
    ],
)
def test_bad_arguments_are_errors_of_the_graph(signatures, wrong, message):
    with pytest.raises(REFUSED, match=message):
        answer(signatures, request_of([[1, 2, 3], [4, 5]], np.zeros([4, 2])) | wrong)


def test_weights_that_are_not_finite_are_an_error(tmp_path):
    """In a model whose position 10 is damaged, where a row gets there; not where it has ended before."""
    net = GPT2(ONE_LAYER, initial_value=initial_value)
    wpe = net.wpe.numpy()
    wpe[10] = np.nan
    net.wpe.assign(wpe)
    write_saved_model(net, tmp_path / "model")
    signatures = tf.saved_model.load(str(tmp_path / "model")).signatures
    noise = np.random.default_rng(0).random([10, 2])
    free = answer(signatures, request_of([[1]], noise[:, :1]))
    with pytest.raises(REFUSED, match="the model.*logits are not finite"):
        answer(signatures, request_of([[1, 2]], noise[:, :1]))
    ended = answer(signatures, request_of([[1], [1, 2, 3, 4]], noise[:7]))  # the second makes the first go on
    assert ended[0] == free[0][:7]


def test_mixed_precision_and_rows_beyond_the_vocabulary(tmp_path):
    vocabulary = encoder.released(290)
    net = GPT2(ONE_LAYER, initial_value=initial_value, dtype="mixed_bfloat16", vocabulary=vocabulary)
    wte = net.wte.numpy()
    wte[290:] *= 10  # so that they would be the likeliest
    net.wte.assign(wte)
    write_saved_model(net, tmp_path / "model")
    signatures = tf.saved_model.load(str(tmp_path / "model")).signatures
    (found,) = answer(signatures, request_of([[1, 2]], np.zeros([10, 1]), temperature=0))
    logits = net(np.array([[1, 2, *found]]))["logits"][0].numpy()
    assert logits[1:-1].argmax(axis=-1).max() >= 290
    for row, token in zip(logits[1:-1], found, strict=True):  # the largest of the others, or as near as rounding is
        assert token < 290 and row[token] > row[:290].max() - 0.05


WITHOUT_GPT2TF = """
import sys
sys.modules.update(gpt2tf=None, keras=None, encoder=None)
import json
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
path, requests = sys.argv[1], json.load(sys.stdin)
generate = tf.saved_model.load(path).signatures["generate"]
dtypes = {name: spec.dtype for name, spec in generate.structured_input_signature[1].items()}
for request in requests:
    found = generate(**{name: tf.constant(value, dtypes[name]) for name, value in request.items()})
    print(json.dumps(found["tokens"].numpy().tolist()))
with tf.compat.v1.Session(graph=tf.Graph()) as session:  # as TensorFlow Serving runs a signature
    signature = tf.compat.v1.saved_model.loader.load(session, ["serve"], path).signature_def["generate"]
    for request in requests:
        feed = {signature.inputs[name].name: value for name, value in request.items()}
        print(json.dumps(session.run(signature.outputs["tokens"].name, feed).tolist()))
assert sys.modules["gpt2tf"] is None
"""


def test_without_gpt2tf_and_in_a_session_the_tokens_are_the_same(folder, tiny_generator):
    prompts, noise = prompts_of(3, 12, 7), np.random.default_rng(5).random([15, 3])
    stop = int(tiny_generator.generate(prompts, 15, noise=noise, top_k=40)[0][5])
    expected, requests = [], []
    for rows, length, options in ((slice(3), 15, {"top_k": 40, "stop": stop}), (slice(1), 9, {"temperature": 0})):
        requests.append(request_of(prompts[rows], noise[:length, rows].tolist(), **options))
        made = tiny_generator.generate(prompts[rows], length, noise=noise[:length, rows], **options)
        expected.append([row.tolist() + [NO_TOKEN] * (length - len(row)) for row in made])
    assert any(NO_TOKEN in row for row in expected[0])
    argv = [sys.executable, "-c", WITHOUT_GPT2TF, str(folder)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(argv, input=json.dumps(requests), env=env, cwd=folder, capture_output=True, text=True)
    assert list(map(json.loads, done.stdout.splitlines())) == expected * 2, done.stderr[-2000:]


def test_the_request_of_the_readme(tmp_path):
    """The JSON that it sends, to the bundled model."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Serve it")[1].split("\n## ")[0]
    request = json.loads(re.search(r"-d '(.*?)'", section, re.DOTALL)[1])
    assert request["signature_name"] == "generate"
    path = gpt2tf.find_model("shakespeare")
    write_saved_model(gpt2tf.load_model(path), tmp_path / "model")
    inputs = request["inputs"]
    options = {name: inputs[name] for name in ("temperature", "top_k", "top_p", "noise")}
    prompts = [row[:n] for row, n in zip(inputs["tokens"], inputs["lengths"], strict=True)]
    stop = None if inputs["stop"] == NO_TOKEN else inputs["stop"]
    made = Generator(path, jit_compile=False).generate(prompts, len(inputs["noise"]), stop=stop, **options)
    assert answer(tf.saved_model.load(str(tmp_path / "model")).signatures, inputs) == lists(made)
    shown = json.loads(re.search(r'^(\{"outputs".*?)^```', section, re.DOTALL | re.MULTILINE)[1])["outputs"]
    assert [row[:n] for row, n in zip(shown["tokens"], shown["lengths"], strict=True)] == lists(made)


def test_the_bundled_model_is_exported_by_keras_right_after_loading(tmp_path):
    model = gpt2tf.load_model(gpt2tf.find_model("shakespeare"))
    model.export(tmp_path / "model", verbose=False)
    signature = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    tokens = np.random.default_rng(0).integers(0, model.hparams.n_vocab, [2, 9])
    found = signature(**{name: tf.constant(tokens, tf.int32)})["logits"]
    assert relative(found, model(tokens)["logits"]) < TINY_FLOAT32


def test_a_path_that_is_taken_is_refused_and_a_failure_leaves_nothing(tmp_path, monkeypatch):
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(FileExistsError, match="taken is there already"):
        write_saved_model(GPT2(ONE_LAYER), taken)

    def fail(module, path, signatures):
        os.makedirs(path)
        raise tf.errors.ResourceExhaustedError(None, None, "No space left\non device")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="cannot write .*1: No space left$"):
        write_saved_model(GPT2(ONE_LAYER), tmp_path / "new" / "1")
    assert [path.name for path in tmp_path.rglob("*")] in (["taken"], ["taken", "new"], ["new", "taken"])
