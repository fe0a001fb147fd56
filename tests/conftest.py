"""What several test files share: the recorded folders, the tiny model, and a model of full size."""

import io
import os
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would wait for each other where others run

import pytest
from command import leaving
from recorded import GOLDEN


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What was captured may hold the name of a file that is not UTF-8, which the tests' processes cannot send."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def tiny():
    """The recorded 3-layer model of golden/tiny-a."""
    from gpt2tf import load_model

    return load_model(GOLDEN / "tiny-a")


@pytest.fixture(scope="session")
def weights():
    """The recorded model's weights, by the original's names."""
    from gpt2tf.checkpoint import load_weights

    return dict(load_weights(GOLDEN / "tiny-a")[1])


@pytest.fixture(scope="session")
def tiny_generator(tiny):
    """The same for generation; not compiled by XLA, as the tests of the command line need many compiled functions."""
    from gpt2tf import Generator

    return Generator(tiny, jit_compile=False)


def make_r124m(folder):
    """Write a model folder of the size of 124M, with the weights on which golden/r124m was recorded."""
    import numpy as np

    import encoder
    from gpt2tf import GPT2, save_checkpoint
    from gpt2tf.hparams import PUBLISHED

    scales = {"g": 0.2, "b": 0.1, "wte": 0.14, "wpe": 0.05, "w": 0.1}
    rng = np.random.RandomState(7)

    def value(path, shape):  # called in the order in which the original creates its variables
        leaf = path.rsplit("/", 1)[-1]
        return (scales[leaf] * rng.randn(*shape) + (leaf == "g")).astype(np.float32)

    save_checkpoint(GPT2(PUBLISHED["124M"], initial_value=value, vocabulary=encoder.released()), folder)


@pytest.fixture(scope="session")
def r124m_folder(tmp_path_factory):
    """The folder that make_r124m writes."""
    folder = tmp_path_factory.mktemp("models") / "R124M"
    make_r124m(folder)
    return folder


@pytest.fixture(scope="session")
def compiled_trainer():
    """A trainer whose functions XLA compiles once for all tests; `training.reset` makes it as new."""
    from training import ONE_LAYER, make_trainer

    import encoder

    trainer = make_trainer(ONE_LAYER)
    trainer.model.vocabulary = encoder.released(ONE_LAYER.n_vocab)
    return trainer


@pytest.fixture
def eagerly():
    """Runs op by op: a step of a small model takes milliseconds, and compiling it would take seconds."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def stdin(monkeypatch):
    """Sets the bytes that stdin holds; until then reading it fails the test."""

    class Untouched(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise AssertionError("stdin was read")

    def set_bytes(raw):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Untouched())))
    return set_bytes


@pytest.fixture
def sample(monkeypatch, capsys, stdin, tiny_generator):
    """Runs `sample.py` with flags: (exit code, stdout, stderr). The recorded model is loaded once for all tests."""
    from gpt2tf import cli
    from gpt2tf.cli import sample as cli_sample

    load = cli_sample._load
    monkeypatch.setattr("sys.argv", ["sample.py"])
    monkeypatch.setattr(
        cli_sample,
        "_load",
        lambda files, *rest: [tiny_generator] if files.prefix.startswith(str(GOLDEN)) else load(files, *rest),
    )

    def run(*argv):
        return leaving(cli.main, list(map(str, argv)), command="sample"), *capsys.readouterr()

    return run


@pytest.fixture
def refused(sample, monkeypatch):
    """Runs `sample.py` with flags that must be refused in one line before TensorFlow is there: (exit code, line)."""

    def run(*argv):
        code, out, err = sample(*argv)
        assert (out, err.count("\n")) == ("", 1) and err.startswith("sample.py: ")
        return code, err.removeprefix("sample.py: ").rstrip("\n")

    from gpt2tf.cli import sample as cli_sample

    def too_late():
        raise AssertionError("TensorFlow was imported")

    monkeypatch.setattr(cli_sample, "silence_tensorflow", too_late)
    return run


@pytest.fixture
def folder(tmp_path):
    """A copy of the recorded model, to be damaged."""
    copy = tmp_path / "models" / "copy"
    shutil.copytree(GOLDEN / "tiny-a", copy, ignore=shutil.ignore_patterns("*.npz", "samples.json", "*.meta"))
    return copy


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server for downloads of the recorded model into a new folder of models."""
    from file_server import serving

    with serving(tmp_path / "models" / "tiny-a", monkeypatch) as server:
        yield server
