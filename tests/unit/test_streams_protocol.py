"""Encode requests, parse frames, and refuse malformed ones.

The expected bytes of requests follow the protocol document. Answers were recorded from RabbitMQ 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rabbit_chx import InvalidValue
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams.protocol.answers import (
    OK,
    U32,
    Close,
    Command,
    Confirms,
    ConsumerUpdate,
    Delivery,
    MetadataUpdate,
    Node,
    Refusals,
    Response,
    Tune,
    commands,
    metadata,
    parse,
    reason,
    stats,
)
from rabbit_chx.streams.protocol.connection import StreamConnection
from rabbit_chx.streams.protocol.requests import (
    OffsetSpec,
    arguments,
    array,
    close_answer,
    command_versions,
    consumer_update_answer,
    name,
    one_way,
    partitions,
    publish_frames,
    request,
    string,
    string_map,
)

TEXT = st.text(max_size=30)


def without_size(data: bytes) -> memoryview:
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return memoryview(data)[4:]


# ---- requests


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (request(Command.DELETE, 7, name("s")), "0000000b 000e 0001 00000007 0001 73"),
        (one_way(Command.HEARTBEAT), "00000004 0017 0001"),
        (one_way(Command.TUNE, U32.pack(1024), U32.pack(60)), "0000000c 0014 0001 00000400 0000003c"),
        (close_answer(9), "0000000a 8016 0001 00000009 0001"),
        (string(None), "ffff"),
        (string("ü"), "0002 c3bc"),
        (string_map({"a": "b"}), "00000001 0001 61 0001 62"),
        (OffsetSpec.first().encoded(), "0001"),
        (OffsetSpec.last().encoded(), "0002"),
        (OffsetSpec.next().encoded(), "0003"),
        (OffsetSpec.offset(258).encoded(), "0004 0000000000000102"),
        (OffsetSpec.timestamp(-1).encoded(), "0005 ffffffffffffffff"),
    ],
)
def test_requests_are_encoded_as_the_protocol_document_says(built: bytes, expected: str) -> None:
    assert built == bytes.fromhex(expected)


def test_messages_share_a_frame() -> None:
    (built,) = publish_frames(3, [1, 2], [b"xyz", b"zz"], 1000)
    expected = "0002 0001 03 00000002 0000000000000001 00000003 78797a 0000000000000002 00000002 7a7a"
    assert without_size(built) == bytes.fromhex(expected)


@given(sizes=st.lists(st.integers(0, 60), max_size=40), frame_max=st.integers(81, 300))
def test_every_message_is_in_one_frame_in_order_within_the_agreed_size(
    sizes: list[int], frame_max: int
) -> None:
    sent = []
    for built in publish_frames(1, count(), (bytes([size]) * size for size in sizes), frame_max):
        body = bytes(without_size(built))
        assert len(body) <= frame_max
        (messages,), at = struct.unpack_from(">i", body, 5), 9
        assert messages
        for _ in range(messages):
            number, size = struct.unpack_from(">QI", body, at)
            sent.append((number, body[at + 12 : at + 12 + size]))
            at += 12 + size
        assert at == len(body)
    assert sent == [(number, bytes([size]) * size) for number, size in enumerate(sizes)]


def test_a_message_beyond_the_maximum_frame_size_is_refused() -> None:
    frames = publish_frames(1, [1, 2], [b"a", b"b" * 100], 100)
    with pytest.raises(StreamUnavailable, match=r"a message of 100 bytes .* maximum is 100 bytes") as caught:
        list(frames)
    assert (caught.value.problem, caught.value.permanent) == ("frame too large", True)


OF_NAMES = "invalid stream name: .* expected text of 1 to 255 bytes"
OF_TEXTS = "expected text of at most 32,767 bytes in UTF-8"
OF_ARGUMENTS = "expected text or an integer"
OF_STARTS = "invalid start of a subscription"
OF_DICTS = "expected a dict such as"
OF_BINDINGS = "expected a dict of stream names and binding keys"


def publish(ids: Any) -> None:
    list(publish_frames(1, ids, [b"a", b"b"], 1000))


def start(offset: Any) -> None:
    OffsetSpec.offset(offset).encoded()


@pytest.mark.parametrize(
    ("encode", "given", "text"),
    [
        *((name, given, OF_NAMES) for given in ("", "ü" * 128, "\ud800", 5, None, b"s")),
        *((string, given, OF_TEXTS) for given in ("x" * 32_768, "\ud800", 5)),
        (arguments, {"max-age": 7.5}, f"invalid argument max-age: got 7.5, {OF_ARGUMENTS}"),
        (arguments, {"max-age": True}, f"invalid argument max-age: got True, {OF_ARGUMENTS}"),
        (arguments, {"max-age": None}, f"invalid argument max-age: got None, {OF_ARGUMENTS}"),
        (arguments, {5: "7D"}, "invalid name of an argument: got 5, expected text"),
        (arguments, ["max-age"], rf"invalid arguments: got \['max-age'\], {OF_DICTS} {{'max-age': '7D'}}"),
        (partitions, ["s-0"], rf"invalid partitions: got \['s-0'\], {OF_BINDINGS}, such as"),
        (partitions, {"s-0": 0}, "invalid binding key of stream 's-0': got 0, expected text"),
        (partitions, {5: "0"}, "invalid stream name: got 5, expected text"),
        (publish, [-1, 2], r"invalid publishing ids: got \[-1, 2\], expected"),
        (publish, [1, 1 << 64], r"invalid publishing ids: got \[1, 18446744073709551616\], expected"),
        (publish, [1, "2"], r"invalid publishing ids: got \[1, '2'\], expected"),
        (publish, [1], r"invalid publishing ids: got \[1\], expected"),
        *((start, given, OF_STARTS) for given in (-1, 1 << 64, 1.5, "first")),
    ],
)
def test_invalid_values_are_refused(encode: Callable[[Any], Any], given: Any, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        encode(given)


def test_valid_values_are_encoded() -> None:
    assert len(string("x" * 32_767)) == 32_769
    valid = {"max-length-bytes": 1_000_000, "max-age": "7D"}
    assert arguments(valid) == string_map({"max-length-bytes": "1000000", "max-age": "7D"})
    assert arguments(None) == arguments({}) == string_map({})
    assert partitions({"s-0": "a", "s-1": "b"}) == (
        array([string("s-0"), string("s-1")]),
        array([string("a"), string("b")]),
    )


def test_a_connection_sends_no_invalid_number() -> None:
    connection = object.__new__(StreamConnection)
    connection._subscriptions, connection._last_subscription = {}, -1
    with pytest.raises(InvalidValue, match="invalid credit: got 65536, expected an integer from 0 to 65535"):
        connection._subscribe("s", OffsetSpec.first(), credit=65_536)
    for offset in (-2, 1 << 63, 0.5):
        with pytest.raises(InvalidValue, match=f"invalid offset: got {offset}"):
            connection.store_offset("g", "s", offset)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="invalid reference"):
        connection.store_offset("", "s", 2)


def test_the_question_of_a_single_active_consumer_is_read_and_answered() -> None:
    asked = bytes.fromhex("001a 0001 00000007 03 01")
    assert parse(memoryview(asked)) == ConsumerUpdate(7, 3, active=True)
    assert parse(memoryview(asked[:-1] + b"\0")) == ConsumerUpdate(7, 3, active=False)
    passive = "0000000c 801a 0001 00000007 0001 0000"
    assert consumer_update_answer(7, None) == bytes.fromhex(passive)
    active = "00000014 801a 0001 00000007 0001 0004 000000000000002a"
    assert consumer_update_answer(7, OffsetSpec.offset(42)) == bytes.fromhex(active)


# ---- frames of the broker


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("0017 0001", None),
        ("0014 0001 00100000 0000003c", Tune(1 << 20, 60)),
        ("0003 0001 02 00000002 0000000000000001 0000000000000002", Confirms(2, (1, 2))),
        ("0004 0001 02 00000001 0000000000000009 0012", Refusals(2, {9: 18})),
        ("0010 0001 0006 0001 73", MetadataUpdate(6, "s")),
        ("0016 0001 00000005 0001 0002 6f6b", Close(5, OK, "ok")),
        ("8009 0001 0004 07", None),
        ("0008 0001 05 5000", Delivery(5, memoryview(b"\x50\x00"))),
    ],
)
def test_frames_of_a_broker_are_parsed(sent: str, expected: object) -> None:
    assert parse(memoryview(bytes.fromhex(sent))) == expected


def answer(sent: str | bytes) -> Response:
    found = parse(memoryview(bytes.fromhex(sent) if isinstance(sent, str) else sent))
    assert isinstance(found, Response)
    return found


def test_answers_of_3_10_about_super_streams_lack_the_answer_bit() -> None:
    found = answer("0019 0001 00000005 0002 00000000")
    assert (found.command, found.correlation, found.code) == (Command.PARTITIONS, 5, 2)


def test_metadata_has_the_nodes_of_each_stream() -> None:
    sent = (
        "800f 0001 00000001"
        "00000002 0000 0001 61 000015b0 0001 0001 62 000015b1"
        "00000003 0001 73 0001 0000 00000001 0001"
        "0001 74 0002 ffff 00000000"
        "0001 75 0006 ffff 00000001 0000"
    )
    found = metadata(answer(sent).fields, ["u", "t"])
    a, b = Node("a", 5552), Node("b", 5553)
    assert (found["s"].leader, found["s"].replicas, found["s"].nodes) == (a, (b,), (b, a))
    assert (found["t"].exists, found["t"].nodes) == (False, ())
    assert (found["u"].exists, found["u"].leader, found["u"].nodes) == (True, None, (a,))


def test_unknown_stats_are_none() -> None:
    def sent(**values: int) -> bytes:
        pairs = b"".join(string(key) + struct.pack(">q", value) for key, value in values.items())
        return bytes.fromhex("801c 0001 00000001 0001") + struct.pack(">i", len(values)) + pairs

    found = stats(answer(sent(first_chunk_id=0, committed_chunk_id=7, something_new=1)).fields)
    assert (found.first_chunk_id, found.committed_chunk_id, found.committed_offset) == (0, 7, None)
    assert (found.last_chunk_id, found._is_behind) == (None, False)
    empty = stats(answer(sent(first_chunk_id=-1, committed_chunk_id=-1, committed_offset=-1)).fields)
    assert (empty.first_chunk_id, empty.committed_chunk_id, empty.committed_offset) == (None, None, None)
    for last, is_behind in ((-1, True), (6, True), (7, False), (9, False)):
        found = stats(answer(sent(first_chunk_id=0, committed_chunk_id=7, last_chunk_id=last)).fields)
        assert (found.last_chunk_id, found._is_behind) == (last, is_behind)


def test_commands_of_other_versions_are_unsupported() -> None:
    sent = "801b 0001 00000001 0001 00000003 001c 0001 0001 001d 0002 0003 ffff 0001 0001"
    assert commands(answer(sent).fields) == {0x1C, 0xFFFF}
    assert len(command_versions()) == 4 + 6 * len(Command)


@pytest.mark.parametrize("code", [*range(2, 20), 0, 99, 65535])
def test_every_code_of_the_protocol_document_has_a_reason(code: int) -> None:
    problem, text = reason(code)
    assert problem
    assert ("unknown code" in text) == (code not in range(2, 20))


# ---- malformed frames


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("", "the frame is truncated"),
        ("00", "the frame is truncated"),
        ("7ffe 0001", "unknown command 0x7ffe"),
        ("0000 0001", "unknown command 0x0000"),
        ("0017 0002", "unknown version 2 of Heartbeat"),
        ("0008 0002 01 00", "unknown version 2 of Deliver"),
        ("0008 0001", "only clients send Deliver"),
        ("0007 0001 00000001", "only clients send Subscribe"),
        ("8007 0001 0000", "Subscribe is truncated"),
        ("0014 0001 0000", "Tune is truncated"),
        ("0003 0001 02 7fffffff 00", "PublishConfirm is truncated, too short for 2147483647 elements"),
        ("0003 0001 02 00000002 0000000000000001", "PublishConfirm is truncated"),
        ("0004 0001 02 00000000", "PublishError has no message"),
        ("0010 0001 0006 0009 73", "MetadataUpdate is truncated"),
        ("0010 0001 0006 0001 ff", "a string in MetadataUpdate is not UTF-8"),
    ],
)
def test_malformed_frames_are_refused(sent: str, words: str) -> None:
    with pytest.raises(StreamUnavailable, match=f"the broker sent a malformed frame: {words}$") as caught:
        parse(memoryview(bytes.fromhex(sent)))
    assert caught.value.problem == "protocol"


def test_metadata_about_other_streams_than_those_asked_for_is_refused() -> None:
    connection, empty = object.__new__(StreamConnection), "800f 0001 00000001 00000000 00000000"
    connection._calls = SimpleNamespace(call=lambda *_: answer(empty).fields)  # type: ignore[assignment]
    with pytest.raises(StreamUnavailable, match="a malformed frame: Metadata lacks stream 's'"):
        connection.metadata(iter(["s"]))


READERS = {
    Command.METADATA: lambda fields: metadata(fields, ()),
    Command.STREAM_STATS: stats,
    Command.EXCHANGE_COMMAND_VERSIONS: commands,
    Command.OPEN: lambda fields: fields.string_map(),
    Command.PARTITIONS: lambda fields: fields.strings(),
    Command.QUERY_OFFSET: lambda fields: fields.u64(),
}


COMMANDS = st.sampled_from([*Command, *(each | 0x8000 for each in Command)])
FIELDS = st.builds(lambda key, data: struct.pack(">HH", key, 1) + data, COMMANDS, st.binary(max_size=60))


@settings(max_examples=200)
@given(data=FIELDS | st.binary(max_size=80))
def test_random_frames_are_parsed_or_refused(data: bytes) -> None:
    with suppress(StreamUnavailable):
        found = parse(memoryview(data))
        if isinstance(found, Response) and found.command in READERS:
            READERS[found.command](found.fields)


@given(pairs=st.dictionaries(TEXT, TEXT, max_size=5), cut=st.integers(0, 400))
def test_encoded_maps_are_decoded_and_truncated_ones_are_refused(pairs: dict[str, str], cut: int) -> None:
    whole = without_size(request(Command.OPEN, 1, b"\0\1", string_map(pairs)))
    marked = b"\x80" + bytes(whole[1:])
    assert answer(marked).fields.string_map() == pairs
    if cut < len(marked):
        with pytest.raises(StreamUnavailable, match="is truncated"):
            answer(marked[:cut]).fields.string_map()


def test_errors_can_be_pickled() -> None:
    error = StreamUnavailable("gone", "truncated", "s", 5, 9)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.problem, back.stream, back.first, back.end) == ("gone", "truncated", "s", 5, 9)
    assert back.permanent
    assert not StreamUnavailable("gone", "lost").permanent
