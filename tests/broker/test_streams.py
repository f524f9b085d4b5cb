"""The stream protocol on real brokers: connecting, streams, permissions, reading and writing."""

from __future__ import annotations

import select
import ssl
import struct
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.streams.protocol.requests import OffsetSpec, max_message
from tests.broker.privileges import release_of
from tests.broker.stream_scene import a_stream, fill, message, refused, settle, stored
from tests.patience import PATIENCE
from tests.queues import delete_exchange
from tests.tls import Authority, Listener
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


HEADER_SIZE = 48


@pytest.fixture
def url(stream_url):
    return stream_url


@pytest.fixture
def connection(stream_connection):
    return stream_connection


# ---- connecting


def test_a_connection_has_release_node_and_limits_and_can_be_closed_twice(broker, url, management):
    listeners = management._request("GET", ["overview"])["listeners"]
    with connect(url, connection_name="it's me") as connection:
        assert connection.release == broker.version
        assert connection.node.port in {one["port"] for one in listeners if one["protocol"] == "stream"}
        assert connection.frame_max == 1 << 20
        assert connection.is_open
        assert broker.password not in repr(connection)
        connection.close("enough")
        connection.close()
        assert not connection.is_open
        with refused("lost", "is closed"):
            connection.metadata(["a"])


@pytest.mark.parametrize(
    ("changed", "problem", "words"),
    [
        (
            {"port": 1},
            "unreachable",
            "Connection refused; the stream protocol needs `rabbitmq-plugins enable",
        ),
        ({"password": "geheim"}, "login", "rejected the user name or password"),
        ({"user": "unknown"}, "login", "rejected the user name or password"),
        ({"named_vhost": "none"}, "virtual host", "'none'.* no such virtual host, or .* no permission in it"),
        ({"tls": True}, "lost", "is this a port without TLS"),
    ],
)
def test_a_failed_connection_is_explained(url, changed, problem, words):
    with refused(problem, words):
        connect(replace(url, **changed), tls=ssl.create_default_context())


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("ca"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("client")
    return authority


def test_tls_carries_all_frames_and_failed_external_logins_are_explained(broker, url, authority):
    release = release_of(broker)
    listener_url = f"rabbitmq-stream://{url.host}:{url.port}"
    with Listener(authority.server(), listener_url) as listener:
        secure = replace(url, port=listener.port, tls=True, host="127.0.0.1")
        with connect(secure, tls=authority.context()) as connection, a_stream(connection) as stream:
            fill(connection, stream, range(1, 301), size=10_000)
            assert len(stored(secure, stream, tls=authority.context())) == 300
        with refused("tls", "failed: unable to get local issuer|failed: self-signed"):
            connect(secure)
        old = release < (3, 11)
        with refused(
            "unsupported" if old else "login", None if old else "EXTERNAL needs the plugin rabbitmq_auth"
        ):
            connect(replace(secure, external=True, user=None, password=None), tls=authority.context())
        with refused("lost", "is this the port of the stream protocol, and without TLS"):
            connect(replace(secure, tls=False))


def test_credentials_are_used_and_their_failure_is_explained(url):
    with connect(replace(url, password="geheim"), credentials=lambda: url.login) as connection:
        assert connection.is_open
    with refused("lost", "cannot read the credentials .* KeyError"):
        connect(url, credentials=lambda: {}["none"])


@pytest.mark.one_release
@pytest.mark.long
def test_heartbeats_keep_an_idle_reader_connected(url, stream):
    def stays_connected() -> bool:
        with connect(replace(url, parameters={"heartbeat": 2})) as connection:
            with suppress(StreamUnavailable):
                connection._subscribe(stream, OffsetSpec.next(), credit=1)
                # The broker closes connections that are silent for 4 to 6 seconds.
                assert list(connection._chunks(9)) == []
                return connection.metadata([stream])[stream].exists
            return False

    # A machine that halts for some seconds in between sends no heartbeats, but it does not each time.
    assert any(stays_connected() for _ in range(3))


# ---- streams


def test_metadata_distinguishes_streams_from_queues_and_missing_names(broker, connection, stream):
    with broker.connection() as amqp:
        amqp.channel().queue_declare("not-a-stream", durable=True)
    found = connection.metadata([stream, "nothing", "not-a-stream"])
    assert [(name, each.exists) for name, each in sorted(found.items())] == [
        ("not-a-stream", False),
        ("nothing", False),
        (stream, True),
    ]
    assert found[stream].leader == connection.node
    assert found[stream].nodes == (connection.node,)
    with pytest.raises(InvalidValue, match="expected a list of names"):
        connection.metadata(stream)


def test_commands_refuse_queues_and_existing_and_missing_streams(broker, connection, stream):
    with broker.connection() as amqp:
        amqp.channel().queue_declare("not-a-stream", durable=True)
    commands = [
        lambda name: connection._subscribe(name, OffsetSpec.first(), credit=1),
        connection._declare_publisher,
        lambda name: connection.query_publisher_sequence("p", name),
        lambda name: connection.query_offset("r", name),
    ]
    of_exchanges = [connection.partitions, lambda name: connection.route(name, "0")]
    for name in ("nothing", "not-a-stream"):
        for command in commands:
            with refused("no such stream", f"for stream '{name}'"):
                command(name)
        for command in of_exchanges:
            with refused(
                "no such stream", f"virtual host '/' has no super stream or other exchange '{name}'"
            ):
                command(name)
    with refused("no such stream"):
        connection.delete("nothing")
    with refused("already exists"):
        connection.create(stream)
    with refused("refused", "the broker rejected the arguments"):
        connection.create("not-a-stream")


def test_stats_have_the_offsets_that_the_release_reports(broker, connection, stream):
    if release_of(broker) < (3, 11):
        with refused("unsupported", "RabbitMQ 3.10.8 does not support StreamStats, which requires 3.11"):
            connection.stats(stream)
        return
    knows_offsets = release_of(broker) >= (4, 3)
    empty = connection.stats(stream)
    assert (empty.first_chunk_id, empty.committed_chunk_id, empty.committed_offset) == (None, None, None)
    fill(connection, stream, range(7))
    found = connection.stats(stream)
    assert (found.first_chunk_id, found.committed_offset) == (0, 6 if knows_offsets else None)
    assert found.committed_chunk_id is not None


def test_partitions_are_in_order_and_routes_have_the_key(broker, connection):
    name = f"super-{uuid.uuid4().hex[:8]}"
    partitions = {f"{name}-{number}": str(number) for number in range(12)}
    if release_of(broker) < (3, 13):
        with refused("unsupported", "does not support CreateSuperStream, which requires 3.13"):
            connection.create_super_stream(name, partitions)
        with broker.connection() as amqp:
            channel = amqp.channel()
            channel.exchange_declare(name, "direct", durable=True, arguments={"x-super-stream": True})
            for queue, key in reversed(partitions.items()):
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
                channel.queue_bind(queue, name, key, {"x-stream-partition-order": int(key)})
            assert connection.partitions(name) == list(partitions)
            assert connection.route(name, "7") == [f"{name}-7"]
            delete_exchange(channel, name, partitions)
        return
    connection.create_super_stream(name, partitions)
    assert connection.partitions(name) == list(partitions)
    assert connection.route(name, "7") == [f"{name}-7"]
    connection.delete_super_stream(name)
    with refused("no such stream"):
        connection.partitions(name)


# ---- permissions


READ, WRITE = "'^$' '^$' '^STREAM$'", "'^$' '^STREAM$' '^$'"
BOTH, CONFIGURE = "'^$' '^STREAM$' '^STREAM$'", "'^STREAM$' '^$' '^$'"


def test_a_missing_permission_is_named_with_the_command_that_grants_it(broker, url, stream):
    escaped = stream.replace(" ", r"\ ")
    with (
        a_user(broker, "^$", "^$", "^$") as user,
        connect(replace(url, user=user.name, password=user.password)) as connection,
    ):
        for command, missing, patterns, call, *given in [
            ("Subscribe", "read", READ, partial(connection._subscribe, credit=1), stream, OffsetSpec.first()),
            ("QueryOffset", "read", READ, connection.query_offset, "reader", stream),
            ("DeclarePublisher", "write", WRITE, connection._declare_publisher, stream),
            ("QueryPublisherSequence", "read", BOTH, connection.query_publisher_sequence, "job", stream),
            ("Create", "configure", CONFIGURE, connection.create, stream),
            ("Delete", "configure", CONFIGURE, connection.delete, stream),
        ]:
            with refused("permission", f"refused {command} for stream '{stream}': ") as caught:
                call(*given)
            text = str(caught.value)
            assert f"user '{user.name}' has no {missing} permission on stream '{stream}' in virtual" in text
            line = f"rabbitmqctl set_permissions -p / {user.name} {patterns.replace('STREAM', escaped)}"
            assert f"`{line}` grants all that" in text


# ---- reading and writing


def test_messages_are_read_in_order_from_chunks_larger_than_a_frame(url, connection, stream):
    """Messages that fill a frame when they are published do not fit into a frame with the header of their chunk."""
    size = max_message(connection.frame_max) - len(message(0, 0)) + len(b"%010d" % 0)
    messages = [message(number, size) for number in range(5)]
    assert {len(each) for each in messages} == {max_message(connection.frame_max)}
    fill(connection, stream, range(5), size=size)
    with StreamReader(url, stream) as reader:
        found = [chunk.data for chunk in reader._chunks(0, 5)]
    assert min(map(len, found)) + HEADER_SIZE > connection.frame_max
    assert b"".join(found) == b"".join(struct.pack(">I", len(each)) + each for each in messages)


def test_deleting_a_stream_ends_its_subscriptions_and_publishers(connection, url, stream):
    number = connection._subscribe(stream, OffsetSpec.first(), credit=9)
    publisher = connection._declare_publisher(stream)
    with connect(url) as other:
        other.delete(stream)
    with refused("not available", f"stream '{stream}' was deleted or moved"):
        list(connection._chunks(PATIENCE))
    connection._publish(publisher, [1], [b""])
    assert settle(connection, 1) == {1: 18}
    with a_stream(connection) as another:  # what is under way for the former one must not reach the next
        assert connection._subscribe(another, OffsetSpec.first(), credit=9) != number


def test_unsubscribing_after_the_stream_was_deleted_reports_the_deletion(connection, url, stream):
    number = connection._subscribe(stream, OffsetSpec.first(), credit=9)
    with connect(url) as other:
        other.delete(stream)
    unread, _, _ = select.select([connection._calls.wire._socket], [], [], PATIENCE)
    assert unread, "the broker did not report the deletion"
    with refused("not available", f"stream '{stream}' was deleted or moved"):
        connection._unsubscribe(number)


def test_a_connection_has_at_most_256_publishers(connection, stream):
    for _ in range(256):
        connection._declare_publisher(stream)
    with pytest.raises(
        InvalidValue, match="number of publishers: got 257, expected at most 256 on a connection"
    ):
        connection._declare_publisher(stream)
