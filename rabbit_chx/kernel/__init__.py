"""Erlang's hash functions in Python, on integers, bytes and terms, independent of AMQP, releases and brokers.

Each function is named after the Erlang function it mirrors, and cites it. The functions on columns need NumPy, which is
imported when one of them is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rabbit_chx.kernel.jump import jump_consistent_hash
from rabbit_chx.kernel.phash2 import last_binary_initval, phash2
from rabbit_chx.kernel.terms import Atom, Term

if TYPE_CHECKING:
    from rabbit_chx.kernel.batch import block_hash_column, phash2_column
    from rabbit_chx.kernel.table import SEEDS, bucket_table

__all__ = [
    "SEEDS",
    "Atom",
    "Term",
    "block_hash_column",
    "bucket_table",
    "jump_consistent_hash",
    "last_binary_initval",
    "phash2",
    "phash2_column",
]

_MODULE_OF = {
    "SEEDS": "table",
    "bucket_table": "table",
    "block_hash_column": "batch",
    "phash2_column": "batch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
