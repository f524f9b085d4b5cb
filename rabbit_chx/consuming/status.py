"""The format of questions to a member, sent to the queue of its seat, and of its answers. This module does no IO."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from time import monotonic
from typing import Any

from rabbit_chx.consuming.lanes import Lane


def question(queues: Iterable[str]) -> bytes:
    """A request for a member's status. It may name queues that the member should consume too."""
    return json.dumps({"queues": list(queues)}).encode()


def queues_in(body: bytes) -> tuple[str, ...]:
    """The queues that a question names; none if its body is invalid."""
    try:
        return tuple(name for name in json.loads(body)["queues"] if isinstance(name, str))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()


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
