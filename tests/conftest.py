"""What several test files share: the recorded folders, the tiny model, and a model of full size."""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def tiny():
    """The recorded 3-layer model of golden/tiny-a."""
    from gpt2tf import load_model

    return load_model(GOLDEN / "tiny-a")


@pytest.fixture(scope="session")
def r124m_folder(tmp_path_factory):
    """A model folder of the size of 124M, with the weights on which golden/r124m was recorded."""
    import numpy as np

    from gpt2tf import GPT2, save_checkpoint
    from gpt2tf.hparams import PUBLISHED

    scales = {"g": 0.2, "b": 0.1, "wte": 0.14, "wpe": 0.05, "w": 0.1}
    rng = np.random.RandomState(7)

    def value(path, shape):  # called in the order in which the original creates its variables
        leaf = path.rsplit("/", 1)[-1]
        return (scales[leaf] * rng.randn(*shape) + (leaf == "g")).astype(np.float32)

    folder = tmp_path_factory.mktemp("models") / "R124M"
    save_checkpoint(GPT2(PUBLISHED["124M"], initial_value=value), folder)
    return folder
