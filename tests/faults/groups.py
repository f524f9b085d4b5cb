"""A group of worker processes under load, and the faults that hit it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.base.names import seat_queue
from rabbit_chx.testing import Broker
from tests.faults.group_history import Diary, Verdict, judge
from tests.faults.load import Load
from tests.patience import PATIENCE
from tests.proof import promised

REPOSITORY = Path(__file__).parents[2]
STUCK = 1.5 * PATIENCE
"""Seconds after which a queue with unhandled messages counts as stuck: longer than any fault of these tests."""

AT_ONCE = 4
"""The concurrency of members."""
KINDS = [
    {"kind": kind, "order": order, "fast": fast}
    for with_fast_path in ((True, False), (False, True))
    for order in ("queue", "key")
    for kind, fast in zip(("group", "async"), with_fast_path, strict=True)
]
"""The members of a group, in turn: a group may have members of both classes, with both orders, with and without the fast path for deliveries."""

_CONSUMERS = "list_consumers queue_name channel_pid consumer_tag active activity_status arguments"
_OVERVIEW = "ra:local_query({{'%2F_{queue}', node()}}, fun rabbit_fifo:overview/1)"
"""The broker's state of a quorum queue."""


class Worker:
    """One worker process, and its diary so far."""

    def __init__(self, folder: Path, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.diary = Diary(name)
        self._file = folder / name
        self._file.touch()
        self._errors = (folder / f"{name}.err").open("w")
        self._rest = ""
        program = [sys.executable, "-m", "tests.faults.group_worker"]
        options = {"file": str(self._file), **options}
        self.process = subprocess.Popen(
            [*program, json.dumps(options)], cwd=REPOSITORY, stderr=self._errors, start_new_session=True
        )
        self._open = self._file.open()

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def read(self) -> int:
        """Read the new lines of its file; return how many messages it has handled since the last call."""
        before = len(self.diary.sights)
        *lines, self._rest = (self._rest + self._open.read()).split("\n")
        for line in lines:
            self.diary.read(line)
        return len(self.diary.sights) - before

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Stop the process with SIGTERM, and return its exit code."""
        if self.lives:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(2 * PATIENCE)

    def close(self) -> None:
        if self._open.closed:
            return
        if self.lives:
            self.process.kill()
            self.process.wait()
        self.read()
        self._open.close()
        self._errors.close()


class Workers:
    """Worker processes that consume the queues of an exchange to which `Load` publishes.

    Messages are published as fast as they are handled, so that about `backlog` of them are waiting.
    """

    def __init__(
        self, broker: Broker, topology: Any, folder: Path, *, keys: int, backlog: int = 2_000
    ) -> None:
        self.workers: list[Worker] = []
        self.topology = topology
        self._broker, self._folder, self._backlog = broker, folder, backlog
        self._keys = [f"key-{number}" for number in range(keys)]
        hashing = ConsistentHashExchange(dict.fromkeys(topology.queues, 1), release=broker.version)
        self._queue_of = dict(zip(self._keys, map(hashing.route, self._keys), strict=True))
        self._published: list[int] = []
        self._handled: set[int] = set()
        # Only the publisher's thread changes _sent, and only the test's thread changes _done.
        self._sent: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._moved = dict.fromkeys(topology.queues, time.monotonic())
        self._next = time.monotonic()
        self._paused = False
        self.at_once = 1
        """How many messages of a queue a member handles at the same time."""
        self.events: list[str] = []
        """The faults so far, with their times."""
        self.load = Load(broker.url, topology.exchange, key=self._key)

    def __enter__(self) -> Self:
        self.load.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.load.abandon()
        for worker in self.workers:
            worker.close()

    # ---- members

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives]

    def start(self, options: Mapping[str, Any], count: int = 1) -> list[Worker]:
        """Start processes at the same time, without waiting for them."""
        first = len(self.workers)
        names = [f"{self.topology.exchange}.{number}" for number in range(first, first + count)]
        new = [Worker(self._folder, name, {"url": self._broker.url, "pause": 0, **options}) for name in names]
        self.workers += new
        return new

    def until_consuming(self, workers: Iterable[Worker]) -> None:
        """Wait until processes have a seat, and fail if one has ended."""
        for worker in workers:
            self.until(lambda it=worker: it.diary.seat is not None or not it.lives, f"{worker.name} consumes")
            assert worker.lives, f"{worker.name} ended with {worker.process.returncode}"

    # ---- messages

    def _key(self, row: int) -> str:
        key = self._keys[row % len(self._keys)]
        self._published.append(time.monotonic_ns())
        self._sent[self._queue_of[key]] += 1
        return key

    @property
    def published(self) -> int:
        return len(self._published)

    @property
    def handled(self) -> int:
        return len(self._handled)

    def hold(self) -> None:
        """Publish nothing until `flow`, and wait until all messages are confirmed."""
        self._paused = True
        self.load.hold()
        self.until(lambda: self.load.is_quiet, "all messages are confirmed")

    def flow(self) -> None:
        self._paused = False

    def turn(self) -> None:
        """Read the diaries, publish as many messages as were handled, and look for stuck queues."""
        now = time.monotonic()
        for worker in self.workers:
            new = worker.read()
            for sight in worker.diary.sights[len(worker.diary.sights) - new :]:
                self._moved[sight.queue] = now
                if sight.number not in self._handled:
                    self._handled.add(sight.number)
                    self._done[sight.queue] += 1
        if not self._paused and (room := self.handled + self._backlog - self.published) > 0:
            self.load.more(room)
        for queue in self._moved:
            if self._sent[queue] <= self._done[queue]:
                self._moved[queue] = now
        if now >= self._next:
            self._next = now + 1
            late = [queue for queue, moved in self._moved.items() if now - moved > STUCK]
            if late:
                pytest.fail(self._why(late))

    def until(
        self, condition: Callable[[], object], what: str, patience: float = PATIENCE, *, pause: float = 0.02
    ) -> None:
        """Take turns until a condition is met."""
        deadline = time.monotonic() + patience
        while not condition():
            self.turn()
            assert self.load.error is None, self.load.error
            if time.monotonic() > deadline:
                pytest.fail(
                    f"waited {patience:.0f} seconds in vain: {what}\n{self._why(self.topology.queues)}"
                )
            time.sleep(pause)

    def handle(self, count: int) -> None:
        """Take turns until this many more messages are handled."""
        wanted = self.handled + count
        self.until(lambda: self.handled >= wanted, f"{count} more messages are handled", 10 * PATIENCE)

    def _why(self, late: Iterable[str]) -> str:
        """Describe stuck queues, as the members and the broker see them."""
        lines = [f"no member handles the messages of these queues: {', '.join(late)}", *self.events]
        lines += [f"{queue}: handled last at {self._moved[queue]:.1f}" for queue in late]
        left = self._sent - self._done
        lines += [f"{queue}: {count} not handled" for queue, count in left.items()]
        lines += [f"{each.name}: alive {each.lives}, seat {each.diary.seat}" for each in self.workers]
        lines.append(self._broker.ctl(*_CONSUMERS.split()))
        lines += [self._broker.eval(_OVERVIEW.format(queue=queue)) for queue in late]
        return "\n".join(lines)

    # ---- the end

    def finish(self) -> Verdict:
        """Wait until all published messages are handled, stop all processes, and judge."""
        self._publish_no_more()
        with promised():
            self.until(lambda: self.handled >= self.published, "all messages are handled", 10 * PATIENCE)
        codes = [worker.end() for worker in self.living]
        assert not any(codes), codes
        return self.kill()

    def _publish_no_more(self) -> None:
        self.hold()
        ledger = self.load.finish(PATIENCE)
        assert not ledger.outcomes, "some messages could not be published"

    def kill(self) -> Verdict:
        """Kill the processes that still run, and judge."""
        if not self._paused:
            self._publish_no_more()
        # Without priorities, the first worker has all queues, so it is killed last.
        for worker in reversed(self.workers):
            worker.close()
        return self.judge()

    def judge(self) -> Verdict:
        diaries = [worker.diary for worker in self.workers]
        sights = [sight for diary in diaries for sight in diary.sights]
        badly = set().union(*(diary.ended_badly for diary in diaries))
        return judge(sights, badly, dict(enumerate(self._published)), at_once=self.at_once)


class Faults:
    """The faults of a group; each method returns when its fault has happened."""

    def __init__(
        self, workers: Workers, broker: Broker, dice: random.Random, options: Mapping[str, Any]
    ) -> None:
        self.workers = workers
        self.counts: Counter[str] = Counter()
        self.revived = 0
        """How many queues the killed broker left with a dead consumer."""
        self._broker, self._dice, self.options = broker, dice, options
        self._kinds = cycle({**options, **kind} for kind in KINDS)
        self._group = options["name"]

    def _one(self) -> Worker:
        """Choose a process that consumes, but not the first one, which may be behind a proxy."""
        able: list[Worker] = []

        def any_consumes() -> bool:
            able[:] = [each for each in self.workers.living[1:] if each.diary.seat is not None]
            return bool(able)

        self.workers.until(any_consumes, "a member consumes")
        return self._dice.choice(able)

    def _note(self, what: str, count: int = 1) -> None:
        self.counts[what] += count
        self.workers.events.append(f"{time.monotonic():.1f} after {what}")

    def joins(self, most: int) -> None:
        """Start processes at the same time, until ``most`` are running."""
        missing = most - len(self.workers.living)
        new = [each for _ in range(missing) for each in self.workers.start(next(self._kinds))]
        self.workers.until_consuming(new)
        self._note("join", len(new))

    def kill(self) -> None:
        worker = self._one()
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        self._note("SIGKILL")

    def terminate(self) -> None:
        worker = self._one()
        assert worker.end() == 0, worker.name
        self._note("SIGTERM")

    def pause(self, seconds: float) -> None:
        """Suspend a process for less than a heartbeat."""
        worker = self._one()
        until = time.monotonic() + seconds
        worker.signal(signal.SIGSTOP)
        self.workers.until(lambda: time.monotonic() > until, "the pause is over")
        worker.signal(signal.SIGCONT)
        self._note("SIGSTOP, short")

    def hang(self) -> None:
        """Suspend a process until the broker has closed its connection."""
        worker = self._one()
        lives = worker.diary.lives
        worker.signal(signal.SIGSTOP)
        self._until_given_up(worker)
        worker.signal(signal.SIGCONT)
        self._until_connected_again(worker, lives)
        self._note("SIGSTOP, long")

    def partition(self, worker: Worker, proxy: Any) -> None:
        """Cut a member off until the broker has closed its connection."""
        self.workers.until_consuming([worker])
        lives = worker.diary.lives
        proxy.partition()
        self._until_given_up(worker)
        proxy.heal()
        self._until_connected_again(worker, lives)
        self._note("partition")

    def close_seat(self) -> None:
        """Have the broker close the connection of a member: of that in the seat by now, as members move to lower seats."""
        lives = {each: each.diary.lives for each in self.workers.living}
        owners: list[str] = []

        def is_taken() -> bool:
            name = seat_queue(self._group, self._one().diary.seat or 0)
            rows = self._broker.ctl("list_queues", "name", "owner_pid", "--no-table-headers").splitlines()
            owners[:] = [owner for queue, owner in (row.split("\t") for row in rows) if queue == name]
            return bool(owners)

        self.workers.until(is_taken, "a member has a seat")
        self._broker.ctl("close_connection", owners[0], "by hand")
        self.workers.until(
            lambda: any(each.diary.lives > count for each, count in lives.items()), "a member connects again"
        )
        self._note("connection closed")

    def kill_broker(self) -> None:
        """Kill the broker while messages are waiting. The publisher pauses, because its retries would count as duplicates."""
        self.workers.hold()
        lives = {worker: worker.diary.lives for worker in self.workers.living}
        self._broker.kill()
        self._broker.restart()
        self.workers.flow()
        for worker, count in lives.items():
            self._until_connected_again(worker, count)
        self._note("broker kill -9")
        self._revive()

    def _revive(self) -> None:
        """Restart each queue whose active consumer belongs to the killed node.

        If such a consumer subscribed right before the kill, RabbitMQ 4.3.6 may keep it permanently, and the queue is stuck.
        After a restart, the queue's process detects that the consumer is dead.
        """
        start = self._broker.eval("erlang:system_info(creation).")
        for line in self._broker.ctl(*_CONSUMERS.split()).splitlines():
            queue, channel, *_, activity, _ = line.split("\t")
            if activity == "single_active" and f".{start}." not in channel:
                self._broker.eval(f"exit(whereis('%2F_{queue}'), kill).")
                self.revived += 1

    def _until_connected_again(self, worker: Worker, lives: int) -> None:
        self.workers.until(lambda: worker.diary.lives > lives, f"{worker.name} connects again")

    def _until_given_up(self, worker: Worker) -> None:
        """Wait until the broker has deleted the seat of a process, or another process has taken it."""
        self.workers.turn()  # the process may have moved to another seat
        seat = worker.diary.seat
        name = seat_queue(self._group, seat or 0)
        others = [each for each in self.workers.living if each is not worker]
        connection = pika.BlockingConnection(pika.URLParameters(self._broker.url))
        try:
            self.workers.until(
                lambda: _is_gone(connection, name) or seat in {each.diary.seat for each in others},
                f"the broker closes the connection of {worker.name}",
                pause=0.2,
            )
        finally:
            connection.close()


def _is_gone(connection: pika.BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as error:
        return error.reply_code == 404
    channel.close()
    return False
