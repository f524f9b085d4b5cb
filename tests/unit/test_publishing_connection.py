"""What the publisher uses of pika beyond its documentation, checked against the installed pika.

There is no broker: the tests feed a connection with bytes and look at what it would send.
"""

from __future__ import annotations

from contextlib import closing, contextmanager

import pika
import pytest
from hypothesis import given, settings, strategies as st
from pika import frame, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils import io_services_utils

from rabbit_chx.broker import receiving
from rabbit_chx.broker.receiving import PRIVATE_NAMES
from rabbit_chx.publishing.connection import PublisherConnection, encode
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from tests.amqp_server import confirm


class Recorder:
    """The events of a connection, as a list."""

    largest_body = 30

    def __init__(self):
        self.seen = []

    def __getattr__(self, name):
        return lambda *args: None

    def on_confirms(self, confirms):
        self.seen += [("confirm", each) for each in confirms]

    def on_return(self, method, properties, body):
        self.seen.append(("return", (method.routing_key, properties, bytes(body))))


class Transport:
    """Where pika writes to."""

    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data

    def get_write_buffer_size(self):
        return len(self.written)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def connection(recorder):
    with new_connection(recorder) as connection:
        yield connection


@contextmanager
def new_connection(recorder):
    """A connection that has never connected, with an open channel in confirm mode."""
    connection = PublisherConnection(pika.ConnectionParameters(), recorder)
    with closing(connection.ioloop):
        connection._transport = Transport()
        connection._set_connection_state(connection.CONNECTION_OPEN)
        connection.server_capabilities = {"publisher_confirms": True, "basic.nack": True}
        connection.channel(1, on_open_callback=connection._on_channel_open)
        for answer in (spec.Channel.OpenOk(), spec.Confirm.SelectOk()):
            connection._on_data_available(frame.Method(1, answer).marshal())
        assert connection.ready
        connection._transport.written = b""
        yield connection


def test_the_installed_pika_has_every_private_name(connection):
    assert connection.fast


@pytest.mark.parametrize(
    ("owner", "name"),
    [(BlockingChannel, "_add_pending_event"), (io_services_utils._AsyncTransportBase, "_MAX_RECV_BYTES")],
)
def test_the_installed_pika_has_what_deliveries_use_beside_the_connection(owner, name):
    assert hasattr(owner, name)


def test_a_method_that_pika_lacks_is_noticed_although_this_package_overrides_it(recorder, monkeypatch):
    monkeypatch.setattr(receiving, "dir", lambda _: set(PRIVATE_NAMES) - {"_read_frame"}, raising=False)
    with new_connection(recorder) as connection:
        assert not connection.fast


def returned(key, properties, body):
    """A message that a server returns: after its method, the same frames as when it was published."""
    published = encode([OutgoingMessage(0, b"x", b"k", properties, body)], frame_max=131_072)
    size, _ = frame.decode_frame(published)
    return frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "x", key)).marshal() + published[size:]


PROPERTIES = [
    encode_properties(given, frame_max=131_072)
    for given in ({}, {"headers": {"a": 1.5, "b": -1e300}}, {"type": "t", "headers": {"a": [True, None]}})
]
numbers = st.tuples(st.integers(1, 2**64 - 1), st.booleans(), st.booleans())
events = st.lists(
    st.one_of(
        numbers.map(lambda one: ("confirm", one)),
        st.tuples(st.text("ab", max_size=3), st.sampled_from(PROPERTIES), st.binary(max_size=30)).map(
            lambda one: ("return", one)
        ),
        st.just(("heartbeat", ())),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(events, st.data())
def test_confirms_and_returns_are_read_as_sent_wherever_the_stream_is_cut(sent, data):
    recorder = Recorder()
    make = {
        "confirm": lambda number, multiple, ack: confirm(number, multiple=multiple, ack=ack),
        "return": returned,
        "heartbeat": lambda: frame.Heartbeat().marshal(),
    }
    stream = b"".join(make[kind](*values) for kind, values in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    with new_connection(recorder) as connection:
        before = connection.bytes_received
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if start < end:
                connection._on_data_available(stream[start:end])
        assert connection.bytes_received - before == len(stream)
        assert not connection._frame_buffer
    assert recorder.seen == [event for event in sent if event[0] != "heartbeat"]


def test_confirms_alone_are_not_decoded_by_pika(connection, recorder, monkeypatch):
    monkeypatch.setattr(connection, "_process_frame", lambda _: pytest.fail("pika decoded a confirm"))
    stream = b"".join(confirm(number, ack=number % 3 > 0) for number in range(1, 1_001))
    for start in range(0, len(stream), 4_096):  # as pika reads: the last frame is cut each time
        connection._on_data_available(stream[start : start + 4_096])
    assert [number for _, (number, *_) in recorder.seen] == list(range(1, 1_001))


def test_the_heartbeat_checker_sees_what_was_read_and_sent(connection):
    received, sent = connection.bytes_received, connection.bytes_sent
    connection._on_data_available(confirm(1))
    connection._emit(b"abc" * 100_000, frames=3)
    assert connection.bytes_received == received + 21
    assert connection.bytes_sent == sent + 300_000
    assert connection._transport.written == b"abc" * 100_000
    assert connection.unsent_bytes == 300_000


def test_without_the_fast_path_pika_reads_and_sends(recorder, monkeypatch):
    monkeypatch.setattr(receiving, "PRIVATE_NAMES", (*PRIVATE_NAMES, "_missing"))
    with new_connection(recorder) as connection:
        assert not connection.fast
        connection._on_data_available(confirm(5, multiple=True) + confirm(6, ack=False))
    assert recorder.seen == [("confirm", (5, True, True)), ("confirm", (6, False, False))]
