"""Messages that a group of streams cannot handle: failing handlers, and undecodable messages.

Any publisher can store an undecodable message in a stream, and none may end a group that parks.
"""

from __future__ import annotations

import pytest

from rabbit_chx.base.text import counted
from rabbit_chx.errors import InvalidMessage
from rabbit_chx.streams import BatchFailed, Reject, RetryAfter, StreamGroup
from tests.broker.stream_scene import fill, settle
from tests.members import running
from tests.patience import wait_until
from tests.stream_forgeries import publish_entry
from tests.users import a_user

pytestmark = [pytest.mark.newest_first, pytest.mark.broker, pytest.mark.since_4_0]

CUT = b"\0\x53\x75\xa0\x05ab"
"""A body that is shorter than it says."""


def test_a_message_is_tried_again_and_its_stream_waits(stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(1, 11))
    seen = []

    def handle(message):
        seen.append((message.offset, message.attempt))
        if message.offset == 3 and message.attempt == 1:
            raise RetryAfter(0.1)
        if message.offset == 3 and message.attempt == 2:
            raise OSError("again")

    group = StreamGroup(stream_url, stream=stream, name="g", backoff=0.1)
    with running(group, handle):
        wait_until(lambda: len(seen) == 12)
        assert group.status.failed == 2
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), *((number, 1) for number in range(4, 10))]


@pytest.mark.parametrize(("error", "attempts"), [(Reject("no"), 1), (OSError("no"), 2)])
def test_the_last_failure_stops_the_member_before_the_message(
    stream_url, stream_connection, stream, error, attempts
):
    fill(stream_connection, stream, range(1, 11))
    seen = []

    def handle(message):
        seen.append(message.offset)
        if message.offset == 5:
            raise error

    group = StreamGroup(stream_url, stream=stream, name="g", attempts=2, backoff=0.01)
    with pytest.raises(type(error), match="no") as caught:
        group.run(handle)
    assert f"failed {counted(attempts, 'time')} with" in caught.value.__notes__[-1]
    assert seen == [0, 1, 2, 3, 4, *[5] * attempts]
    assert stream_connection.query_offset("g", stream) == 4


def test_a_failed_message_is_parked_and_the_stream_goes_on(
    broker, stream_url, stream_connection, stream, inbox
):
    fill(stream_connection, stream, range(1, 11))
    seen = []

    def handle(message):
        seen.append(message.offset)
        if message.offset in {3, 7}:
            raise Reject("no")

    with a_user(broker, "^$", rf"^(amq\.default|{inbox.queue})$", "^$") as user:
        parking = {"on_failure": "park", "parking_queue": inbox.queue, "amqp_url": user.url}
        with running(StreamGroup(stream_url, stream=stream, name="g", **parking), handle):
            wait_until(lambda: seen[-1:] == [9])
            first, _ = inbox.take(2)
    assert seen == list(range(10))
    assert first.body == b"0000000004"
    assert first.properties.headers["x-rabbit-chx-parked-offset"] == 3
    assert first.properties.headers["x-rabbit-chx-parked-queue"] == stream
    assert stream_connection.query_offset("g", stream) == 9


def test_a_batch_continues_at_the_message_that_failed(broker, stream_url, stream_connection, stream, inbox):
    fill(stream_connection, stream, range(1, 101))
    seen = []

    def handle(batch):
        for message in batch.messages():
            if message.offset == 42:
                raise BatchFailed(42)
            seen.append(message.offset)

    parking = {"on_failure": "park", "parking_queue": inbox.queue, "amqp_url": broker.url}
    group = StreamGroup(stream_url, stream=stream, name="g", attempts=3, backoff=0.01, **parking)
    with running(group, handle, "run_batches"):
        wait_until(lambda: seen[-1:] == [99])
        assert group.status.failed == 3
    assert len(inbox) == 1
    assert seen == [number for number in range(100) if number != 42]


@pytest.mark.parametrize("run", ["run", "run_batches"])
def test_by_default_a_group_stops_at_what_cannot_be_decoded(run, stream_url, stream_connection, stream):
    fill(stream_connection, stream, range(3))
    publish_entry(stream_connection, stream_connection._declare_publisher(stream, None), 1, CUT)
    assert settle(stream_connection, 1) == {}

    def handle(given):
        if run == "run_batches":
            list(given.messages())

    group = StreamGroup(stream_url, stream=stream, name="g", attempts=5)
    with pytest.raises(InvalidMessage, match=r"not valid AMQP 1\.0") as caught:
        getattr(group, run)(handle)
    assert caught.value.offset == 3
    assert stream_connection.query_offset("g", stream) == 2
