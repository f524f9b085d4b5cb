"""A service whose threads share a publisher, and whose callers act on what each call tells them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing import Outcome, Publisher, Timeouts, Totals
from tests.faults.ledger import Ledger, body, drain
from tests.faults.load import killed
from tests.members import in_background
from tests.patience import PATIENCE, wait_until
from tests.proof import LONG

pytestmark = pytest.mark.broker

TRIES = 10
THREADS = 8
ROWS = 20
"""Messages of each thread, where the number matters."""
RETRY = 2
"""Seconds for which an unroutable message is retried, and the most that a healthy one may take: one that waited for it would take longer."""


def kind_of(row):
    """One in fifty messages goes to a missing exchange, and one in ten of the others is unroutable."""
    return "missing" if row % 50 == 7 else "unroutable" if row % 10 == 3 else "healthy"


def publish_from_threads(publisher, exchanges):
    """Return what each call was told, by the kind of its message, and how long the slowest healthy one took."""
    told, slowest, changing = Counter(), [0.0], threading.Lock()

    def work(number):
        for row in range(number * ROWS, (number + 1) * ROWS):
            began, text = time.monotonic(), "ok"
            try:
                publisher.publish(body(row), "nowhere", exchange=exchanges[kind_of(row)], timeout=PATIENCE)
            except PublishFailed as failed:
                text = next((word for word in ("NO_ROUTE", "NOT_FOUND") if word in str(failed)), str(failed))
            with changing:
                told[kind_of(row), text] += 1
                if kind_of(row) == "healthy":
                    slowest[0] = max(slowest[0], time.monotonic() - began)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    return told, slowest[0]


@contextmanager
def calls_alone(url, exchange):
    """How long each call of another publisher takes meanwhile, to whose connection nothing unroutable is published."""
    seconds = []

    def work(ended):
        with Publisher(url, exchange) as publisher:
            while not ended.is_set():
                began = time.monotonic()
                publisher.publish(b"", "k")
                seconds.append(time.monotonic() - began)

    with in_background(work):
        yield seconds


def test_a_message_that_cannot_be_published_fails_its_own_call_and_delays_no_other(broker, topology, judge):
    used = topology(queues=1)
    exchanges = {"missing": f"{used.exchange}.missing", "unroutable": "amq.direct", "healthy": used.exchange}
    with (
        Publisher(broker.url, timeouts=Timeouts(retry=RETRY)) as publisher,
        calls_alone(broker.url, topology(queues=1).exchange) as alone,
    ):
        told, slowest = publish_from_threads(publisher, exchanges)
    usual = max(alone)  # as slow as the machine was at its slowest
    ledger = Ledger(THREADS * ROWS)
    for row in range(THREADS * ROWS):
        if kind_of(row) != "healthy":
            ledger.outcomes[row] = Outcome.REJECTED if kind_of(row) == "missing" else Outcome.RETURNED
    for rows in drain(broker.url, used.queues):
        ledger.received.update(rows)
    judge(
        "8 threads, one message in ten unroutable, one in fifty to a missing exchange",
        *(ledger, publisher.totals),
        harmless="no loss is possible: what was in flight is sent again",
        note=f"the slowest healthy call took {slowest:.2f} s, and {usual:.2f} s without the others",
    )
    assert told == {("healthy", "ok"): 140, ("unroutable", "NO_ROUTE"): 16, ("missing", "NOT_FOUND"): 4}
    assert publisher.totals.connections == 1
    assert slowest < max(RETRY, 10 * usual)


class Service:
    """Threads that publish one message after the other; their callers retry where a message cannot have arrived."""

    def __init__(self, publisher, timeout=None):
        self._publisher, self._timeout = publisher, timeout
        self._rows = itertools.count()
        self._ending = threading.Event()
        self.outcomes: dict[int, Outcome] = {}
        self.retries = 0

    @contextmanager
    def running(self):
        with ThreadPoolExecutor(THREADS) as threads:
            running = [threads.submit(self._work) for _ in range(THREADS)]
            try:
                yield self
            finally:
                self._ending.set()
            for each in running:
                each.result(PATIENCE)

    def until_confirmed(self, more=500):
        wanted = self._publisher.totals.confirmed + more
        wait_until(lambda: self._publisher.totals.confirmed >= wanted, "messages are confirmed")

    def ledger(self, broker, queues):
        """Compare what the callers were told with what the queues hold."""
        ledger = Ledger(next(self._rows))
        ledger.outcomes = {
            row: outcome for row, outcome in self.outcomes.items() if outcome is not Outcome.CONFIRMED
        }
        for rows in drain(broker.url, queues, quiet=1):
            ledger.received.update(rows)
        return ledger

    def _work(self):
        while not self._ending.is_set():
            row = next(self._rows)
            self.outcomes[row] = self._publish(row)

    def _publish(self, row):
        while True:
            try:
                self._publisher.publish(body(row), f"customer-{row}", timeout=self._timeout)
            except PublishFailed as failed:
                if failed.may_have_arrived:
                    return Outcome.UNKNOWN
                self.retries += 1
                if self._ending.wait(0.01):
                    return Outcome.UNSENT
            else:
                return Outcome.CONFIRMED


@pytest.mark.long
@pytest.mark.parametrize(("what", "reconnect"), [("", 120), (" for longer than `reconnect`", 1)])
def test_calls_tell_the_truth_about_a_broker_that_is_away(broker, topology, judge, what, reconnect):
    used = topology()
    publisher = Publisher(broker.url, used.exchange, timeouts=Timeouts(connect=1, reconnect=reconnect))
    with publisher, Service(publisher).running() as service:
        service.until_confirmed()
        with killed(broker):
            if reconnect == 1:
                wait_until(lambda: service.retries > THREADS, "calls fail, and are retried")
            else:
                wait_until(lambda: publisher.totals.pending == THREADS, "every call waits")
                time.sleep(15 if LONG else 3)
        service.until_confirmed()
    ledger = service.ledger(broker, used.queues)
    judge(
        f"8 threads, broker away{what}",
        *(ledger, publisher.totals),
        harmless="see the control of kill -9",
        note=f"{service.retries:,} calls retried by their callers" if service.retries else "",
    )
    assert reconnect == 1 or not ledger.outcomes


@pytest.mark.long
def test_a_withdrawn_message_is_not_duplicated_by_its_callers_retry(broker, topology, judge, alarm):
    used = topology()
    publisher = Publisher(broker.url, used.exchange)
    with publisher, Service(publisher, timeout=0.2).running() as service:
        service.until_confirmed()
        alarm("memory", raised=True)
        wait_until(lambda: service.retries >= 5 * THREADS, "messages are withdrawn, and retried")
        alarm("memory", raised=False)
        service.until_confirmed()
    assert publisher.totals.blocked_seconds
    ledger = service.ledger(broker, used.queues)
    judge(
        "8 threads, memory alarm, timeouts and retries by the callers",
        *(ledger, publisher.totals),
        harmless="no loss is possible: the connection survives",
        note=f"{service.retries:,} messages withdrawn and published again",
    )
    assert ledger.duplicated == 0


SERVING = """
import itertools, os, signal, sys, threading
from rabbit_chx.publishing import Publisher, Timeouts
url, exchange, call, at_sigterm = sys.argv[1:]
if at_sigterm == "sys.exit":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
publisher = Publisher(url, exchange, timeouts=Timeouts(close=600))
rows = itertools.count()

def work():
    while True:
        row = next(rows)
        getattr(publisher, call)(b"%d " % row + bytes(20_000), "customer-%d" % row)
        os.write(1, b"%d\\n" % row)

publisher.open()
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
while True:
    signal.pause()
"""


def said_by(program, *arguments, interrupt=False):
    """Run a program that prints the rows whose calls have returned; with `interrupt`, send it SIGTERM after 500."""
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = set()
        try:
            if interrupt:
                said |= {int(line) for line in itertools.islice(process.stdout, 500)}
                process.send_signal(signal.SIGTERM)
            said |= {int(line) for line in process.communicate(timeout=PATIENCE)[0].split()}
        finally:
            process.kill()
    return said, process.returncode


def compared(broker, used, said):
    """Compare the rows that a program took for confirmed with what the queues hold; the others may have arrived."""
    ledger = Ledger()
    for rows in drain(broker.url, used.queues, quiet=1):
        ledger.received.update(rows)
    ledger.taken_in = max(said | set(ledger.received)) + 1
    ledger.outcomes = dict.fromkeys(set(range(ledger.taken_in)) - said, Outcome.UNKNOWN)
    return ledger


@pytest.mark.long
@pytest.mark.parametrize("at_sigterm", ["the default action", "sys.exit"])
def test_what_was_confirmed_before_a_sigterm_has_arrived(broker, topology, judge, at_sigterm):
    used, other = topology(), topology()
    said, status = said_by(SERVING, broker.url, used.exchange, "publish", at_sigterm, interrupt=True)
    assert status == (0 if at_sigterm == "sys.exit" else -signal.SIGTERM)
    for _ in range(TRIES):
        # Without waiting for confirms; on a quick machine, all that the program has accepted may arrive.
        accepted, _ = said_by(
            SERVING, broker.url, other.exchange, "submit", "the default action", interrupt=True
        )
        control = compared(broker, other, accepted)
        if control.lost:
            break
    ledger = compared(broker, used, said)
    judge(
        f"8 threads, SIGTERM with {at_sigterm}",
        *(ledger, Totals(unknown=len(ledger.outcomes))),
        control=control,
    )
