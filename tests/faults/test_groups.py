"""Members of a group join, end, hang and lose their connections under load: no message is lost, and each key stays in order.

They are of both classes, with both orders, with and without the fast path for deliveries (`groups.KINDS`).

RABBIT_CHX_GROUP_MESSAGES=300000 pytest tests/faults/test_groups.py -k every_fault     (as in the proof)
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack

import pytest

from rabbit_chx.consuming.seats import priority
from tests.faults import groups
from tests.faults.groups import Faults, Workers
from tests.faults.proxy import Proxy
from tests.proof import LONG, SEED, dice

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600 if LONG else 600)]

ALSO = {"test_every_fault_keeps_every_message_and_the_order_of_each_key": ["4.0"]}
MESSAGES = int(os.environ.get("RABBIT_CHX_GROUP_MESSAGES", "150000" if LONG else "30000"))
ROUNDS = 4 if LONG else 1
HEARTBEAT = 2


@pytest.fixture
def workers(broker, topology, tmp_path):
    """Workers of a new topology: workers(queues, keys, single=whether each queue has a single active consumer)."""
    with ExitStack() as running:

        def make(*, queues: int, keys: int, single: bool = True) -> Workers:
            arguments = {"x_single_active_consumer": True} if single else {}
            used = topology(queues=queues, x_queue_type="quorum", x_delivery_limit=-1, **arguments)
            return running.enter_context(Workers(broker, used, tmp_path, keys=keys))

        yield make


@pytest.fixture
def group(broker, workers):
    """The faults of a new group, and its workers: group(queues, keys)."""

    def make(**options) -> Faults:
        made = workers(**options)
        made.at_once = groups.AT_ONCE
        settings = {
            "kind": "group",
            "concurrency": groups.AT_ONCE,
            "exchange": made.topology.exchange,
            "queues": made.topology.queues,
            "name": f"proof.{secrets.token_hex(3)}",
            "heartbeat": HEARTBEAT,
            # On 4.3, it frees most queues that are stuck because their member was killed while another one took over.
            "consumer_timeout": 30 if broker.version >= "4.3" else None,
        }
        return Faults(made, broker, dice("group", broker.version), settings)

    return make


@pytest.fixture
def controls(workers):
    """Check and describe what goes wrong without a single active consumer, and without priorities."""

    def plain(single, priority_of):
        it = workers(queues=4, keys=40, single=single)
        for seat in range(2):
            priorities = {queue: priority_of(seat, at) for at, queue in enumerate(it.topology.queues)}
            options = {"kind": "plain", "pause": 0.001, "prefetch": 50, "queues": priorities}
            it.until_consuming(it.start(options))
        it.handle(2_000)
        if not single:  # one of them may have handled all so far
            it.until(lambda: it.judge().disorder, "messages are out of order", pause=0.2)
        return it.kill()

    shared = plain(False, lambda seat, at: priority(seat, at, 4))
    assert shared.disorder
    alone = plain(True, lambda _seat, _at: 0)
    assert len(alone.handled) == 1
    assert not alone.disorder
    return (
        f"without a single active consumer {len(shared.disorder):,} of {shared.seen:,} out of order; without priorities "
        f"the first of two members handled {alone.seen:,} of {alone.seen:,}"
    )


@pytest.fixture
def conclude(record, controls):
    """Finish a scenario, check its verdict, and record it."""

    def conclude(scenario: str, faults: Faults) -> None:
        found = faults.workers.finish()
        wrong = [*found.unexpected, *found.unexplained, *(sight.number for sight in found.disorder)]
        record(
            *("Consumers", scenario, faults.workers.published, faults.counts.total()),
            *(found.lost, wrong, found.duplicated),
            control=controls,
            notes=[
                f"{len(found.disorder)} out of order",
                ", ".join(f"{kind}: {count}" for kind, count in faults.counts.items()),
                faults.revived and f"queues left with a dead consumer by the killed broker: {faults.revived}",
                f"a queue waited {found.longest_wait:.1f} s at most",
            ],
        )

    return conclude


def test_joins_ends_and_pauses_keep_every_message_and_the_order_of_each_key(group, conclude):
    faults = group(queues=8, keys=500)
    faults.joins(1)
    for fault in (
        lambda: faults.joins(2),
        faults.kill,  # the second one, an `AsyncGroup`
        lambda: faults.joins(4),
        faults.kill,
        faults.terminate,
        lambda: faults.joins(4),
        lambda: faults.pause(HEARTBEAT / 2),
        faults.hang,
    ):
        faults.workers.handle(300)
        fault()
    faults.workers.handle(300)
    conclude("4 members", faults)


@pytest.mark.long
def test_every_fault_keeps_every_message_and_the_order_of_each_key(broker, group, conclude):
    """The first member connects through a proxy, which can cut it off."""
    faults = group(queues=16, keys=10_000)
    workers = faults.workers
    with Proxy(broker.url, seed=SEED) as proxy:
        (first,) = workers.start({**faults.options, "url": proxy.url})
        workers.until_consuming([first])
        cycle = (
            lambda: faults.joins(8),
            faults.terminate,
            lambda: faults.pause(HEARTBEAT / 2),
            faults.kill,
            faults.kill,
            faults.hang,
            lambda: faults.joins(8),
            faults.close_seat,
            lambda: faults.partition(first, proxy),
            faults.kill_broker,
        )
        while workers.published < MESSAGES or faults.counts["broker kill -9"] < ROUNDS:
            for fault in cycle:
                workers.handle(1_000)
                fault()
        conclude("8 members", faults)
