"""The ways to publish that ``publishing.py`` compares: others' clients, this publisher, and a bare socket."""

from __future__ import annotations

import asyncio
import csv
import itertools
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pika

from rabbit_chx.cli import cli
from rabbit_chx.publishing import AsyncPublisher, Bulk, Publisher

EXCHANGE = "benchmark"
SLOTTED = "benchmark.slots"
SLOTS = 64
QUEUES = [f"benchmark.{number}" for number in range(4)]
WINDOW = 5_000
THREADS = 8
TASKS = 1_000
FRAME_MAX = 131_072
FILES = tempfile.TemporaryDirectory()
CONFIRM = 21
"""Bytes of a confirm."""


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
    publish_blocking(load.url, ((key, load.body) for key in load.keys))


def publish_blocking(url: str, messages: Iterable[tuple[str, bytes]]) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        for key, body in messages:
            channel.basic_publish(EXCHANGE, key, body, properties, mandatory=True)


def aio_pika_gather(load: Load) -> None:
    """A thousand at a time through aio-pika."""
    import aio_pika

    async def publish() -> None:
        async with await aio_pika.connect(load.url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            for start in range(0, len(load.keys), TASKS):
                await asyncio.gather(
                    *(
                        exchange.publish(
                            aio_pika.Message(load.body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), key
                        )
                        for key in load.keys[start : start + TASKS]
                    )
                )

    asyncio.run(publish())


def rabbit_chx_tasks(load: Load) -> None:
    """The same through this project's publisher for asyncio."""

    async def publish() -> None:
        async with AsyncPublisher(load.url, EXCHANGE) as publisher:
            for start in range(0, len(load.keys), TASKS):
                keys = load.keys[start : start + TASKS]
                await asyncio.gather(*(publisher.publish(load.body, key) for key in keys))

    asyncio.run(publish())


def in_threads(work: Callable[[list[str]], object], load: Load) -> None:
    """Give each of eight threads its part of the keys."""
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(work, [load.keys[number::THREADS] for number in range(THREADS)]):
            pass


def pika_threads(load: Load) -> None:
    """Eight threads with a BlockingConnection each: pika allows no other way, since a connection serves one thread."""
    in_threads(lambda keys: pika_blocking(replace(load, keys=keys)), load)


def rabbit_chx_threads(load: Load) -> None:
    """Eight threads that share this project's publisher."""

    def work(keys: list[str]) -> None:
        for key in keys:
            publisher.publish(load.body, key)

    with Publisher(load.url, EXCHANGE) as publisher:
        in_threads(work, load)


def socket_threads(load: Load) -> None:
    """The limit for eight threads that each wait for the confirm of a message: nothing but `sendall` and `recv`."""
    tail = content(load.body)

    def work(keys: list[str]) -> None:
        frames = [publish_method(key) + tail for key in keys]
        with opened(load.url) as sock:
            for each in frames:
                sock.sendall(each)
                exactly(sock, CONFIRM)

    in_threads(work, load)


def shared_socket(load: Load) -> None:
    """The limit for threads that share a connection: a lock for each message, and a thread that reads the confirms."""
    tail, writing = content(load.body), threading.Lock()
    waiting: dict[int, threading.Lock] = {}

    def work(keys: list[str]) -> None:
        for each in [publish_method(key) + tail for key in keys]:
            confirmed = threading.Lock()
            confirmed.acquire()
            with writing:
                waiting[next(numbers)] = confirmed
                sock.sendall(each)
            confirmed.acquire()

    def read() -> None:
        left, buffer = len(load.keys), b""
        while left:
            buffer += sock.recv(1 << 16)
            whole = len(buffer) // CONFIRM * CONFIRM
            for at in range(0, whole, CONFIRM):
                number, multiple = struct.unpack_from(">QB", buffer, at + 11)
                for each in [each for each in list(waiting) if each <= number] if multiple else [number]:
                    waiting.pop(each).release()
                    left -= 1
            buffer = buffer[whole:]

    numbers = itertools.count(1)
    with opened(load.url) as sock:
        reader = threading.Thread(target=read)
        reader.start()
        in_threads(work, load)
        reader.join()


def rabbit_chx_command(load: Load) -> None:
    """The command line, in this process, with a CSV file; reading and checking the file counts."""
    columns = ["--key-column", "key", "--body-column", "body"]
    command = ["publish", str(csv_file(load)), "--url", load.url, "-x", EXCHANGE, *columns]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        cli.main(command, standalone_mode=False)


def csv_file(load: Load) -> Path:
    """Return the file with these messages; the round that warms up writes it."""
    path = Path(FILES.name, f"{len(load.keys)}.csv")
    if not path.exists():
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["key", "body"])
            rows.writerows((key, load.body.decode()) for key in load.keys)
    return path


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


def opened(url: str, timeout: float | None = None) -> socket.socket:
    """Return a socket with an open channel in confirm mode."""
    parts = urlsplit(url)
    sock = socket.create_connection((parts.hostname, parts.port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handshake(sock, unquote(parts.username), unquote(parts.password), unquote(parts.path[1:]) or "/")
    return sock


def publish_method(key: str) -> bytes:
    method = struct.pack(">HHHB", 60, 40, 0, len(EXCHANGE)) + EXCHANGE.encode()
    return frame(1, method + bytes([len(key)]) + key.encode() + b"\x01")


def content(body: bytes) -> bytes:
    frames = frame(2, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2))
    for start in range(0, len(body), FRAME_MAX - 8):
        frames += frame(3, body[start : start + FRAME_MAX - 8])
    return frames


def bare_socket(load: Load, window: int = WINDOW, refill: int = WINDOW // 2) -> None:
    """The limit: frames made beforehand, one blocking socket, nothing kept and nothing checked."""
    with opened(load.url) as sock:
        tail = content(load.body)
        sent, confirms, buffer = 0, Confirms(), b""
        while confirms.floor < len(load.keys):
            free = window - (sent - confirms.floor - len(confirms.ahead))
            if free >= refill and sent < len(load.keys):
                keys = load.keys[sent : sent + free]
                sock.sendall(b"".join(publish_method(key) + tail for key in keys))
                sent += len(keys)
            buffer += sock.recv(1 << 16)
            whole = len(buffer) // CONFIRM * CONFIRM
            for at in range(0, whole, CONFIRM):
                confirms.take(*struct.unpack_from(">QB", buffer, at + 11))
            buffer = buffer[whole:]


def eight_in_flight(load: Load) -> None:
    """The limit of the broker for eight callers that each wait for a confirm: the same messages in flight, without threads."""
    bare_socket(load, window=THREADS, refill=1)


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
    method(0, 10, 31, struct.pack(">HIH", 2047, FRAME_MAX, 0))
    method(0, 10, 40, bytes([len(vhost)]) + vhost.encode() + b"\0\0")
    method(1, 20, 10, b"\0")
    method(1, 85, 10, b"\0")


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


OURS, BLOCKING, BARE = "rabbit-chx, bulk", "pika, blocking, each confirm", "bare socket"
COMMAND = "rabbit-chx publish, a CSV file"
TASKS_OURS, GATHER = "rabbit-chx, 1,000 tasks", "aio-pika, gather of 1,000"
THREADS_OURS, THREADS_PIKA = "rabbit-chx, 8 threads", "pika, 8 threads and connections"
THREADS_BARE, THREADS_SHARED = "bare sockets, 8 threads", "bare socket shared by 8 threads"
EIGHT = "bare socket, 8 in flight"

# Each way, and the part of the messages that it publishes: a slow one needs fewer for a steady rate.
WAYS: dict[str, tuple[Callable[[Load], object], float]] = {
    BLOCKING: (pika_blocking, 0.05),
    THREADS_PIKA: (pika_threads, 0.1),
    THREADS_OURS: (rabbit_chx_threads, 0.1),
    THREADS_BARE: (socket_threads, 0.1),
    THREADS_SHARED: (shared_socket, 0.1),
    EIGHT: (eight_in_flight, 0.1),
    GATHER: (aio_pika_gather, 0.2),
    TASKS_OURS: (rabbit_chx_tasks, 0.5),
    "pika SelectConnection, window": (PikaWindow, 0.5),
    OURS: (rabbit_chx_publisher, 1.0),
    COMMAND: (rabbit_chx_command, 1.0),
    BARE: (bare_socket, 1.0),
}

# What is compared, and the target: at least that much of the rate, at most that much of the CPU time.
RATIOS: list[tuple[str, str, str, float]] = [
    (OURS, BLOCKING, "rate", 12),
    (OURS, BARE, "rate", 0.9),
    (COMMAND, BARE, "rate", 0.9),
    (THREADS_OURS, THREADS_PIKA, "rate", 4),
    (THREADS_BARE, THREADS_PIKA, "rate", 4),
    (THREADS_SHARED, THREADS_PIKA, "rate", 4),
    (EIGHT, THREADS_PIKA, "rate", 4),
    (TASKS_OURS, GATHER, "rate", 3),
    (TASKS_OURS, GATHER, "CPU", 0.33),
]

# What `--connections` compares.
ROADS: dict[str, Callable[[Load], Publisher]] = {
    "hash exchange": lambda load: Publisher(load.url, EXCHANGE),
    "slots": lambda load: Publisher(load.url, SLOTTED),
}
