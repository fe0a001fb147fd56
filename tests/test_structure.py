"""The structure of the code: which file imports which, who prints, and how long files and signatures are.

Read from the sources with `ast`; nothing is run. All imports count, also those inside of functions.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "gpt2tf"

# Each file at the top of the package and each room ("train/"), and what it may import. Inside a room any file may
# import any other, as long as there is no circle.
ARROWS = {
    "__init__": "",
    "__main__": "cli/",
    # What a reader of GPT-2 looks for.
    "hparams": "files",
    "names": "hparams",
    "model": "hparams train/dropout train/fit train/recompute encoder",
    "sample": "model checks encoder",
    "noise": "",
    "checkpoint": "names hparams locate files model encoder formats/hugging_face formats/hugging_face_config",
    "locate": "hparams files encoder formats/hugging_face_config",
    "download": "names hparams locate files checkpoint",
    "generate": "decode/ checkpoint noise checks hparams model devices encoder",
    # What all stand on.
    "checks": "",
    "files": "",
    "devices": "cluster",
    "cluster": "",
    # Rooms.
    # What of formats/ reads a Hugging Face folder is below checkpoint: so whatever opens a model opens such a folder.
    # What writes a model in another format is given one, and opens none.
    "formats/": "decode/ checks names hparams files model train/ids encoder",
    "decode/": "model names hparams",
    "train/": "hparams names model checkpoint locate generate noise files devices cluster checks encoder "
    "formats/hugging_face_config",
    "paper/": "generate checkpoint noise locate model names hparams files checks devices encoder train/reader",
    "bench/": "train/ generate decode/ checkpoint names hparams checks devices locate files encoder",
    "cli/": "bench/ train/ formats/ paper/ generate sample noise download checkpoint locate names hparams model "
    "checks files devices cluster encoder",
}
PRINTING = {"cli/", "bench/speed"}  # the benchmark's own process answers on stdout

# What is imported before TensorFlow, which takes seconds, as the whole command line is.
BEFORE_TENSORFLOW = [
    *"__init__ __main__ hparams names locate download checks files cluster train/settings".split(),
    *"formats/hugging_face formats/hugging_face_config".split(),
]
# What `sample.py --help` does without, to answer at once.
NOT_FOR_HELP = {"tensorflow", "keras", "numpy", "regex", "tqdm", "requests", "encoder"}

LONGEST = {"gpt2tf/model.py": 400}  # lines; of other files:
LINES = 350
PARAMETERS = 6
PUBLIC_SAMPLERS = {"sample:sample_sequence", "generate:Generator.stream", "generate:Generator.generate"}


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


# {"hparams": its tree, "train/__init__": ..., "train/loop": ...}
TREES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): parsed(path) for path in PACKAGE.rglob("*.py")}


def place(file):
    """The room of a file ("train/"), or the file itself at the top of the package."""
    return file.split("/")[0] + "/" if "/" in file else file


def modules(nodes):
    """The dotted names that import statements name; `from a import b` is a.b, a relative import begins with a dot."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def file_of(module):
    """The file of the package that a dotted name is, or is in; "tensorflow" of what is in another package."""
    package, *inside = module.split(".")
    if inside == ["encoder"]:  # `from gpt2tf import encoder`
        return "encoder"
    if package != "gpt2tf":
        return package
    for end in range(len(inside), -1, -1):
        for name in ("/".join(inside[:end]), "/".join([*inside[:end], "__init__"])):
            if name in TREES:
                return name


def at_the_top(tree):
    """The nodes that run when the file is imported."""
    for node in ast.iter_child_nodes(tree):
        type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not type_checking:
            yield node
            yield from at_the_top(node)


IMPORTED = {name: {file_of(module) for module in modules(ast.walk(tree))} for name, tree in TREES.items()}
IMPORTED_AT_THE_TOP = {name: {file_of(module) for module in modules(at_the_top(tree))} for name, tree in TREES.items()}
for name in TREES:
    if "/" in name:
        IMPORTED_AT_THE_TOP[name].add(place(name) + "__init__")  # Python imports a file's room before the file


def reached(file, imported):
    """The files and packages that a file leads to over any number of imports; itself only by a circle."""
    found, ahead = set(), [file]
    while ahead:
        new = imported.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


# Imports


def test_every_file_has_its_arrows():
    assert {place(file) for file in TREES} == set(ARROWS)


@pytest.mark.parametrize("file", TREES)
def test_imports_follow_the_arrows(file):
    assert "" not in IMPORTED[file], "a relative import"
    allowed = {place(file), *ARROWS[place(file)].split()}
    ours = {found for found in IMPORTED[file] if found in TREES or found == "encoder"}
    assert not {found for found in ours if not {found, place(found)} & allowed}


@pytest.mark.parametrize("file", TREES)
def test_no_file_is_in_a_circle(file):
    assert file not in reached(file, IMPORTED)


@pytest.mark.parametrize("file", ["model", "sample"])
def test_the_network_and_the_sampler_know_no_files(file):
    assert not {"os", "pathlib", "io"} & IMPORTED[file] and "open(" not in ast.unparse(TREES[file])


@pytest.mark.parametrize("file", [*BEFORE_TENSORFLOW, *(file for file in TREES if place(file) == "cli/")])
def test_what_runs_before_tensorflow_does_not_import_it(file):
    assert file in TREES and not {"tensorflow", "keras"} & reached(file, IMPORTED_AT_THE_TOP)


def test_help_needs_the_standard_library_alone():
    assert not NOT_FOR_HELP & reached("cli/sample", IMPORTED_AT_THE_TOP)


def test_the_encoder_needs_no_tensorflow():
    for path in (ROOT / "encoder").glob("*.py"):
        assert not {"tensorflow", "keras", "gpt2tf"} & set(map(file_of, modules(ast.walk(parsed(path)))))


# Printing


@pytest.mark.parametrize("file", TREES)
def test_only_the_command_line_prints(file):
    nodes = list(ast.walk(TREES[file]))
    printed = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"]
    printed = [node for node in printed if "file" not in {keyword.arg for keyword in node.keywords}]
    written = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.stdout"]
    assert {file, place(file)} & PRINTING or not printed + written


# Sizes


def lines(path):
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


CODE = [*ROOT.glob("*.py"), *PACKAGE.rglob("*.py"), *ROOT.glob("encoder/*.py")]


@pytest.mark.parametrize("path", [path.relative_to(ROOT).as_posix() for path in CODE])
def test_files_can_be_held_in_the_head(path):
    assert lines(path) <= LONGEST.get(path, LINES)


def functions(tree, scope=""):
    """(name, parameters but for self and cls) of each function; of a method the name is "Class.method"."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            a = node.args
            names = [arg.arg for arg in [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg] if arg]
            yield scope + node.name, [name for name in names if name not in ("self", "cls")]
        inner = f"{scope}{node.name}." if isinstance(node, ast.ClassDef | ast.FunctionDef) else scope
        yield from functions(node, inner)


@pytest.mark.parametrize("file", TREES)
def test_signatures_can_be_held_in_the_head(file):
    found = {f"{file}:{name}": parameters for name, parameters in functions(TREES[file])}
    assert not [name for name in found.keys() - PUBLIC_SAMPLERS if len(found[name]) > PARAMETERS]


def test_the_package_is_seen_at_a_glance():
    assert len({path.name for path in PACKAGE.iterdir()} - {"__pycache__"}) <= 22


def test_the_command_line_is_thin():
    assert sum(map(lines, PACKAGE.glob("cli/*.py"))) <= 2000


# Tests

TESTS = {path: parsed(path) for path in (ROOT / "tests").rglob("*.py")}
SHARED = {path: tree for path, tree in TESTS.items() if not path.name.startswith("test_")}


def test_what_tests_share_lies_beside_the_rooms():
    assert {path.parent for path in SHARED} == {ROOT / "tests"}


def defined(tree):
    """The functions and classes of a file, but for fixtures, which may stand for one of the same name."""
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {node.name for node in nodes if "fixture" not in " ".join(map(ast.unparse, node.decorator_list))}


@pytest.mark.parametrize("path", sorted(TESTS.keys() - SHARED.keys()), ids=lambda path: path.stem)
def test_no_test_file_imports_another_or_doubles_a_helper(path):
    assert not [name for name in modules(ast.walk(TESTS[path])) if name.startswith(("test_", "conftest", "."))]
    doubled = defined(TESTS[path]) & set().union(*map(defined, SHARED.values()))
    assert not doubled
