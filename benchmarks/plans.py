"""Measure the time and memory of plans with many queues, each in a fresh process so that memory is measured separately.

    python benchmarks/plans.py [--queues 2000] [--only PLAN] [--json]

The targets, on two idle cores: 3 seconds and 300 MB for each plan of 2,000 queues, and no failure with 10,000 queues.
The report is not a plan: it draws one of five exchanges over a thousand queues each, for any ``--queues``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rabbit_chx.report import report
from rabbit_chx.topology import Binding, Exchange, Observed, Plan, Queue, Slots, Topology, plan
from rabbit_chx.topology.planning.what_if import assume_applied, what_if

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_SECONDS, MOST_MEGABYTES = 3, 300
TYPES = {"orders": "x-consistent-hash", "modulus": "x-modulus-hash"}
SLOTS, PER_TOP = 256, 200


def names(count: int) -> list[str]:
    return [f"orders.{number}" for number in range(count)]


def ring(weights: Mapping[str, int], *exchanges: str) -> Topology:
    """Exchanges over the same queues."""
    exchanges = exchanges or ("orders",)
    return Topology(
        exchanges=tuple(Exchange(name, TYPES.get(name, "x-consistent-hash")) for name in exchanges),
        queues=tuple(map(Queue, weights)),
        bindings=tuple(
            Binding(exchange, name, str(weight)) for exchange in exchanges for name, weight in weights.items()
        ),
    )


def change(before: Sequence[str], after: Mapping[str, int], exchange: str = "orders", **options) -> Plan:
    """Plan from equal weights to others."""
    there = assume_applied(ring(dict.fromkeys(before, 1), exchange))
    return plan(ring(after, exchange), there, force=True, **options)


def slots(before: Sequence[str], after: Sequence[str]) -> Plan:
    """Plan from one division of slots among queues to another, for as many exchanges as there must be."""

    def topology(queues: Sequence[str]) -> Topology:
        tops = [queues[start : start + PER_TOP] for start in range(0, len(queues), PER_TOP)]
        return Topology(
            exchanges=tuple(Exchange(f"top.{number}", "x-modulus-hash") for number, _ in enumerate(tops)),
            queues=tuple(map(Queue, queues)),
            slots=tuple(
                Slots(f"top.{number}", SLOTS, dict.fromkeys(own, 1)) for number, own in enumerate(tops)
            ),
        )

    return plan(topology(after), assume_applied(topology(before)))


def plans(count: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    every, dice = names(count), random.Random(1)
    same = dict.fromkeys(every, 1)
    gone = set(dice.sample(every, count // 20))
    heavier = {name: dice.randint(2, 5) for name in dice.sample(every, count // 4)}
    asked = ring(same)
    five = ring(dict.fromkeys(names(1_000), 1), *(f"orders.{number}" for number in range(5)))
    return {
        "first apply": lambda: plan(asked, Observed()),
        "no change": lambda: change(every, same),
        "first queue removed": lambda: change(every, dict.fromkeys(every[1:], 1)),
        "every other queue removed": lambda: change(every, dict.fromkeys(every[::2], 1)),
        "1 of 20 queues removed": lambda: change(every, {q: 1 for q in every if q not in gone}),
        "1 of 4 weights changed": lambda: change(every, same | heavier),
        "doubled": lambda: change(every, dict.fromkeys(names(2 * count), 1)),
        "reversed": lambda: change(every, dict.fromkeys(reversed(every), 1), strategy="in place"),
        "swap of 1 of 20": lambda: change(every, {q: 1 for q in every if q not in gone}, strategy="swap"),
        "blue/green": lambda: change(every, dict.fromkeys(every[::2], 1), strategy="blue/green"),
        "modulus: queue removed": lambda: change(every, dict.fromkeys(every[1:], 1), "modulus"),
        "modulus: every other": lambda: change(every, dict.fromkeys(every[::2], 1), "modulus"),
        "slots: queue added": lambda: slots(every[1:], every),
        "slots: every other": lambda: slots(every, every[::2]),
        "--add 1": lambda: what_if(asked, "orders", add=1),
        "--remove 1": lambda: what_if(asked, "orders", remove=every[:1]),
        "--weight 1": lambda: what_if(asked, "orders", weights={every[0]: 2}),
        "--weight 1 of 4": lambda: what_if(asked, "orders", weights=heavier),
        "report 5 x 1,000": lambda: report(five, "orders.0").to_html(),
    }


def run(name: str, count: int) -> dict[str, object]:
    """Measure one of them in this process."""
    make = plans(count)[name]
    started, used = time.perf_counter(), time.process_time()
    make()
    seconds, busy = time.perf_counter() - started, time.process_time() - used
    # Not ru_maxrss, which a process inherits from its parent over fork and exec.
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    megabytes = int(peak.split()[1]) // 1024
    return {
        "plan": name,
        "queues": count,
        "seconds": round(seconds, 2),
        "CPU": round(busy, 2),
        "MB": megabytes,
    }


def main() -> None:
    """Measure each in a process of its own, one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--only", help="one of them, in this process", metavar="PLAN")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(run(given.only, given.queues)))
        return
    if not given.json:
        print(f"{'plan':<26} {'queues':>8} {'seconds':>9} {'CPU':>6} {'MB':>6}")
    for name in plans(given.queues):
        command = [sys.executable, __file__, "--queues", str(given.queues), "--only", name]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        if given.json:
            print(found, end="")
            continue
        figures = json.loads(found)
        missed = "" if figures["seconds"] <= MOST_SECONDS and figures["MB"] <= MOST_MEGABYTES else "  missed"
        print(
            f"{name:<26} {figures['queues']:>8,} {figures['seconds']:>9.2f} {figures['CPU']:>6} {figures['MB']:>6}{missed}"
        )


if __name__ == "__main__":
    main()
