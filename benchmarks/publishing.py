"""Measure confirmed publishing through a hash exchange: this publisher, other clients and a bare socket.

    python benchmarks/publishing.py [--release 4.3] [--queues classic|quorum] [--size 100] [--rounds 3] [--json]
    python benchmarks/publishing.py --connections 1,4,16 ...

README.md describes the clients. Rates and CPU time are medians over the rounds; ratios are medians of the ratios within a round.
CPU time is that of this process with all its threads; broker and client share the cores. The time to connect is not counted
with ``--connections``, which compares that many publishers, each in its own thread.
"""

from __future__ import annotations

import json
import platform
import statistics
import threading
from importlib import metadata

from ways.publishing import EXCHANGE, QUEUES, RATIOS, ROADS, SLOTS, SLOTTED, WAYS, Load, publish
from ways.turns import Turn, conditions, headline, in_turns, medians, options_parser, ratio, timed

from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker


def measure(name: str, load: Load) -> Turn:
    way, part = WAYS[name]
    own = load.first(max(int(len(load.keys) * part), 1))

    def work() -> int:
        way(own)
        return len(own.keys)

    return timed(work)


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


def run(broker: Broker, load: Load, rounds: int) -> dict[str, list[Turn]]:
    results: dict[str, list[Turn]] = {name: [] for name in WAYS}
    for name, counts in in_turns(WAYS, rounds):
        turn = measure(name, load)
        if drain(broker) and counts:
            results[name].append(turn)
    return results


def measure_road(broker: Broker, load: Load, road: str, connections: int) -> tuple[Turn, float]:
    """The turn of this process, and the CPU microseconds per message in the broker."""
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
    count = len(share.keys) * connections

    def wait() -> int:
        gate.wait()
        for thread in threads:
            thread.join()
        return count

    before = broker_cpu(broker)
    turn = timed(wait)
    theirs = broker_cpu(broker) - before
    for publisher in publishers:
        publisher.close()
    assert sum(publisher.totals.confirmed for publisher in publishers) == count
    return turn, theirs / count * 1e6


def broker_cpu(broker: Broker) -> float:
    """Return the CPU time that the Erlang VM has used, in seconds."""
    return int(broker.eval("element(1, erlang:statistics(runtime)).")) / 1e3


def run_connections(broker: Broker, load: Load, rounds: int, connections: list[int]) -> dict:
    results = {number: {road: [] for road in ROADS} for number in connections}
    turns = [(count, road) for count in connections for road in ROADS]
    for (count, road), counts in in_turns(turns, rounds):
        measured = measure_road(broker, load, road, count)
        drain(broker)
        if counts:
            results[count][road].append(measured)
    return results


def rows_of_roads(results: dict) -> list[dict]:
    """Return the medians, and the medians of the ratios within a round."""
    rows = []
    for connections, roads in results.items():
        turns = {road: [turn for turn, _ in rounds] for road, rounds in roads.items()}
        rows += [
            {
                "connections": connections,
                "way": road,
                **medians(turns[road]),
                "broker_microseconds": statistics.median(theirs for _, theirs in rounds),
                "to_exchange": ratio(turns[road], turns["hash exchange"]),
                "to_slots": ratio(turns[road], turns["slots"]),
            }
            for road, rounds in roads.items()
        ]
    return rows


def first_lines(report: dict) -> list[str]:
    versions = ", ".join(f"{name} {report[name]}" for name in ("python", "pika", "aio-pika"))
    return [headline(report), f"4 {report['queues']} queues, {versions}", ""]


def roads_as_text(report: dict) -> str:
    head = f"{'connections':<12} {'way':<14} {'msg/s':>9} {'client us/msg':>14} {'broker us/msg':>14}"
    rows = (
        f"{row['connections']:<12} {row['way']:<14} {row['messages_per_second']:>9,.0f} "
        f"{row['cpu_microseconds']:>14.1f} {row['broker_microseconds']:>14.1f} "
        f"{row['to_exchange']:>11.2f} {row['to_slots']:>8.2f}"
        for row in report["ways"]
    )
    return "\n".join([*first_lines(report), f"{head} {'/ exchange':>11} {'/ slots':>8}", *rows])


def main() -> None:
    parser = options_parser(__doc__, "--messages", None, rounds=3)
    parser.add_argument("--queues", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--connections", help="such as 1,4,16: the hash exchange and slots, side by side")
    options = parser.parse_args()
    options.messages = options.messages or min(40_000, (256 << 20) // (options.size + 100))
    with Broker(release=options.release, plugins=["rabbitmq_sharding"]) as broker:
        declare(broker, options.queues)
        keys = [f"customer-{number:08d}" for number in range(options.messages)]
        load = Load(broker.url, keys, b"x" * options.size, broker.management_url)
        report = {
            **conditions(broker, options),
            "queues": options.queues,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("pika", "aio-pika")},
        }
        if options.connections:
            connections = [int(number) for number in options.connections.split(",")]
            report["ways"] = rows_of_roads(run_connections(broker, load, options.rounds, connections))
        else:
            results = run(broker, load, options.rounds)
            report["ways"] = {name: medians(turns) for name, turns in results.items()}
            report["ratios"] = [
                {
                    "of": one,
                    "to": other,
                    "what": what,
                    "target": target,
                    "ratio": ratio(results[one], results[other], what.lower()),
                }
                for one, other, what, target in RATIOS
            ]
    text = roads_as_text if options.connections else as_text
    print(json.dumps(report) if options.json else text(report))


def as_text(report: dict) -> str:
    lines = [*first_lines(report), f"{'way':<32} {'msg/s':>9} {'CPU us/msg':>11}"]
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
