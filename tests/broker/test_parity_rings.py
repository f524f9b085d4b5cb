"""Rings: what binds, unbinds, duplicates and deleted queues make of them, and how they are found from outside."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import aio_pika
import pytest

from rabbit_chx import ConsistentHashExchange, DeliveryMonitor, Ring, ToExchange, infer
from tests.broker.parity_clients import PUBLISHERS, Message, publish
from tests.broker.parity_values import VALUES, random_value, sendable
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Routing", "parity: rings", "the comparison fails on one message that lands elsewhere"
    ),
]

QUEUES = {f"q{i}": weight for i, weight in enumerate([1, 3, 2, 1, 4, 2, 1, 3, 2, 1, 2])}


def test_inference_finds_duplicates_and_dead_bindings_out(lab):
    rng = random.Random("dead")
    with lab.exchange(QUEUES) as x:
        ring = x.mirror.ring
        for queue, weight in (("q1", "5"), ("q4", "2"), ("q7", "1")):
            x.bind(queue, weight)
            ring = ring.bind(queue, weight)
        x.unbind("q4", "4")  # dead from here on, with "2" still listed
        ring = ring.unbind("q4", "4")
        keys = [f"customer-{rng.getrandbits(32)}" for _ in range(200)]
        pairs = list(zip(keys, x.send([Message(key) for key in keys], "pika"), strict=True))
        found = infer(pairs, ring.bindings, release=lab.release).ring
        assert [binding.destination for binding in found.dead] == ["q4"]
        lab.compare_rings({x.name: found})


def test_inference_works_on_a_hashed_header(lab):
    rng = random.Random("header")
    with lab.exchange(QUEUES, hash_header="tenant") as x:
        values = [f"tenant-{rng.getrandbits(32)}" for _ in range(200)]
        landed = x.send([Message("", {"tenant": value}) for value in values], "aio-pika")
        found = infer(
            zip(values, landed, strict=True),
            x.mirror.ring.bindings,
            release=lab.release,
            hash_header="tenant",
        ).ring
        lab.compare_rings({x.name: found})


# --- observers ----------------------------------------------------------------------------------------------


def consume_with_pika(lab, queues, count, watch):
    """A consumer as one writes it, with the line that observes; ``queues`` tells what each stands for."""
    with lab.broker.connection() as connection:
        channel = connection.channel()
        seen = []

        def on_message(_channel, method, properties, _body, queue):
            seen.append(watch.observe(method, queues[queue], properties))

        for queue in queues:
            channel.basic_consume(queue, partial(on_message, queue=queue), auto_ack=True)
        while len(seen) < count:
            before = len(seen)
            connection.process_data_events(time_limit=PATIENCE)
            assert len(seen) > before, f"{len(seen)} of {count} messages arrived"
    return seen


def consume_with_aio_pika(lab, queues, count, watch):
    """The same with aio-pika."""

    async def consume():
        seen = []
        done = asyncio.Event()

        async def on_message(message, queue):
            seen.append(watch.observe(message, queues[queue]))
            if len(seen) == count:
                done.set()

        async with asyncio.timeout(PATIENCE), await aio_pika.connect(lab.broker.url) as connection:
            channel = await connection.channel()
            for name in queues:
                queue = await channel.get_queue(name)
                await queue.consume(partial(on_message, queue=name), no_ack=True)
            await done.wait()
        return seen

    return asyncio.run(consume())


CONSUMERS = {"pika": consume_with_pika, "aio-pika": consume_with_aio_pika}


@pytest.mark.newest_first
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", CONSUMERS)
def test_an_observer_agrees_with_the_ring_and_notices_when_it_changes(lab, producer, consumer):
    with lab.exchange(QUEUES) as x:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, x.name, [Message(f"customer-{i}") for i in range(300)], producer)
        assert CONSUMERS[consumer](lab, x.destinations, 300, watch) == [True] * 300
        assert (watch.expected, watch.drifted, watch.unpredicted) == (300, 0, 0)

        x.bind("new", "5")
        watch.pairs.clear()
        publish(lab.broker.url, x.name, [Message(f"customer-{i}") for i in range(300)], producer)
        seen = CONSUMERS[consumer](lab, x.destinations, 300, watch)
        assert watch.drifted == seen.count(False) > 30
        found = infer(watch.pairs, [*x.mirror.ring.bindings, ("new", 5)], release=lab.release).ring
        assert found == x.mirror.ring.bind("new", 5)
        lab.compare_rings({x.name: found})
        lab.tally.messages[producer] += 600


HASHED = {
    "text": ({"hash_header": "h"}, [{"headers": {"h": f"tenant {i} é"}} for i in range(200)]),
    "flag": ({"hash_header": "h"}, [{"headers": {"h": flag}} for flag in (True, False, None)] + [{}]),
    "message_id": ({"hash_property": "message_id"}, [{"message_id": f"m-{i}"} for i in range(200)]),
    "correlation_id": (
        {"hash_property": "correlation_id"},
        [{"correlation_id": f"c{i}"} for i in range(200)],
    ),
    "timestamp": ({"hash_property": "timestamp"}, [{"timestamp": 1_700_000_000 + i} for i in range(200)]),
}


@pytest.mark.newest_first
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", CONSUMERS)
@pytest.mark.parametrize("what", HASHED)
def test_an_observer_agrees_whatever_is_hashed(lab, producer, consumer, what):
    arguments, messages = HASHED[what]
    with lab.exchange(QUEUES, **arguments) as x:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, x.name, [Message("key", **message) for message in messages], producer)
        seen = CONSUMERS[consumer](lab, x.destinations, len(messages), watch)
        assert seen == [True] * len(messages)
        lab.tally.messages[producer] += len(messages)


@pytest.mark.newest_first
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", PUBLISHERS)
def test_an_observer_never_takes_what_a_client_decodes_with_a_loss_for_drift(lab, producer, consumer):
    rng = random.Random("loss")
    values = [*VALUES, *(random_value(rng) for _ in range(300))]
    messages = [
        Message("", {"h": value}) for value in sendable(values, producer) if value not in ([], {}, [[]])
    ]
    with lab.exchange(QUEUES, hash_header="h") as x:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, x.name, messages, producer)
        seen = CONSUMERS[consumer](lab, x.destinations, len(messages), watch)
        assert (watch.drifted, watch.skipped) == (0, 0)
        assert watch.expected > len(messages) / 5
        infer(watch.pairs, x.mirror.ring.bindings, release=lab.release, hash_header="h")  # no contradiction
        lab.tally.messages[producer] += len(messages)
        assert seen.count(True) == watch.expected


@pytest.mark.newest_first
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_an_observer_never_takes_an_odd_property_for_drift(lab, name, consumer):
    odd = {"timestamp": [None, 0, 2**32, 1_700_000_000_123]}.get(name, [None, "", "x", b"raw"])
    with lab.exchange([f"q{i}" for i in range(13)], hash_property=name) as x:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, x.name, [Message("", **{name: value}) for value in odd], "pika")
        seen = CONSUMERS[consumer](lab, x.destinations, len(odd), watch)
        assert False not in seen
        assert True in seen


def test_an_observer_passes_over_what_came_another_way(lab):
    with lab.exchange(QUEUES) as x, lab.exchange({"other": 1}, name="elsewhere") as elsewhere:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, elsewhere.name, [Message("a")] * 5, "pika")
        assert consume_with_pika(lab, elsewhere.destinations, 5, watch) == [None] * 5
        assert watch.skipped == 5


def test_an_observer_behind_an_exchange_is_told_that_exchange(lab):
    bindings = [(ToExchange(f"x{i}"), 1) for i in range(10)]
    with lab.exchange(bindings) as x:
        watch = DeliveryMonitor(x.mirror, name=x.name)
        publish(lab.broker.url, x.name, [Message(f"customer-{i}") for i in range(100)], "pika")
        assert consume_with_pika(lab, x.destinations, 100, watch) == [True] * 100


def test_an_observer_knows_no_ring_and_collects_what_finds_it(lab):
    with lab.exchange(QUEUES) as x:
        unknown = Ring(x.mirror.ring.bindings, None, lab.release, "it has not been read")
        watch = DeliveryMonitor(ConsistentHashExchange(unknown), name=x.name)
        publish(lab.broker.url, x.name, [Message(f"customer-{i}") for i in range(250)], "pika")
        assert consume_with_pika(lab, x.destinations, 250, watch) == [None] * 250
        assert watch.unpredicted == 250
        lab.compare_rings({x.name: infer(watch.pairs, unknown.bindings, release=lab.release).ring})
