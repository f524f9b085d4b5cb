"""A user who may only publish to the exchange commands no member: forged markers are ordinary messages.

The members have the permissions of docs/permissions.md and no others.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pika import BasicProperties

from rabbit_chx.broker import connect, drain
from rabbit_chx.broker.applying.pika_driver import PikaDriver
from rabbit_chx.consuming import AsyncGroup, Group, Message, QueueReader
from rabbit_chx.consuming.changes.holds import declare_commands, hold_commands
from rabbit_chx.consuming.markers import HOLD, Hold
from rabbit_chx.consuming.member.roll_call import members_over
from tests.broker.privileges import release_of
from tests.broker.topology_site import Site
from tests.faults.load import wait_until
from tests.proof import LONG, Check, record_result
from tests.users import a_user

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(900),
]

QUEUES = ["orders.0", "orders.1"]
ORDERED = {"x-queue-type": "quorum", "x-single-active-consumer": True}
ALSO = {
    "test_forged_markers_are_ordinary_messages": ["4.0", "3.10"],
    "test_a_forged_hold_cannot_use_a_real_one": ["4.0"],
    "test_the_answer_to_a_marker_whose_headers_grow_is_short": ["4.0", "3.10"],
    "test_a_reader_reads_on_after_forged_messages": ["4.0", "3.10"],
    "test_no_headers_and_no_properties_of_a_publisher_harm_a_member": ["4.0"] * LONG,
}
MEMBER = (
    r"^rabbit-chx\.seat\.billing\.",
    r"^(amq\.default$|rabbit-chx\.hold\.|failed$)",
    r"^(orders\.|rabbit-chx\.seat\.billing\.)",
)
KEYS = [f"k{number}" for number in range(20)]
MARKER, QUEUE = "x-rabbit-chx-marker", "x-rabbit-chx-queue"
SHORT = st.text(max_size=40).filter(lambda text: len(text.encode()) <= 255)


class Encoded(BasicProperties):
    """Properties that are sent as these bytes."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        return [self.encoded]


def table(*fields: tuple[bytes, bytes], reply_to: str = "") -> bytes:
    """Properties with these encoded headers, perhaps an address for answers, and nothing else."""
    encoded = b"".join(bytes([len(name)]) + name + value for name, value in fields)
    flags = 1 << 13 | bool(reply_to) << 9
    address = bytes([len(reply_to)]) + reply_to.encode() if reply_to else b""
    return struct.pack(">HI", flags, len(encoded)) + encoded + address


def long_text(text: str) -> bytes:
    return b"S" + struct.pack(">I", len(text)) + text.encode()


GROWING = (b"numbers", b"A" + struct.pack(">I", 100_000) + b"b\x01" * 50_000)
"""100 KB that pika encodes in 250 KB."""
BROKEN = "amq.rabbitmq.reply-to.g1h2.x=="
"""An address that ends the connection that publishes to it, on RabbitMQ before 4.3."""
DIRECT, TEMPORARY = (
    "amq.rabbitmq.reply-to.g1h2AA5yZXBseUAzMzIxMjEzNgAAA+YAAAAAawUESQ==.o/4DKGB8PU1y8cr6BoGHWA==",
    f"amq.gen-{'a' * 22}",
)
"""Addresses as the broker makes them."""


def growing_marker(reply_to: str, queue: str = "orders.0") -> Encoded:
    marker = (MARKER.encode(), long_text("0" * 16)), (QUEUE.encode(), long_text(queue))
    return Encoded(table(*marker, GROWING, reply_to=reply_to))


FORGERIES = {
    "a hold by a queue that the member may not touch": BasicProperties(headers={HOLD: "foreign"}),
    "a hold by a queue of the group": BasicProperties(headers={HOLD: "orders.0"}),
    "a hold by the empty name": BasicProperties(headers={HOLD: ""}),
    "a hold by 300 characters": BasicProperties(headers={HOLD: "h" * 300}),
    "a hold by a name of our form": BasicProperties(headers={HOLD: f"rabbit-chx.hold.{'0' * 16}.{'0' * 32}"}),
    "a drain answered to another queue": BasicProperties(
        headers={MARKER: "0" * 16, QUEUE: "orders.0", "note": "hello"}, reply_to="victim"
    ),
    "a drain answered to two queues": BasicProperties(
        headers={MARKER: "0" * 16, QUEUE: "orders.0", "CC": ["victim2"]}, reply_to="victim"
    ),
    "a drain whose headers grow, answered directly": growing_marker(DIRECT),
    "a drain whose headers grow, answered to a queue": growing_marker(TEMPORARY),
    "a canary reported to another queue": BasicProperties(
        headers={"x-rabbit-chx-canary": "c"}, reply_to="victim"
    ),
    "a canary reported to no process": BasicProperties(headers={"x-rabbit-chx-canary": "c"}, reply_to=BROKEN),
    "a message of a stream": BasicProperties(headers={"x-stream-offset": 7}),
    "properties that are no text": Encoded(struct.pack(">H", 0x8600) + b"\x02\xff\xfe" * 3),
    "a time after the year 9999": Encoded(struct.pack(">H", 0x0040) + b"\xff" * 8),
}


class Scene:
    """An exchange with two queues, other users' queues, and an attacker who may write to the exchange."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.handled: Counter[bytes] = Counter()
        self.forged = 0
        self.connection = site.connection()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.exchange_declare("orders", "x-consistent-hash", durable=True)
        self.old = release_of(site.broker) < (4, 0)
        # On 3.x, a limit of -1 drops every returned message.
        arguments = ORDERED | ({} if self.old else {"x-delivery-limit": -1})
        for queue in QUEUES:
            self.channel.queue_declare(queue, durable=True, arguments=arguments)
            self.channel.queue_bind(queue, "orders", "1")
        for queue in ("foreign", "victim", "victim2", "failed"):
            self.channel.queue_declare(queue, durable=True)
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            key = KEYS[self.sent % len(KEYS)]
            self.channel.basic_publish("orders", key, b"order %d" % self.sent)
            self.sent += 1

    def forge(self, attacker, properties: BasicProperties) -> None:
        """Publish a message to every queue as the attacker."""
        for key in KEYS[:6]:
            attacker.basic_publish("orders", key, b"forged", properties)

    def handle(self, message: Message) -> None:
        if message.body.startswith(b"order"):
            self.handled[message.body] += 1
        else:
            self.forged += 1

    @property
    def done(self) -> bool:
        return len(self.handled) == self.sent

    def count(self, queue: str) -> int:
        return self.channel.queue_declare(queue, passive=True).method.message_count

    def assert_unharmed(self, caplog) -> None:
        """Check that each message was handled once, that nothing was published, and that no connection was lost."""
        wait_until(lambda: self.done, "all messages of the others")
        assert set(self.handled.values()) == {1}
        assert [self.count(queue) for queue in ("foreign", "victim", "victim2")] == [0, 0, 0]
        assert "trying again" not in caplog.text


class Kind(NamedTuple):
    """The members of a group."""

    group: type
    order: str = "queue"

    def __str__(self) -> str:
        return self.group.__name__ + (', order="key"' if self.order == "key" else "")


@contextmanager
def running(kind: Kind, scene: Scene, url: str, handle, **options) -> Iterator[None]:
    """Run a member in a thread; raise what ended it."""
    if kind.order == "key":
        options |= {"order": "key", "key": lambda message: message.routing_key}
    options |= {"failover_only": scene.old}
    group = kind.group(url, exchange="orders", name="billing", queues=QUEUES, **options)
    errors: list[BaseException] = []

    async def handle_async(message: Message) -> None:
        handle(message)

    def run() -> None:
        try:
            if kind.group is AsyncGroup:
                asyncio.run(group.run(handle_async))
            else:
                group.run(handle)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        group.stop()
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def scene(broker):
    with Site(broker) as site:
        scene = Scene(site)
        with scene.connection:
            yield scene


@pytest.fixture
def member(scene):
    with a_user(scene.site.broker, *MEMBER, vhost=scene.site.vhost) as user:
        yield user


@pytest.fixture
def attacker(scene):
    """A channel of the attacker, who has the permission to write to the exchange and no other."""
    with (
        a_user(scene.site.broker, "^$", "^orders$", "^$", vhost=scene.site.vhost) as user,
        connect(user.url) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


KINDS = pytest.mark.parametrize(
    "kind",
    [
        Kind(Group),
        Kind(AsyncGroup),
        pytest.param(Kind(Group, "key"), marks=pytest.mark.long),
        pytest.param(Kind(AsyncGroup, "key"), marks=pytest.mark.long),
    ],
    ids=str,
)


@KINDS
def test_forged_markers_are_ordinary_messages(scene, member, attacker, kind, caplog) -> None:
    caplog.set_level(logging.WARNING)
    started = time.monotonic()
    with running(kind, scene, member.url, scene.handle):
        for properties in FORGERIES.values():
            scene.send(5)
            scene.forge(attacker, properties)
        scene.send(5)
        scene.assert_unharmed(caplog)
        assert caplog.text.count("has the headers of a marker") <= 2
    cases = len(FORGERIES)
    record_result(
        Check(
            "Consumers",
            f"`{kind}`: messages forged by a user who may only publish",
            scene.site.broker.release or "4.3",
            6 * cases,
            0,
            time.monotonic() - started,
            "before the check, 6 of 12 forgeries harmed the group or others",
        )
    )


@KINDS
def test_a_forged_hold_cannot_use_a_real_one(scene, member, attacker, kind, caplog) -> None:
    hold = Hold.of("orders.0", ["orders.1"])
    PikaDriver(scene.connection).run(declare_commands(hold))
    with running(kind, scene, member.url, scene.handle):
        scene.send(20)
        for key in KEYS:
            attacker.basic_publish(
                "orders", key, hold.record.encode(), BasicProperties(headers={HOLD: hold.name})
            )
        scene.send(20)
        scene.assert_unharmed(caplog)


@KINDS
def test_the_answer_to_a_marker_whose_headers_grow_is_short(scene, member, kind, caplog) -> None:
    """Who may publish to the default exchange can drain, and gets an answer; it contains nothing of the sender's."""
    caplog.set_level(logging.WARNING)
    with (
        a_user(
            scene.site.broker, r"^amq\.gen-", r"^amq\.default$", r"^amq\.gen-", vhost=scene.site.vhost
        ) as peer,
        running(kind, scene, member.url, scene.handle),
        connect(peer.url) as connection,
    ):
        answers: dict[str, BasicProperties] = {}
        channel = connection.channel()
        own = channel.queue_declare("", exclusive=True).method.queue
        for address in (own, "amq.rabbitmq.reply-to"):
            channel.basic_consume(
                address,
                lambda _, __, properties, ___, to=address: answers.update({to: properties}),
                auto_ack=True,
            )
        scene.send(20)
        for address in (own, "amq.rabbitmq.reply-to", DIRECT, BROKEN, TEMPORARY):
            channel.basic_publish("", "orders.0", b"", growing_marker(address))
        scene.send(20)
        wait_until(lambda: connection.process_data_events(0.1) or len(answers) == 2, "two answers")
        for properties in answers.values():
            assert properties.headers == {MARKER: "0" * 16, QUEUE: "orders.0"}
        scene.assert_unharmed(caplog)


@KINDS
def test_a_parked_copy_does_without_headers_that_no_longer_fit(scene, member, attacker, kind, caplog) -> None:
    def handle(message: Message) -> None:
        scene.handle(message)
        if message.body == b"forged":
            raise ValueError("out of stock")

    caplog.set_level(logging.WARNING)
    with running(kind, scene, member.url, handle, attempts=1, on_failure="park", parking_queue="failed"):
        scene.send(10)
        scene.forge(attacker, Encoded(table(GROWING)))
        scene.send(10)
        scene.assert_unharmed(caplog)
        wait_until(lambda: scene.count("failed") == 6, "the copies of the forged messages")
    assert scene.forged == 6


def test_markers_of_an_operator_who_is_not_the_members_user_work(scene, member) -> None:
    change = (r"^(amq\.gen-|rabbit-chx\.hold\.)", r"^amq\.default$", r"^amq\.gen-")
    with a_user(scene.site.broker, *change, vhost=scene.site.vhost) as operator:
        scene.send(20)
        hold = Hold.of("orders.0", ["orders.1"], groups=["billing"])
        with running(Kind(Group), scene, member.url, scene.handle), connect(operator.url) as connection:
            driver = PikaDriver(connection)
            driver.run(declare_commands(hold))
            driver.run(hold_commands(hold))
            wait_until(
                lambda: (
                    [
                        each.queues["orders.0"].hold
                        for each in members_over(connection, "billing")
                        if each.queues
                    ]
                    == [hold.name]
                ),
                "the member has reached the hold",
            )
            drain(operator.url, ["orders.1"], settle=0.0)
            connection.channel().queue_delete(hold.name)
            wait_until(lambda: scene.done, "all messages")


def test_a_reader_reads_on_after_forged_messages(scene, member, attacker, caplog) -> None:
    for properties in FORGERIES.values():
        scene.send(5)
        scene.forge(attacker, properties)
    scene.send(20)
    with QueueReader(member.url, QUEUES[0]) as first, QueueReader(member.url, QUEUES[1]) as second:

        def take() -> bool:
            for reader in (first, second):
                batch = reader.take(100)
                for message in batch.messages:
                    scene.handle(message)
                reader.acknowledge(batch)
            return scene.done

        wait_until(take, "all messages")
        scene.assert_unharmed(caplog)


def test_a_question_of_others_is_not_answered_to_a_queue_and_names_no_queues(scene, member, caplog) -> None:
    """Every user who may publish to the default exchange reaches the seats' queues."""
    caplog.set_level(logging.WARNING)
    scene.channel.queue_declare("other", durable=True, arguments=ORDERED)
    with (
        a_user(scene.site.broker, "^$", r"^amq\.default$", "^$", vhost=scene.site.vhost) as peer,
        running(Kind(Group), scene, member.url, scene.handle),
        connect(peer.url) as connection,
    ):
        wait_until(
            lambda: [each.answered for each in members_over(connection, "billing")] == [True], "the member"
        )
        channel = connection.channel()
        forged = Hold.of("other", ["victim"], groups=["billing"])
        question = b'{"holds": {"%s": %s}, "queues": ["other"]}' % (
            forged.name.encode(),
            __import__("json").dumps(forged.record).encode(),
        )
        for reply_to, number in (("victim", "0"), ("amq.rabbitmq.reply-to", "x" * 200), (None, None)):
            properties = BasicProperties(reply_to=reply_to, correlation_id=number)
            if reply_to == "amq.rabbitmq.reply-to":
                channel.basic_consume(reply_to, lambda *_: None, auto_ack=True)
            channel.basic_publish("", "rabbit-chx.seat.billing.0", question, properties)
        scene.send(20)
        scene.assert_unharmed(caplog)
        assert {*members_over(connection, "billing")[0].queues} == {*QUEUES}


# ---- any headers and properties

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=300)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [HOLD, MARKER, QUEUE, "x-rabbit-chx-canary", "x-stream-offset", "x-death", "x-delivery-count"]
)
TEXTS = st.sampled_from([*QUEUES, "victim", "foreign", "", "0" * 16, DIRECT, BROKEN, TEMPORARY])
HEADERS = st.dictionaries(NAMES | SHORT, TEXTS | VALUES, max_size=5)
PROPERTIES = st.builds(
    BasicProperties,
    headers=HEADERS,
    reply_to=st.none() | TEXTS,
    correlation_id=st.none() | SHORT,
    message_id=st.none() | SHORT,
    type=st.none() | SHORT,
    content_type=st.none() | SHORT,
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
)


@KINDS
def test_no_headers_and_no_properties_of_a_publisher_harm_a_member(
    scene, member, attacker, kind, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    found: list[BasicProperties] = []

    # Before a member runs: Hypothesis fails if any thread uses random numbers while it draws.
    @settings(max_examples=1_000 if LONG else 150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(PROPERTIES)
    def draw(properties: BasicProperties) -> None:
        found.append(properties)

    draw()
    with running(kind, scene, member.url, scene.handle):
        scene.send(30)
        for properties in found:
            scene.forge(attacker, properties)
        scene.send(30)
        scene.assert_unharmed(caplog)
