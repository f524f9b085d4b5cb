"""Periodic work of a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import TypeAlias

Chore: TypeAlias = "Callable[[], object]"


class Chores:
    """Functions that are called periodically, each with its own interval."""

    def __init__(self, every: Mapping[Chore, float]) -> None:
        self._every = every
        self._due = {chore: monotonic() + seconds for chore, seconds in every.items()}

    def do_due(self) -> None:
        """Call the functions that are due."""
        for chore, due in self._due.items():
            if due <= monotonic():
                chore()
                self._due[chore] = monotonic() + self._every[chore]
