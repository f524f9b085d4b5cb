"""The public names of ``rabbit_chx.topology``: complete, documented, and free until they are used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rabbit_chx
from rabbit_chx import topology


def test_every_name_can_be_imported_and_is_documented() -> None:
    assert topology.__all__ == sorted(set(topology.__all__))
    assert set(dir(topology)) == set(topology.__all__)
    for name in topology.__all__:
        found = getattr(topology, name)
        assert not inspect.ismodule(found), name
        assert not inspect.isclass(found) or inspect.getdoc(found), name


def test_type_checkers_see_what_is_loaded() -> None:
    tree = ast.parse(Path(topology.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        node.module.removeprefix("rabbit_chx."): {alias.name for alias in node.names}
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert seen == {module: set(names) for module, names in topology._NAMES_IN.items()}


def test_whatever_a_public_function_takes_or_returns_can_be_imported_from_the_same_place() -> None:
    own = {
        name
        for module in Path(topology.__file__).parents[1].rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w+)", module.read_text(), re.MULTILINE)
    }
    for name in topology.__all__:
        found = getattr(topology, name)
        functions = [found] if inspect.isfunction(found) else []
        if inspect.isclass(found):
            functions = [
                each for key, each in vars(found).items() if inspect.isfunction(each) and key[0] != "_"
            ]
        for function in functions:
            spelled = " ".join(map(str, function.__annotations__.values()))
            mentioned = set(re.findall(r"\b[A-Z]\w+", spelled)) & own
            assert mentioned <= {
                *topology.__all__,
                *rabbit_chx.__all__,
                "User",
                "Overview",
                "Client",
                "Path",
            }, (
                name,
                mentioned,
            )


def test_importing_it_loads_nothing() -> None:
    script = "import rabbit_chx.topology, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name for name in done.stdout.split() if name.startswith("rabbit_chx")}
    assert loaded == {"rabbit_chx", "rabbit_chx.topology"}


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"'rabbit_chx\.topology' has no attribute 'Topologie'"):
        topology.Topologie  # noqa: B018
