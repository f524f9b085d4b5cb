"""A queue is added under load while its forerunners have a backlog: with a handover the order of every key stays.

The control run shows what the handover is for: there the new queue's consumer starts at once, and the order breaks.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

import aio_pika
import pytest

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.broker.applying.handover import (
    NotDrained,
    drain,
    drain_async,
    drain_first,
    pass_marker,
    pass_marker_async,
)
from tests.unit.test_examples import EXAMPLES, HANDOVER

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves("Topology", "order of keys through a handover", "without it the order breaks"),
]

KEYS = [f"customer-{number}" for number in range(50)]
BEFORE, LATER = 20, 10  # messages of every key, before the switch and around it
DEADLINE = 60.0


@dataclass
class Ledger:
    """What was consumed: for each key the numbers of its messages in the order in which their work was done."""

    seen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    by: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, queue: str, body: bytes) -> None:
        key, number = body.decode().split(" ")
        with self.lock:
            self.seen[key].append(int(number))
            self.by[queue] += 1

    @property
    def total(self) -> int:
        return sum(map(len, self.seen.values()))

    @property
    def broken(self) -> list[str]:
        """The keys whose messages were not worked on in the order in which they were sent."""
        return [key for key, numbers in self.seen.items() if numbers != sorted(numbers)]


class Scene:
    """An exchange over two queues with a backlog, and a third queue that is not bound yet."""

    def __init__(self, broker) -> None:
        self.broker = broker
        self.name = f"handover.{uuid.uuid4().hex[:8]}"
        self.old, self.new = (f"{self.name}.0", f"{self.name}.1"), f"{self.name}.2"
        self.ledger = Ledger()
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.connection = broker.connection()
        self.channel = self.connection.channel()
        self.channel.exchange_declare(self.name, "x-consistent-hash", durable=True)
        ring = Ring()
        for queue in (*self.old, self.new):
            self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        for queue in self.old:
            self.channel.queue_bind(queue, self.name, "1")
            ring = ring.bind(queue)
        self.waits = drain_first(ring, ring.bind(self.new))

    def publish(self, numbers: range) -> None:
        with self.broker.connection() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in numbers:
                for key in KEYS:
                    channel.basic_publish(self.name, key, f"{key} {number}".encode(), mandatory=True)

    def start(self, work, *arguments) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    def consume(self, queue: str) -> None:
        with self.broker.connection() as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=20)

            def on_message(channel, method, properties, body) -> None:
                if pass_marker(channel, method, properties):
                    return
                self.ledger.note(queue, body)
                channel.basic_ack(method.delivery_tag)

            channel.basic_consume(queue, on_message)
            while not self.stop.is_set():
                connection.process_data_events(time_limit=0.05)

    def consume_async(self, queue: str) -> None:
        async def main() -> None:
            async with await aio_pika.connect(self.broker.url) as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=20)
                source = await channel.get_queue(queue)

                async def work() -> None:
                    async with source.iterator() as messages:
                        async for message in messages:
                            if await pass_marker_async(message):
                                continue
                            self.ledger.note(queue, message.body)
                            await message.ack()

                worker = asyncio.create_task(work())
                await asyncio.to_thread(self.stop.wait)
                worker.cancel()
                with suppress(asyncio.CancelledError):
                    await worker

        asyncio.run(main())

    def switch_under_load(self) -> threading.Thread:
        publisher = self.start(self.publish, range(BEFORE, BEFORE + LATER))
        self.wait(lambda: self.waiting(self.old) > BEFORE * len(KEYS))  # it is under way
        self.channel.queue_bind(self.new, self.name, "1")
        assert publisher.is_alive()
        return publisher

    def waiting(self, queues) -> int:
        return sum(self.channel.queue_declare(queue, passive=True).method.message_count for queue in queues)

    def wait(self, condition) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert not self.failures, self.failures
            assert time.monotonic() < deadline
            self.connection.sleep(0.02)

    def finish(self) -> Ledger:
        self.wait(lambda: self.ledger.total >= len(KEYS) * (BEFORE + LATER))
        assert self.ledger.total == len(KEYS) * (BEFORE + LATER)
        return self.ledger

    def remove(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(DEADLINE)
        for queue in (*self.old, self.new):
            self.channel.queue_delete(queue)
        self.channel.exchange_delete(self.name)
        self.connection.close()


@pytest.fixture
def scene(broker):
    scene = Scene(broker)
    yield scene
    scene.remove()


@pytest.mark.parametrize("client", ["pika", "aio-pika"])
def test_a_handover_keeps_the_order_of_every_key(scene, client) -> None:
    consume = scene.consume if client == "pika" else scene.consume_async
    assert scene.waits == {scene.new: frozenset(scene.old)}
    scene.publish(range(BEFORE))
    scene.switch_under_load()
    for queue in scene.old:
        scene.start(consume, queue)
    if client == "pika":
        drain(scene.connection, scene.waits[scene.new], timeout=DEADLINE)
    else:
        asyncio.run(drain_async(scene.broker.url, scene.waits[scene.new], timeout=DEADLINE))
    scene.start(consume, scene.new)
    ledger = scene.finish()
    assert not ledger.broken
    assert ledger.by[scene.new] > 0


def test_without_it_the_order_breaks(scene) -> None:
    scene.publish(range(BEFORE))
    scene.switch_under_load().join(DEADLINE)
    scene.start(scene.consume, scene.new)
    scene.wait(lambda: scene.ledger.by[scene.new] > 0 and scene.waiting([scene.new]) == 0)
    for queue in scene.old:
        scene.start(scene.consume, queue)
    ledger = scene.finish()
    assert ledger.broken


@pytest.mark.parametrize("name", HANDOVER)
def test_the_example_keeps_the_order(broker, name) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"AMQP_URL": broker.url},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 keys, 0 out of order" in done.stdout


def test_a_marker_nobody_passes_is_told_with_its_queue(scene) -> None:
    scene.start(scene.consume, scene.old[0])
    for attempt in (
        lambda: drain(scene.channel, scene.old, timeout=0.5, settle=0.0),
        lambda: asyncio.run(drain_async(scene.broker.url, scene.old, timeout=0.5, settle=0.0)),
    ):
        with pytest.raises(NotDrained, match=r"pass_marker\(\)") as late:
            attempt()
        assert late.value.queues == (scene.old[1],)
    assert scene.channel.is_open  # it was only asked for its connection
    # Markers of drains that were given up are passed later on, and answer to nobody.
    scene.start(scene.consume, scene.old[1])
    drain(scene.broker.url, scene.old, timeout=DEADLINE, settle=0.0)
    assert scene.waiting(scene.old) == 0


def test_a_queue_that_is_not_there_is_told(broker) -> None:
    with pytest.raises(InvalidValue, match=r"no\.such\.queue"):
        drain(broker.url, ["no.such.queue"], settle=0.0)
    with pytest.raises(InvalidValue, match=r"no\.such\.queue"):
        asyncio.run(drain_async(broker.url, ["no.such.queue"], settle=0.0))
