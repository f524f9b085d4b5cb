"""Which package imports which, what may be loaded at start, how long files and functions are, and where public names are described.

Imports count wherever they are written: at the top of a file, in a function, or for type checkers only. Only the rules
about start-up time look at where.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import python_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("rabbit_chx", "spark_connector", "pyspark_rabbitmq")
    for path in sorted((ROOT / package).rglob("*.py"))
}

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 40  # with its docstring
MOST_STRAIGHT_LINES = 60  # of a function without a branch, loop, block or inner function
BLOCKS = (
    *(ast.If, ast.Match, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
MANY_OPTIONS = "one parameter for each option of the command line"
DOCUMENTED = "the docstring explains every argument"
LONG_FUNCTIONS = {
    "rabbit_chx.broker.applying.apply.apply": DOCUMENTED,
    "rabbit_chx.broker.amqp.connect": "one argument for each setting of a connection",
    "rabbit_chx.broker.amqp.parameters_of": "one argument for each setting of a connection",
    "rabbit_chx.broker.deliveries.read_deliveries": "a call for each part of a delivery would take as long as the part",
    "rabbit_chx.consuming.group.__init__": "one argument for each option of a group",
    "rabbit_chx.changes.scaling.carry_out": DOCUMENTED,
    "rabbit_chx.cli.rebalance.rebalance": MANY_OPTIONS,
    "rabbit_chx.cli.scale.scale": MANY_OPTIONS,
    "rabbit_chx.cli.report.report": MANY_OPTIONS,
    "rabbit_chx.mirror.inference.infer": DOCUMENTED,
    "rabbit_chx.report.contents.report": "one argument for each part of the page",
    "rabbit_chx.streams.protocol.opening.connect": "one argument for each setting of a connection",
    "rabbit_chx.streams.group.options.__init__": "one argument for each option of a group",
    "rabbit_chx.streams.publisher.__init__": DOCUMENTED,
    "rabbit_chx.streams.publisher.publish_many": DOCUMENTED,
    "rabbit_chx.streams.reader.__init__": DOCUMENTED,
    "rabbit_chx.watch.loop.watch": DOCUMENTED,
}
"""Longer functions, each with the reason."""

BASE, MIRROR = "rabbit_chx.base", "rabbit_chx.mirror"
VALUES = {BASE, MIRROR, "rabbit_chx.messages", "rabbit_chx.topology"}
SHARED = {BASE, MIRROR, "rabbit_chx.messages", "rabbit_chx.broker"}
MAY_IMPORT = {
    BASE: set(),
    MIRROR: {BASE},
    "rabbit_chx.messages": {BASE, MIRROR},
    "rabbit_chx.topology": {BASE, MIRROR},
    "rabbit_chx.report": {BASE, MIRROR, "rabbit_chx.topology"},
    "rabbit_chx.broker": {BASE, MIRROR, "rabbit_chx.topology"},
    "rabbit_chx.testing": {BASE, MIRROR, "rabbit_chx.broker"},
    "rabbit_chx.publishing": SHARED,
    "rabbit_chx.working": SHARED,
    "rabbit_chx.consuming": SHARED | {"rabbit_chx.topology", "rabbit_chx.working"},
    "rabbit_chx.streams": SHARED | {"rabbit_chx.publishing", "rabbit_chx.working"},
    "rabbit_chx.changes": SHARED | {"rabbit_chx.topology", "rabbit_chx.working", "rabbit_chx.consuming"},
    "rabbit_chx.watch": {BASE, MIRROR, "rabbit_chx.topology", "rabbit_chx.report", "rabbit_chx.broker"},
    "pyspark_rabbitmq": {"spark_connector"},
}
"""From the bottom: the packages that each package may import. The command line and the Spark connector, on top, may import any."""

PUBLIC = {
    "rabbit_chx",
    "rabbit_chx.topology",
    "rabbit_chx.broker",
    "rabbit_chx.publishing",
    "rabbit_chx.consuming",
    "rabbit_chx.streams",
    "rabbit_chx.report",
    "rabbit_chx.watch",
    "rabbit_chx.testing",
}
"""What users import: the files behind them are loaded when a name is first used."""

WITH_PACKAGES = {"rabbit_chx", "spark_connector"} | {
    *(f"rabbit_chx.{name}" for name in ("cli", "consuming", "streams", "topology")),
}
"""Packages with others in them: their other files are entrances, which import those packages, and what these share."""

OPEN_TO_SPARK = {
    "rabbit_chx",
    "rabbit_chx.broker",
    "rabbit_chx.errors",
    "rabbit_chx.base.lazy_exports",
    "rabbit_chx.mirror.kernel",
} | {
    "rabbit_chx.messages.message_fields",
    "rabbit_chx.base.outages",
    "rabbit_chx.mirror.skew",
    "rabbit_chx.broker.tls",
    "rabbit_chx.publishing.properties",
    "rabbit_chx.streams.messages.amqp10",
    "rabbit_chx.streams.messages.arrow.batch",
    "rabbit_chx.streams.messages.encode",
    "rabbit_chx.streams.ends",
    "rabbit_chx.streams.protocol.opening",
    "rabbit_chx.streams.protocol.permissions",
    "rabbit_chx.topology.graph",
    "rabbit_chx.topology.routes",
    "rabbit_chx.base.text",
    "rabbit_chx.base.timeouts",
    "rabbit_chx.base.urls",
    *(f"rabbit_chx.{name}" for name in ("consuming", "publishing", "streams", "topology")),
}
"""The public packages that the Spark connector uses, and the files that are open to it."""
PRIVATE_FOR_SPARK = {"_add_encoded", "_check_same", "_hash_on", "_max_property_bytes", "_owners", "_type"}
"""The private attributes of clients, exchanges and fields that the Spark connector uses."""
PRIVATE_OF_LIBRARIES = {
    *("_impl", "_consumers", "_cancelled", "_adapter_call_later", "_adapter_remove_timeout"),  # of pika
    *("_terminate_stream", "_MAX_RECV_BYTES"),  # also of pika
    "_create_connection",  # of http.client
    *("_jsc", "_HANDLER", "_value_"),  # of PySpark, of the type of a signal handler, of an Enum
}
"""The private attributes of other people's objects that nothing public replaces."""
ON_SPARK = {"pyspark", "pyspark_rabbitmq", "spark_connector"}

READ_TOPOLOGY_FILES = "rabbit_chx.topology.file"
LIBRARIES = {"pika", "aio_pika", "aiormq", "pamqp", "amqp", "kombu", "docker", "testcontainers", "pytest"} | {
    *("click", "rich", *ON_SPARK),
}
"""What neither the mirror nor a topology may import; the mirror also not the next two."""
FILE_LIBRARIES = {"pydantic", "pydantic_core", "yaml"}
NETWORK = {"socket", "urllib.request", "http.client", "ssl", "asyncio"}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(), str(FILES[module]))


def imported_by(statement: ast.AST) -> set[str]:
    """The modules that a statement imports: ``from package import module`` is the module alone."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if not isinstance(statement, ast.ImportFrom):
        return set()
    assert statement.level == 0
    assert statement.module
    names = {f"{statement.module}.{alias.name}" for alias in statement.names}
    submodules = names & set(FILES)
    return submodules if submodules == names else submodules | {statement.module}


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset().union(*map(imported_by, ast.walk(tree(module)))) - {module}


def own_imports(module: str) -> set[str]:
    return imports(module) & set(FILES)


def libraries(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(module)}


def at_start(module: str) -> set[str]:
    """The libraries that loading a file loads at once."""
    return {name.partition(".")[0] for name in modules_at_start(module)}


def modules_at_start(module: str) -> set[str]:
    """The modules that loading a file loads at once: not those of functions and type checkers."""

    def statements(parent: ast.AST) -> Iterator[ast.AST]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield node
            yield from statements(node)

    return set().union(*map(imported_by, statements(tree(module))))


def is_package(module: str) -> bool:
    return FILES[module].name == "__init__.py"


def package(module: str) -> str:
    """The folder of a module. What a package exports, and each file beside the packages in a package, count alone."""
    folder = module.rpartition(".")[0]
    if module == "rabbit_chx.errors":  # outside its package, because users import it
        return f"{BASE}/"
    if module in PUBLIC or (folder in WITH_PACKAGES and not is_package(module)):
        return module
    return f"{module}/" if is_package(module) else f"{folder}/"


def layer(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "rabbit_chx":
        return parts[0]
    folder = ".".join(parts[:2])
    return {"rabbit_chx": MIRROR, "rabbit_chx.errors": BASE}.get(folder, folder)


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_this_file_sees_imports_wherever_they_are_written() -> None:
    assert "rabbit_chx.mirror.kernel.table" in own_imports("rabbit_chx.mirror.exchange")  # in a function
    assert "rabbit_chx.mirror.ring" in own_imports("rabbit_chx.mirror.movement")  # for type checkers
    assert "rabbit_chx.mirror.ring" in own_imports("rabbit_chx.mirror.exchange")  # at the top
    assert "numpy" in libraries("rabbit_chx.mirror.exchange")
    assert "numpy" not in at_start("rabbit_chx.mirror.exchange")
    assert "numpy" in at_start("rabbit_chx.mirror.movement")
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_no_module_imports_itself_through_others() -> None:
    assert not circle({module: own_imports(module) for module in FILES})


def test_no_package_imports_itself_through_others() -> None:
    graph: dict[str, set[str]] = {}
    for module in FILES:
        graph.setdefault(package(module), set()).update(map(package, own_imports(module)))
    assert not circle({name: below - {name} for name, below in graph.items()})


@pytest.mark.parametrize("upper", MAY_IMPORT)
def test_a_layer_imports_only_the_layers_below_it(upper: str) -> None:
    allowed = {upper} | MAY_IMPORT[upper]
    wrong = {
        (module, name)
        for module in FILES
        if layer(module) == upper and module != "rabbit_chx.__main__"
        for name in own_imports(module)
        if layer(name) not in allowed
    }
    assert not wrong


def test_connections_know_no_topologies() -> None:
    for module in FILES:
        folder, _, name = module.rpartition(".")
        if folder == "rabbit_chx.broker" and name not in {"management", "management_rows"}:
            assert layer(module) == folder
            assert {layer(used) for used in own_imports(module)} <= {BASE, MIRROR, folder}, module


def test_public_packages_load_nothing_at_start() -> None:
    assert modules_at_start("rabbit_chx") & set(FILES) == {"rabbit_chx.base.lazy_exports"}
    assert at_start("rabbit_chx") == {"__future__", "typing", "rabbit_chx"}
    assert at_start("rabbit_chx.base.lazy_exports") <= {"__future__", "importlib", "sys", "typing"}


def test_the_mirror_and_topologies_are_values() -> None:
    for module in FILES:
        if layer(module) in VALUES and module not in {
            *PUBLIC,
            "rabbit_chx.__main__",
        }:
            assert not libraries(module) & LIBRARIES, module
            assert not imports(module) & NETWORK, module
        if not module.startswith((READ_TOPOLOGY_FILES, "spark_connector")):
            assert not libraries(module) & FILE_LIBRARIES, module
    assert libraries("rabbit_chx.errors") <= {"__future__", "collections", "typing", "rabbit_chx"}


def test_the_spark_connector_imports_only_public_packages_and_files_that_are_open_to_it() -> None:
    for module in FILES:
        for node in ast.walk(tree(module)) if layer(module) in ON_SPARK else ():
            # `from rabbit_chx.mirror.kernel import phash2` is the function, not the module of that name.
            names = {str(node.module)} if isinstance(node, ast.ImportFrom) else imported_by(node)
            assert not {name for name in names if name.startswith("rabbit_chx")} - OPEN_TO_SPARK, module


@cache
def private_attributes(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """The private attributes of the objects that a module defines, and the other ones that it uses."""
    own: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                names = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
                own |= {getattr(each, "name", ""), *map(ast.unparse, names)}
        elif isinstance(node, ast.Attribute):
            (own if ast.unparse(node.value) in {"self", "cls", "super()"} else used).add(node.attr)
    of_tuples = "_replace"  # public in spite of its name
    used = {name for name in used - own - {of_tuples} if re.match("_[^_]", name)}
    return frozenset(own), frozenset(used)


def test_private_attributes_are_of_this_project_or_listed() -> None:
    ours = frozenset().union(*(private_attributes(module)[0] for module in FILES))
    for module in FILES:
        assert not private_attributes(module)[1] - ours - PRIVATE_OF_LIBRARIES, module


def test_the_spark_connector_uses_no_private_attributes_but_those_for_it() -> None:
    on_spark = [private_attributes(module)[1] for module in FILES if layer(module) in ON_SPARK]
    assert frozenset().union(*on_spark) == PRIVATE_FOR_SPARK


def test_two_modules_of_rabbit_chx_import_the_spark_connector() -> None:
    users = {module for module in FILES if module.startswith("rabbit_chx") and libraries(module) & ON_SPARK}
    assert users == {"rabbit_chx.cli.demo", "rabbit_chx.cli.spark"}


def test_spark_is_loaded_when_it_is_needed() -> None:
    assert {
        module for module in FILES if module.startswith("rabbit_chx") and at_start(module) & ON_SPARK
    } == set()


def test_files_are_short() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in FILES.items()}
    assert {module for module, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == set()


def functions(parent: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(parent) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_long(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    assert function.end_lineno
    has_blocks = any(isinstance(node, BLOCKS) for node in ast.walk(function) if node is not function)
    most = MOST_LINES_OF_A_FUNCTION if has_blocks else MOST_STRAIGHT_LINES
    return function.end_lineno - function.lineno + 1 > most


def test_functions_are_short_or_listed_with_a_reason() -> None:
    long = {
        f"{module}.{function.name}"
        for module in FILES
        for function in functions(tree(module))
        if is_long(function)
    }
    assert long <= set(LONG_FUNCTIONS)


def test_the_site_has_every_public_name_on_the_page_of_one_package() -> None:
    assert set(python_pages.PACKAGES) == PUBLIC | {"rabbit_chx.errors", "spark_connector"}
    for package in python_pages.PACKAGES:
        page = python_pages.directives(package)
        described = re.findall(
            rf"^\.\. auto(?:class|exception|function):: {package}\.(\w+)$", page, re.MULTILINE
        )
        described += re.findall(r"^\.\. py:data:: (\w+)$", page, re.MULTILINE)
        elsewhere = re.findall(r"\{py:obj\}`(\w+) <", page)
        assert sorted([*elsewhere, *described]) == sorted(python_pages.exported(package))
