"""No message that a stranger can store in a stream ends, hangs or steers a group that parks."""

from __future__ import annotations

import struct
from itertools import chain

import pytest
from hypothesis import strategies as st

from rabbit_chx.streams import BatchFailed, Reject, StreamGroup
from rabbit_chx.streams.messages.stored import Undecodable
from tests.broker.stream_scene import fill, settle
from tests.members import running
from tests.patience import wait_until
from tests.property.hostile import drawn
from tests.property.test_stream_parking_laws import stored
from tests.stream_forgeries import BATCHES, BODY, MESSAGES, a_map, a_sub_batch, compound, publish_entry, text

pytestmark = [pytest.mark.newest_first, pytest.mark.broker, pytest.mark.since_4_0]

MEGABYTE = 1_000_000
JUNK = (1, 1, 100, b"\xff" * MEGABYTE)
CHOSEN = [
    a_map(0x74, {b"nan": b"\x82\x7f\xf8" + bytes(6)}) + BODY,
    a_map(0x74, {b"time": b"\x83" + b"\xff" * 8, b"ulong": b"\x80" + b"\xff" * 8}) + BODY,
    a_map(0x72, {b"x-routing-key": text(b"k" * 200_000), b"x-exchange": text(b"e" * 200_000)}) + BODY,
    compound(0x73, b"\xd0", text(b"i" * 300), b"\x40", b"\x40", text(b"s" * 300), text(b"r" * 300)) + BODY,
    compound(0x73, b"\xd0", *[b"\x40"] * 9, b"\x83" + b"\xff" * 8) + BODY,
]
"""What the review tried."""


def forged() -> list:
    """Entries that a stranger publishes, in this order."""
    found = chain.from_iterable(drawn(st.lists(MESSAGES | BATCHES, min_size=1, max_size=2), 100))
    fitting = [each for each in found if isinstance(each, tuple) or len(each) <= MEGABYTE]
    return [*CHOSEN, *fitting, *[JUNK] * 25]


def published(connection, stream: str, entries: list) -> list:
    """Publish entries between 60 messages of others, and return those that the broker has stored."""
    fill(connection, stream, range(30))
    publisher = connection._declare_publisher(stream, None)
    for number, each in enumerate(entries):
        publish_entry(connection, publisher, number, each)
    refused = settle(connection, len(entries))
    fill(connection, stream, range(30, 60))
    found = [each for number, each in enumerate(entries) if number not in refused]
    assert len(found) > 30
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rejecting", [True, False], ids=["a handler that rejects", "a handler that does not"]
)
@pytest.mark.parametrize("run", [pytest.param("run", marks=pytest.mark.long), "run_batches"])
def test_no_stored_message_harms_a_group_that_parks(
    broker, stream_url, stream_connection, stream, inbox, rejecting, run, caplog
):
    messages = stored(published(stream_connection, stream, forged()))
    undecodable = sum(isinstance(each, Undecodable) for each in messages)
    handled = []

    def handle(message):
        assert repr((message.headers, message.properties))
        if message.body.isdigit() and len(message.body) == 10:
            handled.append(int(message.body))
        elif rejecting:
            raise Reject("no")

    def handle_batch(batch):
        for message in batch.messages():
            try:
                handle(message)
            except Reject as error:
                raise BatchFailed(message.offset) from error

    parking = {"on_failure": "park", "parking_queue": inbox.queue, "amqp_url": broker.url}
    group = StreamGroup(stream_url, stream=stream, name="g", attempts=1, **parking)
    with running(group, handle if run == "run" else handle_batch, run):
        wait_until(lambda: handled[-1:] == [59])
        wait_until(lambda: len(inbox) == (len(messages) if rejecting else undecodable))
        assert group.status.connected
    assert sorted(set(handled)) == list(range(60))
    if run == "run":
        assert handled == list(range(60))
    assert "trying again" not in caplog.text


EMPTY = a_sub_batch([b""] * 65_535)
LISTS = a_sub_batch([b"\0\x53\x77\xd0" + struct.pack(">II", 98_004, 98_000) + b"\x42" * 98_000] * 40)
ALTERNATING = a_sub_batch([b"x", b"\0\x53\x75"] * 1_000)


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.one_release
def test_compressed_batches_neither_disconnect_a_member_nor_delay_its_stop(
    broker, stream_url, stream_connection, stream, inbox, caplog
):
    """About 3 KB of a publisher. Nothing is measured in seconds: a stop takes effect before the next message."""
    batches = [EMPTY, LISTS, ALTERNATING, EMPTY]
    assert sum(len(data) for *_, data in batches) < 10_000
    publisher = stream_connection._declare_publisher(stream, None)
    for number, batch in enumerate(batches):
        publish_entry(stream_connection, publisher, number, batch)
    assert settle(stream_connection, len(batches)) == {}
    handled = 0

    def handle(_):
        nonlocal handled
        handled += 1

    parking = {"on_failure": "park", "parking_queue": inbox.queue, "amqp_url": broker.url}
    options = {"stream": stream, "name": "g", "heartbeat": 5, **parking}
    group = StreamGroup(stream_url, **options)
    with running(group, handle):
        wait_until(lambda: handled > 1_000)
        group.stop()
        before = handled
    assert before <= handled <= before + 1
    group = StreamGroup(stream_url, **options)
    with running(group, handle):
        wait_until(lambda: len(inbox) == 1_000 and group.status.lag == 0)
    assert handled == 2 * 65_535 + 40 + 1_000
    assert "trying again" not in caplog.text
