"""Compare a group of one member with plain pika on the same queues, and measure the pause of a queue that changes members.

    python benchmarks/consuming.py [--release 4.3] [--messages 20000] [--size 100] [--rounds 5] [--json]

Every client consumes the same backlog of eight quorum queues with a single active consumer, each queue on its own channel
with the same prefetch, and calls the same handler. The order of the clients changes in each round. Pika acknowledges each
message, as in its documentation, or, as a second client, once for all messages handled in one batch of events. Times are
measured from the first message to the last. CPU time is the client's; broker and client share the cores. Ratios are
medians of the ratios within a round.

Then members in separate processes handle a message every few milliseconds on each queue, while one of them joins, stops
and is killed. The pause of a queue is the time from the last message of the old member to the first one of the new member.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import pika
from ways.consuming import EXCHANGE, QUEUES, declare, handovers
from ways.turns import conditions, headline, medians, options_parser

from rabbit_chx.consuming import Group
from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker

LEAST_RATE, MOST_CPU = 0.9, 1.3
PREFETCHES = (50, 200)


class Stopwatch:
    """A handler that measures the time from the first to the last of ``messages`` messages, and then calls `done`."""

    def __init__(self, messages: int) -> None:
        self.done: Callable[[], None] = lambda: None
        self.finished = False
        self._messages = messages
        self._numbers = count(1)

    def __call__(self, _: object) -> None:
        number = next(self._numbers)
        if number == 1:
            self._started = time.perf_counter(), cpu()
        if number == self._messages:
            (since, used), self._started = self._started, (time.perf_counter(), cpu())
            self.rate = (number - 1) / (self._started[0] - since)
            self.microseconds = (self._started[1] - used) / (number - 1) * 1e6
            self.finished = True
            self.done()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def plain(url: str, prefetch: int, handler: Stopwatch, *, at_once: bool = False) -> None:
    """Consume with pika as in its documentation, or with one acknowledgement for each batch of events."""
    handled: dict[Any, int] = {}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:

        def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
            handler(body)
            if at_once:
                handled[channel] = method.delivery_tag
            else:
                channel.basic_ack(method.delivery_tag)

        for queue in QUEUES:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=prefetch)
            channel.basic_consume(queue, on_message)
        while not handler.finished:
            connection.process_data_events(time_limit=1)
            for channel, tag in handled.items():
                channel.basic_ack(tag, multiple=True)
            handled.clear()


def group(url: str, prefetch: int, handler: Stopwatch, **settings: Any) -> None:
    """Consume as the only member of a group."""
    member = Group(url, exchange=EXCHANGE, name="benchmark", queues=QUEUES, prefetch=prefetch, **settings)
    handler.done = member.stop
    member.run(handler)


PLAIN, BATCHED, GROUP = "pika", "pika, acks in batches", "group"
WAYS = {
    PLAIN: plain,
    BATCHED: partial(plain, at_once=True),
    GROUP: group,
    "group, order=key": partial(group, order="key", key=attrgetter("routing_key")),
}


def run(broker: Broker, messages: int, size: int, rounds: int) -> dict[int, dict[str, list[Stopwatch]]]:
    """Let each client consume the same backlog in each round."""
    found: dict[int, dict[str, list[Stopwatch]]] = {each: {way: [] for way in WAYS} for each in PREFETCHES}
    for number in range(rounds + 1):  # the first round warms up the broker
        for prefetch, ways in found.items():
            order = list(WAYS)
            random.Random(number * prefetch).shuffle(order)
            for way in order:
                with Publisher(broker.url, EXCHANGE) as publisher:
                    publisher.publish_many(
                        [b"x" * size] * messages, [f"key-{row}" for row in range(messages)]
                    )
                handler = Stopwatch(messages)
                WAYS[way](broker.url, prefetch, handler)
                assert not waiting(broker), f"{way} left messages behind"
                if number:
                    ways[way].append(handler)
    return found


def waiting(broker: Broker) -> int:
    with broker.connection() as connection:
        channel = connection.channel()
        return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES)


def report_of(found: dict[int, dict[str, list[Stopwatch]]]) -> list[dict[str, Any]]:
    rows = []
    for prefetch, ways in found.items():
        for way, turns in ways.items():
            row = {
                "prefetch": prefetch,
                "way": way,
                **medians(turns),
            }
            for name, other in (("pika", ways[PLAIN]), ("batches", ways[BATCHED]), ("group", ways[GROUP])):
                pairs = list(zip(turns, other, strict=True))
                row[f"rate_to_{name}"] = statistics.median(ours.rate / its.rate for ours, its in pairs)
                row[f"cpu_to_{name}"] = statistics.median(
                    ours.microseconds / its.microseconds for ours, its in pairs
                )
            rows.append(row)
    return rows


def as_text(report: dict[str, Any]) -> str:
    lines = [
        f"{headline(report)}, {len(QUEUES)} queues",
        "",
        (
            f"{'prefetch':<9} {'way':<22} {'msg/s':>8} {'CPU us/msg':>11} {'x pika: rate':>13} {'CPU':>5} "
            f"{'x batches: rate':>16} {'CPU':>5} {'x group: rate':>14} {'CPU':>5}"
        ),
    ]
    lines += [
        f"{row['prefetch']:<9} {row['way']:<22} {row['messages_per_second']:>8,.0f} {row['cpu_microseconds']:>11.1f} "
        f"{row['rate_to_pika']:>13.2f} {row['cpu_to_pika']:>5.2f} "
        f"{row['rate_to_batches']:>16.2f} {row['cpu_to_batches']:>5.2f} "
        f"{row['rate_to_group']:>14.2f} {row['cpu_to_group']:>5.2f}"
        for row in report["ways"]
    ]
    lines += [
        f"bars, x pika: rate >= {LEAST_RATE}, CPU <= {MOST_CPU}; order=key, x group: CPU <= {MOST_CPU}",
        "",
        "pause of a queue that changes members, ms: median (longest)",
    ]
    lines += [
        f"{what:<44} {statistics.median(gaps):>7.0f} ({max(gaps):.0f})"
        for what, gaps in report["handovers"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    options = options_parser(__doc__, "--messages", 20_000, rounds=5, release="4.0 or later").parse_args()
    with Broker(release=options.release) as broker:
        declare(broker)
        report = {
            **conditions(broker, options),
            "ways": report_of(run(broker, options.messages, options.size, options.rounds)),
            "handovers": handovers(broker, options.rounds),
        }
    print(json.dumps(report) if options.json else as_text(report))


if __name__ == "__main__":
    main()
