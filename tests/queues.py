"""Rings of queues for tests, channels to publish to them, and connections that are closed by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import Final

import pika

ORDERED: Final = {"x-queue-type": "quorum", "x-single-active-consumer": True, "x-delivery-limit": -1}
SINGLE_ACTIVE: Final = {"x-queue-type": "quorum", "x-single-active-consumer": True}
"""Without a delivery limit of its own: on 3.x, -1 drops every returned message."""
STREAM: Final = {"x-queue-type": "stream"}


def bind_ring(channel, exchange: str, queues: Iterable[str], arguments=None, *, hash_header="") -> None:
    """Declare a hash exchange, and queues bound to it in this order; the values of a mapping are their weights."""
    weights = queues if isinstance(queues, Mapping) else dict.fromkeys(queues, "1")
    hashed = {"hash-header": hash_header} if hash_header else None
    channel.exchange_declare(exchange, "x-consistent-hash", durable=True, arguments=hashed)
    for queue, weight in weights.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, exchange, weight)


def delete_exchange(channel, exchange: str, queues: Iterable[str]) -> None:
    channel.exchange_delete(exchange)
    for queue in queues:
        channel.queue_delete(queue)


def delete_named(broker, *beginnings: str) -> None:
    """Delete all queues and exchanges whose names begin like this."""
    with a_channel(broker) as channel:
        for kind in ("queue", "exchange"):
            for name in broker.ctl(f"list_{kind}s", "name").splitlines():
                if name.startswith(beginnings):
                    getattr(channel, f"{kind}_delete")(name)


def message_count(channel, queue: str) -> int:
    """How many messages are ready in a queue."""
    return channel.queue_declare(queue, passive=True).method.message_count


@contextmanager
def a_channel(where, *, confirms=False):
    """A channel on a new connection to a broker or to a virtual host."""
    with where.connection() as connection:
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        yield channel


@contextmanager
def confirming_channel(broker):
    """A channel with publisher confirms; its connection has no heartbeats, because tests leave it idle."""
    with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def close_connections(broker, name):
    """Have the broker close the connections with this name; there must be at least one."""
    listed = broker.ctl("list_connections", "pid", "client_properties")
    pids = [line.split("\t")[0] for line in listed.splitlines() if f'"{name}"' in line]
    assert pids, listed
    for pid in pids:
        broker.ctl("close_connection", pid, "by the test")
