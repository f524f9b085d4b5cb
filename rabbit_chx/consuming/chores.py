"""What a member does now and then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Generic, TypeVar

_Chore = TypeVar("_Chore")


class Chores(Generic[_Chore]):
    """Functions that are called again and again, each after its own time."""

    def __init__(self, every: Mapping[_Chore, float]) -> None:
        self._every = every
        self._due = {chore: monotonic() + seconds for chore, seconds in every.items()}

    def due(self) -> Iterator[_Chore]:
        """Those whose time has come, each to be called before the next is asked for."""
        for chore, due in self._due.items():
            if due <= monotonic():
                yield chore
                self._due[chore] = monotonic() + self._every[chore]
