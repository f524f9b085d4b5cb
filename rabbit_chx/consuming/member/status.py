"""The format of questions to a member, sent to the queue of its seat, and of its answers. This module does no IO."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from time import monotonic
from typing import Any

from rabbit_chx.consuming.markers import Hold
from rabbit_chx.consuming.member.lanes import Lane
from rabbit_chx.errors import InvalidValue


def question(holds: Iterable[Hold] = ()) -> bytes:
    """A request for a member's status. With holds, the member should consume their queues too."""
    return json.dumps({"holds": {hold.name: hold.record for hold in holds}}).encode()


def holds_in(body: bytes) -> list[Hold]:
    """The holds in a question; none if its body is invalid. Only those count whose queues exist."""
    try:
        return [Hold.read(name, record) for name, record in json.loads(body)["holds"].items()]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InvalidValue):
        return []


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
