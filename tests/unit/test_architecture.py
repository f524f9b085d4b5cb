"""Who may import whom, and how long a file and a function may grow: the rooms of the house, kept by a test.

An import counts wherever it stands, within a function or for type checkers only: it is a dependency. Only
the rule about NumPy asks where it stands, since what it guards is the time that a start takes.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rabbit_chx"
FILES = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60  # its docstring included

MODEL = [
    "releases",
    "fields",
    "ring",
    "hashing",
    "exchange",
    "movement",
    "inference",
    "monitor",
    "partitioning",
]
SCALAR_PATH = [
    "errors",
    "kernel/__init__",
    "kernel/terms",
    "kernel/phash2",
    "kernel/exs1024",
    "kernel/jump",
    "releases",
    "fields",
    "ring",
    "hashing",
    "exchange",
]
CLIENTS = {
    "pika",
    "aio_pika",
    "aiormq",
    "pamqp",
    "amqp",
    "kombu",
    "docker",
    "testcontainers",
    "click",
    "rich",
    "matplotlib",
    "pytest",
}

# What each file of the kernel and of the model may import of the package. A file that is not here may not
# be imported by these, and a new file of the model has to be given its place.
ALLOWED = {
    "errors": set(),
    "kernel/terms": set(),
    "kernel/exs1024": set(),
    "kernel/phash2": {"kernel/terms"},
    "kernel/jump": {"kernel/exs1024"},
    "kernel/binaries": {"errors"},
    "kernel/batch": {"errors", "kernel/binaries", "kernel/phash2"},
    "kernel/table": {"kernel/exs1024", "kernel/jump"},
    "kernel/__init__": {"kernel/terms", "kernel/phash2", "kernel/jump"},
    "markup": set(),
    "names": {"errors"},
    "plugins": set(),
    "releases": {"errors"},
    "urls": {"errors"},
    "fields": {"errors", "kernel"},
    "ring": {"errors", "markup", "releases"},
    "hashing": {"errors", "kernel", "releases", "fields"},
    "exchange": {"errors", "kernel", "releases", "fields", "ring", "hashing"},
    "movement": {"errors", "kernel", "markup", "releases", "ring"},
    "skew": {"kernel", "markup", "exchange", "movement"},
    "inference": {"errors", "kernel", "releases", "fields", "ring", "hashing"},
    "monitor": {"errors", "ring", "hashing", "exchange"},
    "partitioning": {"errors", "kernel", "releases", "ring", "hashing"},
}


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{file}.py").read_text(), file)


def names_in(file: str, node: ast.AST) -> set[str]:
    """The modules that one import statement asks for."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}: imports are absolute here"
        assert node.module
        submodules = {f"{node.module}.{alias.name}" for alias in node.names}
        return {node.module} | {name for name in submodules if file_of(name)}
    return set()


def file_of(module: str) -> str | None:
    """The file of a module of this package, ``kernel/jump`` for ``rabbit_chx.kernel.jump``."""
    top, _, rest = module.partition(".")
    if top != "rabbit_chx":
        return None
    path = rest.replace(".", "/")
    return next((name for name in (path, f"{path}/__init__".lstrip("/")) if name in FILES), None)


def imports(file: str) -> set[str]:
    return set().union(*(names_in(file, node) for node in ast.walk(tree(file))))


def own_imports(file: str) -> set[str]:
    return {name for name in map(file_of, imports(file)) if name} - {file, "__init__"}


def foreign_imports(file: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)} - {"rabbit_chx"}


def at_start(file: str) -> set[str]:
    """The top-level names of what is imported as soon as the file is: not by functions, not for type checkers."""
    found: set[str] = set()
    waiting: list[ast.AST] = [*tree(file).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        found |= {name.partition(".")[0] for name in names_in(file, node)}
        waiting += ast.iter_child_nodes(node)
    return found


def rooms(files: set[str]) -> set[str]:
    return {file.partition("/")[0] for file in files}


def test_the_walk_sees_imports_wherever_they_stand() -> None:
    assert "kernel/table" in own_imports("exchange")  # within a function
    assert "ring" in own_imports("movement")  # for type checkers
    assert "ring" in own_imports("exchange")  # at the top
    assert "testing" in rooms(own_imports("cli/demo"))
    assert "numpy" in foreign_imports("exchange")
    assert "numpy" not in at_start("exchange")
    assert "numpy" in at_start("movement")


@pytest.mark.parametrize("file", ALLOWED)
def test_a_file_imports_only_what_stands_below_it(file: str) -> None:
    forbidden = {name for name in own_imports(file) if not {name, name.partition("/")[0]} & ALLOWED[file]}
    assert not forbidden, f"{file} imports {sorted(forbidden)}"


def test_every_file_of_kernel_and_model_has_its_place() -> None:
    placed = {file for file in FILES if "/" not in file or file.startswith("kernel/")}
    assert placed - set(ALLOWED) == {"__init__", "__main__"}


def test_the_drawing_itself_has_no_circle() -> None:
    below = {
        file: {name for name in ALLOWED if {name, name.partition("/")[0]} & ALLOWED[file]} for file in ALLOWED
    }
    while below:
        free = [file for file, names in below.items() if not names & set(below)]
        assert free, f"a circle among {sorted(below)}"
        for file in free:
            del below[file]


@pytest.mark.parametrize("file", [file for file in ALLOWED if file != "errors"])
def test_kernel_and_model_import_no_client_library_and_no_tool(file: str) -> None:
    assert not foreign_imports(file) & CLIENTS


def test_errors_stand_alone() -> None:
    assert foreign_imports("errors") <= {"__future__", "typing"}


@pytest.mark.parametrize("file", SCALAR_PATH)
def test_numpy_is_not_loaded_by_what_routes_one_message(file: str) -> None:
    assert not at_start(file) & {"numpy", "pyarrow", "mmh3"}


def test_the_package_itself_loads_nothing() -> None:
    assert at_start("__init__") <= {"__future__", "importlib", "typing"}


# The face of the folder also names what reads and changes a broker.
TOPOLOGY = [file for file in FILES if file.startswith("topology/") and file != "topology/__init__"]
READS_FILES = {"topology/file/yaml_reader", "topology/file/schema", "topology/file/load"}


@pytest.mark.parametrize("file", TOPOLOGY)
def test_topology_is_made_of_values(file: str) -> None:
    assert not rooms(own_imports(file)) & {"broker", "cli", "testing"}
    assert not foreign_imports(file) & (CLIENTS | {"socket", "urllib", "http"})


@pytest.mark.parametrize("file", TOPOLOGY)
def test_only_what_reads_files_needs_the_libraries_for_it(file: str) -> None:
    if file not in READS_FILES:
        assert not foreign_imports(file) & {"pydantic", "pydantic_core", "yaml"}


@pytest.mark.parametrize("file", ["topology/model", "topology/planning/steps"])
def test_the_words_of_a_topology_stand_below_everything_that_uses_them(file: str) -> None:
    allowed = {"errors", "releases", "ring", "topology/model"}
    assert own_imports(file) - {"topology/__init__"} <= allowed


@pytest.mark.parametrize("file", FILES)
def test_only_the_command_line_and_itself_know_the_throw_away_broker(file: str) -> None:
    if not file.startswith(("testing/", "cli/")):
        assert "testing" not in rooms(own_imports(file))


SHOWS_SPARK = {"cli/spark"}


@pytest.mark.parametrize("file", FILES)
def test_nothing_here_knows_spark_but_what_shows_it_when_it_is_asked_to(file: str) -> None:
    known = at_start(file) if file in SHOWS_SPARK else foreign_imports(file)
    assert not known & {"pyspark", "spark_connector", "pyspark_rabbitmq"}


@pytest.mark.parametrize("file", FILES)
def test_one_file_draws_with_matplotlib_and_loads_it_only_then(file: str) -> None:
    known = at_start(file) if file == "report/axes" else foreign_imports(file)
    assert "matplotlib" not in known


@pytest.mark.parametrize("file", FILES)
def test_nothing_knows_the_command_line(file: str) -> None:
    if not file.startswith("cli/") and file != "__main__":
        assert "cli" not in rooms(own_imports(file))


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("testing/")])
def test_the_throw_away_broker_does_not_use_the_room_that_it_tests(file: str) -> None:
    # The Erlang that prints a ring opens no connection; the throw-away broker evaluates it on its node.
    assert not rooms(own_imports(file) - {"broker/reading/erlang_rings"}) & {"broker", "cli"}


@pytest.mark.parametrize("file", FILES)
def test_a_file_says_what_it_is_and_stays_short(file: str) -> None:
    assert len((PACKAGE / f"{file}.py").read_text().splitlines()) <= MOST_LINES_OF_A_FILE
    assert ast.get_docstring(tree(file))


@pytest.mark.parametrize("file", FILES)
def test_functions_stay_short(file: str) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree(file))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    }
    assert not long
