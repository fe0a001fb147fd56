"""The structure that DESIGN asks of the code: imports point one way, and only the command line prints."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "gpt2tf").glob("*.py")}

# Each module and those of the package that it may import.
ARROWS = {
    "__init__": set(),
    "hparams": set(),
    "limits": set(),
    "noise": set(),
    "sampling": set(),
    "xla_ops": set(),
    "device": set(),
    "console": set(),
    "cluster": set(),
    "strategies": {"cluster"},
    "spread": {"cluster", "generate", "strategies"},
    "corpus": {"console", "locate"},
    "data": {"console", "corpus"},
    "threshold": {"xla_ops"},
    "names": {"hparams"},
    "locate": {"hparams"},
    "flags": {"limits"},
    "settings": {"limits"},
    "model": {"hparams"},
    "dropout": set(),
    "layers": {"hparams", "model", "dropout"},
    "checkpoint": {"hparams", "names", "locate", "layers"},
    "layout": {"hparams", "names", "xla_ops"},
    "packed": {"hparams", "model", "layout", "xla_ops"},
    "sample": {"limits", "model", "layers", "sampling"},
    "generate": {"limits", "checkpoint", "hparams", "layers", "layout", "noise", "packed", "threshold", "xla_ops"},
    "download": {"hparams", "names", "locate", "checkpoint"},
    "adafactor": set(),
    "trainer": {"settings", "model", "dropout", "layers", "adafactor"},
    "runs": {"settings", "console", "data", "locate", "layers", "checkpoint"},
    "train": {"data", "generate", "trainer", "runs", "strategies"},
    "cli": {
        "limits",
        "console",
        "hparams",
        "settings",
        "download",
        "flags",
        "cli_sample",
        "cli_benchmark",
        "cli_train",
    },
    "peers": {"hparams"},
    "costs": {"hparams", "names", "settings"},
    "benchmark": {"costs", "checkpoint", "layout", "packed", "generate", "xla_ops", "device", "peers"},
    "benchmark_train": {"benchmark", "checkpoint", "costs", "peers", "settings", "trainer"},
    "cli_benchmark": {
        *("limits", "hparams", "locate", "costs", "device", "benchmark", "benchmark_train", "peers", "flags", "cli"),
    },
    "cli_train": {
        *("hparams", "names", "locate", "settings", "cluster", "costs", "corpus", "data", "layers", "checkpoint"),
        *("strategies", "device", "console", "trainer", "runs", "train", "flags", "cli", "cli_sample"),
    },
    "cli_sample": {"limits", "hparams", "locate", "cluster", "noise", "generate", "spread", "device", "console", "cli"},
}


def imported_from_package(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "gpt2tf":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpt2tf."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gpt2tf."))


def test_every_module_has_its_arrows():
    assert set(MODULES) == set(ARROWS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module):
    assert set(imported_from_package(MODULES[module])) <= ARROWS[module]


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"cli", "cli_sample", "cli_benchmark", "cli_train"}))
def test_only_the_command_line_prints(module):
    printed = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.Name) and node.id == "print"]
    assert not printed


# What runs before TensorFlow is imported, which takes seconds.
LIGHT = "hparams names locate limits flags settings cluster costs console corpus data download".split() + (
    "cli cli_sample cli_benchmark".split()
)


@pytest.mark.parametrize("module", [*LIGHT, "cli_train"])
def test_what_runs_before_tensorflow_does_not_import_it(module):
    top_level = [node for node in MODULES[module].body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top_level for alias in node.names} | {
        node.module for node in top_level if isinstance(node, ast.ImportFrom)
    }
    assert not names & {"tensorflow", "keras"}
    assert set(imported_from_package(ast.Module(top_level, []))) <= {*LIGHT, "peers"}


def test_the_networks_functions_know_no_keras():
    assert "keras" not in ast.dump(MODULES["model"])


@pytest.mark.parametrize("path", [*ROOT.glob("*.py"), *ROOT.glob("gpt2tf/*.py"), *ROOT.glob("encoder/*.py")], ids=str)
def test_files_can_be_held_in_the_head(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
