"""The built wheel, as a user has it: complete, and it samples from any folder."""

import os
import shutil
import subprocess
import sys

import pytest
from recorded import ROOT

pytestmark = pytest.mark.slow

SAMPLE = ["sample", "--model_name", "shakespeare", "--prompt", "JULIET.", "--seed=2", "--length=4"]
SAMPLE += ["--top_k=40", "--temperature=0.8"]  # the README's first command, for 4 tokens
TEXT = f"{'=' * 40} SAMPLE 1 {'=' * 40}\n\nIf your gr\n{'=' * 80}\n"
# The command, and the files that it came from.
TRACED = """
import sys
from gpt2tf import cli
try:
    cli.main(sys.argv[1:])
finally:
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ("gpt2tf", "encoder"):
            sys.stderr.write(f"{module.__file__}\\n")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A new folder that the wheel is installed into, built from a clean copy of the repository."""
    place = tmp_path_factory.mktemp("wheel")
    for folder in ("gpt2tf", "encoder"):
        shutil.copytree(ROOT / folder, place / "clone" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, place / "clone")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    here = ["--no-deps", "--no-index"]  # no network
    subprocess.run([*pip, "wheel", *here, "--no-build-isolation", "--wheel-dir", place, place / "clone"], check=True)
    (wheel,) = place.glob("gpt2tf-*.whl")
    subprocess.run([*pip, "install", *here, "--target", place / "installed", wheel], check=True)
    return place / "installed"


@pytest.fixture
def run(installed, tmp_path):
    """Runs a command in another folder, with the installed files before all others: (stdout, stderr)."""

    def run(*command):
        env = os.environ | {"PYTHONPATH": str(installed)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    return run


def test_all_files_are_in_the_wheel(installed):
    for folder in ("gpt2tf", "encoder"):
        needed = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py")}
        data = (".json", ".bpe", ".css", ".js")
        needed |= {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.suffix in data}
        assert needed and not {path for path in needed if not (installed / path).is_file()}


def test_the_wheel_samples_from_another_folder(installed, run):
    out, err = run(sys.executable, "-c", TRACED, *SAMPLE)
    assert out == TEXT
    loading, *files = err.splitlines()
    assert loading.endswith(f"loading {installed}/gpt2tf/models/shakespeare/model.ckpt")
    assert len(files) > 10 and all(file.startswith(f"{installed}/") for file in files)


def test_python_m_gpt2tf_is_gpt2tf(installed, run):
    assert run(sys.executable, "-m", "gpt2tf", *SAMPLE)[0] == run(installed / "bin" / "gpt2tf", *SAMPLE)[0] == TEXT
