"""The counts of a program's writes; `register` returns them.

Spark's progress has no metrics for a sink written in Python, and the sink logs in a separate process. An accumulator
reaches the program. The driver's `commit` and `abort` add to the accumulator, so an attempt that Spark repeats is not
counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyspark import Accumulator, AccumulatorParam

from spark_connector.worker import Written


@dataclass(frozen=True)
class Counts:
    """Sums over batches and micro-batches."""

    writes: int = 0
    """Batches and micro-batches that succeeded."""
    failed_writes: int = 0
    rows: int = 0
    confirmed: int = 0
    already_stored: int = 0
    """Rows that a stream already had from an earlier attempt."""
    dropped: int = 0
    """Invalid rows that ``invalidRows=drop`` left out."""
    resent: int = 0
    """Messages that were sent again after a lost connection."""
    possible_duplicates: int = 0
    """Messages that were sent again, plus all messages of tasks that Spark ran again."""
    bytes: int = 0
    connections: int = 0
    """Connections that the tasks opened."""


def sums(written: Collection[Written]) -> dict[str, int]:
    """Add up the counts of the tasks of a write."""
    names = [one.name for one in fields(Counts) if hasattr(Written, one.name)]
    return {name: sum(getattr(one, name) for one in written) for name in names}


class _Sums(AccumulatorParam[dict[str, int]]):
    def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002 - PySpark's signature
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802
        return dict(Counter(value1) + Counter(value2))


class WriteCounts:
    """The counts of all writes since `register` was first called in this Spark application."""

    def __init__(self, sums: Accumulator[dict[str, int]]) -> None:
        self._sums = sums

    @property
    def now(self) -> Counts:
        """The current counts; only the driver can read them."""
        value: Mapping[str, int] = self._sums.value
        return Counts(**{one.name: value.get(one.name, 0) for one in fields(Counts)})

    def add(self, written: Collection[Written], *, failed: bool = False) -> None:
        """Add a batch, or a micro-batch."""
        self._sums.add({"failed_writes" if failed else "writes": 1, **sums(written)})


_by_application: dict[str, WriteCounts] = {}


def counts_of(context: Any) -> WriteCounts | None:
    """Return the counts of an application, or None with Spark Connect, whose client has no accumulators."""
    if context is None:
        return None
    name = context.applicationId
    if name not in _by_application:
        _by_application[name] = WriteCounts(context.accumulator({}, _Sums()))
    return _by_application[name]
