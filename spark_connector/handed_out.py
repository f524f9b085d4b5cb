"""What a read of a queue has handed to Spark and not acknowledged: offsets in, messages and batches out. Values only.

An offset is ``{"session": ..., "rows": 120}``: how many rows this run of a query has handed out. A session is one run.
Offsets of an earlier one stand for no rows at all: its messages were acknowledged, or the broker delivers them again, which
makes them rows of this session. If they were rows of the repeated micro-batch as well, a sink that knows that micro-batch
would leave them out, and they would be acknowledged all the same.
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
    """The batches of one session, from the oldest that is not finished on."""

    session: str
    _rows: int = 0
    _parts: list[_Part] = field(default_factory=list)

    @property
    def start(self) -> dict[str, Any]:
        """The offset before the first row."""
        return {"session": self.session, "rows": 0}

    @property
    def offset(self) -> dict[str, Any]:
        """The offset behind the last row."""
        return {"session": self.session, "rows": self._rows}

    def add(self, batch: Batch) -> dict[str, Any]:
        """Hand out a batch, and return the offset behind it."""
        if batch.messages:
            start, self._rows = self._rows, self._rows + len(batch.messages)
            self._parts.append(_Part(start, self._rows, batch))
        return self.offset

    def between(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Message]:
        """The messages of a range; none if it is of another session."""
        if end["session"] != self.session:
            return []
        first = self._of(start)
        found = [
            message
            for part in self._parts
            if first <= part.start and part.end <= end["rows"]
            for message in part.batch.messages
        ]
        if len(found) != end["rows"] - first:
            raise RabbitChxError(
                f"Spark asks for the rows {first} to {end['rows']} of a queue, of which {len(found)} are kept: the others are "
                "acknowledged. Start the query again; the broker then delivers what was not"
            )
        return found

    def finished(self, end: Mapping[str, Any] | None) -> Batch | None:
        """Forget all batches up to an offset, and return the last one, with which they are acknowledged."""
        if end is None or end["session"] != self.session:
            return None
        done = [part for part in self._parts if part.end <= end["rows"]]
        del self._parts[: len(done)]
        return done[-1].batch if done else None

    def _of(self, offset: Mapping[str, Any]) -> int:
        return int(offset["rows"]) if offset["session"] == self.session else 0
