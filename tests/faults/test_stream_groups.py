"""Members of a stream group are killed, stopped and paused under load: nothing is missing, and each key stays in order.

RABBIT_CHX_PROOF=long pytest tests/faults/test_stream_groups.py     75 seconds of faults on each kind of exchange
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from rabbit_chx import SuperStream
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import connect
from tests.patience import PATIENCE, wait_until
from tests.proof import LONG, dice, promised
from tests.queues import STREAM, bind_ring, delete_exchange
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3600 if LONG else 400)]

ALSO = {"test_members_are_killed_stopped_and_paused": ["4.0"], "test_each_message_is_stored_once": ["4.0"]}
REPOSITORY = Path(__file__).parents[2]
PARTITIONS, MEMBERS, KEYS = 6, 3, 60
EVERY = 6.0
"""Seconds between two faults."""
PAUSED = 5.0
FAULTS = 12 if LONG else 3
KILLS = 10 if LONG else 3


class Member:
    """A member in a process of its own, and what it has written so far."""

    def __init__(self, folder: Path, options: dict) -> None:
        self._file = folder / secrets.token_hex(4)
        self._file.touch()
        self._errors = self._file.with_suffix(".err").open("w")
        program = [sys.executable, "-m", "tests.faults.stream_group_member"]
        self.process = subprocess.Popen(
            [*program, json.dumps({"file": str(self._file), **options})], cwd=REPOSITORY, stderr=self._errors
        )

    @property
    def lines(self) -> list[list[str]]:
        """Its complete lines."""
        return [line.split() for line in self._file.read_text().split("\n")[:-1]]

    @property
    def held(self) -> set[str]:
        """The streams that it has now."""
        streams: set[str] = set()
        for kind, *words in self.lines:
            if kind == "assigned":
                streams.add(words[0])
            elif kind == "revoked":
                streams.discard(words[0])
        return streams

    @property
    def served(self) -> set[str]:
        """The streams that it has now, and of which it has handled a message since it got them."""
        streams: set[str] = set()
        for kind, *words in self.lines:
            if kind == "handled":
                streams.add(words[1])
            elif words:
                streams.discard(words[0])
        return streams

    def end(self) -> None:
        """End the process, with its messages handled unless it was killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(PATIENCE)
        self._errors.close()


class Scene:
    """An exchange with streams, a publisher that does not stop, and the members."""

    def __init__(self, broker, folder: Path, kind: str, **options) -> None:
        self.name = f"sg-{secrets.token_hex(3)}"
        self.kind = kind
        self._broker = broker
        self._folder = folder
        self.options = {"url": broker.stream_url, kind: self.name, "name": "proof", **options}
        self.members: list[Member] = []
        self.published = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    @property
    def streams(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(PARTITIONS)]

    def __enter__(self):
        if self.kind == "super_stream":
            with connect(self._broker.stream_url) as connection:
                connection.create_super_stream(
                    self.name, {stream: str(at) for at, stream in enumerate(self.streams)}
                )
        else:
            with self._broker.connection() as connection:
                bind_ring(connection.channel(), self.name, self.streams, STREAM)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ending.set()
        self._thread.join()
        for member in self.members:
            member.end()
        with self._broker.connection() as connection:
            delete_exchange(connection.channel(), self.name, self.streams)

    def _publish(self) -> None:
        """Publish rows whose key is row % KEYS, some hundred a second."""
        route = SuperStream(self.streams).route
        with Publisher(self._broker.url, self.name) as publisher:
            while not self._ending.wait(0.1):
                rows = range(self.published, self.published + KEYS)
                keys = [f"key-{row % KEYS}" for row in rows]
                if self.kind == "super_stream":
                    keys = [str(self.streams.index(route(key))) for key in keys]
                publisher.publish_many([b"%d" % row for row in rows], keys)
                self.published = rows.stop

    def start(self) -> Member:
        member = Member(self._folder, self.options)
        self.members.append(member)
        return member

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.process.poll() is None]

    def until_shared(self) -> None:
        """Wait until each stream is served by one member, and the members have equal shares.

        Otherwise a stream is about to be handed over: on 4.0, a fault during a hand-over can leave it without a member.
        """

        def shared() -> bool:
            living = self.living
            held = [member.held for member in living]
            equal = len({len(each) for each in held}) == 1
            owners = Counter(stream for each in held for stream in each)
            # What a member has is its share only after the broker has heard that it begins.
            served = [member.served for member in living] == held
            return owners == dict.fromkeys(self.streams, 1) and equal and served

        wait_until(shared, lambda: f"shares: {[member.held for member in self.living]}")

    def finish(self) -> None:
        """Publish no more."""
        self._ending.set()
        self._thread.join()


def sights(scene: Scene) -> list[tuple[int, str, int, int]]:
    """When a member saw which offset and row of which stream, in the order of time."""
    lines = (words for member in scene.members for kind, *words in member.lines if kind == "handled")
    return sorted((int(at), stream, int(offset), int(row)) for at, stream, offset, row in lines)


def disorder(found: list[tuple[int, str, int, int]]) -> list[int]:
    """The rows that were first seen after a later one of the same key."""
    seen: set[int] = set()
    last: dict[int, int] = {}
    wrong = []
    for *_, row in found:
        if row in seen:
            continue
        seen.add(row)
        if row < last.get(row % KEYS, -1):
            wrong.append(row)
        last[row % KEYS] = max(row, last.get(row % KEYS, -1))
    return wrong


@contextmanager
def fault(scene: Scene, kind: str, member: Member):
    """Hit a member with a fault; what a kill or a stop ended is started again."""
    ended = {"kill": signal.SIGKILL, "stop": signal.SIGTERM, "pause": signal.SIGSTOP}[kind]
    member.process.send_signal(ended)
    yield
    if kind == "pause":
        time.sleep(PAUSED)
        member.process.send_signal(signal.SIGCONT)
    else:
        member.process.wait(PATIENCE)
        scene.start()


@pytest.mark.parametrize("kind", ["exchange", pytest.param("super_stream", marks=pytest.mark.proof)])
def test_members_are_killed_stopped_and_paused(broker, record, tmp_path, kind):
    random, counts = dice("stream group", kind, broker.version), Counter()
    options = {"pause": 0.0005, "store_every": 200, "store_seconds": 1.0}
    with Scene(broker, tmp_path, kind, **options) as scene:
        for _ in range(MEMBERS):
            scene.start()
        scene.until_shared()
        kinds = ["kill", "stop", "pause"] * (FAULTS // 3)
        random.shuffle(kinds)
        for each in kinds:
            began = time.monotonic()
            with fault(scene, each, random.choice(scene.living)):
                counts[each] += 1
            scene.until_shared()
            time.sleep(max(0.0, began + EVERY - time.monotonic()))  # the faults have a rhythm
        scene.finish()
        rows = set(range(scene.published))
        while left := len(rows - {row for *_, row in sights(scene)}):
            with promised():
                wait_until(
                    lambda left=left: len(rows - {row for *_, row in sights(scene)}) < left,
                    "progress",
                    pause=0.5,
                )
        found = sights(scene)
        control = unshared(scene)
    wrong = disorder(found)
    record(
        *("Consumers", f"stream group, {kind.replace('_', ' ')}", len(rows), counts.total()),
        *(rows - {row for *_, row in found}, wrong, len(found) - len(rows)),
        control=control,
        notes=[f"{len(wrong)} out of order", ", ".join(f"{each}: {count}" for each, count in counts.items())],
    )


def unshared(scene: Scene) -> str:
    """The control: a consumer that does not belong to the group sees every stream as well."""
    scene.options = {**scene.options, "name": "control"}
    other = scene.start()
    wait_until(lambda: other.held == {*scene.streams}, "a member of another group has every stream")
    return f"a member of another group had {len(other.held)} of {PARTITIONS} streams at the same time"


def test_each_message_is_stored_once(broker, record, tmp_path):
    """The example of the guide, through kills: each message is exactly once in the database."""
    random, database = dice("stream group, transactions", broker.version), tmp_path / "orders.db"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        guide = marked("stream-groups.md", "test_each_message_is_stored_once")
        connection.executescript("".join(re.findall(r"^# (CREATE TABLE .*;)$", guide, re.MULTILINE)))
    options = {"pause": 0.002, "directory": str(tmp_path)}
    with Scene(broker, tmp_path, "exchange", **options) as scene:
        for _ in range(2):
            scene.start()
        scene.until_shared()

        def stored() -> list[int]:
            return [int(body) for (body,) in connection.execute("SELECT body FROM orders")]

        for _ in range(KILLS):
            before = len(stored())
            wait_until(lambda: len(stored()) > before + KEYS, "messages stored")  # noqa: B023
            with fault(scene, "kill", random.choice(scene.living)):
                pass
            scene.until_shared()
        scene.finish()
        wait_until(lambda: len(stored()) >= scene.published, "every message stored")
    found = Counter(stored())
    connection.close()
    record(
        *("Consumers", "stream group, offsets in a database", scene.published, KILLS),
        *(set(range(scene.published)) - set(found), [row for row, count in found.items() if count > 1], 0),
        control="at least once: see the duplicates above",
        notes=["each message is once in the database"],
    )
