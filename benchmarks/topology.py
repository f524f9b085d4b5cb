"""Compare `apply` on a new topology with bare pika, which makes the same declarations and bindings without checks.

    python benchmarks/topology.py [--release 4.3] [--queues 500] [--rounds 3] [--json]

The order of the two alternates between rounds, and the result is the median of the ratios within a round. `apply` records the order
of the ring, so it sends three commands per queue where bare pika sends two, and it reads everything back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from rabbit_chx.broker import apply
from rabbit_chx.broker.management import Management
from rabbit_chx.testing import Broker
from rabbit_chx.topology import Bind, Binding, DeclareExchange, DeclareQueue, Exchange, Plan, Queue

CHX = "x-consistent-hash"
LEAST_STEPS, LEAST_RATIO = 200, 0.7


def bare(broker: Broker, name: str, queues: list[str]) -> None:
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(name, CHX, durable=True)
        for queue in queues:
            channel.queue_declare(queue, durable=True)
        for queue in queues:
            channel.queue_bind(queue, name, "1")


def applied(broker: Broker, name: str, queues: list[str]) -> None:
    management = Management(broker.management_url, credentials=lambda: (broker.username, broker.password))
    steps = (
        DeclareExchange(Exchange(name, CHX)),
        *(DeclareQueue(Queue(queue)) for queue in queues),
        *(Bind(Binding(name, queue, "1")) for queue in queues),
    )
    assert len(apply(broker.url, Plan("/", steps), management=management).done) == len(steps)


WAYS = {"bare pika": bare, "apply": applied}


def measure(broker: Broker, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the steps per second of each way in each round."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            name = f"{way.replace(' ', '-')}.{number}"
            queues = [f"{name}.{each}" for each in range(count)]
            start = time.perf_counter()
            WAYS[way](broker, name, queues)
            rates[way].append((2 * count + 1) / (time.perf_counter() - start))
            assert broker.ring(name) == queues
            with broker.connection() as connection:
                channel = connection.channel()
                for queue in queues:
                    channel.queue_delete(queue)
                channel.exchange_delete(name)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="4.3")
    parser.add_argument("--queues", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Broker(options.release) as broker:
        rates = measure(broker, options.queues, options.rounds)
    found = {way: round(statistics.median(each), 1) for way, each in rates.items()}
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(rates["apply"], rates["bare pika"], strict=True)
    )
    if options.json:
        print(json.dumps({"release": options.release, "queues": options.queues, **found, "ratio": ratio}))
        return
    for way, rate in found.items():
        print(f"{way:<10} {rate:>8,.0f} steps a second")
    print(
        f"apply / bare pika: {ratio:.2f} ({'met' if ratio >= LEAST_RATIO else 'missed'}: at least {LEAST_RATIO})"
    )
    met = "met" if found["apply"] >= LEAST_STEPS or ratio >= LEAST_RATIO else "missed"
    print(f"{met}: at least {LEAST_STEPS} steps a second, or what the broker allows")


if __name__ == "__main__":
    main()
