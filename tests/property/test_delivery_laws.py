"""Deliveries that are read in one pass are those that pika decodes, in the same order, wherever the data is cut."""

from __future__ import annotations

from contextlib import closing

import pika
from hypothesis import given, settings, strategies as st
from pika import frame, spec
from pika.adapters.select_connection import SelectConnection

from rabbit_chx.broker.deliveries import RawDelivery, consumer, read_deliveries
from rabbit_chx.broker.properties import Properties
from rabbit_chx.broker.receiving import ReceivingConnection

CHANNELS = (1, 2)
FRAME = 40
"""Bytes of a body in one frame, here."""

names = st.one_of(st.text("aé", max_size=4).map(str.encode), st.just(b"\xff\x00"))
headers = st.dictionaries(
    st.text("ab", min_size=1, max_size=2), st.one_of(st.integers(-5, 5), st.text(max_size=3))
)
deliveries = st.tuples(
    st.just("delivery"),
    st.sampled_from(CHANNELS),
    st.sampled_from(["first", "second", "unknown to us"]),
    st.booleans(),
    names,
    names,
    st.one_of(
        st.just({}), st.fixed_dictionaries({"headers": headers, "message_id": st.text("x", max_size=2)})
    ),
    st.one_of(st.binary(max_size=5), st.integers(0, 4 * FRAME).map(lambda size: b"\xce" * size)),
)
others = st.sampled_from([("heartbeat",), ("cancel", 1, "first"), ("flow", 1), ("return", 2)])


def payload(channel, properties, body):
    """A content header and the frames of a body."""
    header = frame.Header(channel, len(body), pika.BasicProperties(**properties))
    bodies = [frame.Body(channel, body[start : start + FRAME]) for start in range(0, len(body), FRAME)]
    return b"".join(each.marshal() for each in (header, *bodies))


def marshal(number, sent):
    match sent:
        case ("delivery", channel, tag, redelivered, exchange, key, properties, body):
            method = spec.Basic.Deliver(tag, number, redelivered, exchange, key)
            return frame.Method(channel, method).marshal() + payload(channel, properties, body)
        case ("heartbeat",):
            return frame.Heartbeat().marshal()
        case ("cancel", channel, tag):
            return frame.Method(channel, spec.Basic.Cancel(tag, nowait=True)).marshal()
        case ("flow", channel):
            return frame.Method(channel, spec.Channel.Flow(True)).marshal()
        case ("return", channel):
            method = spec.Basic.Return(312, "NO_ROUTE", "x", "key")
            return frame.Method(channel, method).marshal() + payload(channel, {}, b"returned")


class Transport:
    """Where pika writes to."""

    def write(self, data):
        """Forget it."""


def received(kind, chunks):
    """What the consumers of a connection that has never connected see of these chunks."""
    seen = []
    connection = kind(pika.ConnectionParameters())
    with closing(connection.ioloop):
        connection._transport = Transport()
        connection._set_connection_state(connection.CONNECTION_OPEN)
        connection.server_capabilities = {"consumer_cancel_notify": True}
        for number in CHANNELS:
            channel = connection.channel(number)
            connection._on_data_available(frame.Method(number, spec.Channel.OpenOk()).marshal())
            channel.add_on_cancel_callback(
                lambda method: seen.append(("cancelled", method.method.consumer_tag))
            )
            channel.add_on_return_callback(lambda *args: seen.append(("returned", args[-1])))
            for tag in ("first", "second"):
                consume(connection, channel, tag, seen)
        for chunk in chunks:
            connection._on_data_available(chunk)
        assert getattr(connection, "_fast", True)
        seen.append((connection._frame_buffer, connection.bytes_received, connection.frames_received))
    return seen


def consume(connection, channel, tag, seen):
    number = channel.channel_number

    def note(method, properties, body):
        seen.append(
            (
                number,
                tag,
                method.delivery_tag,
                method.redelivered,
                method.exchange,
                method.routing_key,
                properties,
                body,
            )
        )

    channel.basic_consume(
        "q", lambda _, method, properties, body: note(method, vars(properties), body), consumer_tag=tag
    )
    connection._on_data_available(frame.Method(number, spec.Basic.ConsumeOk(tag)).marshal())

    def note_run(run):
        for each in run:
            method = spec.Basic.Deliver(tag, each.tag, each.redelivered, each.exchange, each.routing_key)
            note(method, vars(Properties().decode(each.properties)), each.body)

    if isinstance(connection, ReceivingConnection):
        connection.receive(channel, tag, note_run)


def without_raw(seen):
    return [
        tuple(
            {key: value for key, value in each.items() if key != "encoded"}
            if isinstance(each, dict)
            else each
            for each in event
        )
        for event in seen
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(deliveries, deliveries, deliveries, others), max_size=12), st.data())
def test_every_delivery_is_what_pika_decodes_wherever_the_data_is_cut(sent, data):
    stream = b"".join(marshal(number, each) for number, each in enumerate(sent, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    assert without_raw(received(ReceivingConnection, chunks)) == without_raw(
        received(SelectConnection, chunks)
    )


@settings(max_examples=150)
@given(st.lists(deliveries, min_size=1, max_size=4), st.data())
def test_deliveries_before_damaged_data_are_read(sent, data):
    """One byte is changed, that of a length for example. Reading it raises no error."""
    pieces = [marshal(number, each) for number, each in enumerate(sent, 1)]
    stream = bytearray(b"".join(pieces))
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    known = {consumer(channel, tag) for channel in CHANNELS for tag in ("first", "second")}
    runs, size, _ = read_deliveries(bytes(stream), known)
    assert size <= len(stream)
    whole, start = [], 0
    for each, piece in zip(sent, pieces, strict=True):
        start += len(piece)
        if each[2] not in ("first", "second") or start > at:
            break
        whole.append(each[-1])
    assert [each.body for _, run in runs for each in run][: len(whole)] == whole


@given(st.lists(deliveries, min_size=1, max_size=3), st.data())
def test_a_delivery_is_read_when_its_last_byte_is_there(sent, data):
    known = {consumer(channel, tag) for channel in CHANNELS for tag in ("first", "second", "unknown to us")}
    pieces = [marshal(number, each) for number, each in enumerate(sent, 1)]
    runs, size, frames = read_deliveries(b"".join(pieces)[:-1], known)
    assert size == sum(map(len, pieces[:-1]))
    assert sum(len(run) for _, run in runs) == len(sent) - 1
    assert all(isinstance(each, RawDelivery) for _, run in runs for each in run)
    assert frames == sum(2 + -(-len(each[-1]) // FRAME) for each in sent[:-1])
