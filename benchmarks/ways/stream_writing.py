"""Ways to write messages to a stream. Each returns the number of confirmed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import rstream
from ways.streams import rstream_address

from rabbit_chx.publishing import AsyncPublisher, Publisher
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher, connect
from rabbit_chx.streams.protocol.answers import Confirms

_BATCH = 1_000
_SECONDS = 120.0
_WINDOW = 20_000
THREADS = 8
TASKS = 1_000


@dataclass(frozen=True)
class Writing:
    """A stream, and the messages to write to it: bodies, and the same bodies as encoded messages."""

    stream_url: str
    stream: str
    bodies: list[bytes]
    messages: list[bytes]
    url: str = ""
    """For AMQP 0-9-1."""


def publisher(writing: Writing) -> int:
    """Send a list of bodies under a name, so that the broker drops messages that it already has."""
    with StreamPublisher(writing.stream_url, writing.stream, name="benchmark") as publisher:
        return publisher.publish_many(writing.bodies).confirmed


def publisher_in_bulk(writing: Writing) -> int:
    """The same through a bulk, a thousand at a time."""
    with StreamPublisher(writing.stream_url, writing.stream, name="benchmark") as publisher:
        with publisher.bulk() as bulk:
            for start in range(0, len(writing.bodies), _BATCH):
                bulk.add_many(writing.bodies[start : start + _BATCH])
        return bulk.totals.confirmed


def bare_connection(writing: Writing) -> int:
    """The limit: send encoded messages in frames over a connection, and count the confirms."""
    confirmed, sent, count = 0, 0, len(writing.messages)
    with connect(writing.stream_url) as connection:
        number = connection._declare_publisher(writing.stream, "benchmark")
        while confirmed < count:
            while sent < count and sent - confirmed < _WINDOW:
                batch = writing.messages[sent : sent + _BATCH]
                connection._publish(number, range(sent + 1, sent + 1 + len(batch)), batch)
                sent += len(batch)
            outcome = next(connection._confirms(_SECONDS))
            assert isinstance(outcome, Confirms)
            confirmed += len(outcome.publishing_ids)
    return confirmed


def threads(writing: Writing) -> int:
    """Eight threads submit message by message."""
    with StreamPublisher(writing.stream_url, writing.stream) as publisher:
        _submit(publisher.submit, writing.bodies)
        return publisher.totals.confirmed


def threads_over_amqp(writing: Writing) -> int:
    """The same over AMQP 0-9-1, through the default exchange."""
    with Publisher(writing.url) as publisher:
        _submit(partial(publisher.submit, routing_key=writing.stream), writing.bodies)
        return publisher.totals.confirmed


def _submit(submit: Callable[[bytes], Future[None]], bodies: list[bytes]) -> None:
    def part(bodies: list[bytes]) -> None:
        for future in [submit(body) for body in bodies]:
            future.result()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, [bodies[first::THREADS] for first in range(THREADS)]))


def tasks(writing: Writing) -> int:
    """A thousand tasks at a time publish a message each."""

    async def run() -> int:
        async with AsyncStreamPublisher(writing.stream_url, writing.stream) as publisher:
            await _publish(publisher.publish, writing.bodies)
            return publisher.totals.confirmed

    return asyncio.run(run())


def tasks_over_amqp(writing: Writing) -> int:
    """The same over AMQP 0-9-1, through the default exchange."""

    async def run() -> int:
        async with AsyncPublisher(writing.url) as publisher:
            await _publish(partial(publisher.publish, routing_key=writing.stream), writing.bodies)
            return publisher.totals.confirmed

    return asyncio.run(run())


async def _publish(publish: Callable[[bytes], Awaitable[None]], bodies: list[bytes]) -> None:
    for start in range(0, len(bodies), TASKS):
        await asyncio.gather(*map(publish, bodies[start : start + TASKS]))


def with_rstream(writing: Writing) -> int:
    """Send encoded messages in batches with rstream, and wait for all confirms."""
    return asyncio.run(_with_rstream(writing))


async def _with_rstream(writing: Writing) -> int:
    producer = rstream.Producer(**rstream_address(writing.stream_url))
    done, confirmed = asyncio.Event(), 0

    def on_confirm(status: rstream.ConfirmationStatus) -> None:
        nonlocal confirmed
        confirmed += status.is_confirmed
        if confirmed == len(writing.messages):
            done.set()

    await producer.start()
    try:
        for start in range(0, len(writing.messages), _BATCH):
            batch = writing.messages[start : start + _BATCH]
            await producer.send_batch(writing.stream, batch, "benchmark", on_publish_confirm=on_confirm)
        await asyncio.wait_for(done.wait(), _SECONDS)
    finally:
        await producer.close()
    return confirmed


def tasks_of_rstream(writing: Writing) -> int:
    """A thousand tasks at a time wait for a message each, with rstream."""
    return asyncio.run(_tasks_of_rstream(writing))


async def _tasks_of_rstream(writing: Writing) -> int:
    producer = rstream.Producer(**rstream_address(writing.stream_url))
    await producer.start()
    try:
        for start in range(0, len(writing.messages), TASKS):
            batch = writing.messages[start : start + TASKS]
            await asyncio.gather(*(producer.send_wait(writing.stream, message) for message in batch))
    finally:
        await producer.close()
    return len(writing.messages)


PUBLISHER, LIMIT, RSTREAM = "publish_many", "a bare connection (the limit)", "rstream, send_batch"
BULK, SUBMIT, TASK = "bulk", "8 threads, submit", "1,000 tasks, publish"
RSTREAM_TASKS = "rstream, 1,000 tasks, send_wait"
AMQP_SUBMIT, AMQP_TASKS = "Publisher, 8 threads, submit", "AsyncPublisher, 1,000 tasks, publish"
WRITERS: dict[str, Callable[[Writing], int]] = {
    PUBLISHER: publisher,
    BULK: publisher_in_bulk,
    LIMIT: bare_connection,
    RSTREAM: with_rstream,
}
ONE_BY_ONE: dict[str, Callable[[Writing], int]] = {
    SUBMIT: threads,
    TASK: tasks,
    RSTREAM_TASKS: tasks_of_rstream,
    AMQP_SUBMIT: threads_over_amqp,
    AMQP_TASKS: tasks_over_amqp,
}
"""Ways that wait for each message, which get a tenth of them."""
