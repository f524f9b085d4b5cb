"""What a public package exports, loaded when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, names_in: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__all__``, ``__getattr__`` and ``__dir__`` of a package, from the names in each module, separated by blanks.

    Type checkers read the package's own imports instead, as ``X as X``, which exports X. They must not see
    ``__getattr__``, which has every name.
    """
    home_of = {name: module for module, names in names_in.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = getattr(import_module(home_of[name]), name)
        return namespace[name]

    def names() -> list[str]:
        return sorted({*home_of, *(name for name in namespace if name.startswith("__"))})

    return sorted(home_of), load, names
