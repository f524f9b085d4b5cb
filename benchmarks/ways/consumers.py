"""The ways to consume that ``consuming.py`` compares: pika, a bare socket, and the clients of this package."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import perf_counter, process_time
from typing import Any, Final

import pika
from ways.consuming import EXCHANGE
from ways.publishing import exactly, frame, opened
from ways.turns import Turn

from rabbit_chx.consuming import AsyncGroup, Group, QueueReader

_BATCH: Final = 500
"""Messages for each acknowledgement of pika and of the bare socket."""
_SECONDS: Final = 60.0
_CLOSED: Final = 12
"""The size of the answer to ``channel.close``."""


class Stopwatch:
    """A handler that measures the time from the first to the last of ``messages`` messages, and then calls `done`."""

    def __init__(self, messages: int) -> None:
        self.done: Callable[[], object] = lambda: None
        self.finished = False
        self._messages = messages
        self._seen = self._first = 0
        self._began = 0.0, 0.0

    def __call__(self, _: object) -> None:
        self.count(1)

    def count(self, more: int) -> None:
        """Note that this many messages are handled; time begins after the first ones."""
        if not self._seen:
            self._began, self._first = (perf_counter(), process_time()), more
        self._seen += more
        if self._seen >= self._messages:
            began, used = self._began
            self.turn = Turn(self._seen - self._first, perf_counter() - began, process_time() - used)
            self.finished = True
            self.done()


def plain(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch) -> None:
    """Consume with pika as in its documentation, with an acknowledgement for each message."""

    def acknowledge(channel: Any, tag: int) -> None:
        channel.basic_ack(tag)

    with _pika(url, queues, prefetch, handler, acknowledge) as connection:
        while not handler.finished:
            connection.process_data_events(time_limit=1)


def batched(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch) -> None:
    """Consume with pika, with an acknowledgement for all messages of a queue that came in one batch of events."""
    handled: dict[Any, int] = {}
    since: Counter[Any] = Counter()
    most = min(_BATCH, prefetch // 2)

    def acknowledge(channel: Any, tag: int) -> None:
        handled[channel] = tag
        since[channel] += 1
        if since[channel] == most:
            channel.basic_ack(handled.pop(channel), multiple=True)
            since[channel] = 0

    with _pika(url, queues, prefetch, handler, acknowledge) as connection:
        while not handler.finished:
            connection.process_data_events(time_limit=1)
            for channel, tag in handled.items():
                channel.basic_ack(tag, multiple=True)
            handled.clear()
            since.clear()


def _pika(
    url: str,
    queues: Sequence[str],
    prefetch: int,
    handler: Stopwatch,
    acknowledge: Callable[[Any, int], None],
) -> pika.BlockingConnection:
    connection = pika.BlockingConnection(pika.URLParameters(url))

    def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
        handler(body)
        acknowledge(channel, method.delivery_tag)

    for queue in queues:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(queue, on_message)
    return connection


def bare_socket(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch) -> None:
    """The limit: one blocking socket that counts the deliveries and decodes nothing."""
    (queue,) = queues
    consume_bare(url, queue, prefetch, handler, batch=_BATCH)


def consume_bare(
    url: str, queue: str, prefetch: int, handler: Stopwatch, *, batch: int, arguments: bytes = b""
) -> None:
    """Consume with one blocking socket, and acknowledge a batch of deliveries at once; ``arguments`` are encoded."""
    with opened(url, _SECONDS) as sock:
        name = bytes([len(queue)]) + queue.encode()
        table = struct.pack(">I", len(arguments)) + arguments
        sock.sendall(frame(1, struct.pack(">HHIHB", 60, 10, 0, prefetch, 0)))
        sock.sendall(frame(1, struct.pack(">HHH", 60, 20, 0) + name + b"\0\0" + table))
        for _ in range(2):  # qos-ok and consume-ok
            _, _, size = struct.unpack(">BHI", exactly(sock, 7))
            exactly(sock, size + 1)
        buffer, seen, acknowledged = b"", 0, 0
        while not handler.finished:
            buffer += sock.recv(1 << 18)
            at, size, before = 0, len(buffer), seen
            while size - at >= 8:
                end = at + 8 + int.from_bytes(buffer[at + 3 : at + 7], "big")
                if end > size:
                    break
                seen += buffer[at] == 3  # each body is one frame
                at = end
            buffer = buffer[at:]
            if seen > before:
                handler.count(seen - before)
            if seen - acknowledged >= batch or handler.finished:
                sock.sendall(frame(1, struct.pack(">HHQB", 60, 80, seen, 1)))
                acknowledged = seen
        sock.sendall(frame(1, struct.pack(">HHHBHH", 20, 40, 200, 0, 0, 0)))
        exactly(sock, _CLOSED)  # so that the acknowledgement has been read


def group(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch, **settings: Any) -> None:
    """Consume as the only member of a group."""
    member = Group(url, exchange=EXCHANGE, name="benchmark", queues=queues, prefetch=prefetch, **settings)
    handler.done = member.stop
    member.run(handler)


def by_key(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch) -> None:
    """The same with ``order="key"``."""
    group(url, queues, prefetch, handler, order="key", key=attrgetter("routing_key"))


def async_group(url: str, queues: Sequence[str], prefetch: int, handler: Stopwatch) -> None:
    """Consume as the only member of a group in an event loop."""

    async def handle(message: object) -> None:
        handler(message)

    member = AsyncGroup(url, exchange=EXCHANGE, name="benchmark", queues=queues, prefetch=prefetch)
    handler.done = member.stop
    asyncio.run(member.run(handle))


def reader(url: str, queues: Sequence[str], _: int, handler: Stopwatch) -> None:
    """Take batches with the default settings, and acknowledge each."""
    (queue,) = queues
    _read(QueueReader(url, queue), handler)


def tuned_reader(url: str, queues: Sequence[str], _: int, handler: Stopwatch) -> None:
    """Twice the default prefetch, and never a short batch. Only a prefetch above the whole backlog was faster."""
    (queue,) = queues
    _read(QueueReader(url, queue, prefetch=20_000), handler, quiet=0.5)


def _read(reader: QueueReader, handler: Stopwatch, **options: Any) -> None:
    with reader:
        while not handler.finished:
            batch = reader.take(5_000, **options)
            if batch.messages:
                handler.count(len(batch.messages))
                reader.acknowledge(batch)
