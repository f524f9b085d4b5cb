"""What a user who may only publish to the exchange sends to command the members of a group, and the scene of it.

The members have the permissions of docs/permissions.md and no others.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pytest
from pika import BasicProperties

from rabbit_chx.base.names import SEATS
from rabbit_chx.broker import connect
from rabbit_chx.consuming import AsyncGroup, Group, Message
from rabbit_chx.working.markers import HOLD
from tests import members
from tests.broker.privileges import release_of
from tests.broker.topology_site import Site
from tests.members import Member
from tests.patience import wait_until
from tests.proof import Check, record_result
from tests.queues import ORDERED, SINGLE_ACTIVE, bind_ring, message_count
from tests.users import a_user
from tests.wire import Encoded

QUEUES = ["orders.0", "orders.1"]
MEMBER = (
    r"^rabbit-chx\.seat\.billing\.[0-9a-f]+$",
    r"^(amq\.default$|rabbit-chx\.hold\.|failed$)",
    r"^(orders\.|rabbit-chx\.seat\.billing\.[0-9a-f]+$)",
)
KEYS = [f"k{number}" for number in range(20)]
MARKER, QUEUE = "x-rabbit-chx-marker", "x-rabbit-chx-queue"


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
OF_ANOTHER_NODE = (
    "amq.rabbitmq.reply-to.g1h2AA5yZXBseUBhbi1vdGhlcgAAA+YAAAAAawUESQ==.o/4DKGB8PU1y8cr6BoGHWA=="
)
"""The same, of a node with another name."""


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
        self.old = release_of(site.broker) < (4, 0)
        bind_ring(self.channel, "orders", QUEUES, SINGLE_ACTIVE if self.old else ORDERED)
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
        return message_count(self.channel, queue)

    def seats(self) -> list[str]:
        listed = (queue.name for queue, *_ in self.site.management.queues(self.site.vhost))
        return [name for name in listed if name.startswith(SEATS)]

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


def running(kind: Kind, scene: Scene, url: str, handle, **options) -> AbstractContextManager[Member]:
    """Run a member in a thread; raise what ended it."""
    if kind.order == "key":
        options |= {"order": "key", "key": lambda message: message.routing_key}
    options |= {"failover_only": scene.old}
    group = kind.group(url, exchange="orders", name="billing", queues=QUEUES, **options)

    async def handle_async(message: Message) -> None:
        handle(message)

    return members.running(group, handle_async if kind.group is AsyncGroup else handle)


@contextmanager
def recorded(what: str, scene: Scene, cases: int, control: str) -> Iterator[None]:
    """Record the check of so many forged messages for the proof, also if it fails."""
    started, wrong = time.monotonic(), cases
    try:
        yield
        wrong = 0
    finally:
        seconds = time.monotonic() - started
        record_result(
            Check("Consumers", what, scene.site.broker.release or "4.3", cases, wrong, seconds, control)
        )


@pytest.fixture(name="scene")
def a_scene(broker):
    with Site(broker) as site:
        scene = Scene(site)
        with scene.connection:
            yield scene


@pytest.fixture(name="member")
def a_member(scene):
    with a_user(scene.site.broker, *MEMBER, vhost=scene.site.vhost) as user:
        yield user


@pytest.fixture(name="attacker")
def an_attacker(scene):
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
