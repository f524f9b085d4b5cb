"""A reader of one queue on real brokers: order, acknowledgements, lost connections, and queues that cannot be read."""

from __future__ import annotations

import logging
import re
from time import monotonic
from uuid import uuid4

import pika
import pytest

from rabbit_chx.broker import receiving
from rabbit_chx.consuming import QueueReader
from rabbit_chx.errors import RabbitChxError
from tests.faults.proxy import Proxy
from tests.patience import PATIENCE, wait_until
from tests.queues import close_connections, confirming_channel, message_count
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

KINDS = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}
SLOW = 2 * PATIENCE


@pytest.fixture
def channel(broker):
    with confirming_channel(broker) as channel:
        yield channel


@pytest.fixture
def declare(channel):
    """A function that declares a queue with these arguments and ``count`` numbered messages."""
    names = []

    def declare(count=0, **arguments):
        names.append(f"read-{uuid4().hex[:6]}")
        channel.queue_declare(names[-1], durable=True, arguments=arguments)
        for number in range(count):
            channel.basic_publish("", names[-1], b"%d" % number)
        return names[-1]

    yield declare
    for name in names:
        channel.queue_delete(name)


def taken(reader, count, patience=PATIENCE):
    """Take batches until they hold ``count`` messages."""
    batches, end = [], monotonic() + patience
    while (missing := count - sum(len(each.messages) for each in batches)) > 0:
        assert monotonic() < end, batches
        batches.append(reader.take(missing))
    return [each for each in batches if each.messages]


def bodies(batches):
    return [int(message.body) for each in batches for message in each.messages]


@pytest.mark.newest_first
@pytest.mark.parametrize("kind", KINDS)
def test_messages_arrive_in_order_and_unacknowledged_ones_return_in_order(broker, channel, declare, kind):
    queue = declare(30, **KINDS[kind])
    with QueueReader(broker.url, queue, prefetch=20) as reader:
        first = taken(reader, 10)
        assert bodies(first) == list(range(10))
        reader.acknowledge(first[-1])
        assert bodies(taken(reader, 5)) == list(range(10, 15))
        assert reader.waiting() <= 10
    wait_until(
        lambda: message_count(channel, queue) == 20, "the broker has requeued the unacknowledged messages"
    )
    rest = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(20)]
    assert [int(body) for body in rest] == list(range(10, 30))


@pytest.mark.newest_first
def test_what_is_acknowledged_just_before_the_end_is_not_delivered_again(broker, channel, declare):
    """A quorum queue applies 32 acknowledgements at a time; the broker drops those that wait when the channel is closed."""
    queue = declare(500, **KINDS["quorum"])
    with QueueReader(broker.url, queue) as reader:
        batches = [batch for _ in range(500) for batch in taken(reader, 1)]
        for batch in batches:
            reader.acknowledge(batch)
    assert bodies(batches) == list(range(500))
    with QueueReader(broker.url, queue) as reader:
        assert bodies([reader.take(500)]) == []


def test_a_reader_holds_as_many_messages_as_its_prefetch_whatever_their_size(broker, channel, declare):
    """SECURITY.md: the number limits no memory."""
    queue = declare()
    for _ in range(8):
        channel.basic_publish("", queue, bytes(1 << 20))
    with QueueReader(broker.url, queue, prefetch=3):
        wait_until(lambda: message_count(channel, queue) == 5, "the broker has sent three messages")


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(broker, declare, caplog):
    """Not at each attempt to connect: there is one each second."""
    queue = declare(3)
    with Proxy(broker.url) as proxy, QueueReader(proxy.url, queue) as reader:
        taken(reader, 3)
        proxy.cut_after = (1, 50)  # each new connection, before it is open
        proxy.cut()
        wait_until(lambda: proxy.connections > 4, "three failed attempts")
        proxy.cut_after = None
        taken(reader, 3)
    first, last = [one.getMessage() for one in caplog.records if one.name == "rabbit_chx.consuming"]
    assert re.fullmatch(f"queue '{queue}': the connection to .* was lost: .*; trying again", first)
    assert re.fullmatch(rf"queue '{queue}': connected again after \d+ s", last)


@pytest.mark.parametrize("names", [receiving.PRIVATE_NAMES, ["_missing"]])
def test_a_batch_of_a_lost_connection_is_not_acknowledged_on_the_next_one(
    broker, declare, monkeypatch, names
):
    """With the fast path for deliveries, and without it, because pika has renamed something."""
    monkeypatch.setattr(receiving, "PRIVATE_NAMES", names)
    queue = declare(8, **KINDS["quorum"])
    # As many as are taken, so that no message of the lost connection waits to be taken.
    with QueueReader([broker.url], queue, prefetch=4, connection_name="to be cut") as reader:
        before = taken(reader, 4)
        close_connections(broker, "to be cut")
        again = taken(reader, 4)
        assert bodies(again) == [0, 1, 2, 3]
        assert all(message.redelivered for batch in again for message in batch.messages)
        reader.acknowledge(before[-1])
        reader.acknowledge(again[-1])
        others = taken(reader, 4)
        assert bodies(others) == [4, 5, 6, 7]
        reader.acknowledge(others[-1])
        wait_until(lambda: not reader.waiting(), "the acknowledgements are written")
    with QueueReader(broker.url, queue) as reader:
        assert not reader.take(1, timeout=2.0, quiet=1.0).messages


def test_a_batch_that_is_acknowledged_already_can_be_acknowledged_again(broker, channel, declare, caplog):
    queue = declare(30)
    with QueueReader(broker.url, queue) as reader:
        first, second, third = (taken(reader, 10)[-1] for _ in range(3))
        for batch in (second, first, second):
            reader.acknowledge(batch)
        assert reader.waiting() == 0  # answered after the acknowledgements
        reader.acknowledge(third)
        assert not reader.take(1, timeout=1.0, quiet=0.5).messages
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert message_count(channel, queue) == 0


@pytest.mark.newest_first
def test_the_error_for_an_unreadable_queue_names_the_reason(broker, declare):
    with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0")) as owner:
        own = owner.channel().queue_declare("", exclusive=True).method.queue
        stream = declare(**{"x-queue-type": "stream", "x-max-age": "1D"})
        for queue, words in [
            ("nowhere", "expected an existing queue"),
            (own, "expected a queue that is not exclusive"),
            (stream, "got a stream"),
        ]:
            with QueueReader(broker.url, queue) as reader, pytest.raises(RabbitChxError, match=words):
                taken(reader, 1)


def test_a_reader_needs_only_the_permission_to_read(broker, declare):
    queue = declare(3, **KINDS["quorum"])
    with a_user(broker, "^$", "^$", "^$") as user:
        for read, words in (("^$", f"no read permission on queue '{queue}'"), (queue, "")):
            user.grant("^$", "^$", read)
            with QueueReader(user.url, queue) as reader:
                if not words:
                    assert bodies(taken(reader, 3)) == [0, 1, 2]
                    continue
                with pytest.raises(RabbitChxError, match=words):
                    taken(reader, 1)


def test_a_reader_works_while_pika_logs_at_debug(broker, declare, caplog):
    queue = declare(3)
    with caplog.at_level(logging.DEBUG), QueueReader(broker.url, queue) as reader:
        assert bodies(taken(reader, 3)) == [0, 1, 2]
    assert [one for one in caplog.records if one.name == "pika.channel"]


@pytest.mark.since_4_0
def test_a_delivery_limit_is_logged_as_a_warning(broker, declare, caplog):
    limits = {declare(1, **KINDS["quorum"]): True, declare(1): False}
    limits[declare(1, **KINDS["quorum"], **{"x-delivery-limit": -1})] = False
    for queue, warned in limits.items():
        with QueueReader(broker.url, queue) as reader:
            taken(reader, 1)
        assert (f"queue '{queue}': a delivery limit applies" in caplog.text) is warned


def test_an_idle_reader_goes_on_however_often_its_queue_is_replaced(broker, channel, declare, caplog):
    """Once, the second time was permanent, and the reason given was consumer_timeout."""
    queue = declare()
    lost = f"queue '{queue}': the broker ended the consumer of queue '{queue}'; trying again"
    with QueueReader(broker.url, queue) as reader:
        for times in range(1, 4):
            wait_until(lambda: reader.waiting() is not None, "the reader consumes")
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)
            wait_until(lambda times=times: caplog.messages.count(lost) == times, lambda: caplog.text)
        channel.basic_publish("", queue, b"0")
        assert bodies(taken(reader, 1)) == [0]


@pytest.mark.long
def test_messages_held_too_long_are_redelivered_once_and_then_raise_an_error(broker, declare):
    """Before 4.3, the broker checks the timeout once a minute."""
    queue = declare(3, **KINDS["quorum"])
    before = broker.ctl("eval", "{ok, Time} = application:get_env(rabbit, consumer_timeout), Time.")
    broker.ctl("eval", "application:set_env(rabbit, consumer_timeout, 3000).")
    try:
        with QueueReader(broker.url, queue) as reader:
            assert bodies(taken(reader, 3, SLOW)) == [0, 1, 2]
            assert bodies(taken(reader, 3, SLOW)) == [0, 1, 2]
            with pytest.raises(RabbitChxError, match="increase consumer_timeout"):
                taken(reader, 3, SLOW)
    finally:
        broker.ctl("eval", f"application:set_env(rabbit, consumer_timeout, {before}).")
