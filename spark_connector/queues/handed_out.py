"""The messages that a read of a queue has handed to Spark and not yet acknowledged. Values in, values out.

An offset is ``{"queue": "orders.0", "session": ..., "rows": 120}``: the number of rows that a session, one run of the query, has
handed out.
A micro-batch that ends in an earlier session has no rows: its messages were acknowledged, or the broker redelivers them, and
then they are rows of this session. If the repeated micro-batch returned them as well, a sink that has already written that
micro-batch would skip the rows, and the reader would acknowledge their messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rabbit_chx import RabbitChxError
from rabbit_chx.consuming import Batch, Message


class _Part(NamedTuple):
    start: int
    end: int
    batch: Batch


@dataclass
class HandedOut:
    """The batches of one session that Spark has not finished, oldest first."""

    queue: str
    session: str
    _rows: int = 0
    _parts: list[_Part] = field(default_factory=list)

    @property
    def start(self) -> dict[str, Any]:
        """The offset before the first row."""
        return {"queue": self.queue, "session": self.session, "rows": 0}

    @property
    def offset(self) -> dict[str, Any]:
        """The offset after the last row."""
        return {"queue": self.queue, "session": self.session, "rows": self._rows}

    def add(self, batch: Batch) -> dict[str, Any]:
        """Add a batch, and return the offset after it."""
        if batch.messages:
            start, self._rows = self._rows, self._rows + len(batch.messages)
            self._parts.append(_Part(start, self._rows, batch))
        return self.offset

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Message]:
        """The messages of a range; none if it ends in another session."""
        if end["session"] != self.session:
            return []
        first = start["rows"] if start["session"] == self.session else 0
        found = [
            message
            for part in self._parts
            if first <= part.start and part.end <= end["rows"]
            for message in part.batch.messages
        ]
        if len(found) != end["rows"] - first:
            raise RabbitChxError(
                f"Spark requested the rows {first} to {end['rows']} of a queue, but only {len(found)} are kept: the others are "
                "acknowledged. Restart the query: the broker redelivers all messages that were not acknowledged"
            )
        return found

    def finished(self, end: Mapping[str, Any] | None) -> Batch | None:
        """Forget all batches up to an offset and return the last batch; acknowledging it acknowledges the others."""
        if end is None or end["session"] != self.session:
            return None
        done = [part for part in self._parts if part.end <= end["rows"]]
        del self._parts[: len(done)]
        return done[-1].batch if done else None
