"""Whatever a stranger has stored in a stream, a group that parks can park it."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rabbit_chx.broker.commands import Refused
from rabbit_chx.messages.message import StreamMessage
from rabbit_chx.streams import BatchFailed, Reject
from rabbit_chx.streams.group import parking
from rabbit_chx.streams.messages.chunks import parse_chunk
from rabbit_chx.streams.messages.stored import stored_in
from rabbit_chx.working.parking import LEFT_OUT, OFFSET
from tests.proof import LONG
from tests.stream_chunks import a_batch, a_chunk, sized
from tests.stream_forgeries import BATCHES, MESSAGES
from tests.unit.test_stream_parking import Encoding

LARGEST = 200


class Broker(Encoding):
    """Takes what RabbitMQ takes: no infinity or NaN, and no body above its limit."""

    def basic_publish(self, *, body, properties, **more):
        if any(map(_is_no_number, _values(properties.headers))):
            raise Refused(541, "INTERNAL_ERROR")
        if len(body) > LARGEST:
            size = f"message size {len(body)} is larger than configured max size {LARGEST}"
            raise Refused(406, f"PRECONDITION_FAILED - {size}")
        super().basic_publish(body=body, properties=properties, **more)


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _values(value: Any):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)
    else:
        yield value


def stored(entries: list[Any]) -> list[StreamMessage]:
    """The messages of a chunk of these entries, and what is undecodable."""
    pieces = [
        a_batch(each[0], each[1], each[3], each[2]) if isinstance(each, tuple) else sized(each)
        for each in entries
    ]
    records = sum(each[1] if isinstance(each, tuple) else 1 for each in entries)
    return list(stored_in([parse_chunk(a_chunk(pieces, records=records), "s" * 255)]))


@settings(max_examples=1_000 if LONG else 200, deadline=None)
@given(
    st.lists(MESSAGES | BATCHES, max_size=4),
    st.sampled_from([Reject("no"), ValueError("\ud800" * 2_000), BatchFailed(1), Reject("\u20ac" * 2_000)]),
    st.sampled_from([4_096, 131_072]),
)
def test_whatever_is_stored_is_parked(entries: list[Any], why: Exception, frame_max: int) -> None:
    messages = stored(entries)
    bodies = [(each.body, each.offset) for each in messages]
    broker, told, done = Broker(frame_max=frame_max), [], threading.Event()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parking, "PikaDriver", lambda _: broker)
        lot = parking.Parking("g" * 255, "lot", lambda: nullcontext(SimpleNamespace()), threading.Event())
        lot.begin(messages, why, 1, lambda *given: (told.append(given), done.set()))
        assert done.wait(60)
    assert told == [(None, None)]
    assert [(body, properties.headers[OFFSET]) for body, properties in broker.sent] == [
        (body[:LARGEST], offset) for body, offset in bodies
    ]
    for body, properties in broker.sent:
        assert len(body) < LARGEST or LEFT_OUT in properties.headers
        assert "StreamReader" not in str(properties.headers)  # a hint for readers
