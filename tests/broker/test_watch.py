"""The next poll reports a fault of a real broker, and a quiet exchange has no problems."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from threading import Event
from typing import IO
from urllib.parse import urlsplit

import pytest

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.broker import Management, apply, read
from rabbit_chx.cli import _exit_code
from rabbit_chx.testing import Broker
from rabbit_chx.topology import Topology, loads, plan
from rabbit_chx.watch import Interval, Observer
from rabbit_chx.watch.interval import compare
from rabbit_chx.watch.observer import Snapshot
from tests.broker.conftest import NEWEST_IN_CI
from tests.json_lines import documented, printed
from tests.patience import PATIENCE, wait_until
from tests.queues import bind_ring
from tests.unit.test_docs import marked

pytestmark = pytest.mark.broker

QUEUES = ["orders.0", "orders.1", "[bold red]orders.2[/]", "<script>orders.3</script>"]


def applied(url: str, management: Management, vhost: str) -> Topology:
    """An exchange with four queues, applied, so that the order of its buckets is known."""
    document = {
        "schema": 1,
        "vhost": vhost,
        "exchanges": {"orders": {"type": "x-consistent-hash", "queues": dict.fromkeys(QUEUES, 1)}},
        "queues": {name: {"type": "classic"} for name in QUEUES},
    }
    wanted = loads(json.dumps(document), format="json")
    apply(url, plan(wanted, read(management, vhost)), management=management)
    return wanted


def named(interval: Interval) -> set[tuple[str, str | None]]:
    return {(problem.name, problem.queue) for problem in interval.problems}


def is_quiet(interval: Interval) -> bool:
    """Whether there are no problems in statistics that were taken after the consumers started."""
    return not interval.problems and {row.consumers for row in interval.rows} == {1}


def until(observer: Observer, before: Snapshot, wanted: Topology | None, met) -> tuple[Snapshot, Interval]:
    """Poll until a condition is met: the broker updates statistics only every five seconds."""

    def polled() -> tuple[Snapshot, Interval] | None:
        nonlocal interval
        snapshot = observer._poll()
        interval = compare(before, snapshot, wanted)
        return (snapshot, interval) if met(interval) else None

    interval: Interval | None = None
    return wait_until(polled, lambda: interval and interval.problems, pause=0.2)


@pytest.mark.newest_first
def test_faults_of_queues_are_reported_and_a_quiet_exchange_has_none(site) -> None:
    wanted = applied(site.url(), site.management, site.vhost)
    observer = Observer(site.management, site.vhost, "orders")
    with site.connection() as connection:
        channel, consumers = connection.channel(), connection.channel()
        tags = {name: consumers.basic_consume(name, lambda *_: None, auto_ack=True) for name in QUEUES}
        first = observer._poll()
        keys = [f"key-{number}" for number in range(2000)]
        for key in keys:
            channel.basic_publish("orders", key, b"")
        connection.process_data_events(0.1)
        quiet, interval = until(
            observer, first, wanted, lambda each: each.totals.received == 2000 and is_quiet(each)
        )
        mirror = ConsistentHashExchange(dict.fromkeys(QUEUES, 1), release=interval.release)
        assert {row.queue: row.received for row in interval.rows} == Counter(map(mirror.route, keys))
        assert (interval.ring.status, interval.ring.against) == ("same", "file")
        for _ in range(3):
            again = observer._poll()
            assert again.observed is quiet.observed
            assert not named(compare(quiet, again, wanted)) | named(compare(quiet, again))
            assert again.requests <= 5

        for _ in range(500):
            channel.basic_publish("orders", "hot", b"")
        hot = str(mirror.route("hot"))
        idle = next(name for name in QUEUES if name != hot)
        consumers.basic_cancel(tags[idle])
        expected = {("hot-queue", hot), ("no-consumer", idle)}
        until(observer, quiet, wanted, lambda each: named(each) == expected)


# ---- a broker that is restarted


@pytest.fixture(scope="module", params=NEWEST_IN_CI)
def own(request):
    """A broker that these tests may stop."""
    with Broker(request.param) as broker:
        yield broker


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_restart_of_rabbitmq_within_its_node_is_detected(own) -> None:
    """The uptime of the node continues, but the counters are reset, and the order of a ring on Mnesia may change."""
    management = Management(own.management_url, credentials=lambda: (own.username, own.password))
    with own.connection() as connection:
        channel = connection.channel()
        bind_ring(channel, "plain", ["p0", "p1"])
        observer = Observer(management, "/", "plain")
        first = observer._poll()
        for number in range(200):
            channel.basic_publish("plain", str(number), b"")
        connection.process_data_events(0.1)
        before, _ = until(observer, first, None, lambda each: each.totals.received == 200)
    assert not before.restarted
    own.restart_app()
    until(observer, before, None, lambda _: observer._poll().restarted)
    unknown = ("ring-unknown", None) in named(compare(before, observer._poll()))
    assert unknown == (own.store == "mnesia")


# ---- the command


@pytest.fixture
def environment(broker, site):
    """The environment of a user whose broker has an exchange to watch."""
    applied(site.url(), site.management, site.vhost)
    clean = {name: text for name, text in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    address = {"AMQP_URL": site.url(), "RABBITMQ_MANAGEMENT_URL": broker.management_url}
    return clean | address | {"TERM": "xterm-256color"}


WATCH = [sys.executable, "-m", "rabbit_chx", "watch", "--interval", "5", "--exchange"]


@pytest.mark.one_release
def test_each_interval_is_a_json_object_until_a_signal(environment) -> None:
    with subprocess.Popen(
        [*WATCH, "orders", "--output", "json", "--interval", "600"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        row = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, error) == (0, b"", b"")
    assert printed("watch", [row]) == documented("watch")
    assert [each["queue"] for each in row["rows"]] == QUEUES


IN_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
"""Run a command with standard input as its terminal, whose Ctrl-C ends it."""


def read_until(screen: IO[bytes], wanted: bytes | None) -> bytes:
    """Read from a terminal until it has shown something, or without that until its programs have ended."""
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while wanted is None or wanted not in shown:
        assert select.select([screen], [], [], max(deadline - time.monotonic(), 0))[0], shown
        try:
            shown += screen.read(65536)
        except OSError:  # Linux: the other end is closed
            assert wanted is None, shown
            break
    return shown


@pytest.mark.one_release
def test_a_terminal_shows_a_table_with_names_as_text_and_is_restored(environment, broker) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", IN_TERMINAL, *WATCH, "orders"]
    sized = environment | {"COLUMNS": "100", "LINES": "30"}
    shown = b""
    # Not pty.fork: in a process with threads, what it leaves of them may keep the child from starting.
    with (
        os.fdopen(ours, "r+b", buffering=0) as screen,
        subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=sized) as process,
    ):
        os.close(theirs)
        try:
            shown += read_until(screen, b"orders.3")
            screen.write(b"\x03")  # Ctrl-C
            shown += read_until(screen, None)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()  # if it has not ended
    text = shown.decode()
    assert "[bold red]orders.2[/]" in text
    assert "Ring: unchanged since the start" in text
    assert "\x1b[?1049h" in text
    assert "\x1b[?1049l" in text[-40:]
    assert f":{broker.password}@" not in text


@pytest.mark.one_release
def test_an_exchange_that_is_not_there_cannot_be_watched(environment, monkeypatch, capsys) -> None:
    for name in ("AMQP_URL", "RABBITMQ_MANAGEMENT_URL"):
        monkeypatch.setenv(name, environment[name])
    assert _exit_code(["watch", "--exchange", "missing"]) == 64
    assert "an exchange of virtual host" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.one_release
@pytest.mark.usefixtures("orders")
def test_the_intervals_of_the_guide(broker) -> None:
    shown: list[tuple[str, ...]] = []

    class Shown(Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(0.2)  # the statistics of new queues begin within five seconds

        def is_set(self) -> bool:
            return bool(shown)

    parts = urlsplit(broker.management_url)
    block = marked("watch.md", "test_the_intervals_of_the_guide")
    block = block.replace("user:password@host:15672", f"{broker.username}:{broker.password}@{parts.netloc}")
    names = {"stop": Shown(), "print": lambda *words: shown.append(words)}
    exec(block.replace("seconds=10", "seconds=0.2, stop=stop"), names)
    assert set(shown) <= {
        ("no-consumer", f"queue {name!r}", "has no consumer") for name in ("orders.a", "orders.b")
    }
