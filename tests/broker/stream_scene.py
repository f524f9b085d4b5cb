"""Create, fill and delete streams for tests."""

from __future__ import annotations

import struct
import uuid
from contextlib import contextmanager

import pytest

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.streams.protocol.answers import Confirms, Refusals
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.patience import PATIENCE


def message(number: int, size: int = 10) -> bytes:
    """Encode an AMQP 1.0 message whose body begins with a number."""
    body = b"%010d" % number + bytes(max(size - 10, 0))
    return b"\0Su\xb0" + struct.pack(">I", len(body)) + body


def a_name() -> str:
    return f"s ü {uuid.uuid4().hex[:8]}"


@contextmanager
def a_stream(connection, **arguments):
    name = a_name()
    connection.create(name, {key.replace("_", "-"): value for key, value in arguments.items()})
    yield name
    delete_stream(connection, name)


@contextmanager
def streams_at(url, *names: str, arguments=None):
    """Streams until the block ends, without a connection meanwhile: tests may close theirs, and the broker closes idle ones."""
    with connect(url) as connection:
        for name in names:
            connection.create(name, arguments)
    yield names
    with connect(url) as connection:
        for name in names:
            delete_stream(connection, name)


def delete_stream(connection, name: str) -> None:
    if connection.metadata([name])[name].exists:
        connection.delete(name)


def delete_completely(connection, name: str) -> None:
    """Delete a stream, and wait until it is gone: a stream that is deleted stores and sends messages for a while."""
    # The broker tells all consumers and publishers at the same time.
    connection._subscribe(name, OffsetSpec.next(), credit=0)
    connection.delete(name)
    with refused("not available"):
        list(connection._chunks(PATIENCE))


def settle(connection, count: int) -> dict[int, int]:
    """Wait until ``count`` messages are confirmed or refused, and return the codes of refused messages."""
    refused, confirmed = {}, set()
    for outcome in connection._confirms(PATIENCE):
        match outcome:
            case Confirms():
                confirmed.update(outcome.publishing_ids)
            case Refusals():
                refused.update(outcome.codes)
        if len(confirmed) + len(refused) >= count:
            return refused
    raise AssertionError(f"{len(confirmed)} of {count} messages confirmed")


def fill(connection, stream: str, numbers, *, name=None, size=10) -> None:
    publisher = connection._declare_publisher(stream, name)
    connection._publish(publisher, numbers, [message(number, size) for number in numbers])
    assert settle(connection, len(numbers)) == {}
    connection._delete_publisher(publisher)


def stored(url, stream: str, **options) -> list:
    """All messages of a stream, in order."""
    with StreamReader(url, stream, **options) as reader:
        found = reader.bounds()
        return list(reader.messages(found.first, found.end))


def bodies(url, stream: str) -> list[bytes]:
    return [message.body for message in stored(url, stream)]


@contextmanager
def refused(problem: str, words: str | None = None):
    """Expect an error with this problem."""
    with pytest.raises(StreamUnavailable, match=words) as caught:
        yield caught
    assert caught.value.problem == problem, str(caught.value)
    assert "geheim" not in str(caught.value)
