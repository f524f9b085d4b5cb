"""Measure what `rabbit-chx watch` costs a broker with many queues.

    python benchmarks/watching.py [--release 4.3] [--queues 2000] [--polls 10] [--json]

Polls an exchange with these queues every ten seconds, and then leaves the broker alone for as long. The cost of a poll is
the difference in CPU time of the Erlang VM. With more queues than `watch` polls every ten seconds, a minute has fewer polls.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from publishing import broker_cpu
from topology import bare

from rabbit_chx.broker.management import Management
from rabbit_chx.testing import Broker
from rabbit_chx.watch import Observer
from rabbit_chx.watch.interval import compare

EXCHANGE, SECONDS = "orders", 10.0
MOST_CPU = 1.0


def fill(broker: Broker, queues: list[str]) -> None:
    """Declare the exchange, and give each queue a message, so that the broker has statistics of it."""
    bare(broker, EXCHANGE, queues)
    with broker.connection() as connection:
        channel = connection.channel()
        for queue in queues:
            channel.basic_publish("", queue, b"")


def cpu_of(broker: Broker, turns: int, act=lambda: None) -> float:
    """The CPU seconds of the broker while this acts every ten seconds."""
    before, due = broker_cpu(broker), time.monotonic()
    for _ in range(turns):
        act()
        due += SECONDS
        time.sleep(max(0.0, due - time.monotonic()))
    return broker_cpu(broker) - before


def measured(broker: Broker, queues: int, polls: int) -> dict[str, float]:
    fill(broker, [f"{EXCHANGE}.{number}" for number in range(queues)])
    management = Management(broker.management_url, credentials=lambda: (broker.username, broker.password))
    observer = Observer(management, "/", EXCHANGE)
    last = observer._poll()
    time.sleep(SECONDS)  # the statistics of new queues begin within five seconds
    own = 0.0

    def poll() -> None:
        nonlocal last, own
        began = time.process_time()
        previous, last = last, observer._poll()
        compare(previous, last)
        own += time.process_time() - began

    watched = cpu_of(broker, polls, poll)
    assert len(last.queues) == queues
    assert last.reachable
    left_alone = cpu_of(broker, polls)
    interval = max(SECONDS, observer._least_seconds)
    by_poll = (watched - left_alone) / polls
    return {
        "requests_of_a_poll": last.requests,
        "interval": interval,
        "broker_cpu_of_a_poll": by_poll,
        "broker_cpu_a_minute": by_poll * 60 / interval,
        "broker_cpu_a_minute_alone": left_alone * 60 / (polls * SECONDS),
        "watch_cpu_of_a_poll": own / polls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="4.3")
    parser.add_argument("--queues", type=int, default=2000)
    parser.add_argument("--polls", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Broker(options.release) as broker:
        found = measured(broker, options.queues, options.polls)
        report = {"rabbitmq": broker.version, "queues": options.queues, "cores": os.cpu_count(), **found}
    if options.json:
        print(json.dumps(report))
        return
    print("RabbitMQ {rabbitmq}, {queues:,} queues, {cores} cores".format(**report))
    print("a poll every {interval:.0f} s, {requests_of_a_poll} requests".format(**report))
    print(
        "CPU of the broker: {broker_cpu_of_a_poll:.2f} s a poll, {broker_cpu_a_minute:.2f} s a minute".format(
            **report
        )
    )
    print("                   {broker_cpu_a_minute_alone:.2f} s a minute without the watch".format(**report))
    print("CPU of the watch:  {watch_cpu_of_a_poll:.2f} s a poll".format(**report))
    met = "met" if found["broker_cpu_a_minute"] <= MOST_CPU else "missed"
    print(f"{met}: at most {MOST_CPU:g} s of the broker's CPU a minute")


if __name__ == "__main__":
    main()
