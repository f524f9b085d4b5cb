"""A broker that tests may break, topologies on it, and judges of what a fault cost.

    RABBIT_CHX_FAULT_RELEASES=4.3 pytest tests/faults        (the default)

A module lists in `SMOKE` the tests that also run on RABBIT_CHX_SMOKE_RELEASES (3.10; in the long proof also 4.0), and in
`ALSO` releases for single tests.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx.testing import Broker, available
from tests.broker.erlang import asked_quickly
from tests.brokers import replace, revive, running
from tests.faults.proxy import Proxy
from tests.faults.scene import scene, survives  # noqa: F401 - the fixtures
from tests.faults.spark_programs import Program
from tests.faults.spark_read import committed, compare, table
from tests.proof import LONG, Fault, never, record_result
from tests.queues import bind_ring, delete_exchange, message_count
from tests.spark.conftest import spark  # noqa: F401 - one Spark for both folders
from tests.tls import Authority

RELEASES = os.environ.get("RABBIT_CHX_FAULT_RELEASES", "4.3").split(",")
SMOKE_RELEASES = os.environ.get("RABBIT_CHX_SMOKE_RELEASES", "4.0,3.10" if LONG else "3.10").split(",")


def pytest_generate_tests(metafunc):
    if "broker" in metafunc.fixturenames:
        name, releases = metafunc.function.__name__, list(RELEASES)
        others = getattr(metafunc.module, "ALSO", {}).get(name, [])
        if name in getattr(metafunc.module, "SMOKE", ()):
            others = [*others, *SMOKE_RELEASES]
        releases += [pytest.param(each, marks=marks_of(each)) for each in others if each not in RELEASES]
        metafunc.parametrize("broker", releases, indirect=True, scope="session")


def marks_of(release):
    """An older release is long; CI runs the oldest only, and `make proof` those between."""
    oldest = release == SMOKE_RELEASES[-1]
    return [pytest.mark.long] if oldest else [pytest.mark.long, pytest.mark.proof]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "faults":
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def broker(request):
    # With more workers, a restart on Mnesia binds the queues of a ring in any order, and keys change queues.
    config = {"default_worker_pool_size": "1"}
    if available().kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to break")
    broker = Broker(request.param, plugins=["rabbitmq_auth_mechanism_ssl", "rabbitmq_stream"], config=config)
    with running(broker), asked_quickly(broker):
        yield broker


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def living_broker(request):
    """A test that fails amid a fault may leave the broker paused, cut off or with queues that hang: it is replaced."""
    if "broker" not in request.fixturenames:
        yield
        return
    broker = request.getfixturevalue("broker")
    revive(broker)
    yield
    if request.node.stash[FAILED]:
        replace(broker, "a test failed amid its fault")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """After a broker was replaced, what the fixtures of a module made on it is gone: the next test makes it again."""
    try:
        return (yield)
    finally:
        if "broker" in item.fixturenames and item.stash[FAILED]:
            item.session._setupstate.teardown_exact(item.session)


@pytest.fixture(scope="session")
def authority(broker, tmp_path_factory):
    """Good and bad certificates of servers and clients."""
    host = urlsplit(broker.management_url).hostname
    kind = "IP" if host.replace(".", "").isdigit() else "DNS"
    authority = Authority(tmp_path_factory.mktemp("tls"), f"{kind}:{host},IP:127.0.0.1,DNS:localhost")
    for name in ("good", "client", "nobody"):
        authority.issue(name)
    authority.issue("stranger", ca="other-ca")
    authority.issue("elsewhere", names="DNS:elsewhere.example")
    authority.issue("expired", days=0)
    return authority


@pytest.fixture
def proxy(broker):
    """Between clients and the broker's stream port."""
    with Proxy(broker.stream_url) as proxy:
        yield proxy


@pytest.fixture
def connection(broker):
    with broker.connection() as connection:
        yield connection


@dataclass
class Topology:
    """A consistent-hash exchange and its queues, managed over short connections that restarts do not break."""

    url: str
    exchange: str
    queues: list[str]
    arguments: dict = field(default_factory=dict)

    def declare(self) -> None:
        with self.channel() as channel:
            bind_ring(channel, self.exchange, self.queues, self.arguments)

    def bind(self, what: str = "queue_bind") -> None:
        """Bind all queues, or unbind them."""
        with self.channel() as channel:
            for queue in self.queues:
                getattr(channel, what)(queue, self.exchange, "1")

    def unbind(self) -> None:
        self.bind("queue_unbind")

    def remove(self) -> None:
        with self.channel() as channel:
            delete_exchange(channel, self.exchange, self.queues)

    @contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()
            connection._cleanup()  # closes its loop, even if the broker ended the connection

    def depth(self) -> int:
        with self.channel() as channel:
            return sum(message_count(channel, queue) for queue in self.queues)


@pytest.fixture
def topology(request, broker):
    """Declare topologies: topology(queues=3, **queue arguments)."""
    made: list[Topology] = []

    def make(*, queues: int = 3, **arguments) -> Topology:
        name = f"faults.{secrets.token_hex(3)}"
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        # In the order of their names, in which RabbitMQ 4.0 binds them after a restart with one worker (see `broker`).
        digits = len(str(queues - 1))
        names = [f"{name}.q{i:0{digits}}" for i in range(queues)]
        made.append(Topology(broker.url, name, names, arguments))
        made[-1].declare()
        return made[-1]

    yield make
    for one in made * (not request.node.stash[FAILED]):  # in which case the broker may hang, and is replaced
        one.remove()


@pytest.fixture
def alarm(broker):
    """Raise and clear an alarm; the end of the test clears it in any case."""
    limits = "rabbit_disk_monitor:get_disk_free_limit(), vm_memory_monitor:get_vm_memory_high_watermark()"
    disk, memory = re.findall(r"[0-9.]+", broker.eval(f"{{{limits}}}."))
    commands = {
        "memory": ("set_vm_memory_high_watermark", "0.0000001", memory),
        "disk": ("set_disk_free_limit", "999999GB", disk),
    }
    up = set()

    def set_alarm(kind, *, raised):
        command, low, normal = commands[kind]
        broker.ctl(command, low if raised else normal)
        (up.add if raised else up.discard)(kind)

    yield set_alarm
    for kind in list(up):
        set_alarm(kind, raised=False)


@pytest.fixture
def log(caplog):
    """The messages that publishers of this test log at INFO and above: log(part of the text, level)."""
    caplog.set_level(logging.INFO, "rabbit_chx.publisher")
    older = {*threading.enumerate()} - {threading.current_thread()}  # perhaps of publishers of other tests

    def is_ours(_record):
        return threading.current_thread() not in older

    def log(text="", level=logging.INFO):
        ours = [each for each in caplog.records if each.name == "rabbit_chx.publisher"]
        return [each.getMessage() for each in ours if each.levelno >= level and text in each.getMessage()]

    logger = logging.getLogger("rabbit_chx.publisher")
    logger.addFilter(is_ours)
    yield log
    logger.removeFilter(is_ours)


# -- results -------------------------------------------------------------------------------------------------


@pytest.fixture
def record(broker):
    """Book what a fault cost, and check that nothing was lost and nothing unexpected arrived."""
    started = time.monotonic()

    def record(area, scenario, messages, faults, lost, unexpected, duplicated, *, control, notes):
        seconds = time.monotonic() - started
        sums = (messages, faults, len(lost), len(unexpected), duplicated, seconds)
        note = "; ".join(filter(None, notes))
        record_result(Fault(area, scenario, broker.version, *sums, control=control, note=note))
        never(lost=sorted(lost), unexpected=sorted(unexpected))

    return record


@pytest.fixture
def judge(record):
    """Record the outcome of a fault and check it.

    The control must have lost something, or the fault proves nothing. If no loss is possible, `harmless` says why, and
    the control, if there is one, must have lost nothing.
    """

    def judge(
        scenario,
        ledger,
        totals,
        *,
        area="Publisher",
        faults=1,
        control=None,
        harmless="",
        may_lose=(),
        note="",
    ):
        loss = control and f"{len(control.lost):,} of {control.taken_in:,}"
        record(
            *(area, scenario, ledger.taken_in, faults, ledger.lost - set(may_lose), ledger.unexpected),
            ledger.duplicated,
            control=": ".join(filter(None, [harmless, loss])),
            notes=[totals.unknown and f"{totals.unknown:,} unknown", note],
        )
        assert control or harmless or not faults, "a fault without a control"
        assert not control or bool(control.lost) is not bool(harmless), "what the control lost"
        assert ledger.duplicated <= totals.resent

    return judge


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A driver with two executors for the tests of a module."""
    program = Program("local-cluster[2,1,700]", tmp_path_factory.mktemp("cluster") / "driver")
    yield program
    program.stop()


@pytest.fixture
def judge_table(spark, record, tmp_path):  # noqa: F811 - the fixture
    """judge_table(scenario, sent, faults, control=...) records what a fault cost the table of a query, and checks it."""

    def judge(scenario, sent, faults, *, control, note=""):
        found = table(spark, tmp_path)
        outcome = compare(sent, found)
        notes = [f"{committed(tmp_path)} micro-batches", note]
        messages = sum(sent.values())
        record("Spark", scenario, messages, faults, *outcome, control=control, notes=notes)
        never(
            duplicated=range(outcome.duplicated),
            out_of_order=[
                stream
                for stream, rows in found.items()
                if [row.number for row in rows] != [*range(sent[stream])]
            ],
        )

    return judge


@pytest.fixture
def judge_spark(record):
    """Record what a fault cost a Spark write, and check it.

    `claimed` is how many rows were reported as written: all of them if the write succeeded. Only rows of `twice` may
    arrive more than once. `control` is what the fault cost a naive write, or why it can cost nothing.
    """

    def judge(scenario, rows, found, *, control, faults=1, claimed=None, twice=(), note=""):
        counts = Counter(one.row for one in found)
        missing = sorted(set(range(rows)) - counts.keys())
        again = {row for row, count in counts.items() if count > 1} - set(twice)
        record(
            *("Spark", scenario, rows, faults),
            missing if claimed is None else missing[: max(claimed - len(counts), 0)],
            counts.keys() - set(range(rows)),
            len(found) - len(counts),
            control=control,
            notes=["the write succeeded" if claimed is None else "the write failed", note],
        )
        never(unexpectedly_duplicated=sorted(again))

    return judge
