"""Measure the time and memory of plans with many queues, each in a process of its own so that memory is measured separately.

    python benchmarks/plans.py --queues 2000

The targets, on two idle cores: 3 seconds and 300 MB for each plan of 2,000 queues, and no failure with 10,000 queues.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from rabbit_chx.topology import Binding, Exchange, Observed, Queue, Topology, assume_applied, plan, what_if

PLANS = ("first apply", "no change", "add", "remove", "weight", "one queue less")


def topology(queues: range) -> Topology:
    """Return a ring of queues with equal weights."""
    names = [f"orders.{number}" for number in queues]
    return Topology(
        exchanges=(Exchange("orders", "x-consistent-hash"),),
        queues=tuple(Queue(name) for name in names),
        bindings=tuple(Binding("orders", name, "1") for name in names),
    )


def run(name: str, count: int) -> None:
    """Make one plan, and print its time and the memory of this process."""
    ring = topology(range(count))
    started = time.perf_counter()
    match name:
        case "first apply":
            plan(ring, Observed())
        case "no change":
            plan(ring, assume_applied(ring))
        case "add":
            what_if(ring, "orders", add=1)
        case "remove":
            what_if(ring, "orders", remove=["orders.0"])
        case "weight":
            what_if(ring, "orders", weights={"orders.0": 2})
        case "one queue less":
            plan(topology(range(1, count)), assume_applied(ring))
    seconds = time.perf_counter() - started
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:<16} {count:>8,} {seconds:>9.2f} {megabytes:>9.0f}")


def main() -> None:
    """Run each plan in a process of its own; each prints a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--only", choices=PLANS, help="one plan, in this process")
    given = parser.parse_args()
    if given.only:
        run(given.only, given.queues)
        return
    print(f"{'plan':<16} {'queues':>8} {'seconds':>9} {'MB':>9}")
    for name in PLANS:
        subprocess.run([sys.executable, __file__, "--queues", str(given.queues), "--only", name], check=True)


if __name__ == "__main__":
    main()
