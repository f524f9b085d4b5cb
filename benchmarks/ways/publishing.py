"""The ways to publish that ``publishing.py`` compares: others' clients, this publisher, and a bare socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

import pika

from rabbit_chx.publishing import Bulk, Publisher

EXCHANGE = "benchmark"
SLOTTED = "benchmark.slots"
SLOTS = 64
QUEUES = [f"benchmark.{number}" for number in range(4)]
WINDOW = 5_000


@dataclass(frozen=True)
class Load:
    """What every way is to publish; the slow ones publish the beginning of it."""

    url: str
    keys: list[str]
    body: bytes
    management_url: str

    def first(self, count: int) -> Load:
        return replace(self, keys=self.keys[:count])


def pika_blocking(load: Load) -> None:
    """The BlockingConnection of pika, which waits for each confirm."""
    with pika.BlockingConnection(pika.URLParameters(load.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        for key in load.keys:
            channel.basic_publish(EXCHANGE, key, load.body, properties, mandatory=True)


def aio_pika_gather(load: Load) -> None:
    """A thousand at a time through aio-pika."""
    import aio_pika

    async def publish() -> None:
        async with await aio_pika.connect(load.url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            for start in range(0, len(load.keys), 1_000):
                await asyncio.gather(
                    *(
                        exchange.publish(
                            aio_pika.Message(load.body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), key
                        )
                        for key in load.keys[start : start + 1_000]
                    )
                )

    asyncio.run(publish())


class Confirms:
    """The number up to which everything is confirmed."""

    def __init__(self) -> None:
        self.floor = 0
        self.ahead: set[int] = set()

    def take(self, number: int, multiple: int) -> None:
        if multiple:
            self.floor = max(self.floor, number)
        else:
            self.ahead.add(number)
        while self.floor + 1 in self.ahead:
            self.floor += 1
            self.ahead.discard(self.floor)


class PikaWindow:
    """The SelectConnection of pika with a window of unconfirmed messages: its public API, used as well as can be."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent = 0
        self.confirms = Confirms()
        self.properties = pika.BasicProperties(delivery_mode=2)
        self.connection = pika.SelectConnection(
            pika.URLParameters(load.url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.on_channel),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self.connection.ioloop.start()

    def on_channel(self, channel: object) -> None:
        self.channel = channel
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.send())

    def on_confirm(self, frame: object) -> None:
        self.confirms.take(frame.method.delivery_tag, frame.method.multiple)
        if self.confirms.floor >= len(self.load.keys):
            self.connection.close()
        elif self.sent - self.confirms.floor < WINDOW // 2:
            self.send()

    def send(self) -> None:
        end = min(self.confirms.floor + WINDOW, len(self.load.keys))
        for key in self.load.keys[self.sent : end]:
            self.channel.basic_publish(EXCHANGE, key, self.load.body, self.properties, mandatory=True)
        self.sent = end


def rabbit_chx_publisher(load: Load) -> None:
    """This project's publisher, through the exchange."""
    with Publisher(load.url, EXCHANGE) as publisher:
        publish(publisher, load)


def publish(publisher: Publisher, load: Load) -> None:
    with publisher.bulk() as bulk:
        add(bulk, load)


def add(bulk: Bulk, load: Load) -> None:
    for start in range(0, len(load.keys), 10_000):
        keys = load.keys[start : start + 10_000]
        bulk.add_many([load.body] * len(keys), keys)


def bare_socket(load: Load) -> None:
    """The limit: frames made beforehand, one blocking socket, nothing kept and nothing checked."""
    parts = urlsplit(load.url)
    frame_max = 131_072
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake(sock, unquote(parts.username), unquote(parts.password), unquote(parts.path[1:]) or "/")
        header = struct.pack(">HHQHB", 60, 0, len(load.body), 0x1000, 2)
        tail = frame(2, header)
        for start in range(0, len(load.body), frame_max - 8):
            tail += frame(3, load.body[start : start + frame_max - 8])
        method = struct.pack(">HHHB", 60, 40, 0, len(EXCHANGE)) + EXCHANGE.encode()
        sent, confirms, buffer = 0, Confirms(), b""
        while confirms.floor < len(load.keys):
            end = min(confirms.floor + WINDOW, len(load.keys))
            if sent < end and sent - confirms.floor < WINDOW // 2:
                pieces = []
                for key in load.keys[sent:end]:
                    pieces += (frame(1, method + bytes([len(key)]) + key.encode() + b"\x01"), tail)
                sock.sendall(b"".join(pieces))
                sent = end
            buffer += sock.recv(1 << 16)
            whole = len(buffer) // 21 * 21
            for at in range(0, whole, 21):
                confirms.take(*struct.unpack_from(">QB", buffer, at + 11))
            buffer = buffer[whole:]


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def handshake(sock: socket.socket, user: str, password: str, vhost: str) -> None:
    def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> None:
        sock.sendall(frame(1, struct.pack(">HH", class_id, method_id) + arguments, channel))
        if (class_id, method_id) != (10, 31):  # tune-ok has no answer
            receive()

    def receive() -> None:
        _, _, size = struct.unpack(">BHI", exactly(sock, 7))
        exactly(sock, size + 1)

    sock.sendall(b"AMQP\x00\x00\x09\x01")
    receive()
    response = f"\0{user}\0{password}".encode()
    start_ok = (
        struct.pack(">I", 0) + b"\x05PLAIN" + struct.pack(">I", len(response)) + response + b"\x05en_US"
    )
    method(0, 10, 11, start_ok)
    method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0))
    method(0, 10, 40, bytes([len(vhost)]) + vhost.encode() + b"\0\0")
    method(1, 20, 10, b"\0")
    method(1, 85, 10, b"\0")


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


# Each way, and the part of the messages that it publishes: a slow one needs fewer for a steady rate.
WAYS: dict[str, tuple[Callable[[Load], object], float]] = {
    "pika, blocking, each confirm": (pika_blocking, 0.05),
    "aio-pika, gather of 1,000": (aio_pika_gather, 0.2),
    "pika SelectConnection, window": (PikaWindow, 0.5),
    "rabbit-chx Publisher": (rabbit_chx_publisher, 1.0),
    "bare socket": (bare_socket, 1.0),
}
OURS, BLOCKING, BARE = "rabbit-chx Publisher", "pika, blocking, each confirm", "bare socket"

# What `--connections` compares.
ROADS: dict[str, Callable[[Load], Publisher]] = {
    "hash exchange": lambda load: Publisher(load.url, EXCHANGE),
    "slots": lambda load: Publisher(load.url, SLOTTED),
}
