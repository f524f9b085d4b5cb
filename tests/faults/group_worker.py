"""A worker program that records the messages it handles, so that a test can kill, stop and cut it off.

    python -m tests.faults.group_worker '{"url": ..., "exchange": ..., "queues": [...], "file": ..., "kind": "group"}'

The kind is "group", or "async" for an `AsyncGroup`. With "fast": false, pika decodes every delivery. Each line goes to the file in one write before the message is acknowledged, so even a killed process has recorded exactly
the messages that it handled. `tests.faults.group_history.Diary` reads the lines. The kind "plain" is the control: it consumes
with plain pika, each queue with a given priority.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import pika

from rabbit_chx.broker import receiving
from rabbit_chx.consuming import AsyncGroup, Group, Message
from tests.faults.ledger import row_of

SLOW = 500
"""One in so many messages takes its handler a tenth of a second, so that messages wait."""


class Notes:
    """The file of one process."""

    def __init__(self, file: str, pause: float) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pause = pause

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def handled(self, queue: str, key: str, body: bytes, redelivered: bool) -> None:
        number = row_of(body)
        self.write("handled", time.monotonic_ns(), queue, key, number, redelivered)
        if self._pause or number % SLOW == 0:
            time.sleep(self._pause or 0.1)


class Connections(logging.Handler):
    """Record from the member's log when it connects and when it loses the connection."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        arguments: Any = record.args
        if "consuming %d queues in seat" in record.msg:
            self._notes.write("connected", arguments[2])
        elif "moving from seat" in record.msg:
            self._notes.write("seat", arguments[2])
        elif "trying again" in record.msg:
            self._notes.write("lost")
        if record.levelno >= logging.WARNING:
            print(record.getMessage(), file=sys.stderr, flush=True)


def main(options: dict[str, Any]) -> None:
    notes = Notes(options.pop("file"), options.pop("pause"))
    if not options.pop("fast", True):
        without_fast_path()
    kinds = {"group": run_group, "async": partial(run_group, kind=AsyncGroup), "plain": run_plain}
    kinds[options.pop("kind")](notes, **options)
    notes.write("stopped")


def without_fast_path() -> None:
    """Imitate a pika that has renamed something; reading deliveries in one pass is an error."""
    receiving.PRIVATE_NAMES = (*receiving.PRIVATE_NAMES, "_missing")
    del receiving.read_deliveries


def run_group(notes: Notes, *, url: str, kind: type[Group | AsyncGroup] = Group, **options: Any) -> None:
    log = logging.getLogger("rabbit_chx.consuming")
    log.setLevel(logging.INFO)
    log.addHandler(Connections(notes))

    def handle(message: Message) -> None:
        notes.handled(message.queue, message.routing_key, message.body, message.redelivered)

    async def handle_in_loop(message: Message) -> None:
        handle(message)

    if options.get("order") == "key":
        options["key"] = attrgetter("routing_key")
    group = kind(url, **options)
    if isinstance(group, AsyncGroup):
        asyncio.run(group.run(handle_in_loop))
    else:
        group.run(handle)


def run_plain(notes: Notes, *, url: str, queues: dict[str, int], prefetch: int) -> None:
    """Consume each queue with its priority until the process is killed."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)

    def on_message(queue: str) -> Callable[..., None]:
        def handle(_: Any, method: pika.spec.Basic.Deliver, __: Any, body: bytes) -> None:
            notes.handled(queue, method.routing_key, body, method.redelivered)
            channel.basic_ack(method.delivery_tag)

        return handle

    for queue, priority in queues.items():
        channel.basic_consume(queue, on_message(queue), arguments={"x-priority": priority})
    notes.write("connected", 0)
    channel.start_consuming()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
