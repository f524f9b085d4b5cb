"""Queues are added under load while the others have a backlog: a handover keeps the order of every key.

The controls show what it is for: a consumer that starts too early breaks the order, and so does a handover that
forgets that the first of two new queues loses keys to the second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import aio_pika
import pytest
from pika.exceptions import NackError

from rabbit_chx import InvalidValue, Ring
from rabbit_chx.broker import (
    NotDrained,
    drain,
    drain_async,
    drain_in_order,
    drain_in_order_async,
    pass_marker,
    pass_marker_async,
)
from rabbit_chx.topology import drain_first_in
from rabbit_chx.topology.model import Binding
from rabbit_chx.topology.planning.steps import Bind, Plan, RingChange, Unbind
from tests.members import Member
from tests.patience import PATIENCE, wait_until
from tests.programs import ran
from tests.proof import never, promised
from tests.queues import a_channel, message_count
from tests.unit.test_examples import EXAMPLES, HANDOVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = [
    pytest.mark.one_release,
    pytest.mark.broker,
    pytest.mark.proves("Topology", "order of keys through a handover", "without it the order breaks"),
]

KEYS = [f"customer-{number}" for number in range(50)]
BEFORE, LATER = 20, 5  # messages of every key, before and after the switch
SLOTS = 12


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
    """An exchange over two queues with a backlog, with or without slots, and queues that are not bound yet."""

    def __init__(self, broker, added: int = 1, *, slotted: bool = False) -> None:
        self.broker = broker
        self.name = f"handover.{uuid.uuid4().hex[:8]}"
        self.old = (f"{self.name}.0", f"{self.name}.1")
        self.added = [f"{self.name}.{2 + number}" for number in range(added)]
        self.every, self.new = (*self.old, *self.added), self.added[0]
        self.slots = [f"{self.name}.slot.{number}" for number in range(SLOTS * slotted)]
        self.ledger = Ledger()
        self.stop = threading.Event()
        self.switched = threading.Event()
        self.numbers = 0
        self.threads: list[Member] = []
        self.connection = broker.connection()
        self.channel = self.connection.channel()
        for exchange in (self.name, *self.slots):
            self.channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
        kind = "quorum" if added == 1 else "classic"
        for queue in self.every:
            self.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        for number, slot in enumerate(self.slots):
            self.channel.exchange_bind(slot, self.name, "1")
            self.channel.queue_bind(self.old[number % 2], slot, "1")
        for queue in () if slotted else self.old:
            self.channel.queue_bind(queue, self.name, "1")
        self.steps = {queue: list(self.steps_for(number, queue)) for number, queue in enumerate(self.added)}
        change = RingChange(self.name, Ring.of(self.old), Ring.of(self.every), None, None)
        steps = tuple(step for steps in self.steps.values() for step in steps)
        self.waits = drain_first_in(Plan("/", steps, () if slotted else (change,)))

    def steps_for(self, number: int, queue: str) -> Iterator[Bind | Unbind]:
        """A new queue is appended to the ring, or takes two slots over."""
        if not self.slots:
            yield Bind(Binding(self.name, queue, "1"))
        for slot in range(2 * number, 2 * number + 2) if self.slots else ():
            yield Bind(Binding(self.slots[slot], queue, "1"))
            yield Unbind(Binding(self.slots[slot], self.old[slot % 2], "1"))

    def publish(self, rounds: Iterable[object]) -> None:
        """Publish the next number of every key in each round."""
        with a_channel(self.broker, confirms=True) as channel:
            for _ in rounds:
                for key in KEYS:
                    channel.basic_publish(self.name, key, f"{key} {self.numbers}".encode(), mandatory=True)
                self.numbers += 1

    def around_the_switch(self) -> Iterator[object]:
        """Yield until the new queues are bound, and then ``LATER`` more times."""
        while not self.switched.is_set():
            yield
        yield from range(LATER)

    def start(self, work, *arguments) -> Member:
        thread = Member(partial(work, *arguments))
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

    async def consume_async(self, queue: str) -> None:
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

    def switch_under_load(self) -> None:
        """Bind the new queues one after the other; messages reach each of them before the next is bound."""
        self.publisher = self.start(self.publish, self.around_the_switch())
        self.wait(lambda: self.waiting(self.old) > BEFORE * len(KEYS))  # it is under way
        for number, queue in enumerate(self.added):
            if number:
                least = self.waiting(self.every) + len(KEYS)
                self.wait(lambda: self.waiting(self.every) >= least)  # noqa: B023
            for step in self.steps[queue]:
                do = self.channel.queue_bind if isinstance(step, Bind) else self.channel.queue_unbind
                do(step.binding.destination, step.binding.source, step.binding.key)
        self.switched.set()

    def waiting(self, queues) -> int:
        return sum(message_count(self.channel, queue) for queue in queues)

    def wait(self, condition) -> None:
        def met() -> bool:
            failures = [each.error for each in self.threads if each.error is not None]
            assert not failures, failures
            self.connection.process_data_events()
            return condition()

        wait_until(met, "the messages", pause=0.02)

    def finish(self) -> Ledger:
        self.publisher.join(PATIENCE)
        assert not self.publisher.is_alive()
        with promised():
            self.wait(lambda: self.ledger.total >= len(KEYS) * self.numbers)
        assert self.ledger.total == len(KEYS) * self.numbers
        return self.ledger

    def remove(self) -> None:
        self.stop.set()
        self.switched.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        for queue in self.every:
            self.channel.queue_delete(queue)
        for exchange in (self.name, *self.slots):
            self.channel.exchange_delete(exchange)
        self.connection.close()


@pytest.fixture
def scene(broker, request):
    added, slotted = getattr(request, "param", (1, False))
    scene = Scene(broker, added, slotted=slotted)
    yield scene
    scene.remove()


CHANGES = [
    pytest.param("pika", (1, False), marks=pytest.mark.newest_first),
    ("aio-pika", (2, False)),
    ("pika", (2, True)),
]
OTHERS = [("aio-pika", (1, False)), ("pika", (5, False)), ("pika", (1, True)), ("pika", (5, True))]
CHANGES += [pytest.param(*each, marks=pytest.mark.long) for each in OTHERS]


@pytest.mark.parametrize(("client", "scene"), CHANGES, indirect=["scene"], ids=str)
def test_a_handover_keeps_the_order_of_every_key(scene, client) -> None:
    consume = scene.consume if client == "pika" else scene.consume_async
    scene.publish(range(BEFORE))
    scene.switch_under_load()
    for queue in scene.old:
        scene.start(consume, queue)
    released = []

    def release(queue: str) -> None:
        released.append(queue)
        scene.start(consume, queue)

    async def release_later(queue: str) -> None:
        release(queue)

    if client == "pika":
        drain_in_order(scene.connection, scene.waits, release, timeout=PATIENCE)
    else:
        asyncio.run(drain_in_order_async(scene.broker.url, scene.waits, release_later, timeout=PATIENCE))
    assert released == scene.added if not scene.slots else set(released) == set(scene.added)
    ledger = scene.finish()
    never(out_of_order=ledger.broken)
    assert all(ledger.by[queue] > 0 for queue in scene.added)


@pytest.mark.parametrize("scene", [(2, False)], indirect=True, ids=str)
def test_a_second_new_queue_that_does_not_wait_for_the_first_breaks_the_order(scene) -> None:
    scene.publish(range(BEFORE))
    scene.switch_under_load()
    scene.publisher.join(PATIENCE)
    for queue in scene.old:
        scene.start(scene.consume, queue)
    drain(scene.connection, scene.old, timeout=PATIENCE)
    first, second = scene.added
    scene.start(scene.consume, second)
    scene.wait(lambda: scene.ledger.by[second] > 0 and scene.waiting([second]) == 0)
    scene.start(scene.consume, first)
    assert scene.finish().broken


def test_without_it_the_order_breaks(scene) -> None:
    scene.publish(range(BEFORE))
    scene.switch_under_load()
    scene.publisher.join(PATIENCE)
    scene.start(scene.consume, scene.new)
    scene.wait(lambda: scene.ledger.by[scene.new] > 0 and scene.waiting([scene.new]) == 0)
    for queue in scene.old:
        scene.start(scene.consume, queue)
    ledger = scene.finish()
    assert ledger.broken


@pytest.mark.long
@pytest.mark.newest_first
@pytest.mark.parametrize("name", HANDOVER)
def test_the_example_keeps_the_order(broker, name) -> None:
    done = ran([sys.executable, "-W", "error", EXAMPLES / name], env=os.environ | {"AMQP_URL": broker.url})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 keys, 0 out of order" in done.stdout


def test_a_queue_whose_marker_is_not_reached_is_named(scene) -> None:
    scene.start(scene.consume, scene.old[0])
    for attempt in (
        lambda: drain(scene.channel, scene.old, timeout=0.5, settle=0.0),
        lambda: asyncio.run(drain_async(scene.broker.url, scene.old, timeout=0.5, settle=0.0)),
    ):

        def not_reached(attempt=attempt) -> tuple[str, ...]:
            with pytest.raises(NotDrained, match=r"pass_marker\(\)") as late:
                attempt()
            return late.value.queues

        # A consumer that is slow for a moment does not reach its marker, either.
        scene.wait(lambda missed=not_reached: missed() == (scene.old[1],))
    assert scene.channel.is_open  # only its connection was used
    # Markers of drains that timed out are passed later, and their answers are ignored.
    scene.start(scene.consume, scene.old[1])
    drain(scene.broker.url, scene.old, timeout=PATIENCE, settle=0.0)
    assert scene.waiting(scene.old) == 0


@pytest.mark.newest_first
def test_the_marker_waits_for_room_in_a_full_queue(scene) -> None:
    queue = scene.old[0]
    scene.channel.queue_delete(queue)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    scene.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **limits})
    with a_channel(scene.broker, confirms=True) as channel, suppress(NackError):
        for number in count():
            channel.basic_publish("", queue, f"{KEYS[0]} {number}".encode())
    with pytest.raises(NotDrained, match="had no room for the marker") as late:
        drain(scene.channel, [queue], timeout=0.5, settle=0.0)
    assert late.value.queues == late.value.full == (queue,)
    scene.start(scene.consume, queue)
    drain(scene.channel, [queue], timeout=PATIENCE, settle=0.0)
    assert scene.waiting([queue]) == 0


@pytest.mark.newest_first
def test_a_missing_queue_is_named(broker) -> None:
    with pytest.raises(InvalidValue, match=r"no\.such\.queue"):
        drain(broker.url, ["no.such.queue"], settle=0.0)
    with pytest.raises(InvalidValue, match=r"no\.such\.queue"):
        asyncio.run(drain_async(broker.url, ["no.such.queue"], settle=0.0))
