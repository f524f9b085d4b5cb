"""`StreamPublisher` with a super stream or a hash exchange: routes, deduplication, and partitions that appear."""

from __future__ import annotations

from itertools import chain

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import StreamPublisher
from rabbit_chx.streams.publishing import routes
from tests.broker.privileges import release_of
from tests.broker.stream_scene import bodies, refused
from tests.patience import wait_until
from tests.queues import a_channel, delete_exchange
from tests.unit.test_docs import marked
from tests.unit.test_partitioning import OFFICIAL

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

KEYS = [f"customer-{number}" for number in range(300)]
BODIES = [b"%d" % number for number in range(300)]


class Bound:
    """An exchange and the streams that are bound to it. Each change has its own connection, because tests close all."""

    def __init__(self, broker, kind, arguments=None) -> None:
        self.broker, self.name, self.kind, self.streams = broker, "divided", kind, []
        with a_channel(self.broker) as channel:
            channel.exchange_declare(self.name, kind, durable=True, arguments=arguments)

    def bind(self, stream: str, key: str, kind: str = "stream", **arguments) -> None:
        self.streams.append(stream)
        with a_channel(self.broker) as channel:
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(stream, self.name, key, arguments=arguments)

    def unbind(self, stream: str, key: str) -> None:
        with a_channel(self.broker) as channel:
            channel.queue_unbind(stream, self.name, key)

    def delete(self) -> None:
        with a_channel(self.broker) as channel:
            delete_exchange(channel, self.name, self.streams)


@pytest.fixture
def bound(broker):
    """Makes exchanges, one at a time."""
    made = []

    def make(kind, arguments=None) -> Bound:
        made.append(Bound(broker, kind, arguments))
        return made[-1]

    yield make
    for each in made:
        each.delete()


@pytest.fixture
def orders(bound):
    made = bound("x-consistent-hash")
    for number, weight in enumerate((1, 3, 1, 10)):
        made.bind(f"divided-{number}", str(weight))
    return made


def until_divided(publisher, streams):
    """Wait until a publisher has noticed how many streams there are."""
    wait_until(lambda: len(publisher._pipeline._outlets) == streams, f"{streams} streams")


def test_the_lines_of_the_guide_publish_by_key(broker, stream_url, orders):
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_by_key")
    exec(block.replace("orders", orders.name), {"url": broker.stream_url})
    with Publisher(broker.url, exchange=orders.name) as over_amqp:
        over_amqp.publish_many([b"one", b"two", b"three"], ["customer-42", "customer-1", "customer-42"])
    for stream in orders.streams:
        found = bodies(stream_url, stream)
        assert found[: len(found) // 2] == found[len(found) // 2 :]
    assert sum(len(bodies(stream_url, stream)) for stream in orders.streams) == 6


def test_a_stream_of_an_exchange_gets_what_the_exchange_would_route_to_it(broker, stream_url, orders):
    with Publisher(broker.url, exchange=orders.name) as over_amqp:
        over_amqp.publish_many(BODIES, KEYS)
    routed = {stream: bodies(stream_url, stream) for stream in orders.streams}
    assert all(routed.values())
    with StreamPublisher(stream_url, exchange=orders.name) as publisher:
        assert publisher.publish_many(BODIES[:250], KEYS[:250]).confirmed == 250
        for body, key in zip(BODIES[250:], KEYS[250:], strict=True):
            publisher.publish(body, key.encode())
        assert (publisher.totals.published, publisher.totals.confirmed) == (300, 300)
    assert {stream: bodies(stream_url, stream) for stream in orders.streams} == {
        stream: 2 * found for stream, found in routed.items()
    }


def test_a_stream_that_is_bound_while_a_publisher_runs_gets_its_messages(
    broker, stream_url, orders, monkeypatch
):
    monkeypatch.setattr(routes, "_LOOK", 0.2)
    with StreamPublisher(stream_url, exchange=orders.name, name="job") as publisher:
        publisher.publish_many(BODIES, KEYS)
        before = {stream: len(bodies(stream_url, stream)) for stream in orders.streams}
        orders.bind("divided-4", "2")
        broker.ctl("close_all_connections", "closed by the operator")
        until_divided(publisher, 5)
        publisher.publish_many(BODIES, KEYS)
        orders.unbind("divided-0", "1")
        until_divided(publisher, 4)
        publisher.publish_many(BODIES, KEYS)
        assert publisher.totals.confirmed == 900
    later = {stream: bodies(stream_url, stream)[before.get(stream, 0) :] for stream in orders.streams}
    assert sorted(chain(*later.values())) == sorted(2 * BODIES)
    assert later["divided-4"]
    with Publisher(broker.url, exchange=orders.name) as over_amqp:
        over_amqp.publish_many(BODIES, KEYS)
    for stream in orders.streams[1:]:
        routed = bodies(stream_url, stream)[before.get(stream, 0) + len(later[stream]) :]
        assert later[stream][-len(routed) :] == routed


def test_a_job_that_runs_again_stores_nothing_twice(broker, stream_url, orders):
    for _ in range(2):
        with StreamPublisher(stream_url, exchange=orders.name, name="job") as publisher:
            assert publisher.publish_many(BODIES, KEYS, ids=range(1, 301)).confirmed == 300
            broker.ctl("close_all_connections", "closed by the operator")
            publisher.publish(b"last", "customer-0")
            assert publisher.sequence() <= 300
            duplicates = publisher.totals.duplicates
    assert duplicates == 300
    found = [body for stream in orders.streams for body in bodies(stream_url, stream)]
    assert sorted(found) == sorted([*BODIES, b"last", b"last"])


def test_the_partition_of_a_super_stream_is_that_of_other_clients(stream_url, bound):
    invoices = bound("direct")
    for number in (2, 0, 1):
        invoices.bind(f"invoices-{number}", str(number), **{"x-stream-partition-order": number})
    expected = {key: f"invoices-{number}" for key, number in OFFICIAL.items()}
    with StreamPublisher(stream_url, super_stream=invoices.name) as publisher:
        publisher.publish_many([key.encode() for key in expected], list(expected))
        publisher.publish(b"one more", "hello1")
    found = {body.decode(): stream for stream in invoices.streams for body in bodies(stream_url, stream)}
    assert found == {**expected, "one more": expected["hello1"]}


def test_exchanges_that_do_not_divide_by_key_are_refused(broker, stream_url, bound):
    by_header = bound("x-consistent-hash", {"hash-header": "tenant"})
    by_header.bind("divided-0", "1")
    by_header.bind("divided-1", "1")
    if release_of(broker) < (3, 11):
        expected = pytest.raises(
            StreamUnavailable, match=r"RabbitMQ 3\.10 does if the exchange hashes a header"
        )
    else:
        expected = pytest.raises(
            InvalidValue, match="got 'routes that no ring of at most 512 buckets explains"
        )
    with expected:
        StreamPublisher(stream_url, exchange=by_header.name).open()
    by_header.delete()
    queues = bound("x-consistent-hash")
    queues.bind("divided-0", "1")
    queues.bind("queue", "1", kind="classic")
    with pytest.raises(InvalidValue, match="got 'keys that reach no stream'"):
        StreamPublisher(stream_url, exchange=queues.name).open()
    queues.delete()
    bound("x-consistent-hash")
    with refused("no such stream", "no stream is bound to exchange 'divided'"):
        StreamPublisher(stream_url, exchange="divided").open()
    with refused("no such stream"):
        StreamPublisher(stream_url, super_stream="nothing").open()
