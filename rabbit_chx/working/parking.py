"""Park a message: publish it to another queue, with headers that name its origin. Generators of commands for a driver."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from pika.spec import ACCESS_REFUSED

from rabbit_chx.broker.commands import Command, Refused, exists, routed
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.messages.message import Message
from rabbit_chx.working.failures import ADDED, LEFT_OUT, shortened
from rabbit_chx.working.logs import log
from rabbit_chx.working.messages import copied_properties

_LARGEST: Final = re.compile(r"larger than (?:configured )?max size ([0-9]{1,18})")
"""In the broker's refusal of a body (`rabbit_channel:check_msg_size/2`)."""


def park(
    queue: str, message: Message, origin: dict[str, Any], refused: Refused | None = None
) -> Generator[Command, Any, None]:
    """Publish a message to another queue, with headers that name its origin, and wait until the broker has confirmed it.

    They replace those of an earlier parking. ``x-death``, which `replay` would believe, is left out, because the publisher may have
    written it. A message that the client cannot send, or the broker does not take, is parked without its properties and headers,
    and its body is cut to the largest one that the broker takes.

    Args:
        queue: the parking queue.
        message: the message.
        origin: the headers that name its origin.
        refused: why the broker closed an earlier connection, on which the message was published whole.

    Raises:
        BrokerUnavailable: the queue rejects messages at the moment.
        InvalidValue: the queue is missing.
        Refused: not even this can be published.
    """
    given = _whole(message, origin) if refused is None else _reduced(message, origin, refused)
    while True:
        try:
            accepted = yield from routed(queue, *given)
            break
        except Refused as again:
            reduced = _reduced(message, origin, again)
            if again.code == ACCESS_REFUSED or again.closed_connection or reduced == given:
                raise
            log.warning("%r is parked without %s: %s", message, reduced[1]["headers"][LEFT_OUT], again.text)
            given = reduced
    if not accepted:
        yield from check_parking_queue(queue)
        raise BrokerUnavailable(
            f"the parking queue {queue!r} rejected a message: it is full, or its node is down. `rabbit-chx replay` or a "
            "higher limit makes room"
        )


def _whole(message: Message, origin: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The body and the properties of a parked message."""
    return message.body, copied_properties(message, origin, without=ADDED)


def _reduced(message: Message, origin: dict[str, Any], refused: Refused) -> tuple[bytes, dict[str, Any]]:
    """What is parked of a message that was refused whole."""
    largest = _LARGEST.search(refused.text)
    body = message.body[: int(largest[1])] if largest else message.body
    cut = (
        f" and its body after {len(body)} of {len(message.body)} bytes"
        if len(body) < len(message.body)
        else ""
    )
    headers = shortened(origin, f"its properties and headers{cut}")
    return body, {"headers": headers, "delivery_mode": 2}


def check_parking_queue(queue: str) -> Generator[Command, Any, None]:
    """Check that the queue for failed messages exists."""
    if not (yield from exists(queue)):
        hint = "Declare it before the group starts, for example as a quorum queue in a topology file"
        raise InvalidValue("parking_queue", queue, "an existing queue", hint)
