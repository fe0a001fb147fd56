"""Hugging Face folders against transformers itself, in a process of its own.

Skipped where it is not installed; the variable PEER_PYTHON names another Python that has torch and transformers.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hugging_face_files import write_folder
from recorded import GOLDEN

import encoder
import gpt2tf
from gpt2tf.formats.hugging_face import write_hugging_face
from gpt2tf.locate import BUNDLED

PYTHON = os.environ.get("PEER_PYTHON")
if PYTHON is None and all(map(importlib.util.find_spec, ("torch", "transformers"))):
    PYTHON = sys.executable
pytestmark = [pytest.mark.peers, pytest.mark.skipif(PYTHON is None, reason="transformers is not installed")]

OPEN = """
import json, sys, warnings
warnings.simplefilter("error")
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
folder, asked = sys.argv[1], json.load(sys.stdin)
model, loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
tokens = torch.tensor([asked["tokens"]])
with torch.no_grad():
    logits = model(tokens).logits[0].double().numpy()
greedy = model.generate(tokens, max_new_tokens=20, do_sample=False)[0, tokens.shape[1]:]
written = pipeline("text-generation", model=model, tokenizer=tokenizer)
[text] = written(asked["prompt"], max_new_tokens=20, do_sample=False)
print(json.dumps({
    "loaded": [len(names) for names in loaded.values()], "logits": logits.tolist(), "greedy": greedy.tolist(),
    "text": text["generated_text"], "ends": model.generation_config.eos_token_id,
    "encode": [tokenizer(text)["input_ids"] for text in asked["encode"]],
    "decode": [tokenizer.decode(ids) for ids in asked["decode"]],
}))
"""


def by_peer(script, *argv, **asked):
    """What a script answers; a line of stderr that is no progress bar fails the test."""
    env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(pathlib.Path(gpt2tf.__file__).parents[1])}
    command = [PYTHON, "-c", script, *map(str, argv)]
    done = subprocess.run(command, input=json.dumps(asked), env=os.environ | env, capture_output=True, text=True)
    lines = [line for line in done.stderr.replace("\r", "\n").splitlines() if line and "it/s]" not in line]
    assert not done.returncode and not lines, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("source", [GOLDEN / "tiny-a", f"{BUNDLED}/shakespeare"], ids=["tiny-a", "bundled"])
def test_transformers_opens_what_is_written(tmp_path, source):
    model = gpt2tf.load_model(source)
    write_hugging_face(model, tmp_path / "m")
    enc = encoder.Encoder(*model.vocabulary.tables())
    recorded = json.loads((GOLDEN / "bpe" / "bpe.json").read_text(encoding="utf-8"))
    texts, prompt = [each["text"] for each in recorded["encode"]], "The "
    texts = [text for text in texts if len(enc.encode(text)) <= model.hparams.n_ctx]  # of longer ones it warns
    ids = [[model.hparams.n_vocab - 1], *map(enc.encode, texts)]
    tokens = enc.encode("To be or not")
    found = by_peer(OPEN, tmp_path / "m", tokens=tokens, prompt=prompt, encode=texts, decode=ids)
    assert not any(found["loaded"])  # nothing is missing, unexpected or mismatched
    logits = model(np.array([tokens]))["logits"].numpy()[0]
    assert np.abs(logits - found["logits"]).max() <= 1e-5 * np.abs(logits).max()
    generator = gpt2tf.Generator(model, jit_compile=False)
    end = model.hparams.n_vocab - 1
    assert generator.generate([tokens], 20, temperature=0, stop=end)[0].tolist() == found["greedy"]
    (new,) = generator.generate([enc.encode(prompt)], 20, temperature=0, stop=end)
    assert found["text"] == prompt + enc.decode(new) and found["ends"] == end
    assert found["encode"] == ids[1:] and found["decode"] == [enc.decode(each) for each in ids]


def test_ids_of_the_released_vocabulary(tmp_path):
    hparams = gpt2tf.HParams(n_vocab=50257, n_ctx=1024, n_embd=4, n_head=1, n_layer=1)
    model = gpt2tf.GPT2(hparams)
    model.vocabulary = encoder.released()
    write_hugging_face(model, tmp_path / "m")
    recorded = json.loads((GOLDEN / "bpe" / "bpe.json").read_text(encoding="utf-8"))
    texts, ids = [each["text"] for each in recorded["encode"]], [each["ids"] for each in recorded["decode"]]
    found = by_peer(OPEN, tmp_path / "m", tokens=[1], prompt="a", encode=texts, decode=ids)
    assert found["encode"] == [each["ids"] for each in recorded["encode"]]
    assert found["decode"] == [each["text"] for each in recorded["decode"]]


def test_it_stops_where_gpt_2_does(tmp_path):
    """Of a model whose likeliest token is always the last one, pipeline gives the prompt alone."""
    hparams = gpt2tf.HParams(n_vocab=257, n_ctx=32, n_embd=4, n_head=1, n_layer=1)

    def value(name, shape):
        wanted = {"model/wte": np.arange(257)[:, None] / 257, "model/ln_f/b": np.ones(4)}
        return np.broadcast_to(wanted.get(name, 0), shape).astype(np.float32)

    model = gpt2tf.GPT2(hparams, initial_value=value)
    model.vocabulary = encoder.released(257)
    write_hugging_face(model, tmp_path / "m")
    found = by_peer(OPEN, tmp_path / "m", tokens=[1], prompt="abc", encode=[], decode=[])
    assert found["greedy"] == [256] and found["text"] == "abc"


READ = """
import json, sys
import numpy as np
from gpt2tf.formats.hugging_face import Weights
weights = Weights(sys.argv[1])
print(json.dumps({name: float(np.float64(weights[name]).sum()) for name in weights}))
"""
PICKLE = """
import sys, torch
from safetensors.torch import load_file
folder = sys.argv[1]
torch.save(load_file(folder + "/model.safetensors"), folder + "/pytorch_model.bin", _use_new_zipfile_serialization=%s)
print("{}")
"""
HOSTILE = """
import os, sys, torch
class Hostile:
    def __reduce__(self):
        return os.system, ("touch " + sys.argv[1] + "/ran",)
torch.save({"wte.weight": Hostile()}, sys.argv[1] + "/pytorch_model.bin")
print("{}")
"""


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_read_where_torch_is(tmp_path, zipped, weights):
    folder = write_folder(tmp_path / "m")
    by_peer(PICKLE % zipped, folder)
    (folder / "model.safetensors").unlink()
    found = by_peer(READ, folder / "pytorch_model.bin")
    assert found == {name: pytest.approx(float(np.float64(value).sum())) for name, value in weights.items()}


def test_a_pickle_runs_nothing(tmp_path):
    folder = write_folder(tmp_path / "m")
    by_peer(HOSTILE, folder)
    with pytest.raises(AssertionError, match="cannot be read as weights alone"):
        by_peer(READ, folder / "pytorch_model.bin")
    assert not (folder / "ran").exists()
