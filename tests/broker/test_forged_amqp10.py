"""Whatever a stranger publishes over AMQP 1.0, groups and readers of queues handle it, and the messages after it."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from hypothesis import strategies as st

from rabbit_chx.consuming import Group, Message, QueueReader, Reject
from rabbit_chx.errors import InvalidMessage
from rabbit_chx.streams import StreamReader
from tests.amqp10 import Outcome, Sender
from tests.broker.privileges import release_of
from tests.members import running
from tests.patience import wait_until
from tests.property.hostile import drawn
from tests.queues import SINGLE_ACTIVE, a_channel, bind_ring, message_count
from tests.stream_forgeries import (
    BODY,
    HEADERS,
    LONG,
    NAMES,
    NULL,
    SCALARS,
    TEXTS,
    TIMES,
    VALUES,
    a_map,
    compound,
    nested,
    symbol,
    text,
    value_of,
)

pytestmark = [
    pytest.mark.one_release,
    pytest.mark.broker,
    pytest.mark.since_4_0,
    pytest.mark.proves(
        "Consumers",
        "any messages over AMQP 1.0, for groups on queues and readers of queues",
        "60 messages after them are handled once each",
    ),
]

REJECTING = pytest.mark.parametrize("rejecting", [False, True], ids=["accepting", "rejecting"])
KEYS = [f"k{number}" for number in range(6)]
UUID, CHAR, ULONG, FLOAT, DOUBLE, DECIMAL = b"\x98\x73\x80\x72\x82\x84"
"""The codes of types of AMQP 1.0."""
BASIC_TYPE = b"x-basic-type"
SHORT_TEXTS = TEXTS.filter(lambda value: len(value) < 256)


def messages(
    values: st.SearchStrategy[bytes], kinds: st.SearchStrategy[bytes], short: st.SearchStrategy[bytes]
) -> st.SearchStrategy[bytes]:
    """Messages with these values as headers and annotations, these types, and these content types."""
    ids = st.just(NULL) | SCALARS.filter(lambda value: value[0] in (ULONG, UUID)) | TEXTS.map(text)
    texts = st.just(NULL) | TEXTS.map(text) | st.just(text(b"x" * 300))
    symbols = st.just(NULL) | short.map(symbol)
    times = st.just(NULL) | TIMES.map(lambda value: b"\x83" + struct.pack(">q", value))
    numbers = st.just(NULL) | st.integers(0, 2**32 - 1).map(lambda value: b"\x70" + struct.pack(">I", value))
    properties = st.tuples(
        *(ids, st.sampled_from([NULL] * 9 + [b"\xa0\1x"]), texts, texts, texts, ids),
        *(symbols, symbols, times, times, texts, numbers, texts),
    )
    names = NAMES.filter(lambda name: name[:2] == b"x-" and name != BASIC_TYPE) | TEXTS.map(b"x-".__add__)
    annotations = st.builds(
        dict.__or__,
        st.dictionaries(names, values, max_size=3),
        st.fixed_dictionaries({}, optional={BASIC_TYPE: kinds}),
    )
    return st.builds(
        lambda header, annotated, given, headers: (
            header
            + a_map(0x72, annotated, symbol)
            + compound(0x73, b"\xd0", *given)
            + a_map(0x74, headers)
            + BODY
        ),
        st.just(b"") | HEADERS,
        annotations,
        properties,
        st.dictionaries(NAMES | TEXTS, values, max_size=4),
    )


def deliverable(broker) -> st.SearchStrategy[bytes]:
    """Messages that RabbitMQ can deliver from a queue.

    For all others it closes the consumer's connection (`test_undeliverable`): with values of the types uuid and char, properties of
    another type than AMQP 1.0 gives them, content types and names within maps above 255 bytes, a footer, headers above 128 KiB;
    within lists and maps also with integers from 2^63 on, decimals, infinity and NaN, and before 4.3 with the last three anywhere.
    """
    unusual = {FLOAT, DOUBLE, DECIMAL}
    lost = {UUID, CHAR} | (set() if release_of(broker) >= (4, 3) else unusual)
    scalars = SCALARS.filter(lambda value: value[0] not in lost)
    within = nested(scalars.filter(lambda value: value[0] not in unusual | {ULONG}), SHORT_TEXTS)
    large = LONG.filter(lambda value: len(value) < 100_000)
    return messages(scalars | within | large, SHORT_TEXTS.map(text), SHORT_TEXTS)


STORABLE = messages(VALUES | LONG, VALUES, TEXTS) | st.binary(max_size=40)
"""Any messages: streams deliver them as they are."""


def published(url: str, addresses: list[str], forged: list[bytes]) -> int:
    """Publish messages to these addresses in turn, and return how many the broker has accepted."""
    with ExitStack() as stack:
        senders = [stack.enter_context(Sender(url, address)) for address in addresses]
        outcomes = Counter(
            senders[number % len(senders)].send(message) for number, message in enumerate(forged)
        )
    accepted = outcomes[Outcome.ACCEPTED]
    assert accepted > len(forged) / 10, outcomes
    return accepted


class Handler:
    """Reads messages, counts them, and rejects forged ones if told to."""

    def __init__(self, rejecting: bool) -> None:
        self.ours: Counter[int] = Counter()
        self.forged = 0
        self._rejecting = rejecting

    def __call__(self, message: Message) -> None:
        assert repr((message.headers, message.properties))
        if message.body.isdigit():
            self.ours[int(message.body)] += 1
            return
        self.forged += 1
        if self._rejecting:
            raise Reject("no")

    def has_seen(self, ours: int, forged: int) -> bool:
        return len(self.ours) >= ours and self.forged >= forged

    def assert_handled(self, ours: int, forged: int) -> None:
        assert self.ours == Counter(range(ours))
        assert self.forged == forged


@pytest.fixture
def channel(site):
    """A channel in a virtual host with an exchange, its two queues, one to park messages in, and one to read."""
    with a_channel(site, confirms=True) as channel:
        bind_ring(channel, "orders", ["a", "b"], SINGLE_ACTIVE)
        channel.queue_declare("parked", durable=True)
        yield channel


@REJECTING
def test_no_message_harms_a_group(site, channel, rejecting, caplog) -> None:
    caplog.set_level(logging.WARNING)
    forged = drawn(deliverable(site.broker), 60)
    handler = Handler(rejecting)
    options = {"on_failure": "park", "parking_queue": "parked"} if rejecting else {}
    group = Group(site.url(), exchange="orders", name="billing", queues=["a", "b"], **options)
    with running(group, handler) as member:
        count = published(site.url(), [f"/exchanges/orders/{key}" for key in KEYS], forged)
        for number in range(60):
            channel.basic_publish("orders", KEYS[number % len(KEYS)], b"%d" % number)
        wait_until(lambda: member.error or handler.has_seen(60, count), "all messages")
    handler.assert_handled(60, count)
    assert message_count(channel, "parked") == count * rejecting
    assert "trying again" not in caplog.text


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_no_message_harms_a_reader_of_a_queue(site, channel, kind, caplog) -> None:
    caplog.set_level(logging.WARNING)
    forged = drawn(deliverable(site.broker), 60)
    handler = Handler(False)
    channel.queue_declare("read", durable=True, arguments={"x-queue-type": kind})
    with QueueReader(site.url(), "read") as reader:
        count = published(site.url(), ["/queues/read"], forged)
        for number in range(60):
            channel.basic_publish("", "read", b"%d" % number)

        def read() -> bool:
            batch = reader.take(100)
            for message in batch.messages:
                handler(message)
            reader.acknowledge(batch)
            return handler.has_seen(60, count)

        wait_until(read, "all messages")
    handler.assert_handled(60, count)
    assert message_count(channel, "read") == 0
    assert "trying again" not in caplog.text


def test_a_message_of_too_many_items_can_be_published_and_ends_a_reader(broker, stream_url, stream) -> None:
    message = a_map(0x74, {b"many": value_of(b"\xd0", *[NULL] * 150_001)}) + BODY
    assert published(broker.url, [f"/queues/{quote(stream, safe='')}"], [message]) == 1
    with (
        StreamReader(stream_url, stream) as reader,
        pytest.raises(InvalidMessage, match="more than 150000 items"),
    ):
        next(iter(reader.messages(0, 1)))
