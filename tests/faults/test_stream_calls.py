"""Threads and tasks publish to streams in every way that there is, through every fault: each call tells the truth.

What a call says of each message is compared with what the streams hold: a confirmed one is stored once, one that has not arrived is
not stored, and under a name nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed, RabbitChxError
from rabbit_chx.streams import AsyncStreamPublisher, StreamPublisher, Timeouts
from tests.broker.stream_scene import bodies, stored, streams_at
from tests.broker.test_streams_partitions import Bound
from tests.faults.load import SLACK, killed, paused, within
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.broker
proves = pytest.mark.proves(
    "Streams",
    "outcomes reported by stream publishers when a fault occurs or their program exits, compared with the streams",
    "a message that is lost, stored twice, stored though unsent, or stored but never published: 4 of 4 seen",
)

ALSO = {"test_each_call_of_each_thread_tells_the_truth_through_a_fault": ["4.0"]}
THREADS = 8
TIMEOUTS = Timeouts(connect=4 * SLACK, reconnect=4 * SLACK, confirm=4 * SLACK, close=4 * SLACK)
SHORT = Timeouts(connect=2, reconnect=1, confirm=4 * SLACK, close=4 * SLACK)


class Calls:
    """What callers were told of each message: that it is confirmed, may have arrived, or has not arrived."""

    def __init__(self) -> None:
        self.confirmed: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.absent: set[bytes] = set()
        self.ended = threading.Event()
        self._numbers = count()

    def bodies(self, some: int = 1) -> list[bytes]:
        return [b"%d" % next(self._numbers) for _ in range(some)]

    def note(self, bodies: list[bytes], error: Exception | None) -> None:
        """Record the outcome of a call."""
        if error is None:
            self.confirmed.update(bodies)
        elif isinstance(error, PublishFailed):
            failed = {failure.row: failure.may_have_arrived for failure in error.failures}
            self.unknown |= {bodies[row] for row, open_end in failed.items() if open_end}
            self.absent |= {bodies[row] for row, open_end in failed.items() if not open_end}
            self.confirmed |= {body for row, body in enumerate(bodies) if row not in failed}
        else:
            assert isinstance(error, (BrokerUnavailable, InvalidValue))
            self.absent.update(bodies)

    def told(self, bodies: list[bytes], call, *given, **more) -> None:
        """Make a call about these messages, and record its outcome."""
        error = None
        try:
            call(*given, **more)
        except (PublishFailed, BrokerUnavailable, InvalidValue) as found:
            error = found
        self.note(bodies, error)

    def publish(self, publisher: StreamPublisher, thread: int) -> None:
        """Publish in every way until the end, invalid rows included."""
        timeouts = (None, 0.5) if thread % 2 else (0.5, None)
        while not self.ended.is_set():
            for call in (publisher.publish, self._submit(publisher)):
                one = self.bodies()
                self.told(one, call, *one, *texts(one), timeout=timeouts[0])
            many = self.bodies(50)
            self.told(many, publisher.publish_many, many, texts(many), timeout=timeouts[1])
            one = self.bodies()
            self.told(one, publisher.publish, *one, *texts(one), priority="wrong")
            self._bulk(publisher)

    def _submit(self, publisher: StreamPublisher):
        return lambda *given, **more: publisher.submit(*given, **more).result()

    def _bulk(self, publisher: StreamPublisher) -> None:
        bulk, bodies = publisher.bulk(), self.bodies(20)
        with suppress(BrokerUnavailable):  # what was added before is told by `flush`
            for body in bodies[:10]:
                bulk.add(body, body.decode())
            bulk.add_many(bodies[10:], texts(bodies[10:]))
        added = bulk.totals.published
        self.told(bodies[:added], bulk.flush)
        self.absent.update(bodies[added:])

    def compare(self, found: list[bytes], name: str | None = "job") -> None:
        """Compare what was told with what the streams hold; only under a name is each message stored once."""
        times = Counter(found)
        assert name is None or not {body for body, number in times.items() if number > 1}, "stored twice"
        assert self.confirmed <= times.keys(), "confirmed, but not stored"
        assert not self.absent & times.keys(), "stored, although it has not arrived"
        assert times.keys() <= self.confirmed | self.unknown, "stored, but never published"


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ("", "not stored"),
        ("aa", "stored twice"),
        ("ab", "although it has not arrived"),
        ("ac", "stored, but never published"),
    ],
)
def test_a_false_outcome_is_seen(found: str, what: str) -> None:
    calls = Calls()
    calls.confirmed, calls.absent = {b"a"}, {b"b"}
    with pytest.raises(AssertionError, match=what):
        calls.compare([body.encode() for body in found])


def texts(bodies: list[bytes]) -> list[str]:
    return [body.decode() for body in bodies]


def until_a_call_times_out(publisher, calls) -> None:
    """Make calls with a timeout until one is told that a message it had written may have arrived.

    The threads may all be in calls without one.
    """

    def timed_out() -> bool:
        one = calls.bodies()
        calls.told(one, publisher.publish, *one, *texts(one), timeout=0.5)
        return bool(calls.unknown & set(one))

    wait_until(timed_out, "a call times out")


def close_connections(broker, publisher, more, calls, alarm) -> None:
    for _ in range(3):
        broker.ctl("close_all_connections", "closed by the operator")
        more()


def pause(broker, publisher, more, calls, alarm) -> None:
    with paused(broker):
        until_a_call_times_out(publisher, calls)
    more()


def raise_alarm(broker, publisher, more, calls, alarm) -> None:
    """Of the alarms, only that of the disk stops publishers to streams."""
    alarm("disk", raised=True)
    until_a_call_times_out(publisher, calls)
    alarm("disk", raised=False)
    more()


def kill(broker, publisher, more, calls, alarm) -> None:
    with killed(broker):
        pass
    more()


def stay_away(broker, publisher, more, calls, alarm) -> None:
    with killed(broker):
        wait_until(lambda: publisher.error is not None, "the publisher gives up")
    more()


def fork(broker, publisher, more, calls, alarm) -> None:
    """The child may not publish, and leaves the connections of its parent alone."""
    for _ in range(3):
        child = os.fork()
        if not child:
            try:
                publisher.publish(b"of the child", "k", timeout=1)
            except RabbitChxError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        more()


FAULTS = {
    "connections closed": (close_connections, TIMEOUTS),
    "paused": (pause, TIMEOUTS),
    "alarm": (raise_alarm, TIMEOUTS),
    "killed": (kill, TIMEOUTS),
    "away for longer than reconnect": (stay_away, SHORT),
    "forked": (fork, TIMEOUTS),
}


@pytest.fixture
def target(broker, request):
    """Make what is published to; yield the arguments of a publisher, and the names of the streams."""
    if request.param == "stream":
        with streams_at(broker.stream_url, "called"):
            yield {"stream": "called"}, ["called"]
        return
    made = Bound(broker, "direct" if request.param == "super_stream" else "x-consistent-hash")
    for number in range(3):
        key, order = (
            (str(number), {"x-stream-partition-order": number}) if made.kind == "direct" else ("1", {})
        )
        made.bind(f"divided-{number}", key, **order)
    yield {request.param: made.name}, made.streams
    made.delete()


@contextmanager
def calling(publisher, calls):
    """Publish from all threads while the block runs; yield a function that waits until more is confirmed."""

    def more(some: int = 1_000) -> None:
        wanted = publisher.totals.confirmed + some
        wait_until(lambda: publisher.totals.confirmed >= wanted or broken(), f"{wanted} confirmed")
        assert not broken()

    def broken() -> list[object]:
        return [future for future in futures if future.done()]

    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(calls.publish, publisher, thread) for thread in range(THREADS)]
        try:
            more()
            yield more
        finally:
            calls.ended.set()
    for future in futures:
        future.result()


@proves
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("target", ["stream", "super_stream", "exchange"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("connections closed", "job"),
        *(pytest.param(fault, "job", marks=pytest.mark.long) for fault in [*FAULTS][1:]),
        *(pytest.param(fault, None, marks=pytest.mark.long) for fault in ("connections closed", "killed")),
    ],
)
def test_each_call_of_each_thread_tells_the_truth_through_a_fault(broker, target, fault, name, alarm):
    given, streams = target
    cause, timeouts = FAULTS[fault]
    calls = Calls()
    with StreamPublisher(broker.stream_url, **given, name=name, timeouts=timeouts) as publisher:
        with calling(publisher, calls) as more:
            cause(broker, publisher, more, calls, alarm)
        totals = publisher.totals
        assert totals.published == totals.confirmed + totals.failed + totals.pending
    calls.compare([message.body for stream in streams for message in stored(broker.stream_url, stream)], name)
    assert publisher.totals.pending == publisher.totals.duplicates == 0


@proves
@pytest.mark.parametrize("target", ["stream", "super_stream", "exchange"], indirect=True)
def test_each_task_is_told_the_truth_and_a_cancelled_one_withdraws_its_message(broker, target):
    given, streams = target
    calls = Calls()

    async def publish(publisher, number: int) -> None:
        (body,) = one = calls.bodies()
        task = asyncio.create_task(publisher.publish(body, body.decode()))
        if number % 5 == 0:
            await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            calls.unknown.update(one)  # it may have been written
        except (PublishFailed, BrokerUnavailable) as error:
            calls.note(one, error)
        else:
            calls.note(one, None)

    async def run() -> None:
        async with AsyncStreamPublisher(
            broker.stream_url, **given, name="job", timeouts=TIMEOUTS
        ) as publisher:
            for part in range(6):
                tasks = [publish(publisher, number) for number in range(500)]
                if part % 2:
                    close = ("close_all_connections", "closed by the operator")
                    tasks.append(asyncio.to_thread(broker.ctl, *close))
                await asyncio.gather(*tasks)

    within(PATIENCE, lambda: asyncio.run(run()), "the loop")
    calls.compare([message.body for stream in streams for message in stored(broker.stream_url, stream)])
    assert len(calls.confirmed) >= 2_400


PROGRAM = """
import json, logging, os, signal, sys
from rabbit_chx.streams import StreamPublisher, Timeouts

logging.basicConfig(stream=sys.stdout, format="%(message)s")
url, target, end = sys.argv[1:]
publisher = StreamPublisher(url, **json.loads(target), name="program", timeouts=Timeouts(close=60))
publisher.open()
for number in range(5_000):
    publisher.submit(b"%d" % number, str(number))
if end == "SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.kill(os.getpid(), signal.SIGTERM)
if end == "raise":
    raise ZeroDivisionError
"""


@proves
@pytest.mark.parametrize(
    ("target", "end"),
    [("stream", "exit"), ("super_stream", "SIGTERM"), ("exchange", "raise"), ("stream", "SIGTERM")],
    indirect=["target"],
)
def test_a_program_that_ends_without_closing_loses_nothing_that_was_accepted(broker, target, end):
    given, streams = target
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(broker.stream_url), json.dumps(given), end],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == (end == "raise"), done.stderr
    assert done.stdout == ""
    found = [body for stream in streams for body in bodies(broker.stream_url, stream)]
    assert sorted(map(int, found)) == [*range(5_000)]
    if streams == ["called"]:
        assert found == [b"%d" % number for number in range(5_000)]


@proves
@pytest.mark.long
@pytest.mark.parametrize("target", ["stream"], indirect=True)
def test_ctrl_c_withdraws_the_message_of_a_call(broker, target):
    with StreamPublisher(broker.stream_url, "called", timeouts=TIMEOUTS) as publisher:
        publisher.publish(b"before")
        with killed(broker):
            wait_until(lambda: publisher._pipeline.outboxes[0].trouble, "the loss is noticed")
            main = threading.get_ident()

            def press_ctrl_c() -> None:
                wait_until(lambda: publisher.totals.pending, "the message waits")
                signal.pthread_kill(main, signal.SIGINT)

            with ThreadPoolExecutor() as pool:
                pool.submit(press_ctrl_c)
                with pytest.raises(KeyboardInterrupt):
                    publisher.publish(b"lost")
        publisher.publish(b"after")
        assert publisher.totals.unsent == 1
    assert bodies(broker.stream_url, "called") == [b"before", b"after"]
