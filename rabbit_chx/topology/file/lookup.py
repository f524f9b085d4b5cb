"""Look up names within a file: the queues of a range, and whether a queue or exchange is declared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from rabbit_chx.base.names import VALID_NAME, name_flaw
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.topology.file.problems import Document, Path, did_you_mean
from rabbit_chx.topology.file.ranges import expand
from rabbit_chx.topology.model import RESERVED

MAX_NAMES: Final = 100_000
"""The number of queue names in a file with ranges expanded, references included."""

_MAX_COMPARISONS: Final = 20_000
_ARTICLES: Final = {"exchange": "an", "queue": "a"}


class Lookup:
    """The names in one file; unknown and invalid ones are reported to its document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.exchanges: Collection[str] = dict.fromkeys(self.section("exchanges"))
        self.queues: dict[str, str] = {}
        """Each queue, and the key in the file that declares it."""
        self._count = 0

    def section(self, name: str) -> dict[str, Any]:
        """A section as it is in the file, including entries that violate the schema."""
        found = self.document.value.get(name)
        return found if isinstance(found, dict) else {}

    def is_valid(self, path: Path, name: str, *, at_key: bool = True) -> bool:
        """Whether a name is valid."""
        flaw = name_flaw(name)
        if flaw:
            is_default = not name and path[0] == "exchanges"
            hint = "The default exchange exists already and cannot be bound" if is_default else ""
            self.document.report(path, Unquoted(flaw), VALID_NAME, hint, at_key=at_key)
        return not flaw

    def members(self, path: Path, name: str, *, at_key: bool = False) -> tuple[str, ...]:
        """Expand a name into names of queues; none if it is malformed."""
        try:
            names = expand(name)
        except InvalidValue as error:
            self.document.add(path, error, at_key=at_key)
            return ()
        self._count += len(names)
        if self._count > MAX_NAMES:
            got = Unquoted(f"more than {MAX_NAMES} with ranges expanded")
            many = InvalidValue("number of queues", got, f"at most {MAX_NAMES} in a file")
            self.document.add(path, many, at_key=at_key)
            self.document.raise_problems()
        return names if self.is_valid(path, max(names, key=len), at_key=at_key) else ()

    def is_declared(
        self, kind: Literal["exchange", "queue"], path: Path, name: str, *, at_key: bool = False
    ) -> bool:
        """Whether an exchange or queue is declared in the file or is the broker's own."""
        known = self.exchanges if kind == "exchange" else self.queues
        if name in known or name.startswith(RESERVED):
            return True
        # The most similar name takes 15 us for each known name.
        is_quick = len(known) * (1 + len(self.document.found)) <= _MAX_COMPARISONS
        hint = (is_quick and did_you_mean(name, known)) or f"Declare it under {kind}s"
        self.document.report(path, name, f"{_ARTICLES[kind]} {kind} of this file", hint, at_key=at_key)
        return False
