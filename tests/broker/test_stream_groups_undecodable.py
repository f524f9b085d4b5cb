"""Messages that cannot be decoded: whoever may publish to a stream can store them, and they must not end a group."""

from __future__ import annotations

import gzip
import uuid

import pytest

from rabbit_chx.errors import InvalidMessage
from rabbit_chx.streams import StreamGroup
from tests.broker.stream_scene import fill, settle
from tests.broker.test_stream_groups import running, wait_for
from tests.stream_chunks import sized
from tests.unit.test_streams_hostile_entries import a_list

pytestmark = [pytest.mark.broker, pytest.mark.since_4_0]

CUT = b"\0\x53\x75\xa0\x05ab"
NULLS = sized(a_list(b"\x40" * 200_000, 200_000))
UNDECODABLE = {
    3: CUT,  # a body that is shorter than it says
    7: (1, 1, len(NULLS), gzip.compress(NULLS)),  # more items than a message may have
    11: (1, 1, 64 << 20, gzip.compress(NULLS)),  # a batch of more bytes than one may have
}
GOOD = [offset for offset in range(15) if offset not in UNDECODABLE]


@pytest.fixture
def hostile(stream_connection, stream):
    """A stream of 15 messages, of which three cannot be decoded."""
    for offset in range(15):
        if offset in UNDECODABLE:
            publisher = stream_connection.declare_publisher(stream, None)
            stream_connection.publish(publisher, [(1, UNDECODABLE[offset])])
            assert settle(stream_connection, 1) == {}, offset
            stream_connection.delete_publisher(publisher)
        else:
            fill(stream_connection, stream, [offset])
    return stream


@pytest.mark.parametrize("run", ["run", "run_batches"])
def test_what_cannot_be_decoded_is_parked_as_it_is_stored(
    run, broker, stream_url, stream_connection, hostile
):
    queue = f"parked-{uuid.uuid4().hex[:8]}"
    seen = []

    def handle(given):
        seen.extend([given.offset] if run == "run" else [each.offset for each in given.messages()])

    with broker.connection() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        parking = {"on_failure": "park", "parking_queue": queue, "amqp_url": broker.url}
        with running(StreamGroup(stream_url, stream=hostile, name="g", **parking), handle, run):
            wait_for(lambda: seen[-1:] == [14])
        parked = [channel.basic_get(queue, auto_ack=True) for _ in range(4)]
        channel.queue_delete(queue)
    assert seen == GOOD
    assert [
        properties and properties.headers["x-rabbit-chx-parked-offset"] for _, properties, _ in parked
    ] == [*UNDECODABLE, None]
    assert parked[0][2] == CUT
    assert "StreamReader" not in str([properties for _, properties, _ in parked])
    assert stream_connection.query_offset("g", hostile) == 14


@pytest.mark.parametrize("run", ["run", "run_batches"])
def test_by_default_a_group_stops_at_what_cannot_be_decoded(run, stream_url, stream_connection, hostile):
    def handle(given):
        if run == "run_batches":
            list(given.messages())

    group = StreamGroup(stream_url, stream=hostile, name="g", attempts=5)
    with pytest.raises(InvalidMessage, match=r"not valid AMQP 1\.0") as caught:
        getattr(group, run)(handle)
    assert caught.value.offset == 3
    assert stream_connection.query_offset("g", hostile) == 2
