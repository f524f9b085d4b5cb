"""The format of questions to a member, sent to the queue of its seat, and of its answers. This module does no IO."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rabbit_chx.consuming.lanes import Lane


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a member's status, which may name queues that the member should consume too."""

    queues: tuple[str, ...] = ()

    @classmethod
    def of(cls, body: bytes) -> Question:
        """Parse a question; an invalid body counts as one without queues."""
        try:
            queues = json.loads(body)["queues"]
            return cls(tuple(name for name in queues if isinstance(name, str)))
        except (ValueError, LookupError, TypeError, RecursionError):
            return cls()

    @property
    def body(self) -> bytes:
        """The body of the message that asks this question."""
        return json.dumps({"queues": self.queues}).encode()


def status(group: str, seat: int, lanes: Iterable[Lane]) -> bytes:
    """The answer of a member to any question."""
    now = monotonic()
    found: dict[str, Any] = {
        "group": group,
        "seat": seat,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "queues": {lane.queue: lane.status(now) for lane in lanes},
    }
    return json.dumps(found).encode()
