"""`StreamPublisher`: confirms, deduplication by name, and messages that other clients can read."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.streams import StreamPublisher, StreamReader
from tests.broker.stream_scene import refused, stored
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


def bodies(url, stream):
    return [message.value for message in stored(url, stream)]


def test_the_lines_of_the_guide_publish_and_read(broker, stream_connection, capsys):
    block = marked("streams.md", "test_the_lines_of_the_guide_publish_and_read")
    exec(block.replace("rabbitmq-stream://user:password@host", broker.stream_url), {})
    assert capsys.readouterr().out == "0 b'one'\n1 b'two'\n2 b'three'\n"
    stream_connection.delete("events")


def test_pika_reads_the_published_messages(broker, stream_url, stream):
    sent = [b"", b"one", b"\xff" * 255, b"x" * 256, b"y" * 300_000]
    with StreamPublisher(stream_url, stream) as publisher:
        assert publisher.send(sent) == len(sent)
    with broker.connection() as amqp:
        channel = amqp.channel()
        channel.basic_qos(prefetch_count=10)
        arguments = {"x-stream-offset": "first"}
        received = []
        for method, _, body in channel.consume(stream, arguments=arguments, inactivity_timeout=60):
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
        found = [(message.routing_key, message.content_type) for _, message in reader.messages(0, 2)]
    assert found == [("customer-1", "application/json"), ("customer-2", "application/json")]
    stream_connection.delete("events")


def test_the_totals_count_each_message_by_its_outcome(stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.publish([(5, b"a"), (9, b"bc")])
        publisher.flush()
        with pytest.raises(InvalidValue, match="publishing ids"):
            publisher.publish([(10, b"d"), (10, b"e")])
        largest = publisher.max_message_bytes
        with refused("frame too large"):
            publisher.publish([(11, b"f"), (12, bytes(largest + 1))])
        totals = publisher.totals
    assert (totals.published, totals.confirmed, totals.unknown, totals.pending) == (4, 2, 2, 0)
    assert (totals.bytes, totals.connections, totals.failed) == (3 + 1 + largest + 1, 1, 2)


def test_a_named_publisher_stores_each_id_once_across_connections(stream_url, stream):
    sent = [b"%d" % number for number in range(1, 5_001)]
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 0
        assert publisher.send(sent[:3_000], first_id=1) == 3_000
    with StreamPublisher(stream_url, stream, name="job/0") as publisher:
        assert publisher.sequence() == 3_000
        assert publisher.send(sent[2_000:4_000], first_id=2_001) == 4_000
        assert publisher.send(sent[4_000:]) == 5_000
    assert bodies(stream_url, stream) == sent


def test_a_named_publisher_continues_after_the_last_id(stream_url, stream):
    for body in (b"a", b"b"):
        with StreamPublisher(stream_url, stream, name="job") as publisher:
            publisher.send([body])
    assert bodies(stream_url, stream) == [b"a", b"b"]


def test_ids_of_a_failed_send_are_not_reused(stream_url, stream):
    with StreamPublisher(stream_url, stream, name="job") as publisher:
        with refused("frame too large"):
            publisher.send([b"x" * 600_000, b"y" * 600_000, bytes(1 << 20)])
        assert publisher.send([b"z"]) == 4
    assert bodies(stream_url, stream) in ([b"x" * 600_000, b"z"], [b"x" * 600_000, b"y" * 600_000, b"z"])


def test_a_named_publisher_stores_each_message_once_when_connections_are_lost(broker, stream_url, stream):
    def generated():
        for number in range(60_000):
            if number in (25_000, 45_000):
                broker.ctl("close_all_connections", "closed by the operator")
            yield b"%d" % number

    with StreamPublisher(stream_url, stream, name="job") as publisher:
        publisher.send(generated(), first_id=1)
        broker.ctl("close_all_connections", "closed by the operator")
        assert publisher.sequence() == 60_000
    assert bodies(stream_url, stream) == [b"%d" % number for number in range(60_000)]


def test_invalid_arguments_and_missing_streams_are_refused(stream_connection, stream_url, stream):
    with refused("no such stream"):
        StreamPublisher(stream_url, "nothing")
    with StreamPublisher(stream_url, stream) as publisher:
        with pytest.raises(InvalidValue, match="invalid message body: got 'text', expected bytes"):
            publisher.send(["text"])
        with pytest.raises(InvalidValue, match="invalid first publishing id: got 0"):
            publisher.send([b""], first_id=0)
        with refused("frame too large"):
            publisher.send([bytes(1 << 20)])
        stream_connection.delete(stream)
        with refused("no such stream"):
            publisher.send([b"a"])
