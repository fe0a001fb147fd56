"""GPT-2 in Keras 3 / TensorFlow 2: the original's checkpoints, words and text.

The names below are imported when they are first used, so that `import gpt2tf` costs nothing. `gpt2tf.encoder` is the
package `encoder` that comes with this one, whatever else is called so.
"""

import importlib
import os
import sys

_HOMES = {
    "GPT2": "gpt2tf.model",
    "Generator": "gpt2tf.generate",
    "HParams": "gpt2tf.hparams",
    "Scorer": "gpt2tf.paper.score",
    "cross_entropy": "gpt2tf.train.fit",
    "find_model": "gpt2tf.locate",
    "load_model": "gpt2tf.checkpoint",
    "op_seeds": "gpt2tf.noise",
    "sample_sequence": "gpt2tf.sample",
    "sampling_noise": "gpt2tf.noise",
    "save_checkpoint": "gpt2tf.checkpoint",
    "score": "gpt2tf.paper.score",
    "write_saved_model": "gpt2tf.formats.saved_model",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name == "encoder":
        return _encoder()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def _encoder():
    """What `import encoder` gives, if that is ours; else ours, by its place beside this package.

    A user's program may have an encoder.py of its own, which must not be run for ours, nor ours be found in its place.
    Raises ImportError where another package has been installed over ours.
    """
    from importlib import util

    ours = os.path.join(os.path.dirname(os.path.dirname(__file__)), "encoder", "__init__.py")
    try:
        found = util.find_spec("encoder")
    except ValueError:  # a module in sys.modules that came from nowhere
        found = None
    there = found and found.origin and os.path.exists(found.origin)
    if not os.path.exists(ours) or there and os.path.samefile(found.origin, ours):
        module = importlib.import_module("encoder")
    elif not (module := sys.modules.get(f"{__name__}.encoder")):
        spec = util.spec_from_file_location(f"{__name__}.encoder", ours)
        module = sys.modules[spec.name] = util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[spec.name]
            raise
    if not hasattr(module, "write_vocabulary"):
        raise ImportError(f"{module.__file__} is of another package; install gpt2tf again", name=__name__)
    return module
