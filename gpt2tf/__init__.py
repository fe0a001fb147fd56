"""GPT-2 in Keras 3 / TensorFlow 2: the original's checkpoints, words and text.

The names below are imported when they are first used, so that `import gpt2tf` costs nothing.
"""

import importlib

_HOMES = {
    "GPT2": "gpt2tf.model",
    "Generator": "gpt2tf.generate",
    "HParams": "gpt2tf.hparams",
    "cross_entropy": "gpt2tf.model",
    "find_model": "gpt2tf.locate",
    "load_model": "gpt2tf.checkpoint",
    "op_seeds": "gpt2tf.noise",
    "sample_sequence": "gpt2tf.sample",
    "sampling_noise": "gpt2tf.noise",
    "save_checkpoint": "gpt2tf.checkpoint",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
