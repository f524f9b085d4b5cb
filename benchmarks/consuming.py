"""Compare a group of one member, and a reader of one queue, with pika on the same queues, and measure the pause of a queue that changes members.

    python benchmarks/consuming.py [--release 4.3] [--messages 60000] [--size 100] [--rounds 5] [--only SCENE] [--json]

README.md describes the clients, which take turns with the same backlog and a handler that does nothing. Pika with an acknowledgement
for each message gets a tenth of the messages, because it is slow. Times are measured from the first message, or the first batch, to
the last. CPU time is the client's; broker and client share the cores. Ratios are medians of the ratios within a round. The pause of
a queue is the time from the last message of the old member to the first one of the new member.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ways import consumers
from ways.consumers import Stopwatch
from ways.consuming import EXCHANGE, QUEUES, declare, handovers
from ways.turns import Turn, conditions, headline, in_turns, medians, options_parser, ratio

from rabbit_chx.publishing import Publisher
from rabbit_chx.testing import Broker

PLAIN, BATCHED, BARE, GROUP = "pika", "pika, acks in batches", "bare socket", "group"
KEYS, ASYNC, READER, TUNED = "group, order=key", "async group", "reader", "reader, prefetch=20000"
Way = Callable[[str, Sequence[str], int, Stopwatch], None]
OF_QUEUES: Final[dict[str, Way]] = {
    BATCHED: consumers.batched,
    GROUP: consumers.group,
    KEYS: consumers.by_key,
    ASYNC: consumers.async_group,
}


class Scene(NamedTuple):
    """What is consumed, how, and by whom."""

    queues: Sequence[str]
    prefetch: int
    ways: dict[str, Way]


WITH_PLAIN: Final = {PLAIN: consumers.plain, **OF_QUEUES}
OF_ONE: Final[dict[str, Way]] = {
    BATCHED: consumers.batched,
    BARE: consumers.bare_socket,
    READER: consumers.reader,
    TUNED: consumers.tuned_reader,
}
SCENES: Final = {
    "50": Scene(QUEUES, 50, WITH_PLAIN),
    "200": Scene(QUEUES, 200, WITH_PLAIN),
    "2000": Scene(QUEUES, 2_000, OF_QUEUES),
    "one": Scene(QUEUES[:1], 2_000, OF_ONE),
}
BARS: Final = (
    ("50", GROUP, PLAIN, "rate", 0.9),
    ("50", GROUP, PLAIN, "cpu", 1.3),
    ("2000", GROUP, BATCHED, "rate", 1.2),
    ("2000", GROUP, BATCHED, "cpu", 0.7),
    ("2000", KEYS, GROUP, "rate", 0.8),
    ("2000", KEYS, GROUP, "cpu", 1.3),
    ("2000", ASYNC, GROUP, "rate", 0.8),
    ("one", READER, BATCHED, "rate", 1.5),
    ("one", READER, BARE, "rate", 0.5),
    ("one", READER, TUNED, "rate", 0.9),
)
"""Scene, client, other client, what, and the least ratio of rates or the largest one of CPU times."""

Turns = dict[str, dict[str, list[Turn]]]


def run(broker: Broker, options: argparse.Namespace) -> Turns:
    """Let each client consume the same backlog in each round."""
    chosen = {name: scene for name, scene in SCENES.items() if options.only in (None, name)}
    found: Turns = {name: {way: [] for way in scene.ways} for name, scene in chosen.items()}
    for name, scene in chosen.items():
        for way, counts in in_turns(scene.ways, options.rounds):
            messages = options.messages // 10 if way == PLAIN else options.messages
            publish(broker, scene, messages, options.size)
            handler = Stopwatch(messages)
            scene.ways[way](broker.url, scene.queues, scene.prefetch, handler)
            assert not waiting(broker), f"{way} left messages behind"
            if counts:
                found[name][way].append(handler.turn)
    return found


def publish(broker: Broker, scene: Scene, messages: int, size: int) -> None:
    """Fill the queues of a scene: through the exchange, or the only one directly."""
    exchange = EXCHANGE if len(scene.queues) > 1 else ""
    keys = [f"key-{row}" for row in range(messages)] if exchange else [*scene.queues] * messages
    with Publisher(broker.url, exchange) as publisher:
        publisher.publish_many([b"x" * size] * messages, keys)


def waiting(broker: Broker) -> int:
    with broker.connection() as connection:
        channel = connection.channel()
        return sum(channel.queue_declare(queue, passive=True).method.message_count for queue in QUEUES)


def report_of(found: Turns) -> list[dict[str, Any]]:
    return [
        {
            "scene": name,
            "way": way,
            **medians(turns),
            **{f"{what}_to_batches": ratio(turns, ways[BATCHED], what) for what in ("rate", "cpu")},
        }
        for name, ways in found.items()
        for way, turns in ways.items()
    ]


def bars_of(found: Turns) -> list[dict[str, Any]]:
    """Whether each bar is met."""
    rows = []
    for scene, way, other, what, bar in BARS:
        if scene in found:
            reached = ratio(found[scene][way], found[scene][other], what)
            met = reached >= bar if what == "rate" else reached <= bar
            names = {"scene": scene, "way": way, "other": other, "what": what}
            rows.append({**names, "ratio": reached, "bar": bar, "met": met})
    return rows


def as_text(report: dict[str, Any]) -> str:
    lines = [
        headline(report),
        "",
        f"{'scene':<6} {'way':<24} {'msg/s':>8} {'CPU us/msg':>11} {'x batches: rate':>16} {'CPU':>5}",
    ]
    lines += [
        f"{row['scene']:<6} {row['way']:<24} {row['messages_per_second']:>8,.0f} {row['cpu_microseconds']:>11.1f} "
        f"{row['rate_to_batches']:>16.2f} {row['cpu_to_batches']:>5.2f}"
        for row in report["ways"]
    ]
    lines.append("")
    lines += [
        f"{row['scene']:<6} {row['way']} / {row['other']}, {row['what']}: {row['ratio']:.2f}, "
        f"{'at least' if row['what'] == 'rate' else 'at most'} {row['bar']}: {'met' if row['met'] else 'missed'}"
        for row in report["bars"]
    ]
    if report["handovers"]:
        lines += ["", "pause of a queue that changes members, ms: median (longest)"]
    lines += [
        f"{what:<44} {statistics.median(gaps):>7.0f} ({max(gaps):.0f})"
        for what, gaps in report["handovers"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = options_parser(__doc__, "--messages", 60_000, rounds=5, release="4.0 or later")
    parser.add_argument("--only", choices=SCENES, help="only one scene, and no handovers")
    options = parser.parse_args()
    with Broker(release=options.release) as broker:
        declare(broker)
        found = run(broker, options)
        report = {
            **conditions(broker, options),
            "ways": report_of(found),
            "bars": bars_of(found),
            "handovers": {} if options.only else handovers(broker, options.rounds),
        }
    print(json.dumps(report) if options.json else as_text(report))


if __name__ == "__main__":
    main()
