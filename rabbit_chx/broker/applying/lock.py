"""The lock on a virtual host's topology: one apply at a time. Commands only; this file opens no socket.

The lock is an exclusive queue, ``rabbit-chx.lock``, one per virtual host: the broker deletes it when its connection
ends, however that happens. Its arguments name the holder, which the management API shows.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final

from rabbit_chx.broker.commands import Command, Lost, OnChannel, OverHttp, Pipelined, Refused, Surprise
from rabbit_chx.errors import BrokerUnavailable

LOCK: Final = "rabbit-chx.lock"

HOLDER: Final = "x-rabbit-chx-holder"
"""The argument that names who holds the lock."""


def take_lock(vhost: str, holder: str, *, seen: bool) -> Generator[Command, Any, None]:
    """Take the lock, or raise `Surprise` with the name of its holder.

    An exclusive queue shuts out every other connection (405). A second apply on the same connection would be let in,
    but for ``x-max-length``, which differs from apply to apply: the broker refuses to declare a queue again with
    another one (406), and ignores arguments that it does not know, such as the holder.
    """
    arguments: dict[str, Any] = {"x-max-length": 1 + secrets.randbelow(2**31 - 1)}
    if holder:
        arguments[HOLDER] = holder
    take = OnChannel("queue_declare", {"queue": LOCK, "exclusive": True, "arguments": arguments})
    try:
        yield take
    except Refused as refused:
        if refused.code != 405 and "inequivalent arg" not in refused.text:
            raise
    except Lost:
        raise
    except BaseException:
        # Interrupted or cancelled before the answer. If another apply holds the lock, the broker refuses this too.
        with suppress(Refused, Lost):
            yield Pipelined((take, OnChannel("queue_delete", {"queue": LOCK})))
        raise
    else:
        return
    who = "the management API shows the holder"
    if seen:
        try:
            found = yield OverHttp("queue", (vhost, LOCK))
            who = f"held by {found.arguments.get(HOLDER, 'an apply that does not give its name')}"
        except BrokerUnavailable:
            who = "it has just been released: try again"
    raise Surprise(
        f"another apply holds the lock on the topology of virtual host {vhost!r} (queue {LOCK!r}): {who}. The broker "
        "releases the lock when that connection closes. If its process is gone, close the connection: `rabbitmqctl "
        f"list_queues -p {shlex.quote(vhost)} name owner_pid`, then `rabbitmqctl close_connection PID stale`"
    )


def release_lock() -> Generator[Command, Any, None]:
    """Release the lock; if the connection is gone, the broker has released it."""
    release = OnChannel("queue_delete", {"queue": LOCK})
    try:
        yield release
    except (Refused, Lost):
        return
    except BaseException:  # interrupted or cancelled while it was released
        with suppress(Refused, Lost):
            yield release
        raise
