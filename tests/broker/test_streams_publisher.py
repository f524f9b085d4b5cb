"""`StreamPublisher`: confirms, deduplication by name, and messages that other clients can read."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.errors import PublishFailed
from rabbit_chx.streams import StreamPublisher, StreamReader, connect, encode_messages
from tests.broker.stream_scene import delete_completely, refused, stored
from tests.patience import PATIENCE
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


def bodies(url, stream):
    return [message.body for message in stored(url, stream)]


def test_the_lines_of_the_guide_publish_and_read(broker, stream_connection, capsys):
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_and_read")
    exec(block.replace("rabbitmq-stream://user:password@host", broker.stream_url), {})
    assert capsys.readouterr().out == "0 b'one'\n1 b'two'\n2 b'three'\n"
    stream_connection.delete("events")


def test_pika_reads_the_published_messages(broker, stream_url, stream):
    sent = [b"", b"one", b"\xff" * 255, b"x" * 256, b"y" * 300_000]
    with StreamPublisher(stream_url, stream) as publisher:
        assert publisher.publish_many(sent).confirmed == len(sent)
    with broker.connection() as amqp:
        channel = amqp.channel()
        channel.basic_qos(prefetch_count=10)
        arguments = {"x-stream-offset": "first"}
        received = []
        for method, _, body in channel.consume(stream, arguments=arguments, inactivity_timeout=PATIENCE):
            received.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(received) == len(sent):
                break
        channel.cancel()
    assert received == sent


def test_the_lines_of_the_guide_publish_properties(broker, stream_connection, capsys):
    stream_connection.create("events")
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_properties")
    exec(block, {"url": broker.stream_url})
    assert capsys.readouterr().out == "2 confirmed\n"
    with StreamReader(broker.stream_url, "events") as reader:
        found = [(message.routing_key, message.content_type) for message in reader.messages(0, 2)]
    assert found == [("customer-1", "application/json"), ("customer-2", "application/json")]
    stream_connection.delete("events")


def test_the_totals_count_each_message_by_its_outcome(stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.add_encoded([(5, b"a"), (9, b"bc")])
        publisher.flush()
        with pytest.raises(InvalidValue, match="publishing ids"):
            publisher.add_encoded([(10, b"d"), (10, b"e")])
        largest = publisher.max_message_bytes
        with refused("frame too large"):
            publisher.add_encoded([(11, b"f"), (12, bytes(largest + 1))])
        totals = publisher.totals
        publisher.publish(b"g")
        assert publisher.sequence() == 10
    assert (totals.published, totals.confirmed, totals.unknown, totals.pending) == (2, 2, 0, 0)
    assert (totals.bytes, totals.connections, totals.failed) == (3, 1, 0)
    assert publisher.totals.resent == 0


def test_a_named_publisher_stores_each_id_once_across_connections(stream_url, stream):
    sent = [b"%d" % number for number in range(1, 5_001)]
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 0
        assert publisher.publish_many(sent[:3_000], first_id=1).confirmed == 3_000
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 3_000
        assert publisher.publish_many(sent[2_000:4_000], first_id=2_001).duplicates == 1_000
        assert publisher.publish_many(sent[4_000:]).duplicates == 0
        assert publisher.sequence() == 5_000
    assert bodies(stream_url, stream) == sent


def test_a_named_publisher_continues_after_the_last_id(stream_url, stream):
    for body in (b"a", b"b"):
        with StreamPublisher(stream_url, stream, name="job") as publisher:
            publisher.publish_many([body])
    assert bodies(stream_url, stream) == [b"a", b"b"]


def test_ids_of_a_failed_send_are_not_reused(stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        with refused("frame too large"):
            publisher.publish_encoded(encode_messages([*map(bytes, range(1_000)), bytes(1 << 20)]))
        publisher.publish(b"z")
        assert publisher.sequence() == 1_001
    assert bodies(stream_url, stream) == [*map(bytes, range(1_000)), b"z"]


def test_a_message_for_a_stream_that_was_created_again_is_sent_once(stream_connection, stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish(b"a")
        delete_completely(stream_connection, stream)
        with pytest.raises(PublishFailed, match="has no stream") as caught:
            publisher.publish(b"b")
        assert caught.value.__cause__.problem == "no such stream"
        stream_connection.create(stream)
        publisher.publish(b"c")
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.unknown, totals.resent) == (3, 2, 1, 0)
    assert bodies(stream_url, stream) == [b"c"]


def test_the_highest_publishing_id_is_one_that_the_broker_remembers(stream_url, stream):
    highest = 2**64 - 1
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        for again in (0, 2):
            assert publisher.publish_many([b"a", b"b"], first_id=highest - 1).duplicates == again
            assert publisher.sequence() == highest
        with pytest.raises(InvalidValue, match=f"first publishing id: got {highest + 1}"):
            publisher.publish(b"c")
        assert publisher.totals.duplicates == 2
    assert bodies(stream_url, stream) == [b"a", b"b"]


def test_a_named_publisher_stores_each_message_once_when_connections_are_lost(broker, stream_url, stream):
    def generated():
        for number in range(60_000):
            if number in (25_000, 45_000):
                broker.ctl("close_all_connections", "closed by the operator")
            yield b"%d" % number

    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish_many(generated(), first_id=1)
        broker.ctl("close_all_connections", "closed by the operator")
        assert publisher.sequence() == 60_000
    assert bodies(stream_url, stream) == [b"%d" % number for number in range(60_000)]


def test_invalid_arguments_and_missing_streams_are_refused(stream_connection, stream_url, stream):
    with refused("no such stream"):
        StreamPublisher(stream_url, "nothing").open()
    with StreamPublisher(stream_url, stream) as publisher:
        with pytest.raises(InvalidValue, match="invalid body in row 0: got 'int', expected bytes or str"):
            publisher.publish_many([5])
        with pytest.raises(InvalidValue, match="invalid first publishing id: got 0"):
            publisher.publish_many([b""], first_id=0)
        with refused("frame too large"):
            publisher.publish_many([bytes(1 << 20)])
        delete_completely(stream_connection, stream)
        with pytest.raises(PublishFailed, match=r"1 of 1 messages were not confirmed.*has no stream"):
            publisher.publish_many([b"a"])


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
                InvalidValue, match=r"a call in a forked process.* Call open\(\) after the fork"
            ):
                call()
        with pytest.raises(InvalidValue, match="use of StreamConnection: got 'a call in a forked process'"):
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
        publisher.publish_many([b"a", b"b"], first_id=1)
        publisher.publish_many([b"c", b"d"], first_id=2)
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (4, 1)
        publisher.add_encoded([(7, b"e")])
        publisher.add_encoded([(6, b"f"), (7, b"g"), (8, b"h")])
        publisher.flush()
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (8, 3)
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish_many([b"i", b"j"], first_id=8)
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (2, 1)
    with StreamPublisher(stream_url, stream) as publisher:
        for _ in range(2):
            publisher.publish_many([b"k"], first_id=1)
        assert (publisher.totals.confirmed, publisher.totals.duplicates) == (2, 0)
    with StreamReader(stream_url, stream) as reader:
        found = reader.bounds()
        assert len(list(reader.messages(found.first, found.end))) == 8


def test_threads_that_share_a_publisher_get_errors_and_corrupt_nothing(stream_url, stream):
    with StreamPublisher(stream_url, stream) as publisher, ThreadPoolExecutor(4) as pool:
        others = [pool.submit(publisher.publish, b"other") for _ in range(40)]
        for number in range(200):
            publisher.publish(b"%d" % number)
        for other in others:
            with pytest.raises(InvalidValue, match="use of StreamPublisher: got 'a call in a second thread'"):
                other.result()
    assert bodies(stream_url, stream) == [b"%d" % number for number in range(200)]
