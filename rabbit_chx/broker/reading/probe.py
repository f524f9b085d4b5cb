"""Work out a ring of unknown order by publishing probe messages and seeing which queue each one reaches.

    pairs = probe(connection, observed, "orders")
    observed = learn(observed, pairs)

A destination that is an exchange is recognised by a queue that no other destination leads to. Probes are real messages
for up to a second, so the exchange and its queues must be quiet: empty, without consumers or publishers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pika import BasicProperties, BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, UnroutableError

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import counted
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_refused
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, Unroutable
from rabbit_chx.mirror.hashing import hash_on
from rabbit_chx.mirror.ring import Destination, ToExchange
from rabbit_chx.topology.graph import alternates_of, reachable
from rabbit_chx.topology.model import Observed, Topology

_TICK: Final = 0.2
_PATIENCE: Final = 10.0
_EXPIRATION: Final = "60000"  # what a killed program leaves behind goes after a minute

_Pairs = dict[str, list[tuple[Any, "Destination"]]]


def probe(connection: BlockingConnection, observed: Observed, exchange: str) -> _Pairs:
    """Where messages of our own go (as many as most rings need), which are taken out again.

    The exchange and the queues behind it must be quiet: empty, without consumers and without publishers.
    """
    found = observed.topology.exchange(exchange)
    queues = _queues_to_probe(observed.topology, exchange)
    if found is None or found.internal or not queues:
        raise InvalidValue(
            "exchange to probe",
            exchange,
            "an x-consistent-hash exchange with queues behind it that is not internal",
            "Clients cannot publish to an internal exchange" if found and found.internal else "",
        )
    on = hash_on(found.hash_header, found.hash_property).part
    values: list[Any] = [secrets.token_hex(8) for _ in range(200 + 10 * len(queues))]
    if on == "timestamp":
        values = [int(value[:8], 16) for value in values]
    try:
        channel = connection.channel()
        _check_quiet(channel, queues)
        token = secrets.token_hex(8)
        takers = _Takers(channel, queues, token)
        sent = _publish(channel, exchange, found.hash_header, on, values, token)
        landed = takers.wait(connection, sent)
        channel.close()
    except (AMQPError, OSError) as error:
        needs = Needs(write={("exchange", exchange)}, read={("queue", queue) for queue in queues})
        raise BrokerUnavailable(f"probing exchange {exchange!r}: {why_refused(error, needs)}") from None
    if sent < len(values):
        raise Unroutable(f"the broker returned a probe: exchange {exchange!r} has no bucket for it")
    return {exchange: [(values[number], queues[queue]) for number, queue in sorted(landed.items())]}


def _publish(
    channel: BlockingChannel, exchange: str, header: str | None, part: str, values: list[Any], token: str
) -> int:
    """Publish the probes one by one and return how many were not given back."""
    channel.confirm_delivery()
    for number, value in enumerate(values):
        properties = BasicProperties(expiration=_EXPIRATION)
        if header is not None:
            properties.headers = {header: value}
        elif part != "routing_key":
            setattr(properties, part, value)
        key = value if part == "routing_key" else ""
        try:
            channel.basic_publish(exchange, key, f"{token} {number}".encode(), properties, mandatory=True)
        except UnroutableError:
            return number
    return len(values)


def _check_quiet(channel: BlockingChannel, queues: Mapping[str, Destination]) -> None:
    for queue in queues:
        state = channel.queue_declare(queue, passive=True).method
        if state.message_count or state.consumer_count:
            raise _not_quiet(
                queue,
                f"{counted(state.message_count, 'message')} and {counted(state.consumer_count, 'consumer')}",
            )


def _not_quiet(queue: str, got: str) -> InvalidValue:
    return InvalidValue(
        f"queue {queue!r} behind the exchange to probe",
        got,
        "an empty, unused queue",
        f"For an exchange in use, {Advice.OBSERVE}",
    )


class _Takers:
    """Consumers of the queues behind the exchange.

    They are there before the first probe is: where the user may not read, none is left behind.
    """

    def __init__(self, channel: BlockingChannel, queues: Iterable[str], token: str) -> None:
        self._channel = channel
        self._token = token
        self._landed: dict[int, str] = {}
        self._foreign: list[str] = []
        for queue in queues:
            channel.basic_consume(queue, partial(self._take, queue))

    def _take(self, queue: str, channel: BlockingChannel, method: Any, _: object, body: bytes) -> None:
        ours, _, number = body.decode("latin-1").partition(" ")
        if ours == self._token:
            self._landed[int(number)] = queue
            channel.basic_ack(method.delivery_tag)
        else:  # it goes back when the channel closes
            self._foreign.append(queue)

    def wait(self, connection: BlockingConnection, count: int) -> dict[int, str]:
        """The queue that each probe reached; no probe remains in a queue."""
        heard = time.monotonic()
        while len(self._landed) < count:
            before = len(self._landed)
            connection.process_data_events(time_limit=_TICK)
            if len(self._landed) > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > _PATIENCE:
                raise BrokerUnavailable(
                    f"{count - len(self._landed)} of {count} probes were not delivered within {_PATIENCE:g} seconds"
                )
        if self._foreign:
            with suppress(AMQPError):
                self._channel.close()
            raise _not_quiet(self._foreign[0], "a message of somebody else's")
        return self._landed


def _queues_to_probe(topology: Topology, exchange: str) -> dict[str, Destination]:
    """The queue behind each destination of a ring; raise unless each leads to one queue of its own."""
    behind = destinations_by_queue(topology, exchange)
    for bound in topology.bindings_from(exchange):
        queues = _queues_behind(topology, bound.destination)
        streams = [name for name in queues if (found := topology.queue(name)) and found.type == "stream"]
        if len(queues) != 1 or streams or not queues <= set(behind):
            raise InvalidValue(
                f"destination {bound.destination} of the exchange to probe",
                f"{counted(len(queues), 'queue')} behind it" + (", a stream among them" if streams else ""),
                "one queue, no stream, which is behind no other destination",
                "Node access reads such a ring",
            )
    return behind


def destinations_by_queue(topology: Topology, exchange: str) -> dict[str, Destination]:
    """For each queue to which exactly one destination of an exchange leads, that destination."""
    owners: dict[str, set[Destination]] = {}
    destinations = {bound.destination for bound in topology.bindings_from(exchange)}
    for destination in destinations.union(alternates_of(topology, exchange)):
        for queue in _queues_behind(topology, destination):
            owners.setdefault(queue, set()).add(destination)
    return {
        queue: owner
        for queue, found in owners.items()
        if len(found) == 1 and (owner := next(iter(found))) in destinations
    }


def _queues_behind(topology: Topology, destination: Destination) -> set[str]:
    """All queues that a message with some routing key may reach from this exchange."""
    found = reachable(topology, [destination], alternates=True)
    return {each for each in found if not isinstance(each, ToExchange)}
