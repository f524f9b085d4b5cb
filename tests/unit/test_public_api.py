"""What the public packages export, what importing them loads, and that the examples in docstrings are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pickle
import pydoc
import typing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rabbit_chx
from tests.programs import loaded_after
from tests.unit.test_architecture import PUBLIC

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(PUBLIC)
LAZY_PACKAGES = sorted(PUBLIC - {"rabbit_chx.publishing", "rabbit_chx.report"} | {"spark_connector"})
LOWER_PACKAGES = (
    "rabbit_chx",
    "rabbit_chx.mirror.kernel",
    "rabbit_chx.mirror.hashing",
    "rabbit_chx.topology",
)
"""What users of any public package have at hand as well."""
ONLY_READ = {
    *("Overview", "ListedQueue", "User", "NodeState"),  # of Management
    *("Row", "Totals", "Problem", "RingState", "RingCheck"),  # of an Interval
    *("Applied", "Strategy", "RingChange", "Move", "QueueLoad", "Rebalancing"),  # of changes to a topology
    *("Finding", "Drift"),  # of checks
    *("QueueStatus", "PartitionStatus"),  # of the status of a group
    *("Chunk", "StreamMetadata", "StreamStats"),  # of a StreamBatch or a StreamConnection
    *("HotKey", "QueueShare"),  # of a Spread
    *("Report", "Change", "Picture", "Source"),  # of `report`, and of `available`
}
"""Types of values that callers receive and never make, or that only clients of the package make, whose names no guide uses."""
MIRROR = (
    "exchange",
    "fields",
    "hashing",
    "inference",
    "kernel",
    "kernel.jump",
    "kernel.phash2",
    "kernel.terms",
)
MIRROR += ("monitor", "movement", "partitioning", "protocols", "releases", "ring", "skew")
WITH_EXAMPLES = [
    "errors",
    *(f"base.{name}" for name in ("markup", "names", "text")),
    *(f"mirror.{name}" for name in MIRROR),
]
FOREIGN = {
    *("numpy", "pika", "aio_pika", "amqp", "click", "rich", "pyarrow", "mmh3", "pytest"),
    *("testcontainers", "docker"),
}


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_type_checkers_see_lazy_exports(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(inspect.getsource(module))
    imports, _ = (node.body for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: importlib.import_module(node.module)
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name  # which exports it
    }
    assert sorted(seen) == module.__all__
    for name, home in seen.items():
        assert getattr(module, name) is getattr(home, name)


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_lazy_exports_are_found_as_in_any_other_module(package: str) -> None:
    module, everything = importlib.import_module(package), {}
    assert set(module.__all__) <= set(dir(module))
    assert {"__all__", "__doc__", "__name__"} <= set(dir(module))
    exec(f"from {package} import *", everything)
    for name in filter(str.islower, module.__all__):
        assert pickle.loads(pickle.dumps(everything[name])) is everything[name]
    assert f"{module.__all__[-1]}(" in pydoc.render_doc(module, renderer=pydoc.plaintext)
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'Rung'"):
        module.Rung  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Rung'"):
        exec(f"from {package} import Rung")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_an_exported_function(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    modules = {path.stem for path in Path(module.__file__).parent.iterdir()}
    assert not modules & set(module.__all__)


# ---- whatever a function takes or returns can be imported from where the function is


@cache
def names_in(module: str) -> dict[str, object]:
    """The names in a module, with those that it imports for type checkers only."""
    found = importlib.import_module(module)
    names = dict(vars(found))
    for node in ast.parse(inspect.getsource(found)).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                exec(ast.unparse(statement), names)
    # An alias may be written as text: "str | ToExchange".
    aliases = {
        name: typing.ForwardRef(text)
        for name, text in names.items()
        if name.istitle() and isinstance(text, str)
    }
    return names | aliases


@cache
def all_names() -> dict[str, object]:
    """The names in every module of the package: an alias such as Destination is written in terms of some of them."""
    files = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "rabbit_chx").rglob("*.py")]
    modules = sorted(".".join(file.parts) for file in files if file.stem not in {"__init__", "__main__"})
    return {name: value for module in modules for name, value in names_in(module).items()}


def functions_of(value: object) -> list[Any]:
    """A function itself; of a class its public methods, properties and fields."""
    if not inspect.isclass(value):
        return [value] if inspect.isfunction(value) else []
    public = [
        member for name, member in vars(value).items() if not name.startswith("_") or name == "__init__"
    ]
    methods = [
        member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        for member in public
    ]
    return [value, *filter(inspect.isfunction, methods)]


def classes_in(annotation: object) -> set[type]:
    found = {annotation} if isinstance(annotation, type) and not typing.get_args(annotation) else set()
    return found.union(*map(classes_in, typing.get_args(annotation)))


def exported_by(packages: tuple[str, ...]) -> set[int]:
    modules = map(importlib.import_module, packages)
    return {id(getattr(module, name)) for module in modules for name in public_names(module)}


def public_names(module: Any) -> list[str]:
    """What a package exports; of any other module, what it defines without an underscore."""
    own = (
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    )
    return getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_package_exports_what_its_functions_take_and_return_unless_it_is_only_read(
    package: str,
) -> None:
    module, exported, missing = (
        importlib.import_module(package),
        exported_by((package, *LOWER_PACKAGES)),
        set(),
    )
    for name in module.__all__:
        for function in functions_of(getattr(module, name)):
            known = (
                {**all_names(), **names_in(function.__module__)} if hasattr(function, "__module__") else {}
            )
            hints = typing.get_type_hints(function, known)
            used = set().union(*map(classes_in, hints.values()))
            missing |= {
                f"{name} uses {one.__module__}.{one.__name__}"
                for one in used
                if one.__module__.startswith("rabbit_chx")
                and id(one) not in exported
                and one.__name__[0] != "_"
                and one.__name__ not in ONLY_READ
            }
    assert not missing


# ---- what it costs


def test_importing_the_package_loads_nothing_but_itself() -> None:
    loaded = loaded_after("import rabbit_chx, rabbit_chx.topology")
    assert {name for name in loaded if name.startswith("rabbit_chx.")} == {
        "rabbit_chx.base",
        "rabbit_chx.base.lazy_exports",
        "rabbit_chx.topology",
    }
    assert not loaded & FOREIGN


def test_routing_one_message_loads_neither_numpy_nor_any_other_library() -> None:
    loaded = loaded_after(
        "from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, RandomExchange, Ring, DeliveryMonitor",
        "x = ConsistentHashExchange({'q0': 1, 'q1': 2}); x.route('customer-42', explain=True)",
        "x = ConsistentHashExchange(['q0', 'q1'], hash_header='h', release='3.10'); x.route(headers={'h': 'a'})",
        "x = ConsistentHashExchange(['q0', 'q1'], hash_property='timestamp'); str(x.route(timestamp=5, explain=True))",
        "Ring.of(['q0', 'q1']).bind('q2').unbind('q0').after_restart().bucket_map",
        "ModulusHashExchange(['q0', 'q1']).route('a'); str(RandomExchange(['q0']).route('a'))",
        "DeliveryMonitor(x, name='x')",
        "from rabbit_chx.mirror.kernel import phash2, jump_consistent_hash; jump_consistent_hash(phash2(b'a'), 9)",
    )
    assert not loaded & FOREIGN


def test_the_mirror_loads_no_client_no_broker_and_no_command_line() -> None:
    loaded = loaded_after(*(f"import rabbit_chx.{module}" for module in WITH_EXAMPLES))
    assert not loaded & (FOREIGN - {"numpy"})
    others = ("rabbit_chx.broker", "rabbit_chx.cli", "rabbit_chx.testing", "rabbit_chx.topology")
    assert not {name for name in loaded if name.startswith(others)}


# ---- the examples


@pytest.mark.parametrize("name", ["rabbit_chx", *(f"rabbit_chx.{module}" for module in WITH_EXAMPLES)])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    public = {each: getattr(rabbit_chx, each) for each in rabbit_chx.__all__}
    known = {**public, **vars(importlib.import_module("rabbit_chx.mirror.kernel")), **vars(module)}
    tests = [
        test for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs=known) if test.examples
    ]
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for test in tests:
        assert runner.run(test).failed == 0, test.name
