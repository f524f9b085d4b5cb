"""The front door: what it offers, what opening it costs, and that every example in a docstring is true."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rabbit_chx

ROOT = Path(__file__).parents[2]
MODEL = [
    "errors",
    "exchange",
    "fields",
    "hashing",
    "inference",
    "kernel",
    "monitor",
    "partitioning",
    "releases",
    "ring",
    "markup",
    "movement",
    "skew",
]
KERNEL = ["exs1024", "jump", "phash2", "terms"]
FOREIGN = (
    "numpy",
    "pika",
    "aio_pika",
    "amqp",
    "click",
    "rich",
    "pyarrow",
    "mmh3",
    "matplotlib",
    "pytest",
    "testcontainers",
    "docker",
)


def loaded_after(*statements: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after these statements."""
    script = "; ".join(["import sys", *statements, "print(*sys.modules)"])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_list_of_public_names_is_sorted_and_holds_each_once() -> None:
    assert rabbit_chx.__all__ == sorted(set(rabbit_chx.__all__))


def test_every_public_name_can_be_had() -> None:
    for name in rabbit_chx.__all__:
        assert getattr(rabbit_chx, name) is not None
        assert not inspect.ismodule(getattr(rabbit_chx, name)), name


def test_the_list_holds_what_users_were_promised() -> None:
    promised = """ConsistentHashExchange Ring RingBinding Release ModulusHashExchange SuperStream Explanation DeliveryMonitor
        AnyOf RandomExchange infer moved shares InvalidValue RabbitChxError RingUnknown Unroutable"""
    assert set(promised.split()) <= set(rabbit_chx.__all__)


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    tree = ast.parse(Path(rabbit_chx.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {
        node.module.removeprefix("rabbit_chx."): tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert seen == rabbit_chx._MODULES
    assert sorted(name for names in seen.values() for name in names) == rabbit_chx.__all__


def test_dir_lists_the_public_names() -> None:
    assert set(dir(rabbit_chx)) == {*rabbit_chx.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'rabbit_chx' has no attribute 'Rung'"):
        rabbit_chx.Rung  # noqa: B018


def test_every_public_name_is_documented() -> None:
    for name in rabbit_chx.__all__:
        assert (getattr(rabbit_chx, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("first", ["moved", "Movement", "shares"])
def test_shares_is_the_function_whichever_of_its_room_is_asked_for_first(first: str) -> None:
    # Importing the module rabbit_chx.movement sets the attribute rabbit_chx.movement, to the module.
    check = f"from rabbit_chx import {first}, shares; assert callable(shares), shares"
    loaded_after(check, "import rabbit_chx; assert callable(rabbit_chx.shares)")


def test_no_module_bears_the_name_of_a_public_function() -> None:
    modules = {path.stem for path in Path(rabbit_chx.__file__).parent.iterdir()}
    assert not modules & set(rabbit_chx.__all__)


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from rabbit_chx import *", names)
    assert set(rabbit_chx.__all__) <= set(names)


# ---- what it costs


def test_importing_the_package_loads_nothing_but_itself() -> None:
    loaded = loaded_after("import rabbit_chx")
    assert "rabbit_chx" in loaded
    assert not {name for name in loaded if name.startswith("rabbit_chx.")}
    assert not loaded & set(FOREIGN)


@pytest.mark.parametrize(
    "statement",
    [
        "x = ConsistentHashExchange({'q0': 1, 'q1': 2}); x.route('customer-42', explain=True)",
        "x = ConsistentHashExchange(['q0', 'q1'], hash_header='h', release='3.10'); x.route(headers={'h': 'a'})",
        "x = ConsistentHashExchange(['q0', 'q1'], hash_property='timestamp'); str(x.route(timestamp=5, explain=True))",
        "from rabbit_chx import Ring; Ring.of(['q0', 'q1']).bind('q2').unbind('q0').after_restart().bucket_map",
        "from rabbit_chx import ModulusHashExchange; ModulusHashExchange(['q0', 'q1']).route('a')",
        "from rabbit_chx import RandomExchange; str(RandomExchange(['q0']).route('a'))",
        "from rabbit_chx import DeliveryMonitor; DeliveryMonitor(ConsistentHashExchange(['q0']), name='x')",
        "from rabbit_chx.kernel import phash2, jump_consistent_hash; jump_consistent_hash(phash2(b'a'), 9)",
    ],
)
def test_routing_one_message_loads_neither_numpy_nor_any_other_library(statement: str) -> None:
    loaded = loaded_after("from rabbit_chx import ConsistentHashExchange", statement)
    assert not loaded & set(FOREIGN)
    assert "rabbit_chx.ring" in loaded or "rabbit_chx.exchange" in loaded


@pytest.mark.parametrize("room", MODEL)
def test_the_model_loads_no_client_no_broker_and_no_command_line(room: str) -> None:
    loaded = loaded_after(f"import rabbit_chx.{room}")
    assert not loaded & (set(FOREIGN) - {"numpy"})
    assert not {
        name
        for name in loaded
        if name.startswith(("rabbit_chx.broker", "rabbit_chx.cli", "rabbit_chx.testing"))
    }


# ---- the examples


@pytest.mark.parametrize(
    "name",
    [
        "rabbit_chx",
        *(f"rabbit_chx.{room}" for room in MODEL),
        *(f"rabbit_chx.kernel.{room}" for room in KERNEL),
    ],
)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    public = {each: getattr(rabbit_chx, each) for each in rabbit_chx.__all__}
    known = {**public, **vars(importlib.import_module("rabbit_chx.kernel")), **vars(module)}
    tests = [
        test for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs=known) if test.examples
    ]
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for test in tests:
        assert runner.run(test).failed == 0, test.name


def test_there_are_examples() -> None:
    documented = [getattr(rabbit_chx, name).__doc__ for name in rabbit_chx.__all__]
    assert sum(">>>" in doc for doc in documented if doc) >= 7
