"""Messages that may end the processes that handle them: each is tried alone, after a note that outlives the process.

The broker's count of a message grows by every delivery that is taken back: by killed processes, but also by stops and lost
connections, and alike for all messages that a member has. So the count only makes a message *suspect*. For a suspect message,
the member leaves a note in a queue on the broker before it calls the handler, and takes it back afterwards, however the handler
ends. Notes that are left come from processes that ended in between. A member tries one suspect message at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from copy import copy
from typing import Any, Final

from rabbit_chx.base.names import notes_of
from rabbit_chx.broker.commands import Command, OnChannel, routed, unless_missing
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.settings import Settings

_EXPIRES: Final = 7 * 24 * 3_600 * 1_000
"""Milliseconds after which the broker deletes the notes of a queue that has had no suspect message since."""


def is_suspect(message: Delivery, settings: Settings) -> bool:
    """Whether a message may have ended so many processes that it could be given up; with "stop", none is."""
    if not message.redelivered or settings.crashes is None or settings.on_failure == "stop":
        return False
    # A copy decodes headers for itself: those of waiting messages could take 25 times their size.
    return (copy(message).deliveries or 0) >= settings.crashes


def begun(group: str, queue: str) -> Generator[Command, Any, int]:
    """Return how many processes have left a note."""
    arguments = {"x-queue-type": "quorum", "x-expires": _EXPIRES}
    notes = {"queue": notes_of(group, queue), "durable": True, "arguments": arguments}
    return int((yield OnChannel("queue_declare", notes)).message_count)


def begin(group: str, queue: str) -> Generator[Command, Any, None]:
    """Leave a note."""
    yield from routed(notes_of(group, queue), b"", {"delivery_mode": 2})


def end(group: str, queue: str) -> Generator[Command, Any, None]:
    """Take all notes back, because a handler has ended and its process has not."""
    yield from unless_missing(OnChannel("queue_purge", {"queue": notes_of(group, queue)}))


def take_back(group: str, queue: str) -> Generator[Command, Any, None]:
    """Take one note back, because no handler had its message; the others are of processes that have ended."""
    yield from unless_missing(OnChannel("basic_get", {"queue": notes_of(group, queue), "auto_ack": True}))
