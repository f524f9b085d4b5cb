"""The queues of `consuming.py`, and members in separate processes that take over each other's queues.

python consuming.py URL QUEUE...      runs a member, which prints the time and the queue of each message
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rabbit_chx.consuming import Group, Message
from rabbit_chx.testing import Broker

EXCHANGE = "benchmark"
QUEUES = [f"benchmark.{number}" for number in range(8)]
_EVERY = 0.005
_SETTLED = 1.0
"""Seconds after which the queues have settled when a member has joined or ended."""


def declare(broker: Broker) -> None:
    """Declare the exchange and its queues."""
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
        for queue in QUEUES:
            arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True, "x-delivery-limit": -1}
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, EXCHANGE, "1")


class _Member:
    """A process, and the times and queues of the messages that it has handled."""

    def __init__(self, url: str) -> None:
        program = [sys.executable, __file__, url, *QUEUES]
        self.handled: list[tuple[int, str]] = []
        self._consuming = threading.Event()
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._consuming.wait(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            time_, _, queue = line.strip().partition(" ")
            if queue:
                self.handled.append((int(time_), queue))
            else:
                self._consuming.set()

    def end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def handovers(broker: Broker, rounds: int) -> dict[str, list[float]]:
    """The pauses, in milliseconds, of the queues that changed members."""
    found: dict[str, list[float]] = {"a member joins": [], "SIGTERM": [], "SIGKILL": []}
    with _messages(broker):
        first = _Member(broker.url)
        for _ in range(rounds):
            for number in (signal.SIGTERM, signal.SIGKILL):
                second = _Member(broker.url)
                time.sleep(_SETTLED)
                found["a member joins"] += _gaps(first.handled, second.handled)
                second.end(number)
                time.sleep(_SETTLED)
                found[number.name] += _gaps(second.handled, first.handled)
        first.end(signal.SIGTERM)
    return found


def _gaps(old: Iterable[tuple[int, str]], new: Iterable[tuple[int, str]]) -> Iterator[float]:
    """The time from the last message of the old member to the next one of the new member, for each queue that it took."""
    last, news = {queue: at for at, queue in list(old)}, list(new)
    for queue, at in last.items():
        after = [each for each, its in news if its == queue and each > at]
        if after:
            yield (min(after) - at) / 1e6


@contextmanager
def _messages(broker: Broker) -> Iterator[None]:
    """Publish to each queue every few milliseconds."""
    ended = threading.Event()

    def publish() -> None:
        with broker.connection() as connection:
            channel = connection.channel()
            while not ended.wait(_EVERY):
                for queue in QUEUES:
                    channel.basic_publish("", queue, b"")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def member(url: str, queues: list[str]) -> None:
    """Print an empty line when the member begins to consume, and the time and the queue of each message."""

    class Consuming(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "consuming" in record.msg:
                os.write(1, b"\n")

    log = logging.getLogger("rabbit_chx.consuming")
    log.setLevel(logging.INFO)
    log.addHandler(Consuming())

    def handle(message: Message) -> None:
        os.write(1, f"{time.monotonic_ns()} {message.queue}\n".encode())

    Group(url, exchange=EXCHANGE, name="benchmark", queues=queues).run(handle)


if __name__ == "__main__":
    member(sys.argv[1], sys.argv[2:])
