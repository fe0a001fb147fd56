"""The structure of the code: which file may import which, who prints, and how long files and signatures are.

All imports count, also those inside of functions; they are read from the sources and nothing is run.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = {path.relative_to(ROOT / "gpt2tf").with_suffix("").as_posix(): path for path in (ROOT / "gpt2tf").rglob("*.py")}
FILES = {name.removesuffix("/__init__") if name != "__init__" else name: path for name, path in FILES.items()}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imported(tree):
    """The files of the package that a tree imports: {"names", "train/settings", ...}."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gpt2tf":
            base = node.module.split(".")[1:]
            for alias in node.names:
                inside = "/".join([*base, alias.name])
                found.add(inside if inside in TREES else "/".join(base) or "__init__")
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            found |= {"/".join(part[1:]) or "__init__" for part in parts if part[0] == "gpt2tf"}
    return found


IMPORTS = {name: imported(tree) for name, tree in TREES.items()}


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.py"), *ROOT.glob("gpt2tf/**/*.py"), *ROOT.glob("encoder/*.py")], ids=str
)
def test_files_can_be_held_in_the_head(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
