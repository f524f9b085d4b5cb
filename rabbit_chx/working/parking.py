"""Park a message: publish it to another queue, with headers that name its origin. Generators of commands for a driver."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any, Final

from pika.spec import ACCESS_REFUSED

from rabbit_chx.base.text import described
from rabbit_chx.broker.commands import Command, Refused, exists, routed
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.messages.message import Message
from rabbit_chx.working.messages import PARKED, copied_properties
from rabbit_chx.working.settings import log

EXCHANGE: Final = f"{PARKED}exchange"
ROUTING_KEY: Final = f"{PARKED}routing-key"
QUEUE: Final = f"{PARKED}queue"
OFFSET: Final = f"{PARKED}offset"
"""Only of messages from a stream."""
LEFT_OUT: Final = f"{PARKED}left-out"
"""Only of messages that could not be parked whole."""

_LONGEST: Final = 1_000
"""Characters of an error in a header, and bytes of each header of a message that could not be parked whole."""
_LARGEST: Final = re.compile(r"larger than (?:configured )?max size ([0-9]{1,18})")
"""In the broker's refusal of a body (`rabbit_channel:check_msg_size/2`)."""


def origin_of(message: Message, group: str, error: BaseException) -> dict[str, Any]:
    """The headers of a parked message: where it came from, and why it was parked."""
    return {
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
        QUEUE: message.queue,
        f"{PARKED}group": group,
        f"{PARKED}attempts": message.attempt,
        f"{PARKED}error": described(error)[:_LONGEST],
        f"{PARKED}time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def park(
    queue: str, message: Message, origin: dict[str, Any], refused: Refused | None = None
) -> Generator[Command, Any, None]:
    """Publish a message to another queue, with headers that name its origin, and wait until the broker has confirmed it.

    They replace those of an earlier parking. ``x-death``, which `replay` would believe, is left out, because
    the publisher may have written it. A message that the client cannot send, or the broker does not take, is
    parked without its properties and headers, and its body is cut to the largest one that the broker takes.
    ``refused`` says why the broker closed an earlier connection, on which the message was published whole.

    Raises:
        BrokerUnavailable: the queue rejects messages at the moment.
        InvalidValue: the queue is missing.
        Refused: not even this can be published.
    """
    if refused is None:
        given = message.body, copied_properties(message, origin)
    else:
        given = _reduced(message, origin, refused)
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


def _reduced(message: Message, origin: dict[str, Any], refused: Refused) -> tuple[bytes, dict[str, Any]]:
    """What is parked of a message that was refused whole."""
    largest = _LARGEST.search(refused.text)
    body = message.body[: int(largest[1])] if largest else message.body
    cut = (
        f" and its body after {len(body)} of {len(message.body)} bytes"
        if len(body) < len(message.body)
        else ""
    )
    headers = _shortened(origin, f"its properties and headers{cut}")
    return body, {"headers": headers, "delivery_mode": 2}


def _shortened(origin: dict[str, Any], left_out: str) -> dict[str, Any]:
    """The headers of a message that could not be parked whole: short ones, and what was left out."""
    short = {
        name: value.encode()[:_LONGEST].decode(errors="ignore") if isinstance(value, str) else value
        for name, value in origin.items()
    }
    return {**short, LEFT_OUT: left_out}


def check_parking_queue(queue: str) -> Generator[Command, Any, None]:
    """Check that the queue for failed messages exists."""
    if not (yield from exists(queue)):
        hint = "Declare it before the group starts, for example as a quorum queue in a topology file"
        raise InvalidValue("parking_queue", queue, "an existing queue", hint)
