"""Delete a queue that members consume, once it is empty."""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any, Final

from rabbit_chx.broker.applying.protocol import Command, Pause, Surprise
from rabbit_chx.broker.applying.step_commands import delete_if_empty

EMPTY_IN: Final = 5.0
"""Seconds that a drained queue has for a late message, such as one that a member gave back and handles again."""


def delete_when_empty(vhost: str, queue: str, patience: float = EMPTY_IN) -> Generator[Command, Any, None]:
    """Delete a queue that members consume. Raises as `delete_if_empty` does if it does not get empty soon."""
    deadline = monotonic() + patience
    while True:
        try:
            yield from delete_if_empty(vhost, queue, may_be_consumed=True)
        except Surprise:
            if monotonic() > deadline:
                raise
        else:
            return
        yield Pause(0.1)
