"""What a caller of `StreamPublisher` sees when the broker hangs, or when every connection is lost again."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from rabbit_chx.errors import PublishFailed
from rabbit_chx.streams import StreamPublisher, Timeouts
from rabbit_chx.streams.publishing import routes
from tests.broker.stream_scene import a_name, bodies, stored, streams_at
from tests.broker.test_streams_partitions import Bound
from tests.faults.load import SLACK, paused
from tests.patience import wait_until

pytestmark = pytest.mark.broker

LONG = Timeouts(connect=4 * SLACK, reconnect=4 * SLACK, confirm=4 * SLACK)
"""Whatever ends in time ends because of the timeout of its call."""
KEYS = [f"customer-{number}" for number in range(300)]


@contextmanager
def within(seconds):
    """Fail if the block takes longer; in the caller's thread, which a publisher belongs to."""
    began = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - began < seconds


@pytest.fixture
def stream(broker):
    with streams_at(broker.stream_url, a_name()) as (name,):
        yield name


@pytest.fixture
def orders(broker):
    made = Bound(broker, "x-consistent-hash")
    for number in range(2):
        made.bind(f"divided-{number}", "1")
    yield made
    made.delete()


def test_a_call_ends_at_its_timeout_while_the_broker_hangs(broker, stream):
    with StreamPublisher(broker.stream_url, stream, name="job", timeouts=LONG) as publisher:
        publisher.publish(b"before")
        with paused(broker):
            for number, timeout in enumerate((1, 2, 1)):
                with pytest.raises(PublishFailed) as caught, within(timeout + SLACK):
                    publisher.publish(b"%d" % number, timeout=timeout)
                assert caught.value.may_have_arrived  # the kernel has taken it for the broker
        publisher.publish(b"after")
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.pending) == (5, 5, 0)
    found = bodies(broker.stream_url, stream)
    assert found == [b"before", b"0", b"1", b"2", b"after"]


def test_a_new_stream_that_hangs_delays_no_other(broker, proxy, orders, monkeypatch):
    monkeypatch.setattr(routes, "_LOOK", 0.2)
    with StreamPublisher(proxy.url, exchange=orders.name, name="job", timeouts=LONG) as publisher:
        publisher.publish_many(map(str.encode, KEYS), KEYS)
        proxy.strand()
        orders.bind("divided-2", "1")
        wait_until(lambda: len(publisher.pipeline.outboxes) == 3, "the third stream")
        for _ in range(2):
            with pytest.raises(PublishFailed) as caught, within(5 + SLACK):
                publisher.publish_many(map(str.encode, KEYS), KEYS, timeout=5)
            assert {each.stream for each in caught.value.failures} == {"divided-2"}
            assert not caught.value.may_have_arrived
        proxy.heal()
        lost = [KEYS[each.row] for each in caught.value.failures]
        publisher.publish_many(map(str.encode, lost), lost)
        assert publisher.totals.unsent == 2 * len(lost)
    assert [message.body.decode() for message in stored(broker.stream_url, "divided-2")] == lost


def test_connections_that_are_lost_again_and_again_are_given_up(broker, proxy, stream):
    timeouts = Timeouts(connect=4 * SLACK, reconnect=10, confirm=4 * SLACK)
    with StreamPublisher(proxy.url, stream, name="job", timeouts=timeouts) as publisher:
        publisher.publish(b"before")
        proxy.cut_after = (20_000, 20_000)  # after the handshake
        proxy.cut()
        with pytest.raises(PublishFailed) as caught, within(10 + SLACK):
            publisher.publish(bytes(50_000))
        assert caught.value.may_have_arrived
        assert publisher.totals.connections > 2
        proxy.cut_after = None
        publisher.publish(b"after")
    assert bodies(broker.stream_url, stream) == [b"before", b"after"]
