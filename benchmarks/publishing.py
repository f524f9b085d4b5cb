"""Measure confirmed publishing through a hash exchange: this publisher, other clients and a bare socket.

    python benchmarks/publishing.py [--release 4.3] [--queues classic|quorum] [--size 100] [--rounds 3] [--json]
    python benchmarks/publishing.py --connections 1,4,16 ...

The clients take turns: each publishes the same persistent messages to the same exchange of one throw-away broker and waits
until all are confirmed. Their order changes in each round. Rates and CPU time are medians over the rounds; ratios are medians
of the ratios within a round. CPU time is that of this process with all its threads; broker and client share the cores.

With ``--connections``, that many publishers, each in its own thread, publish to the hash exchange and to 64 slots over the
same queues, and the CPU time of the broker is printed as well. The time to connect is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable
from importlib import metadata

from ways.publishing import EXCHANGE, QUEUES, RATIOS, ROADS, SLOTS, SLOTTED, WAYS, Load, publish

from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker


def measure(way: Callable[[Load], object], load: Load) -> tuple[float, float]:
    """Messages per second, and this process's CPU microseconds per message."""
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
    """Empty the queues, so that every turn starts with the same broker state; return the number of messages removed."""
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
    """Messages per second, and CPU microseconds per message in this process and in the broker."""
    share = load.first(len(load.keys) // connections)
    publishers = [ROADS[road](share) for _ in range(connections)]
    for publisher in publishers:
        publisher.open()
    gate = threading.Barrier(connections + 1)

    def work(publisher: Publisher) -> None:
        gate.wait()
        publish(publisher, share)

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
    ours = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = len(share.keys) * connections
    assert sum(publisher.totals.confirmed for publisher in publishers) == count
    return count / seconds, ours / count * 1e6, theirs / count * 1e6


def broker_cpu(broker: Broker) -> float:
    """Return the CPU time that the Erlang VM has used, in seconds."""
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
    """Return the medians, and the medians of the ratios within a round."""
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


def ratio(results: dict[str, list[tuple[float, float]]], one: str, other: str, what: str) -> float:
    """Return the median of the ratios within a round."""
    rounds = zip(results[one], results[other], strict=True)
    position = ("rate", "CPU").index(what)
    return statistics.median(ours[position] / theirs[position] for ours, theirs in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", default=None)
    parser.add_argument("--queues", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--messages", type=int, help="of the fastest ways; by default as suits the size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--connections", help="such as 1,4,16: the hash exchange and slots, side by side")
    options = parser.parse_args()
    count = options.messages or min(40_000, (256 << 20) // (options.size + 100))
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
        "ratios": [
            {
                "of": one,
                "to": other,
                "what": what,
                "target": target,
                "ratio": ratio(results, one, other, what),
            }
            for one, other, what, target in RATIOS
        ],
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
    lines.append("")
    for each in report["ratios"]:
        compared = f"{each['of']} / {each['to']}, {each['what']}:"
        limit = "<=" if each["what"] == "CPU" else ">="
        lines.append(f"{compared:<70} {each['ratio']:>6.2f} (target: {limit} {each['target']})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
