"""Erlang's hash functions in Python, on integers, bytes and terms, independent of AMQP, releases and brokers.

Each function is named after the Erlang function it mirrors, and cites it. The functions on columns need NumPy, which is
imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports
from rabbit_chx.mirror.kernel.jump import jump_consistent_hash as jump_consistent_hash
from rabbit_chx.mirror.kernel.phash2 import last_binary_initval as last_binary_initval, phash2 as phash2
from rabbit_chx.mirror.kernel.terms import Atom as Atom, Term as Term

if TYPE_CHECKING:
    from rabbit_chx.mirror.kernel.batch import (
        block_hash_column as block_hash_column,
        phash2_column as phash2_column,
    )
    from rabbit_chx.mirror.kernel.table import SEEDS as SEEDS, bucket_table as bucket_table

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.mirror.kernel.batch": "block_hash_column phash2_column",
            "rabbit_chx.mirror.kernel.jump": "jump_consistent_hash",
            "rabbit_chx.mirror.kernel.phash2": "last_binary_initval phash2",
            "rabbit_chx.mirror.kernel.table": "SEEDS bucket_table",
            "rabbit_chx.mirror.kernel.terms": "Atom Term",
        },
    )
