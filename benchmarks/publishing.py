"""Confirmed publishing through a hash exchange: this publisher beside others and beside a bare socket.

    python benchmarks/publishing.py [--release 4.3] [--queues classic|quorum] [--size 100] [--rounds 5] [--json]
    python benchmarks/publishing.py --connections 1,4,16 ...

All ways publish the same persistent messages to the same exchange of one throw-away broker and wait until
all are confirmed, turn by turn in every round, each round in another order. Rates and CPU time are medians over
the rounds; ratios are taken within a round and then their median. CPU is that of this process alone, all its
threads included; broker and client share the cores of the machine.

With ``--connections`` as many publishers of this project, each in a thread of its own, go through the hash exchange,
through 64 slots over the same queues, and straight to the queues behind those slots; the CPU time of the broker
(all of its Erlang machine) stands beside it. There, connecting and the first reading of the topology are not timed,
the readings that follow are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from urllib.parse import unquote, urlsplit

import aio_pika
import pika

from rabbit_chx import Publisher
from rabbit_chx.testing import Broker

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


def rabbit_chx_direct(load: Load) -> None:
    """The same, straight to the queues behind the slots."""
    with straight(load) as publisher:
        publish(publisher, load)
    if publisher.direct.reason:
        raise SystemExit(f"it did not stay direct: {publisher.direct.reason}")


def straight(load: Load) -> Publisher:
    return Publisher(load.url, SLOTTED, via="queues", management_url=load.management_url)


def publish(publisher: Publisher, load: Load) -> None:
    for start in range(0, len(load.keys), 10_000):
        keys = load.keys[start : start + 10_000]
        publisher.publish_many([load.body] * len(keys), keys)


def bare_socket(load: Load) -> None:
    """The limit: frames made beforehand, one blocking socket, nothing kept and nothing checked."""
    parts = urlsplit(load.url)
    frame_max = 131_072
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _handshake(sock, unquote(parts.username), unquote(parts.password), unquote(parts.path[1:]) or "/")
        header = struct.pack(">HHQHB", 60, 0, len(load.body), 0x1000, 2)
        tail = _frame(2, header)
        for start in range(0, len(load.body), frame_max - 8):
            tail += _frame(3, load.body[start : start + frame_max - 8])
        method = struct.pack(">HHHB", 60, 40, 0, len(EXCHANGE)) + EXCHANGE.encode()
        sent, confirms, buffer = 0, Confirms(), b""
        while confirms.floor < len(load.keys):
            end = min(confirms.floor + WINDOW, len(load.keys))
            if sent < end and sent - confirms.floor < WINDOW // 2:
                pieces = []
                for key in load.keys[sent:end]:
                    pieces += (_frame(1, method + bytes([len(key)]) + key.encode() + b"\x01"), tail)
                sock.sendall(b"".join(pieces))
                sent = end
            buffer += sock.recv(1 << 16)
            whole = len(buffer) // 21 * 21
            for at in range(0, whole, 21):
                confirms.take(*struct.unpack_from(">QB", buffer, at + 11))
            buffer = buffer[whole:]


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _handshake(sock: socket.socket, user: str, password: str, vhost: str) -> None:
    def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> None:
        sock.sendall(_frame(1, struct.pack(">HH", class_id, method_id) + arguments, channel))
        if (class_id, method_id) != (10, 31):  # tune-ok has no answer
            receive()

    def receive() -> None:
        _, _, size = struct.unpack(">BHI", _exactly(sock, 7))
        _exactly(sock, size + 1)

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


def _exactly(sock: socket.socket, size: int) -> bytes:
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
    "rabbit-chx Publisher, direct": (rabbit_chx_direct, 1.0),
    "bare socket": (bare_socket, 1.0),
}
OURS, BLOCKING, BARE = "rabbit-chx Publisher", "pika, blocking, each confirm", "bare socket"

# What `--connections` compares.
ROADS: dict[str, Callable[[Load], Publisher]] = {
    "hash exchange": lambda load: Publisher(load.url, EXCHANGE),
    "slots": lambda load: Publisher(load.url, SLOTTED),
    "direct": straight,
}


def measure(way: Callable[[Load], object], load: Load) -> tuple[float, float]:
    """Messages a second, and microseconds of this process's CPU a message."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    way(load)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return len(load.keys) / seconds, cpu / len(load.keys) * 1e6


def declare(broker: Broker, kind: str) -> None:
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(queue, EXCHANGE, "1")
        channel.exchange_declare(SLOTTED, "x-modulus-hash", durable=True)
        for number in range(SLOTS):
            slot = f"{SLOTTED}.{number}"
            channel.exchange_declare(slot, "x-consistent-hash", durable=True, internal=True)
            channel.exchange_bind(slot, SLOTTED, "1")
            channel.queue_bind(QUEUES[number % len(QUEUES)], slot, "1")


def drain(broker: Broker) -> int:
    """Empty the queues, so that every turn meets the same broker; return how many messages were there."""
    with broker.connection() as connection:
        channel = connection.channel()
        return sum(channel.queue_purge(queue).method.message_count for queue in QUEUES)


def run(broker: Broker, load: Load, rounds: int) -> dict[str, list[tuple[float, float]]]:
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):  # the first one warms up the broker
        order = list(WAYS)
        random.Random(number).shuffle(order)
        for name in order:
            way, part = WAYS[name]
            measured = measure(way, load.first(max(int(len(load.keys) * part), 1)))
            arrived = drain(broker)
            if number and arrived:
                results[name].append(measured)
    return results


def measure_road(broker: Broker, load: Load, road: str, connections: int) -> tuple[float, float, float]:
    """Messages a second, and CPU microseconds a message of this process and of the broker."""
    share = load.first(len(load.keys) // connections)
    publishers = [ROADS[road](share) for _ in range(connections)]
    for publisher in publishers:
        publisher.open()
    gate = threading.Barrier(connections + 1)

    def work(publisher: Publisher) -> None:
        gate.wait()
        publish(publisher, share)
        publisher.flush()

    threads = [threading.Thread(target=work, args=(publisher,)) for publisher in publishers]
    for thread in threads:
        thread.start()
    theirs = broker_cpu(broker)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    gate.wait()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    theirs = broker_cpu(broker) - theirs
    for publisher in publishers:
        publisher.close()
        assert publisher.direct is None or not publisher.direct.reason, publisher.direct
    ours = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = len(share.keys) * connections
    assert sum(publisher.totals.confirmed for publisher in publishers) == count
    return count / seconds, ours / count * 1e6, theirs / count * 1e6


def broker_cpu(broker: Broker) -> float:
    """Seconds of CPU time that the Erlang machine has used."""
    return int(broker.eval("element(1, erlang:statistics(runtime)).")) / 1e3


def run_connections(broker: Broker, load: Load, rounds: int, connections: list[int]) -> dict:
    results = {number: {road: [] for road in ROADS} for number in connections}
    for number in range(rounds + 1):  # the first one warms up the broker
        turns = [(count, road) for count in connections for road in ROADS]
        random.Random(number).shuffle(turns)
        for count, road in turns:
            measured = measure_road(broker, load, road, count)
            drain(broker)
            if number:
                results[count][road].append(measured)
    return results


def report_of_roads(results: dict, load: Load, version: str) -> dict:
    """Medians, and the medians of the ratios within a round."""
    rows = []
    for connections, roads in results.items():
        for road, rounds in roads.items():
            rate, ours, theirs = map(statistics.median, zip(*rounds, strict=True))
            ratios = {
                name: statistics.median(
                    own / other for (own, *_), (other, *_) in zip(rounds, roads[road_], strict=True)
                )
                for name, road_ in (("to_exchange", "hash exchange"), ("to_slots", "slots"))
            }
            rows.append(
                {
                    "connections": connections,
                    "way": road,
                    "messages_per_second": rate,
                    "client_microseconds": ours,
                    "broker_microseconds": theirs,
                    **ratios,
                }
            )
    return {
        "rabbitmq": version,
        "size": len(load.body),
        "messages": len(load.keys),
        "cores": os.cpu_count(),
        "ways": rows,
    }


def roads_as_text(report: dict) -> str:
    what = f"{report['messages']:,} messages of {report['size']} bytes a turn, median of {report['rounds']} rounds"
    head = f"{'connections':<12} {'way':<14} {'msg/s':>9} {'client us/msg':>14} {'broker us/msg':>14}"
    rows = (
        f"{row['connections']:<12} {row['way']:<14} {row['messages_per_second']:>9,.0f} "
        f"{row['client_microseconds']:>14.1f} {row['broker_microseconds']:>14.1f} "
        f"{row['to_exchange']:>11.2f} {row['to_slots']:>8.2f}"
        for row in report["ways"]
    )
    return "\n".join(
        (
            f"RabbitMQ {report['rabbitmq']}, 4 {report['queues']} queues, {what}, {report['cores']} cores",
            "",
            f"{head} {'/ exchange':>11} {'/ slots':>8}",
            *rows,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", default=None)
    parser.add_argument("--queues", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--messages", type=int, help="of the fastest ways; by default as suits the size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--connections", help="such as 1,4,16: through the exchange and direct, side by side")
    options = parser.parse_args()
    count = options.messages or min(60_000, (256 << 20) // (options.size + 100))
    with Broker(release=options.release, plugins=["rabbitmq_sharding"]) as broker:
        declare(broker, options.queues)
        keys = [f"customer-{number:08d}" for number in range(count)]
        load = Load(broker.url, keys, b"x" * options.size, broker.management_url)
        version = broker.version
        if options.connections:
            connections = [int(number) for number in options.connections.split(",")]
            report = report_of_roads(
                run_connections(broker, load, options.rounds, connections), load, version
            )
            report |= {"queues": options.queues, "rounds": options.rounds}
            print(json.dumps(report) if options.json else roads_as_text(report))
            return
        results = run(broker, load, options.rounds)
    report = {
        "rabbitmq": version,
        "queues": options.queues,
        "size": options.size,
        "rounds": options.rounds,
        "python": platform.python_version(),
        "pika": metadata.version("pika"),
        "aio-pika": metadata.version("aio-pika"),
        "cores": os.cpu_count(),
        "ways": {
            name: {
                "messages_per_second": statistics.median(rate for rate, _ in rounds),
                "cpu_microseconds": statistics.median(cpu for _, cpu in rounds),
            }
            for name, rounds in results.items()
        },
        "ratios": {
            other: statistics.median(
                ours / theirs for (ours, _), (theirs, _) in zip(results[OURS], results[other], strict=True)
            )
            for other in (BLOCKING, BARE)
        },
    }
    print(json.dumps(report) if options.json else as_text(report))


def as_text(report: dict) -> str:
    what = f"{report['size']}-byte persistent mandatory messages, median of {report['rounds']} rounds"
    lines = [
        f"RabbitMQ {report['rabbitmq']}, 4 {report['queues']} queues, {what}",
        f"Python {report['python']}, pika {report['pika']}, aio-pika {report['aio-pika']}, {report['cores']} cores",
        "",
        f"{'way':<32} {'msg/s':>9} {'CPU us/msg':>11}",
    ]
    lines += [
        f"{name:<32} {way['messages_per_second']:>9,.0f} {way['cpu_microseconds']:>11.1f}"
        for name, way in report["ways"].items()
    ]
    lines += [
        "",
        f"this publisher / pika blocking: {report['ratios'][BLOCKING]:.1f} (bar: 12)",
        f"this publisher / bare socket:   {report['ratios'][BARE]:.2f} (bar: 0.9)",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
