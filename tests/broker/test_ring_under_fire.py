"""Thousands of random steps on a real broker, the mirrored ring held against the broker's own after each of them.

A restart on Mnesia leaves an order that only the node knows. There the ring is read again, held against the bindings as
a set, and followed from then on; how often that was so stands among the measures.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.broker.ring_fire import Fire, duplicates_count, noticed, skipped, the_dead_live
from tests.proof import LONG, Check, book, dice

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800 if LONG else 600)]

STEPS = 10_000 if LONG else 300
RESTARTS = ["restart_app"] * 12 + ["restart"] * 8 if LONG else ["restart_app", "restart"]
SAMPLE = 400
"""Steps on which each of the mistakes is tried."""


def test_the_mirror_has_the_brokers_ring_after_each_of_thousands_of_random_steps(lab):
    rng = dice("ring under fire", str(lab.release))
    started = time.monotonic()
    with Fire(lab, rng) as fire:
        fire.run(STEPS, RESTARTS)
    seconds = time.monotonic() - started
    mistakes = {
        mistake: mistaken(fire.journal, mistake, rng)
        for mistake in (skipped, duplicates_count, the_dead_live)
    }
    book(
        Check(
            "Ring",
            "random steps under fire",
            str(lab.release),
            len(fire.journal),
            len(fire.wrong),
            seconds,
            "; ".join(
                f"{what}: {told(*mistakes[mistake])}"
                for mistake, what in {
                    skipped: "a step skipped",
                    duplicates_count: "duplicates with buckets",
                    the_dead_live: "dead bindings with buckets",
                }.items()
            ),
        )
    )
    book(
        f"ring under fire on RabbitMQ {lab.release} ({lab.release.store.value}): {counts(fire)}; "
        f"after {fire.reread} of {len(RESTARTS)} restarts the ring was read again and compared as a set"
    )
    assert not fire.wrong, fire.wrong[:3]
    assert len(fire.journal) == STEPS
    assert all(seen.total() > STEPS / 50 for seen, _ in mistakes.values()), "a mistake went unnoticed"


def mistaken(journal, mistake, rng):
    """After how many steps a mistake was seen, for each of some steps; and how many had healed before."""
    # A restart that is read again knows no mistake; a step that does nothing to the mirror cannot be mistaken.
    steps = [n for n, step in enumerate(journal) if changed(step, mistake)]
    later = [noticed(journal, n, mistake) for n in rng.sample(steps, min(SAMPLE, len(steps)))]
    return Counter(n for n in later if n is not None), later.count(None)


def changed(step, mistake):
    """Whether a mirror that makes this mistake at this step differs from one that does not."""
    return any(
        mistake(step.before[name], change) != change(step.before[name])
        for name, change in step.changes.items()
    )


def told(seen, healed):
    at_once, slowest = seen[0], max(seen, default=0)
    return (
        f"{seen.total()} of {seen.total() + healed} seen, {at_once} at once, the last {slowest} steps later"
    )


def counts(fire):
    return ", ".join(f"{what} {n:,}" for what, n in Counter(s.what for s in fire.journal).most_common())
