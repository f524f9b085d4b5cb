"""A peer between broker and consumers that sends frames which no broker sends: consumers reconnect, in little memory."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from pika import BasicProperties, frame, spec

from rabbit_chx.base import outages
from rabbit_chx.consuming import AsyncGroup, Group, Message, QueueReader
from tests.broker.topology_site import Site
from tests.faults.proxy import Proxy
from tests.members import Member, running
from tests.patience import wait_until
from tests.programs import peak
from tests.proof import Check, dice, record_result
from tests.queues import ORDERED, a_channel, bind_ring

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

MOST_BYTES = 200 << 20
FLOOD = 300 << 20
"""More than a consumer may hold."""
PIECE = 1 << 16


def deliver(channel: int) -> bytes:
    return frame.Method(channel, spec.Basic.Deliver("nobody", 1, exchange="", routing_key="k")).marshal()


def header(channel: int, size: int) -> bytes:
    return frame.Header(channel, size, BasicProperties()).marshal()


def body(channel: int, size: int) -> bytes:
    return frame.Body(channel, b"x" * size).marshal()


def raw(kind: int, channel: int, size: int, content: bytes = b"", end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, size) + content + end


FRAMES = {
    "a frame of 4 GiB": (lambda n: raw(3, n, 2**32 - 1), b"x" * PIECE),
    "a frame of 4 GiB that is a content header": (lambda n: raw(2, n, 2**32 - 1), b"x" * PIECE),
    "a frame one byte larger than frame_max": (lambda n: raw(3, n, 131_072 - 7), b""),
    "a message of 2^63 bytes": (lambda n: deliver(n) + header(n, 2**63), None),
    "a body larger than announced": (lambda n: deliver(n) + header(n, 5) + body(n, 10), b""),
    "a body without a header": (lambda n: body(n, 10), b""),
    "a header without a delivery": (lambda n: header(n, 0), b""),
    "a delivery within a delivery": (lambda n: deliver(n) + header(n, 9) + body(n, 5) + deliver(n), b""),
    "a delivery to nobody": (lambda n: deliver(n) + header(n, 5) + body(n, 5), b""),
    "a frame without its end": (lambda n: raw(3, n, 5, b"x" * 5, b"\0"), b""),
    "half a frame": (lambda n: raw(3, n, 500, b"x" * 9, b""), b""),
    "an unknown kind of frame": (lambda n: raw(7, n, 5, b"x" * 5), b""),
    "an unknown method": (lambda n: raw(1, n, 4, b"\xff\xff\xff\xff"), b""),
    "a method that is cut off": (lambda n: raw(1, n, 4, struct.pack(">I", spec.Basic.Deliver.INDEX)), b""),
    "an empty method": (lambda n: raw(1, n, 0), b""),
    "an empty content header": (lambda n: raw(2, n, 0), b""),
    "an unknown class of a content header": (lambda n: raw(2, n, 14, b"\xff" * 14), b""),
    "an answer to no question": (lambda n: frame.Method(n, spec.Queue.DeclareOk("q", 2**31, 0)).marshal(), b""),
    "another AMQP": (lambda _: b"AMQP\0\0\x09\x01", b""),
    "random bytes": (lambda n: dice("hostile frames", n).randbytes(500), b""),
}  # fmt: skip
"""For a channel, what a peer sends, and what it then repeats; None for frames of a body."""
QUICK = ["a frame of 4 GiB", "a message of 2^63 bytes", "a body larger than announced"]


class Reading:
    """A reader of a queue that runs and stops like a group."""

    def __init__(self, url: str, queue: str) -> None:
        self._url, self._queue = url, queue
        self._stopped = threading.Event()
        self.stop = self._stopped.set

    def run(self, handle: Callable[[Message], None]) -> None:
        with QueueReader(self._url, self._queue) as reader:
            while not self._stopped.is_set():
                batch = reader.take(100)
                for message in batch.messages:
                    handle(message)
                reader.acknowledge(batch)


class Scene:
    """A consumer whose connections lead through a proxy, and its queue."""

    def __init__(self, site: Site, kind: type) -> None:
        self.kind = kind
        self.queue = f"frames.{kind.__name__}"
        self.site = site
        self.found: set[bytes] = set()
        self.sent = 0

    def consuming(self, url: str) -> AbstractContextManager[Member]:
        with a_channel(self.site) as channel:
            bind_ring(channel, self.queue, [self.queue], ORDERED)
        if self.kind is QueueReader:
            return running(Reading(url, self.queue), self._handle)
        group = self.kind(url, exchange=self.queue, name=self.kind.__name__, queues=[self.queue])
        return running(group, self._handle_async if self.kind is AsyncGroup else self._handle)

    def send(self, count: int) -> None:
        with a_channel(self.site) as channel:
            for _ in range(count):
                channel.basic_publish(self.queue, "k", b"%d" % self.sent + b" " * 100)
                self.sent += 1

    def _handle(self, message) -> None:
        self.found.add(message.body)

    async def _handle_async(self, message) -> None:
        self._handle(message)


def attacked(site: Site, kind: type, names: list[str]) -> None:
    """Send hostile frames, one kind at a time, to a consumer that runs; it gets all messages."""
    scene = Scene(site, kind)

    def done() -> bool:
        return member.error is not None or len(scene.found) == scene.sent

    with Proxy(site.url()) as proxy, scene.consuming(proxy.url) as member:
        scene.send(5)
        wait_until(done, f"{kind.__name__}: the first messages")
        for name in names:
            make, piece = FRAMES[name]
            for channel in (1, 2, 3):
                repeated = body(channel, PIECE) if piece is None else piece
                proxy.inject(make(channel))
                if repeated:
                    proxy.inject(repeated, FLOOD // PIECE)
            scene.send(20)
            wait_until(done, f"{kind.__name__}: all messages after {name}")


@pytest.mark.long
@pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param(sorted(FRAMES.keys() - QUICK), marks=[pytest.mark.long, pytest.mark.proof])],
    ids=["quick", "all"],
)
def test_consumers_outlive_hostile_frames(broker, names, monkeypatch) -> None:
    # Each frame ends a connection, and pauses grow to half a minute while none lasts (tests/unit/test_outages.py).
    monkeypatch.setattr(outages, "_A_WHILE", 0.0)
    kinds = (Group, AsyncGroup, QueueReader)
    started, before = time.monotonic(), peak(reset=True)
    with Site(broker) as site, ThreadPoolExecutor(len(kinds)) as threads:
        list(threads.map(lambda kind: attacked(site, kind, names), kinds))
    grown = peak() - before
    record_result(
        Check(
            "Consumers",
            "frames that no broker sends, to a `Group`, an `AsyncGroup` and a `QueueReader`",
            broker.release or "4.3",
            len(kinds) * len(names),
            0,
            time.monotonic() - started,
            f"peak memory {grown >> 20} MiB above the start; 464 MiB without the check of sizes",
        )
    )
    assert grown < MOST_BYTES
