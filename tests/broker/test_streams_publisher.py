"""`StreamPublisher`: confirms, deduplication by name, and messages that other clients can read."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.errors import PublishFailed
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher, StreamReader, connect
from tests.broker.stream_scene import bodies, delete_completely
from tests.patience import PATIENCE
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


def test_the_lines_of_the_guide_publish_and_read(broker, stream_connection, capsys):
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_and_read")
    exec(block.replace("rabbitmq-stream://user:password@host", broker.stream_url), {})
    assert capsys.readouterr().out == "0 b'one'\n1 b'two'\n2 b'three'\n"
    stream_connection.delete("events")


def test_the_lines_of_the_guide_publish_properties(broker, stream_connection, capsys):
    stream_connection.create("events")
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_properties")
    exec(block, {"url": broker.stream_url})
    assert capsys.readouterr().out == "2 confirmed\n"
    with StreamReader(broker.stream_url, "events") as reader:
        found = [(message.routing_key, message.content_type) for message in reader.messages(0, 2)]
    assert found == [("customer-1", "application/json"), ("customer-2", "application/json")]
    stream_connection.delete("events")


def test_a_named_publisher_stores_each_id_once_across_connections(stream_url, stream):
    sent = [b"%d" % number for number in range(1, 5_001)]
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 0
        assert publisher.publish_many(sent[:3_000], ids=range(1, 3_001)).confirmed == 3_000
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 3_000
        assert publisher.publish_many(sent[2_000:4_000], ids=range(2_001, 4_001)).duplicates == 1_000
        assert publisher.publish_many(sent[4_000:]).duplicates == 0
        assert publisher.sequence() == 5_000
    assert bodies(stream_url, stream) == sent


def test_a_message_for_a_stream_that_was_created_again_is_sent_once(stream_connection, stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish(b"a")
        delete_completely(stream_connection, stream)
        with pytest.raises(PublishFailed, match="has no stream") as caught:
            publisher.publish(b"b")
        assert publisher.error.problem == "no such stream"
        assert not caught.value.may_have_arrived
        stream_connection.create(stream)
        publisher.publish(b"c")
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.unsent, totals.resent) == (3, 2, 1, 0)
    assert bodies(stream_url, stream) == [b"c"]


def test_the_highest_publishing_id_is_one_that_the_broker_remembers(stream_url, stream):
    highest = 2**64 - 1
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        for again in (0, 2):
            assert publisher.publish_many([b"a", b"b"], ids=[highest - 1, highest]).duplicates == again
            assert publisher.sequence() == highest
        with pytest.raises(InvalidValue, match=f"publishing id: got {highest + 1}"):
            publisher.publish(b"c")
        assert publisher.totals.duplicates == 2
    assert bodies(stream_url, stream) == [b"a", b"b"]


def test_a_forked_child_refuses_what_its_parent_has_opened_and_opens_its_own(stream_url, stream):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        for call in (
            reader.bounds,
            lambda: next(messages),
            lambda: publisher.publish(b"lost"),
            publisher.sequence,
        ):
            with pytest.raises(
                InvalidValue, match=r"belongs to the parent process\. Call open\(\) after the fork"
            ):
                call()
        with pytest.raises(InvalidValue, match="the StreamConnection belongs to the parent process"):
            connection.metadata([stream])
        for each in (reader, publisher, connection, messages, others):
            each.close()
        with publisher, reader:
            publisher.publish(b"child")
            answers.put(list(bodies(stream_url, stream)))

    with (
        StreamPublisher(stream_url, stream) as publisher,
        StreamReader(stream_url, stream, credit=2) as reader,
        connect(stream_url) as connection,
    ):
        publisher.publish(b"one")
        publisher.publish(b"two")
        messages, others = reader.messages(0, 1), reader.messages(0, 2)
        process = context.Process(target=child)
        next(others)
        process.start()
        assert answers.get() == [b"one", b"two", b"child"]
        process.join(PATIENCE)
        assert process.exitcode == 0
        assert next(others).offset == 1
        publisher.publish(b"after")
        assert connection.metadata([stream])[stream].exists
    assert bodies(stream_url, stream) == [b"one", b"two", b"child", b"after"]


def test_the_totals_count_what_the_broker_drops_as_a_duplicate(stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish_many([b"a", b"b"], ids=[1, 2])
        publisher.publish_many([b"c", b"d"], ids=[2, 3])
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (4, 1)
        with publisher.bulk() as bulk:
            bulk.add(b"e", publishing_id=7)
            bulk.add_many([b"f", b"g", b"h"], ids=[6, 7, 8])
        assert bulk.totals.duplicates == 2
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (8, 3)
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish_many([b"i", b"j"], ids=[8, 9])
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (2, 1)
    with StreamPublisher(stream_url, stream) as publisher:
        for _ in range(2):
            publisher.publish_many([b"k"], ids=[1])
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (2, 0)
    with StreamReader(stream_url, stream) as reader:
        found = reader.bounds()
        assert len(list(reader.messages(found.first, found.end))) == 8


def test_threads_share_a_publisher(stream_url, stream):
    """Each thread sends in order, in each way that there is; each message is stored once."""

    def send(thread: int) -> None:
        for number in range(0, 900, 3):
            first = b"%d-%03d" % (thread, number)
            publisher.submit(first)
            publisher.publish_many([b"%d-%03d" % (thread, number + 1)])
            bulk.add(b"%d-%03d" % (thread, number + 2))

    with (
        StreamPublisher(stream_url, stream, name="job") as publisher,
        publisher.bulk() as bulk,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(send, range(8)))
    found = bodies(stream_url, stream)
    for thread in range(8):
        assert [body for body in found if body.startswith(b"%d-" % thread)] == [
            b"%d-%03d" % (thread, number) for number in range(900)
        ]
    assert publisher.totals.confirmed == len(found) == 7_200
    assert publisher.totals.duplicates == 0


async def test_tasks_share_a_publisher(stream_url, stream):
    async with AsyncStreamPublisher(stream_url, stream, name="job") as publisher:
        await asyncio.gather(*(publisher.publish(b"%d" % number) for number in range(1_000)))
        totals = await publisher.publish_many([b"%d" % number for number in range(1_000, 3_000)])
        assert (totals.confirmed, publisher.totals.confirmed) == (2_000, 3_000)
    assert bodies(stream_url, stream) == [b"%d" % number for number in range(3_000)]
