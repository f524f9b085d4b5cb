"""A broker that tests may break, topologies on it, and the record of what every fault cost.

    RABBIT_CHX_FAULT_RELEASES=4.3 pytest tests/faults        (the default)

The tests that a module lists in `SMOKE` also run on the releases of RABBIT_CHX_SMOKE_RELEASES (3.10, and 4.0 in the
long proof).
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

import pika
import pytest

from rabbit_chx.testing import Broker
from rabbit_chx.testing.node import CannotSupply
from tests.faults.load import Control, Load, on_queues
from tests.proof import LONG, Fault, book
from tests.spark.conftest import spark  # noqa: F401 - one Spark for both folders

RELEASES = os.environ.get("RABBIT_CHX_FAULT_RELEASES", "4.3").split(",")
SMOKE_RELEASES = os.environ.get("RABBIT_CHX_SMOKE_RELEASES", "4.0,3.10" if LONG else "3.10").split(",")


def pytest_generate_tests(metafunc):
    if "broker" in metafunc.fixturenames:
        smoke = metafunc.function.__name__ in getattr(metafunc.module, "SMOKE", ())
        more = SMOKE_RELEASES if smoke else []
        releases = list(dict.fromkeys([*RELEASES, *more]))
        metafunc.parametrize("broker", releases, indirect=True, scope="session")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def broker(request):
    broker = Broker(request.param, plugins=["rabbitmq_auth_mechanism_ssl"])
    try:
        broker.start()
    except CannotSupply as reason:
        pytest.skip(str(reason))
    if broker.source.kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to break")
    yield broker
    broker.stop()


@pytest.fixture
def connection(broker):
    with broker.connection() as connection:
        yield connection


@dataclass
class Topology:
    """A consistent-hash exchange and its queues, declared and deleted over short connections that restarts do not break."""

    url: str
    exchange: str
    queues: list[str]
    arguments: dict = field(default_factory=dict)

    def declare(self) -> None:
        with self.channel() as channel:
            channel.exchange_declare(self.exchange, "x-consistent-hash", durable=True)
            for queue in self.queues:
                channel.queue_declare(queue, durable=True, arguments=self.arguments)
                channel.queue_bind(queue, self.exchange, "1")

    def remove(self) -> None:
        with self.channel() as channel:
            channel.exchange_delete(self.exchange)
            for queue in self.queues:
                channel.queue_delete(queue)

    def channel(self):
        return _Channel(self.url)

    def depth(self) -> int:
        with self.channel() as channel:
            return sum(
                channel.queue_declare(queue, passive=True).method.message_count for queue in self.queues
            )


class _Channel:
    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self):
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        return self._connection.channel()

    def __exit__(self, *_):
        if self._connection.is_open:
            self._connection.close()
        self._connection._cleanup()  # closes its loop, even if the broker ended the connection


@pytest.fixture
def topology(broker):
    """Declare topologies: topology(queues=3, **queue arguments)."""
    made: list[Topology] = []

    def make(*, queues: int = 3, **arguments) -> Topology:
        name = f"faults.{secrets.token_hex(3)}"
        names = [f"{name}.q{i}" for i in range(queues)]
        one = Topology(
            broker.url, name, names, {key.replace("_", "-"): value for key, value in arguments.items()}
        )
        one.declare()
        made.append(one)
        return one

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def alarm(broker):
    """Raise and clear an alarm; the end of the test clears it in any case."""
    limits = "rabbit_disk_monitor:get_disk_free_limit(), vm_memory_monitor:get_vm_memory_high_watermark()"
    disk, memory = re.findall(r"[0-9.]+", broker.eval(f"{{{limits}}}."))
    commands = {
        "memory": (["set_vm_memory_high_watermark", "0.0000001"], ["set_vm_memory_high_watermark", memory]),
        "disk": (["set_disk_free_limit", "999999GB"], ["set_disk_free_limit", disk]),
    }

    up = set()

    def set_alarm(kind, *, raised):
        broker.ctl(*commands[kind][0 if raised else 1])
        (up.add if raised else up.discard)(kind)

    yield set_alarm
    for kind in list(up):
        set_alarm(kind, raised=False)


# -- results -------------------------------------------------------------------------------------------------


@pytest.fixture
def judge(broker, request):
    """Record the outcome of a fault and check it: nothing lost, nothing unexpected.

    The control must have lost something, or the fault proves nothing. If no loss is possible, `harmless` says why, and
    the control, if there is one, must have lost nothing.
    """
    started = time.monotonic()

    def judge(scenario, load, *, area="Publisher", faults=1, control=None, harmless="", may_lose=(), note=""):
        ledger = load.ledger
        lost = ledger.lost - set(may_lose)
        totals = load.publisher.totals
        loss = control and f"{len(control.lost):,} of {control.taken_in:,}"
        book(
            Fault(
                area,
                scenario,
                broker.version,
                ledger.taken_in,
                faults,
                len(lost),
                len(ledger.unexpected),
                ledger.duplicated,
                time.monotonic() - started,
                control=": ".join(filter(None, [harmless, loss])),
                note="; ".join(filter(None, [totals.unknown and f"{totals.unknown:,} unknown", note])),
            )
        )
        assert control or harmless or not faults, "a fault without a control"
        assert not control or bool(control.lost) is not bool(harmless), "what the control lost"
        assert not lost, sorted(lost)[:10]
        assert not ledger.unexpected, sorted(ledger.unexpected)[:10]
        assert ledger.duplicated <= totals.resent
        return ledger

    return judge


@pytest.fixture
def survives(broker, topology, judge):
    """Cause a fault several times in the middle of publishing; nothing may be lost, and the control must lose messages.

    `fault(load, control)` runs while the queues of the control hang and every buffer on the way to them is full.
    """

    def survives(scenario, fault, *, rounds=1, quiet=0.0, control=None, **options):
        used, other = topology(), topology()
        naive = Control(broker.url, other.exchange, size=2_000, held=True, **(control or {}))
        naive.start()
        load = Load(broker.url, used.exchange, **options).start()
        for _ in range(rounds):
            naive.jam(broker, other.queues)
            load.flow()
            load.until_confirmed(5_000)
            fault(load, naive)
            load.hold()
            naive.hold()
            on_queues(broker, other.queues, "sys:resume(Queue)")
        load.more(1_000)
        load.finish(60)
        load.drain(broker.url, used.queues, quiet=quiet)
        loss = naive.finish(broker.url, other.queues)
        assert load.error is None
        assert load.ledger.outcomes == {}
        judge(scenario, load, faults=rounds, control=loss)
        return load

    return survives


@pytest.fixture
def judge_spark(broker):
    """Record what a fault cost a Spark write, and check it.

    `claimed` is how many rows were reported as written: all of them if the write succeeded. Only rows of `twice` may
    arrive more than once. `control` is what the fault cost a naive write, or why it can cost nothing.
    """
    started = time.monotonic()

    def judge(scenario, rows, found, *, control, faults=1, claimed=None, twice=(), note=""):
        counts = Counter(one.row for one in found)
        lost = max((rows if claimed is None else claimed) - len(counts), 0)
        unexpected = counts.keys() - set(range(rows))
        again = {row for row, count in counts.items() if count > 1}
        ended = "the write succeeded" if claimed is None else "the write failed"
        book(
            Fault(
                "Spark",
                scenario,
                broker.version,
                rows,
                faults,
                lost,
                len(unexpected),
                len(found) - len(counts),
                time.monotonic() - started,
                control=control,
                note="; ".join(filter(None, [ended, note])),
            )
        )
        assert not lost, sorted(set(range(rows)) - counts.keys())[:10]
        assert not unexpected, sorted(unexpected)[:10]
        assert not again - set(twice), sorted(again - set(twice))[:10]

    return judge
