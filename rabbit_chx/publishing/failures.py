"""Messages that were not confirmed, kept so compactly that a million of them cost some megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

from rabbit_chx.base.text import counted
from rabbit_chx.publishing.messages import Failure, Outcome, OutgoingMessage, Reason


class Failures(Sequence[Failure]):
    """A `Failure` for each message, made when it is looked at."""

    def __init__(self) -> None:
        self._rows = array("Q")
        self._keys: list[bytes] = []
        self._reasons: list[Reason] = []
        self._known: dict[Reason, Reason] = {}
        """The reasons that differ: many messages share one."""
        self.first_row: int | None = None
        """The lowest row."""

    def add(self, messages: Iterable[OutgoingMessage], outcome: Outcome, reply: str = "") -> None:
        """Add messages, with this reply or their last ones."""
        for message in messages:
            self.add_row(message.row, message.routing_key, message.reason(outcome, reply))

    def add_row(self, row: int, routing_key: bytes, reason: Reason) -> None:
        """Add the message with this row and key."""
        self._rows.append(row)
        self._keys.append(routing_key)
        self._reasons.append(self._known.setdefault(reason, reason))
        if self.first_row is None or row < self.first_row:
            self.first_row = row

    def by_row(self, start: int = 0) -> Failures:
        """Return those that were added after the first ``start``, in the order of their rows."""
        order = sorted(range(start, len(self)), key=self._rows.__getitem__)
        found = Failures()
        found._rows.extend(map(self._rows.__getitem__, order))
        found._keys.extend(map(self._keys.__getitem__, order))
        found._reasons.extend(map(self._reasons.__getitem__, order))
        found.first_row = found._rows[0] if order else None
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'message')} without a confirm>"

    @overload
    def __getitem__(self, index: int) -> Failure: ...

    @overload
    def __getitem__(self, index: slice) -> list[Failure]: ...

    def __getitem__(self, index: int | slice) -> Failure | list[Failure]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        return self._reasons[index].failure(self._rows[index], self._keys[index])
