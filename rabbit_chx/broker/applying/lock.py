"""The lock on a virtual host's topology: one apply at a time. Commands only; this file opens no socket.

The lock is an exclusive queue, ``rabbit-chx.lock``, one per virtual host: the broker deletes it when its connection
ends, however that happens. Its arguments name the holder, which the management API shows.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.applying.protocol import Lost, OnChannel, OverHttp, Refused, Surprise
from rabbit_chx.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Generator

    from rabbit_chx.broker.applying.protocol import Command

__all__ = ["LOCK", "release_lock", "take_lock"]

LOCK: Final = "rabbit-chx.lock"

_HOLDER: Final = "x-rabbit-chx-holder"


def take_lock(vhost: str, holder: str, token: int, *, seen: bool) -> Generator[Command, Any, None]:
    """Take the lock, or raise `Surprise` with the name of its holder.

    An exclusive queue shuts out every other connection (405). Another apply on this very connection would be let
    in, were it not for a limit that differs from apply to apply: brokers refuse to declare a queue anew with another
    ``x-max-length`` (406), while they ignore arguments that they do not know, such as the holder's name.
    """
    arguments = {_HOLDER: holder, "x-max-length": token}
    try:
        yield OnChannel("queue_declare", {"queue": LOCK, "exclusive": True, "arguments": arguments})
    except Refused as refused:
        if refused.code not in {405, 406}:
            raise
    else:
        return
    who = "whoever it is cannot be seen without management="
    if seen:
        try:
            who = (yield OverHttp("queue", (vhost, LOCK))).arguments.get(_HOLDER, "it does not say who it is")
        except BrokerUnavailable:
            who = "it is gone by now: try again"
    raise Surprise(
        f"somebody else changes the topology of virtual host {vhost!r} and holds the lock, queue {LOCK!r}: {who}"
    )


def release_lock() -> Generator[Command, Any, None]:
    """Give the lock back; a connection that is gone took it along."""
    with suppress(Refused, Lost):
        yield OnChannel("queue_delete", {"queue": LOCK})
