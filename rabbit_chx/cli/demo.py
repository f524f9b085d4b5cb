"""``rabbit-chx demo``: prediction beside reality, on a throw-away broker.

The offline half comes first and takes a second; the broker, which may take a minute to start, second.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from rabbit_chx.errors import BrokerUnavailable

if TYPE_CHECKING:
    from rich.console import Console

    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.ring import Destination, Ring

_QUEUES: Final = {"orders.0": 1, "orders.1": 1, "orders.2": 2, "orders.3": 3}
_FIFTH: Final = "orders.4"
_KEYS: Final = 10_000
_FAILED: Final = 1


@click.command(
    epilog="""\b
Examples:
  rabbit-chx demo
  rabbit-chx demo --release 4.0
"""
)
@click.option("-r", "--release", help="The release of the throw-away broker; the newest there is by default.")
@click.option("--offline", "half", flag_value="offline", help="Only the half that needs no broker.")
@click.option("--online", "half", flag_value="online", help="Only the half with a broker.")
def demo(*, release: str | None, half: str | None) -> int:
    """Predict where 10,000 keys land, publish them to a real broker, and compare.

    Then add a fifth queue: predicted first, and really done.
    """
    from rabbit_chx.cli.tables import console

    out = console()
    keys = [f"customer-{number}" for number in range(_KEYS)]
    if half != "online":
        _offline_half(out, keys)
    if half == "offline":
        return 0
    out.rule("with a real broker")
    try:
        return _broker_half(out, keys, release)
    except BrokerUnavailable as error:
        out.print(f"No broker, so this half is left out: {error}", markup=False)
        return 0


def _offline_half(out: Console, keys: list[str]) -> None:
    from rabbit_chx.cli.tables import print_shares
    from rabbit_chx.movement import moved, shares
    from rabbit_chx.ring import Ring

    out.rule("without a broker")
    ring = Ring.of(_QUEUES)
    predicted = Counter(_predict(ring, keys))
    print_shares(
        {queue: predicted[queue] for queue in ring.destinations},
        title=f"Predicted: {len(keys):,} keys over 4 weighted queues",
    )
    exact = ", ".join(f"{queue} {share:.3%}" for queue, share in shares(ring).items())
    out.print(f"Exact shares of all possible keys: {exact}.")
    fifth = ring.bind(_FIFTH)
    first_gone = fifth.unbind("orders.0")
    out.print(f"Binding a fifth queue moves {moved(ring, fifth).share:.2%} of the keys, all of them to it.")
    out.print(
        f"Unbinding the first one moves {moved(fifth, first_gone).share:.2%}: "
        "the buckets are a stack, so take away the queue that was bound last."
    )


def _predict(ring: Ring, keys: list[str]) -> list[Destination]:
    from rabbit_chx.exchange import ConsistentHashExchange

    exchange = ConsistentHashExchange(ring)
    return [exchange.destinations[index] for index in exchange.route_many(keys).tolist()]


def _broker_half(out: Console, keys: list[str], release: str | None) -> int:
    from rabbit_chx.broker.connect import connect
    from rabbit_chx.broker.scratch import Scratch
    from rabbit_chx.releases import Release
    from rabbit_chx.testing import Broker, available

    source = available(release)
    out.print(f"Starting RabbitMQ: {source} ...")
    with Broker(release=release) as broker, connect(broker.url) as connection:
        mirrored = Release.parse(broker.version, store=broker.store)
        scratch = Scratch(connection, release=mirrored)
        for queue, weight in _QUEUES.items():
            scratch.bind(queue, weight)
        title = f"RabbitMQ {mirrored} on {mirrored.store.value}: {len(keys):,} confirmed messages"
        before, differences = _publish_and_compare(out, scratch, keys, title)

        scratch.bind(_FIFTH)
        predicted = sum(old != new for old, new in zip(before, _predict(scratch.ring, keys), strict=True))
        after, more = _publish_and_compare(out, scratch, keys, f"The same keys, with {_FIFTH} bound as well")
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    out.print(f"{_FIFTH} was predicted to move {predicted:,} of the {len(keys):,} keys, and moved {moved:,}.")
    return _FAILED if differences or more or moved != predicted else 0


def _publish_and_compare(
    out: Console, scratch: Scratch, keys: list[str], title: str
) -> tuple[list[str], int]:
    """Publish all keys, print predicted beside actual, and return where each landed."""
    from rabbit_chx.cli.progress import items_progress
    from rabbit_chx.cli.tables import table

    predicted = _predict(scratch.ring, keys)
    with items_progress("Publishing, each message confirmed", len(keys)) as advance:
        scratch.publish(((key, {}) for key in keys), advance)
    actual = scratch.landed(len(keys))
    differences = sum(expected != found for expected, found in zip(predicted, actual, strict=True))
    counts, real_counts = Counter(predicted), Counter(actual)
    shown = table("queue", "predicted", "actual", right=("predicted", "actual"))
    for queue in scratch.ring.destinations:
        shown.add_row(str(queue), f"{counts[queue]:,}", f"{real_counts[str(queue)]:,}")
    out.print(title, style="bold")
    out.print(shown)
    out.print(f"{differences} differences, compared message by message.")
    return actual, differences
