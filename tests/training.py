"""What the tests of training share: a small model, a corpus of numbers, and trainers with the same first weights."""

import numpy as np
import tensorflow as tf

from encoder import Encoder
from gpt2tf import GPT2, HParams
from gpt2tf.checkpoint import Weights
from gpt2tf.locate import find_prefix
from gpt2tf.train import saves
from gpt2tf.train.loop import Run
from gpt2tf.train.settings import Settings
from gpt2tf.train.tokens import Corpus
from gpt2tf.train.update import Trainer

SMALL = HParams(n_vocab=300, n_ctx=16, n_embd=16, n_head=2, n_layer=2)
ONE_LAYER = HParams(n_vocab=300, n_ctx=16, n_embd=16, n_head=2, n_layer=1)  # for what XLA compiles
DEFAULTS = {"steps": 12, "batch_size": 2, "window": 8, "learning_rate": 1e-2, "seed": 3}

LOOP = {"steps": 6, "save_every": 2, "evaluate_every": 0}  # of a run
ENC = Encoder({f"<|{token}|>": token for token in range(SMALL.n_vocab - 1)} | {"<|endoftext|>": SMALL.n_vocab - 1}, [])


def initial_value(path, shape):
    """Weights of order 1 in what they do, the same for every call; nothing is 0 or 1, so that everything counts."""
    rng = np.random.default_rng(list(path.encode()))
    scale = {"g": 0.2, "b": 0.1, "wte": 0.3, "wpe": 0.3, "w": 0.25}[path.rsplit("/", 1)[-1]]
    return (scale * rng.normal(size=shape) + path.endswith("/g")).astype(np.float32)


def make_trainer(hparams=SMALL, dtype=None, **settings):
    settings = Settings(**DEFAULTS | settings)
    options = {"dropout": settings.dropout, "recompute": settings.recompute, "dtype": dtype}
    model = GPT2(hparams, initial_value=initial_value, **options)
    return Trainer(model, settings, tf.distribute.get_strategy())


def reset(trainer, **settings):
    """The trainer with its first weights and state, and with other settings of the loop; nothing is compiled again."""
    for variable in trainer.model.variables:
        variable.assign(initial_value(variable.path, variable.shape))
    trainer.restore([np.zeros(v.shape, v.dtype) for v in trainer.optimizer.variables])
    trainer.settings = Settings(**DEFAULTS | settings)
    return trainer


def values(model):
    return {v.path: v.numpy() for v in model.variables}


def batch(rows=2, seed=0, hparams=SMALL, window=8):
    return np.random.default_rng(seed).integers(0, hparams.n_vocab, [rows, window + 1], np.int32)


def corpus(size=200):
    """Tokens in which there is something to learn: counting, with some noise."""
    rng = np.random.default_rng(1)
    tokens = np.where(rng.random(size) < 0.1, rng.integers(0, 20, size), np.arange(size) % 20).astype(np.uint16)
    return Corpus(tokens, ENC, {"crc32": 7})


def assert_same(found, expected):
    """Two {name: array} are equal bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


def train(trainer, folder, saved=None):
    """The reports of a run to its end."""
    return list(Run(trainer, corpus(), folder, saved).reports())


def resume(trainer, folder, **settings):
    """As in a new process: all that is known is in the folder."""
    reset(trainer, **LOOP | settings)
    saved = None
    if saves.saved_step(folder) is not None:
        saved = saves.read_saved(folder)
        weights = Weights(find_prefix(folder))
        for variable in trainer.model.variables:
            variable.assign(weights[variable.path])
    return train(trainer, folder, saved)
