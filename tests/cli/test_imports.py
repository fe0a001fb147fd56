"""What a command imports: its own modules, whatever else is called so, and in one line what is missing."""

import os
import subprocess
import sys

import pytest
from command import FOUR_TEXT, header
from recorded import GOLDEN, ROOT

TINY = str(GOLDEN / "tiny-a")
SAMPLE = ["sample", "--model_name", TINY, "--seed=1", "--length=4"]
TRAIN = ["train", "text.txt", "--run_name=new", "--models_dir=.", "--hparams", f"{TINY}/hparams.json"]
COMMANDS = {
    "sample": SAMPLE,
    "train": TRAIN,
    "finetune": ["finetune", "text.txt", "--run_name=new", "--model_name", TINY],
    "reproduce samples": ["reproduce", "samples", "--model_name", TINY, "--output=new.txt"],
    "download": ["download", "124M", "--base_url=http://127.0.0.1:9"],
    "benchmark": ["benchmark", "--model_name", TINY, "--length=3"],
}
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_", "PYTHON"))}
FOREIGN = "raise RuntimeError('a file of the user was run')\n"
MAIN = "from gpt2tf.cli import main; main()"
PATIENCE = 60  # seconds; only a failing test waits so long


def run(*command, cwd, path=(), **options):
    env = BARE | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT]))}
    return subprocess.run(
        [sys.executable, *command], env=env, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, **options
    )


@pytest.fixture
def place(tmp_path):
    """A working directory with modules of a user's own, and an empty one."""
    (tmp_path / "elsewhere").mkdir()
    for name in ("encoder", "sample", "model", "train", "files", "download_model"):
        (tmp_path / f"{name}.py").write_text(FOREIGN)
    (tmp_path / "elsewhere" / "text.txt").write_text("the cat sat on the mat. " * 40)
    return tmp_path


@pytest.mark.parametrize("how", [["-m", "gpt2tf"], ["-m", "gpt2tf.cli"]], ids=" ".join)
def test_a_working_directory_with_an_encoder_of_its_own(place, how):
    made = run(*how, *SAMPLE, cwd=place)
    assert (made.returncode, made.stdout) == (0, f"{header(1)}{FOUR_TEXT}\n"), made.stderr


def test_a_working_directory_with_modules_of_any_name(place):
    for name in ("json", "logging", "argparse", "numpy", "tqdm", "regex", "tensorflow", "keras", "random"):
        (place / f"{name}.py").write_text(FOREIGN)
    made = run("-m", "gpt2tf", *SAMPLE, cwd=place)
    assert (made.returncode, made.stdout) == (0, f"{header(1)}{FOUR_TEXT}\n"), made.stderr


def test_a_working_directory_that_was_removed(tmp_path):
    code = f"rmdir {tmp_path} && {sys.executable} -m gpt2tf sample --model_name=x"
    env = BARE | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run(["bash", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (made.returncode, made.stderr.count("\n")) == (1, 1) and "there is no model 'x'" in made.stderr


@pytest.mark.parametrize("kind", ["__init__", "encoder"])
def test_an_encoder_ahead_on_the_path(place, kind):
    """A package, or a folder."""
    (place / "encoder.py").unlink()
    (place / "encoder").mkdir()
    (place / "encoder" / f"{kind}.py").write_text(FOREIGN)
    made = run("-c", MAIN, *SAMPLE, cwd=place / "elsewhere", path=[place])
    assert (made.returncode, made.stdout) == (0, f"{header(1)}{FOUR_TEXT}\n"), made.stderr


def test_training_with_an_encoder_ahead_on_the_path(place):
    """The model is saved, and opens."""
    flags = ["--steps=1", "--batch_size=1", "--window=8", "--evaluate_every=0"]
    trained = run("-c", MAIN, *TRAIN, *flags, cwd=place / "elsewhere", path=[place])
    assert trained.returncode == 0, trained.stderr
    made = run("-c", MAIN, "sample", "--model_name=new", "--models_dir=.", "--length=1", cwd=place / "elsewhere")
    assert made.returncode == 0 and made.stdout.startswith(header(1))


USERS = """
import {first}
import gpt2tf, encoder
assert encoder.OF_THE_USER and encoder is sys.modules["encoder"]
model = gpt2tf.load_model({model!r})
gpt2tf.save_checkpoint(model, "copy")
assert gpt2tf.encoder is not encoder and gpt2tf.encoder.get_encoder("copy", ".").encode("a b")
import encoder
assert encoder.OF_THE_USER
"""


@pytest.mark.parametrize("first", ["gpt2tf", "encoder", "gpt2tf.checkpoint"])
def test_a_script_beside_an_encoder_of_its_own(place, first):
    """Whichever is imported first, each gets its own."""
    (place / "encoder.py").write_text("OF_THE_USER = True\n")
    (place / "mine.py").write_text("import sys\n" + USERS.format(first=first, model=TINY))
    made = run("mine.py", cwd=place)
    assert made.returncode == 0, made.stderr
    assert (place / "copy" / "vocab.bpe").read_bytes() == (GOLDEN / "tiny-a" / "vocab.bpe").read_bytes()


def test_the_encoder_is_the_one_that_is_imported():
    import encoder
    import gpt2tf

    assert gpt2tf.encoder is encoder


def test_a_module_that_came_from_nowhere(monkeypatch):
    import types

    import gpt2tf

    monkeypatch.setitem(sys.modules, "encoder", types.ModuleType("encoder"))
    assert gpt2tf.encoder.END_OF_TEXT == "<|endoftext|>"


def test_another_package_that_was_installed_over_the_encoder(tmp_path):
    (tmp_path / "gpt2tf").symlink_to(ROOT / "gpt2tf")
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "__init__.py").write_text("")
    made = run("-c", MAIN, *SAMPLE, cwd=tmp_path)
    where = tmp_path / "encoder" / "__init__.py"
    line = f"gpt2tf sample: {where} is of another package; install gpt2tf again\n"
    assert (made.returncode, made.stdout, made.stderr) == (1, "", line)


NEEDED = [("numpy", command) for command in COMMANDS if command != "download"]
NEEDED += [("tensorflow", command) for command in COMMANDS]
NEEDED += [("tqdm", command) for command in COMMANDS if command != "sample"]
NEEDED += [("regex", "sample"), ("regex", "train"), ("requests", "download"), ("urllib3", "download")]


@pytest.mark.parametrize("package, command", NEEDED)
def test_a_package_that_is_missing(place, package, command):
    """In one line, before a model is loaded; reading the text says how many tokens it has."""
    code = f"import sys; sys.modules[{package!r}] = None; {MAIN}"
    made = run("-c", code, *COMMANDS[command], cwd=place / "elsewhere")
    lines = [line for line in made.stderr.splitlines() if " tokens" not in line]
    assert (made.returncode, made.stdout, len(lines)) == (1, "", 1), made.stderr
    assert lines[0].startswith(f"gpt2tf {command}: ") and lines[0].endswith(f"pip install --upgrade {package}")


BROKEN = {
    "library": (
        "tensorflow",
        "raise ImportError('''Traceback (most recent call last):\\n  File \"x.py\", line 1\\n"
        "ImportError: libfoo.so.1: no such file\\n\\n\\nFailed to load the native TensorFlow runtime.\\nSee https''')",
        ": ImportError: libfoo.so.1: no such file; to install what is missing: pip install --upgrade tensorflow",
    ),
    "attribute": ("tensorflow", "import os; os.nothing", "TensorFlow cannot be imported: module 'os' has no attribute"),
    "type": ("tensorflow", "raise TypeError('Descriptors cannot be\\ncreated directly.')", "Descriptors cannot be cre"),
    "dependency": ("tensorflow", "import no_such_package", "pip install --upgrade tensorflow"),
    "numpy": ("numpy", "raise ImportError('\\n\\nIMPORTANT: C-extensions failed.')", "pip install --upgrade numpy"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_package_that_is_broken(tmp_path, case):
    package, content, part = BROKEN[case]
    (tmp_path / f"{package}.py").write_text(content)
    (tmp_path / "elsewhere").mkdir()
    made = run("-c", MAIN, *SAMPLE, cwd=tmp_path / "elsewhere", path=[tmp_path])
    assert (made.returncode, made.stdout, made.stderr.count("\n")) == (1, "", 1), made.stderr
    assert part in made.stderr and "Traceback" not in made.stderr
