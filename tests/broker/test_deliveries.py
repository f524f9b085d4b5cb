"""Every delivery reaches its consumer in order, with the fast path and without it."""

from __future__ import annotations

import random
from time import monotonic
from uuid import uuid4

import pytest

from rabbit_chx.broker import receiving
from rabbit_chx.consuming import Group, QueueReader
from rabbit_chx.publishing import Publisher
from tests.patience import PATIENCE
from tests.queues import SINGLE_ACTIVE, confirming_channel

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

LARGE = 300_000
"""Three frames."""


@pytest.fixture(params=["fast path", "fast path missing"])
def reads(request, monkeypatch):
    """How many times deliveries were read in one pass; nothing must be, if pika has renamed something."""
    found = []

    def counting(data, consumers):
        found.append(read(data, consumers))
        return found[-1]

    read = receiving.read_deliveries
    monkeypatch.setattr(receiving, "read_deliveries", counting)
    if request.param != "fast path":
        monkeypatch.setattr(receiving, "PRIVATE_NAMES", (*receiving.PRIVATE_NAMES, "_missing"))
    yield found
    assert bool(sum(frames for _, _, frames in found)) is (request.param == "fast path")


@pytest.fixture
def queue(broker):
    """A queue with 3,000 messages of 0 to 300,000 bytes, with properties of every length."""
    name = f"deliveries-{uuid4().hex[:6]}"
    with confirming_channel(broker) as channel:
        channel.queue_declare(name, durable=True, arguments=SINGLE_ACTIVE)
        with Publisher(broker.url) as publisher, publisher.bulk() as bulk:
            for number, body in enumerate(sent()):
                headers = {"number": number, "text": "é" * (number % 7)} if number % 3 else None
                bulk.add(body, name, exchange="", headers=headers, message_id=str(number))
        yield name
        channel.queue_delete(name)


def sent():
    draw = random.Random(7)
    sizes = [LARGE if number % 500 == 250 else draw.choice([0, 1, 100, 4_000]) for number in range(3_000)]
    return [b"%d" % number * (size // 4) for number, size in enumerate(sizes)]


def check(messages, queue):
    assert [message.body for message in messages] == sent()
    assert [message.message_id for message in messages] == [str(number) for number in range(3_000)]
    assert [message.headers.get("number") for message in messages] == [
        number if number % 3 else None for number in range(3_000)
    ]
    assert {(message.queue, message.routing_key, message.exchange) for message in messages} == {
        (queue, queue, "")
    }


def test_a_reader_gets_every_message_in_order(broker, queue, reads):
    messages, end = [], monotonic() + PATIENCE
    with QueueReader(broker.url, queue, prefetch=700) as reader:
        while len(messages) < 3_000 and monotonic() < end:
            batch = reader.take(1_000)
            messages += batch.messages
            reader.acknowledge(batch)
    check(messages, queue)


@pytest.mark.since_4_0
def test_a_group_gets_every_message_in_order(broker, queue, reads):
    messages = []
    name = f"deliveries-{uuid4().hex[:6]}"
    group = Group(broker.url, exchange="amq.direct", queues=[queue], name=name, prefetch=300)

    def handle(message):
        messages.append(message)
        if len(messages) == 3_000:
            group.stop()

    group.run(handle)
    check(messages, queue)
