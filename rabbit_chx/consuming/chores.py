"""Periodic work of a member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Generic, TypeVar

_Chore = TypeVar("_Chore")


class Chores(Generic[_Chore]):
    """Functions that are called periodically, each with its own interval."""

    def __init__(self, every: Mapping[_Chore, float]) -> None:
        self._every = every
        self._due = {chore: monotonic() + seconds for chore, seconds in every.items()}

    def due(self) -> Iterator[_Chore]:
        """Yield the chores that are due; call each one before taking the next."""
        for chore, due in self._due.items():
            if due <= monotonic():
                yield chore
                self._due[chore] = monotonic() + self._every[chore]
