"""Thousands of random steps on a real broker, the mirrored ring held against the broker's own after each of them.

A restart on Mnesia leaves an order that only the node knows. There the ring is read again, held against the bindings as
a set, and followed from then on; how often that was so stands among the measures.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.broker.ring_fire import Fire, duplicates_count, noticed, skipped, the_dead_live
from tests.proof import LONG, Check, dice, record_result

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800 if LONG else 600), pytest.mark.newest_first]

STEPS = 5_000 if LONG else 300
RESTARTS = ["restart_app"] * 6 + ["restart"] * 4 if LONG else ["restart_app"]
SAMPLE = 400
"""Steps on which each of the mistakes is tried."""


MISTAKES = {
    "a step skipped": skipped,
    "duplicates with buckets": duplicates_count,
    "dead bindings with buckets": the_dead_live,
}


@pytest.mark.long
def test_the_mirror_has_the_brokers_ring_after_each_of_thousands_of_random_steps(lab):
    rng = dice("ring under fire", str(lab.release))
    started = time.monotonic()
    with Fire(lab, rng) as fire:
        fire.run(STEPS, RESTARTS)
    seconds = time.monotonic() - started
    seen = {what: mistaken(fire.journal, mistake, rng) for what, mistake in MISTAKES.items()}
    control = "; ".join(f"{what}: {told(*counted)}" for what, counted in seen.items())
    done, wrong = len(fire.journal), len(fire.wrong)
    record_result(Check("Ring", "random steps under fire", str(lab.release), done, wrong, seconds, control))
    record_result(
        f"ring under fire on RabbitMQ {lab.release} ({lab.release.store.value}): {counts(fire)}; "
        f"after {fire.reread} of {len(RESTARTS)} restarts the ring was read again and compared as a set"
    )
    assert not wrong, fire.wrong[:3]
    assert done == STEPS
    assert all(later[0] for later, _ in seen.values()), "a mistake went unnoticed"


def mistaken(journal, mistake, rng):
    """After how many steps a mistake was seen, for each of some steps; and how many never made a difference."""
    steps = [n for n, step in enumerate(journal) if changed(step, mistake)]
    later = [noticed(journal, n, mistake) for n in rng.sample(steps, min(SAMPLE, len(steps)))]
    return Counter(n for n in later if n is not None), later.count(None)


def changed(step, mistake):
    """Whether a mirror that makes this mistake at this step differs from one that does not."""
    return any(
        mistake(step.before[name], change) != change(step.before[name])
        for name, change in step.changes.items()
    )


def told(seen, harmless):
    later = seen.total() - seen[0]
    return ", ".join(
        [
            f"{seen[0]} of {seen.total() + harmless} seen at once",
            *([f"{later} up to {max(seen)} steps later"] if later else []),
            *([f"{harmless} undone before it mattered"] if harmless else []),
        ]
    )


def counts(fire):
    return ", ".join(f"{what} {n:,}" for what, n in Counter(s.what for s in fire.journal).most_common())


# -- bindings that differ in their arguments alone --------------------------------------------------------------


@pytest.fixture
def twins(lab):
    """An exchange with two bindings of one queue and one key."""
    with lab.exchange({"b": 1}) as x:
        x._queue("a", "a")
        for number in (1, 2):
            x._channel.queue_bind("a", x.name, "2", {"note": number})
        assert lab.rings([x.name])[x.name] == ("b", "a", "a")
        yield x


@pytest.mark.parametrize("gone", [1, 2])
def test_one_of_two_bindings_that_differ_in_their_arguments_alone_goes_with_the_buckets_but_for_4_3(
    lab, twins, gone
):
    x = twins
    x._channel.queue_unbind("a", x.name, "2", {"note": gone})
    left = ("b", "a", "a") if lab.release.unbind_spares_duplicates else ("b",)
    assert lab.rings([x.name])[x.name] == left
    x._channel.queue_unbind("a", x.name, "2", {"note": 3 - gone})
    assert lab.rings([x.name])[x.name] == ("b",)
