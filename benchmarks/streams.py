"""Compare ways to read a whole stream: this reader, other clients, and receiving chunks without decoding. Then ways to write one.

    python benchmarks/streams.py [--release 4.3] [--messages 1000000] [--size 100] [--rounds 3] [--json]

README.md describes the ways. pika and rstream are slow and read a tenth of the messages. Rates and CPU time are medians over the
rounds, ratios are medians of the ratios within a round. CPU time is that of this process; broker and client share the cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ways.stream_writing import (
    BULK,
    LIMIT as BARE,
    ONE_BY_ONE,
    RSTREAM,
    RSTREAM_TASKS,
    TASK,
    WRITERS,
    Writing,
    bare_connection,
)
from ways.streams import BATCHES, LIMIT, MESSAGES, OURS, PIKA, RSTREAM as READING_RSTREAM, SLOW, WAYS, Source
from ways.turns import Turn, conditions, headline, in_turns, medians, options_parser, ratio, timed

from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import connect
from rabbit_chx.streams.messages.chunks import parse_chunk, records_of
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.protocol.requests import OffsetSpec
from rabbit_chx.testing import Broker

EXCHANGE = "benchmark"
SMALL, LARGE = "small chunks", "large chunks"
BARS: dict[str, dict[str, float]] = {SMALL: {LIMIT: 0.9, PIKA: 10}, LARGE: {PIKA: 10}}
LEAST_RATE, MOST_CPU = 500_000, 2.0
GROUP_BARS = {(BATCHES, OURS): 0.7, (BATCHES, READING_RSTREAM): 10.0, (MESSAGES, READING_RSTREAM): 3.0}
"""For large chunks: the rate of a group of one as a share of another way's."""
WRITE_BARS = {RSTREAM: 0.5, BARE: 0.9, RSTREAM_TASKS: 1.0}


def filled(broker: Broker, messages: int, size: int) -> dict[str, Source]:
    """Fill a stream with small chunks and a stream with large chunks, which contain the same messages."""
    fill_small(broker, "small", messages, size)
    fill_large(broker, "large", stored(broker, "small", messages))
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


def fill_large(broker: Broker, stream: str, messages: list[bytes]) -> None:
    """Publish encoded messages over the stream protocol: the broker stores thousands in each chunk."""
    with connect(broker.stream_url) as connection:
        connection.create(stream)
    bare_connection(Writing(broker.stream_url, stream, [], messages))


def stored(broker: Broker, stream: str, messages: int) -> list[bytes]:
    """Return the encoded messages of a stream."""
    found: list[bytes] = []
    with connect(broker.stream_url) as connection:
        subscription = connection._subscribe(stream, OffsetSpec.first(), credit=20)
        for _, chunk in connection._chunks(30):
            connection._credit(subscription, 1)
            found += records_of(parse_chunk(chunk, stream))
            if len(found) >= messages:
                break
    return found


def measure(name: str, way: Callable[[], int], messages: int) -> Turn:
    """Let one way read or write a stream, and check that it handled every message."""
    turn = timed(way)
    if turn.messages < messages:
        raise SystemExit(f"{name} handled {turn.messages:,} of {messages:,} messages")
    return turn


def run(sources: dict[str, Source], rounds: int) -> dict[str, dict[str, list[Turn]]]:
    """Measure all ways in turn."""
    found: dict[str, dict[str, list[Turn]]] = {kind: {name: [] for name in WAYS} for kind in sources}
    for kind, source in sources.items():
        for name, counts in in_turns(WAYS, rounds):
            part = replace(source, messages=source.messages // 10) if name in SLOW else source
            turn = measure(name, partial(WAYS[name], part), part.messages)
            if counts:
                found[kind][name].append(turn)
    return found


def run_writing(broker: Broker, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Measure all ways to write in turn, each to a new stream."""
    bodies = [b"x" * options.size] * options.messages
    messages = list(
        encode_messages(bodies, routing_keys=[f"key-{row:07}" for row in range(options.messages)])
    )
    ways = WRITERS | ONE_BY_ONE
    found: dict[str, list[Turn]] = {name: [] for name in ways}
    for name, counts in in_turns(ways, options.rounds):
        with connect(broker.stream_url) as connection:
            connection.create("written")
        count = options.messages // (10 if name in ONE_BY_ONE else 1)
        writing = Writing(broker.stream_url, "written", bodies[:count], messages[:count], broker.url)
        turn = measure(name, partial(ways[name], writing), count)
        with connect(broker.stream_url) as connection:
            connection.delete("written")
        if counts:
            found[name].append(turn)
    return found


def report_of(found: dict[str, dict[str, list[Turn]]]) -> list[dict[str, Any]]:
    return [
        {
            "stream": kind,
            "way": name,
            **medians(turns),
            "this_reader_to_it": ratio(ways[OURS], turns),
            "bar": BARS[kind].get(name),
        }
        for kind, ways in found.items()
        for name, turns in ways.items()
    ]


def group_report(found: dict[str, dict[str, list[Turn]]]) -> list[dict[str, Any]]:
    """The rates of groups as shares of other ways' rates."""
    return [
        {
            "stream": kind,
            "way": way,
            "other": other,
            "ratio": ratio(ways[way], ways[other]),
            "bar": bar if kind == LARGE else None,
        }
        for kind, ways in found.items()
        for (way, other), bar in GROUP_BARS.items()
    ]


def writing_report(found: dict[str, list[Turn]]) -> list[dict[str, Any]]:
    return [
        {
            "way": name,
            **medians(turns),
            "this_publisher_to_it": ratio(found[TASK if name in ONE_BY_ONE else BULK], turns),
            "bar": WRITE_BARS.get(name),
        }
        for name, turns in found.items()
    ]


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
    lines += [
        f"bars, this reader, large chunks: >= {LEAST_RATE:,} msg/s, CPU <= {MOST_CPU:g} us",
        "",
        f"{'stream':<13} {'group':<26} {'compared with':<14} {'ratio':>6}",
        *(
            f"{row['stream']:<13} {row['way']:<26} {row['other']:<14} {row['ratio']:>6.2f}"
            + (f" (bar: {row['bar']})" if row["bar"] else "")
            for row in report["groups"]
        ),
        "",
        f"{'way to write':<38} {'msg/s':>11} {'CPU us/msg':>11} {'this publisher / it':>20}",
    ]
    for row in report["writing"]:
        bar = f" (bar: {row['bar']})" if row["bar"] else ""
        lines.append(
            f"{row['way']:<38} {row['messages_per_second']:>11,.0f} "
            f"{row['cpu_microseconds']:>11.2f} {row['this_publisher_to_it']:>20.2f}{bar}"
        )
    return "\n".join(lines)


def main() -> None:
    options = options_parser(__doc__, "--messages", 1_000_000, rounds=3).parse_args()
    with Broker(release=options.release, plugins=["rabbitmq_stream"]) as broker:
        sources = filled(broker, options.messages, options.size)
        found = run(sources, options.rounds)
        report = {
            **conditions(broker, options),
            "ways": report_of(found),
            "groups": group_report(found),
            "writing": writing_report(run_writing(broker, options)),
        }
    print(json.dumps(report) if options.json else as_text(report))


if __name__ == "__main__":
    main()
