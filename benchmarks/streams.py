"""Compare ways to read a whole stream: this reader, other clients, and receiving chunks without decoding.

    python benchmarks/streams.py [--release 4.3] [--messages 1000000] [--size 100] [--rounds 3] [--json]

Two streams contain the same messages: one was published over AMQP 0-9-1, which makes small chunks, and one over the stream
protocol, which makes large ones. The ways take turns, in another order in each round. pika and rstream are slow and read a tenth
of the messages. Rates and CPU time are medians over the rounds, ratios are medians of the ratios within a round. CPU time is that
of this process; broker and client share the cores.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ways.streams import LIMIT, OURS, PIKA, SLOW, WAYS, Source
from ways.turns import conditions, headline, medians, parsed_options

from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import OffsetSpec, Refusals, StreamConnection, connect
from rabbit_chx.streams.chunks import parse_chunk, records_of
from rabbit_chx.testing import Broker

EXCHANGE = "benchmark"
SMALL, LARGE = "small chunks", "large chunks"
BARS: dict[str, dict[str, float]] = {SMALL: {LIMIT: 0.9, PIKA: 10}, LARGE: {PIKA: 10}}
LEAST_RATE, MOST_CPU = 500_000, 2.0


@dataclass(frozen=True)
class Turn:
    """The rate and the CPU time of one way in one round."""

    rate: float
    microseconds: float


def filled(broker: Broker, messages: int, size: int) -> dict[str, Source]:
    """Fill a stream with small chunks and a stream with large chunks, which contain the same messages."""
    fill_small(broker, "small", messages, size)
    fill_large(broker, "large", "small", messages)
    return {
        kind: Source(broker.url, broker.stream_url, stream, messages)
        for kind, stream in ((SMALL, "small"), (LARGE, "large"))
    }


def fill_small(broker: Broker, stream: str, messages: int, size: int) -> None:
    """Publish over AMQP 0-9-1: the broker stores messages that arrive together in a chunk, which are few."""
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "fanout")
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(stream, EXCHANGE)
    with Publisher(broker.url, EXCHANGE) as publisher:
        publisher.publish_many([b"x" * size] * messages, [f"key-{row:07}" for row in range(messages)])


def fill_large(broker: Broker, stream: str, like: str, messages: int) -> None:
    """Publish the messages of another stream over the stream protocol: the broker stores thousands in each chunk."""
    with connect(broker.stream_url, timeout=60) as connection:
        connection.create(stream)
        publisher = connection.declare_publisher(stream)
        waiting = 0
        for number, batch in enumerate(stored(broker, like, messages)):
            connection.publish(publisher, [(number * 1000 + row, body) for row, body in enumerate(batch)])
            waiting += len(batch) - confirmed(connection, 0)
        while waiting:
            if not (more := confirmed(connection, 30)):
                raise SystemExit(f"{waiting} messages were not confirmed")
            waiting -= more


def confirmed(connection: StreamConnection, seconds: float) -> int:
    """Wait up to ``seconds`` for confirms, and return the number of confirmed messages."""
    count = 0
    for outcome in itertools.islice(connection.confirms(seconds), 1 if seconds else None):
        if isinstance(outcome, Refusals):
            raise SystemExit("the broker refused messages")
        count += len(outcome.publishing_ids)
    return count


def stored(broker: Broker, stream: str, messages: int) -> Iterator[list[bytes]]:
    """Yield the encoded messages of a stream, a thousand at a time."""
    batch: list[bytes] = []
    with connect(broker.stream_url) as connection:
        subscription = connection.subscribe(stream, OffsetSpec.first(), credit=20)
        for _, chunk in connection.chunks(30):
            connection.credit(subscription, 1)
            batch += records_of(parse_chunk(chunk, stream))
            while len(batch) >= 1000 or messages == len(batch) > 0:
                yield batch[:1000]
                messages -= len(batch[:1000])
                del batch[:1000]
            if messages <= 0:
                return


def measure(name: str, source: Source) -> Turn:
    """Let one way read the stream, and check that it read every message."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    seen = WAYS[name](source)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    if seen < source.messages:
        raise SystemExit(f"{name} read {seen:,} of {source.messages:,} messages of {source.stream!r}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(seen / seconds, used / seen * 1e6)


def run(sources: dict[str, Source], rounds: int) -> dict[str, dict[str, list[Turn]]]:
    """Measure all ways in turn."""
    found: dict[str, dict[str, list[Turn]]] = {kind: {name: [] for name in WAYS} for kind in sources}
    for number in range(rounds + 1):  # the first one warms up
        for kind, source in sources.items():
            names = list(WAYS)
            random.Random(number).shuffle(names)
            for name in names:
                slow = name in SLOW
                turn = measure(name, replace(source, messages=source.messages // 10) if slow else source)
                if number:
                    found[kind][name].append(turn)
    return found


def report_of(found: dict[str, dict[str, list[Turn]]]) -> list[dict[str, Any]]:
    rows = []
    for kind, ways in found.items():
        for name, turns in ways.items():
            ratios = [ours.rate / turn.rate for ours, turn in zip(ways[OURS], turns, strict=True)]
            row = {
                "stream": kind,
                "way": name,
                **medians(turns),
                "this_reader_to_it": statistics.median(ratios),
                "bar": BARS[kind].get(name),
            }
            rows.append(row)
    return rows


def as_text(report: dict[str, Any]) -> str:
    lines = [
        headline(report),
        "",
        f"{'stream':<13} {'way':<24} {'msg/s':>11} {'CPU us/msg':>11} {'this reader / it':>17}",
    ]
    for row in report["ways"]:
        bar = f" (bar: {row['bar']})" if row["bar"] else ""
        lines.append(
            f"{row['stream']:<13} {row['way']:<24} {row['messages_per_second']:>11,.0f} "
            f"{row['cpu_microseconds']:>11.2f} {row['this_reader_to_it']:>17.2f}{bar}"
        )
    lines.append(f"bars, this reader, large chunks: >= {LEAST_RATE:,} msg/s, CPU <= {MOST_CPU:g} us")
    return "\n".join(lines)


def main() -> None:
    options = parsed_options(__doc__, "--messages", 1_000_000, rounds=3)
    with Broker(release=options.release, plugins=["rabbitmq_stream"]) as broker:
        sources = filled(broker, options.messages, options.size)
        report = {
            **conditions(broker, options),
            "ways": report_of(run(sources, options.rounds)),
        }
    print(json.dumps(report) if options.json else as_text(report))


if __name__ == "__main__":
    main()
