"""Measure the memory and CPU time of a watch over hours, compressed: 2,880 intervals are eight hours at ten seconds each.

    python benchmarks/watching_hours.py [--queues 500] [--intervals 2880] [--json]

Snapshots with new counters pass through the comparison, the history and the server; a page follows the events, and the
metrics are read every tenth interval. It needs no broker. The target: the most memory in the later intervals is at most 1.05 times
the most in the first fifth of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology import Binding, Exchange, Observed, Queue, Topology
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.watch.interval import compare
from rabbit_chx.watch.loop import History
from rabbit_chx.watch.observer import Snapshot
from rabbit_chx.watch.ring_check import check_ring
from rabbit_chx.watch.server import Server
from rabbit_chx.watch.tokens import Access, Address

MOST_GROWTH = 1.05
SECONDS = 10.0
START = 1_800_000_000.0
SCRAPED = 10
STATM = Path("/proc/self/statm")


def observed(queues: list[str]) -> Observed:
    return assume_applied(
        Topology(
            exchanges=(Exchange("orders", "x-consistent-hash"),),
            queues=tuple(map(Queue, queues)),
            bindings=tuple(Binding("orders", name, "1") for name in queues),
        )
    )


def snapshot(number: int, queues: list[str], broker: Observed) -> Snapshot:
    """The poll at the end of an interval: each queue has got a few more messages."""
    states = {
        name: QueueState(
            name,
            ready=(number * place) % 1000,
            unacknowledged=place % 50,
            received=number * (100 + place % 7),
            handled=number * 100,
            consumers=1,
        )
        for place, name in enumerate(queues)
    }
    return Snapshot(START + SECONDS * number, "orders", observed=broker, first=broker, queues=states)


def memory() -> float:
    """The memory of this process now, in MB; its peak would be that of the start, when the ring is computed."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize() / 2**20


def follow(url: str) -> None:
    """Read the events as a page does, until the server ends."""
    with urlopen(f"{url}events") as events:
        for _ in events:
            pass


def measure(queues: list[str], intervals: int) -> dict[str, float]:
    history, broker = History(), observed(queues)
    previous = snapshot(0, queues, broker)
    ring_check = check_ring(previous, None)
    used: list[float] = []
    with Server(Access(Address.parse("127.0.0.1:0"), None)) as server:
        page = Thread(target=follow, args=(server.url,))
        page.start()
        started = time.process_time()
        for number in range(1, intervals + 1):
            current = snapshot(number, queues, broker)
            server.show(history.add(compare(previous, current, ring_check=ring_check)))
            previous = current
            if number % SCRAPED == 0:
                with urlopen(f"{server.url}metrics") as answer:
                    answer.read()
            used.append(memory())
        seconds = time.process_time() - started
    page.join()
    early, late = max(used[: intervals // 5]), max(used[intervals // 5 :])
    return {
        "queues": len(queues),
        "intervals": intervals,
        "cpu_ms_per_interval": round(1000 * seconds / intervals, 1),
        "mb_in_the_first_fifth": round(early, 1),
        "mb_later": round(late, 1),
        "ratio": round(late / early, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queues", type=int, default=500)
    parser.add_argument("--intervals", type=int, default=2880)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure([f"orders.{number}" for number in range(options.queues)], options.intervals)
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['intervals']:,} intervals of {found['queues']:,} queues")
    print(f"CPU time           {found['cpu_ms_per_interval']:.0f} ms an interval")
    print(
        f"most memory        {found['mb_in_the_first_fifth']:.0f} MB in the first fifth, {found['mb_later']:.0f} MB later"
    )
    missed = "" if found["ratio"] <= MOST_GROWTH else f"   TARGET MISSED: at most {MOST_GROWTH}"
    print(f"ratio              {found['ratio']:.3f}{missed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
