"""An exchange under load, member processes that consume its queues, and a ledger of the messages they handle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from rabbit_chx.broker import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.consuming.queues.permissions import HOLDS
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import loads, plan
from tests.json_lines import printed
from tests.members import Member
from tests.patience import PATIENCE, wait_until
from tests.proof import never, promised
from tests.queues import a_channel, message_count
from tests.users import a_user

if TYPE_CHECKING:
    from tests.broker.topology_site import Site

KEYS = [f"customer-{number}" for number in range(100)]
MOST_WAITING = 5_000
GROUP = "billing"
RING = """
schema: 1
vhost: "%(vhost)s"
exchanges:
  orders: {type: x-consistent-hash, queues: {"orders.{0..%(last)d}": 1}}
queues:
  "orders.{0..%(last)d}": {preset: ordered}
"""
MEMBER = (r"^rabbit-chx\.seat\.", r"^(amq\.default$|rabbit-chx\.hold\.)")
"""What a member may configure and write: its user is not that of `scale`."""
SLOTS = RING.replace("queues: {", "slots: 64, queues: {", 1)


@dataclass(frozen=True)
class Ledger:
    """The messages that the members handled, in the order in which they started to handle them."""

    lines: tuple[tuple[int, str, int, str], ...]
    published: int

    @property
    def lost(self) -> int:
        return self.published - len({(key, number) for _, key, number, _ in self.lines})

    @property
    def out_of_order(self) -> list[tuple[str, int]]:
        """Messages that were first handled after a later message with the same key."""
        latest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        late = []
        for _, key, number, _ in self.lines:
            if (key, number) not in seen and number < latest.get(key, -1):
                late.append((key, number))
            seen.add((key, number))
            latest[key] = max(number, latest.get(key, -1))
        return late

    @property
    def by_queue(self) -> Counter[str]:
        return Counter(queue for *_, queue in self.lines)


class Scene:
    """An exchange with its queues, a topology file, a publisher that runs until the end, and members."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        text: str,
        *,
        queues: int = 8,
        milliseconds: float = 5,
        waiting: int = 1500,
    ) -> None:
        """``waiting`` messages wait in the queues most of the time: the fewer, the sooner a queue is drained."""
        self.site, self.text, self.milliseconds, self.waiting = site, text, milliseconds, waiting
        self.log = folder / "handled.txt"
        self.log.touch()
        self._reader, self._handled, self._lock = self.log.open("rb"), 0, threading.Lock()
        self.file = folder / "topology.yaml"
        self.write(queues)
        self.published = 0
        self.members: list[subprocess.Popen[bytes]] = []
        self._ended: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._publisher = Member(self._publish)
        apply(site.url(), self.planned(), management=site.management)
        self._users = ExitStack()
        queues_and_seats = r"^(orders\.[0-9]+$|rabbit-chx\.seat\.)"
        user = a_user(site.broker, *MEMBER, queues_and_seats, vhost=site.vhost, tags="management")
        self._member_url = self._users.enter_context(user).url

    def write(self, queues: int) -> None:
        self.file.write_text(self.text % {"vhost": self.site.vhost, "last": queues - 1}, encoding="utf-8")

    def planned(self):
        wanted = loads(self.file.read_text(encoding="utf-8"), format="yaml")
        return plan(wanted, read(self.site.management, self.site.vhost), max_moved=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._publisher.is_alive():
            self._publisher.join(PATIENCE)
        for member in (*self.members, *self._ended):
            member.kill()
            member.wait()
        self._reader.close()
        self._users.close()

    # ---- members

    def start_members(self, count: int) -> None:
        program = [sys.executable, "-m", "tests.broker.group_member"]
        management = self.site.broker.management_url
        arguments = [self._member_url, "orders", GROUP, management, str(self.log), str(self.milliseconds)]
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        new = [subprocess.Popen([*program, *arguments], env=env) for _ in range(count)]
        self.members += new
        # Members that were killed a moment ago may still have seats.
        self.wait(lambda: {each.pid for each in new} <= {each.pid for each in self.answers()})

    def end_member(self, number: int = signal.SIGTERM) -> None:
        """End the member that was started last."""
        self._ended.append(self.members.pop())
        self._ended[-1].send_signal(number)

    def answers(self):
        with self.site.connection() as connection:
            return members_over(connection, GROUP)

    def state(self) -> str:
        """The state of members and queues, for the report of a failure."""
        rows = [
            f"seat {each.seat}: {name}: {found}"
            for each in self.answers()
            for name, found in each.queues.items()
        ]
        path = ["queues", self.site.vhost]
        found = self.site.management._request("GET", path)
        rows += [
            f"{each['name']}: {each.get('messages')} messages, {each.get('consumers')}" for each in found
        ]
        rows.append(f"lost: {self.ledger().lost} of {self.published}")
        return "\n".join(["", *rows])

    # ---- messages

    def start_publishing(self) -> None:
        self._publisher.start()
        self.wait(lambda: self.published >= 5 * len(KEYS))

    def _publish(self) -> None:
        """Publish one number after another for each key, slightly faster than the members handle them as long as few wait.

        Not while many wait: on a busy machine, more and more would.
        """
        with Publisher(self.site.url(), exchange="orders") as publisher:
            number = 0
            while not self._stop.is_set():
                publisher.publish_many([f"{key} {number}".encode() for key in KEYS], KEYS)
                number += 1
                self.published = number * len(KEYS)
                behind = self.published - self.handled()
                some, many = self.waiting / 6, self.waiting
                self._stop.wait(0.0 if behind < some else 0.1 if behind < many else 0.5)
                while self.published - self.handled() > MOST_WAITING and not self._stop.is_set():
                    self._stop.wait(0.1)

    def handled(self) -> int:
        with self._lock:
            self._handled += self._reader.read().count(b"\n")
            return self._handled

    def publish_on(self, messages: int) -> None:
        """Wait until this many more messages are handled."""
        least = self.handled() + messages
        self.wait(lambda: self.handled() >= least)

    def wait(self, condition) -> None:
        def met() -> bool:
            assert self._publisher.error is None, self._publisher.error
            return condition()

        wait_until(met, self.state, pause=0.05)

    def finish(self) -> Ledger:
        """Stop publishing, wait until all messages are handled, however slow the machine is, and return the ledger."""
        self._stop.set()
        self._publisher.join(PATIENCE)
        while True:
            handled, ledger = self.handled(), self.ledger()
            if not ledger.lost:
                return ledger
            least = handled + min(ledger.lost, 500)
            with promised():
                self.wait(lambda least=least: self.handled() >= least)

    def assert_finished(self, queues: int) -> list[str]:
        """Check that exactly these queues exist and are bound, and that no hold or record of a change is left; return them."""
        found = [queue.name for queue, *_ in self.site.management.queues(self.site.vhost)]
        expected = [f"orders.{number}" for number in range(queues)]
        assert sorted(name for name in found if name.startswith("orders.")) == sorted(expected), self.state()
        assert not [name for name in found if name.startswith(HOLDS)], self.state()
        bound = {each.destination for each in self.site.management.bindings(self.site.vhost)}
        assert {name for name in bound if str(name).startswith("orders.")} >= {*expected}
        return expected

    def assert_clean(self, queues: int) -> None:
        """Check that exactly these queues exist, that they are empty, and that no hold and no pending step is left."""
        expected = self.assert_finished(queues)
        with a_channel(self.site) as channel:
            for name in expected:  # where messages of members that ended may be handled once more
                self.wait(lambda name=name: message_count(channel, name) == 0)
        self.write(queues)
        assert not self.planned().steps

    def assert_in_order(self, queues: int) -> None:
        """Finish, and check that no message was lost or out of order and that nothing is left behind.

        At the end of a test and not of a fixture: after a failure, queues may stay held for ever.
        """
        never(out_of_order=self.finish().out_of_order)
        self.assert_clean(queues)

    def ledger(self) -> Ledger:
        lines = []
        written, _, _ = self.log.read_text().rpartition("\n")  # the rest is half a line
        for line in written.splitlines():
            when, key, number, queue = line.split()
            lines.append((int(when), key, int(number), queue))
        return Ledger(tuple(sorted(lines)), self.published)


def scale(
    scene: Scene,
    *options: str,
    kill_after: int = 0,
    kill_in: float = 0.0,
    kill_before: int = 0,
    verb: str = "scale",
    on_action: Callable[[subprocess.Popen[str]], object] = id,
) -> tuple[int, list[str], str]:
    """Run the command as on a new machine; return its exit code, its actions and its errors.

    Its working directory, which is also its home, is new and holds only a copy of the topology file. It is killed after
    ``kill_after`` actions, after ``kill_in`` seconds or before change number ``kill_before`` of the broker.
    ``on_action`` is called after each action.
    """
    with TemporaryDirectory() as machine:
        module = ["tests.broker.killed_command", str(kill_before)] if kill_before else ["rabbit_chx"]
        file = shutil.copy(scene.file, machine)
        program = [sys.executable, "-m", *module, verb, file, "-U", scene.site.url(), "--yes"]
        env = os.environ | dict.fromkeys(("HOME", "TMPDIR"), machine)
        env |= {
            "RABBITMQ_MANAGEMENT_URL": scene.site.broker.management_url,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [*program, "--output", "json", *options]
        running = subprocess.Popen(
            command, env=env, cwd=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return _followed(running, verb, kill_after, kill_in, on_action)


def _followed(
    running: subprocess.Popen[str],
    verb: str,
    kill_after: int,
    kill_in: float,
    on_action: Callable[[subprocess.Popen[str]], object],
) -> tuple[int, list[str], str]:
    done: list[str] = []
    with running:
        assert running.stdout is not None
        assert running.stderr is not None
        timer = threading.Timer(kill_in, running.kill)
        if kill_in:
            timer.start()
        for line in running.stdout:
            if not line.endswith("\n"):
                break  # killed in the middle of it
            row = json.loads(line)
            printed(verb, [row])
            if row["type"] == "done":
                done.append(row["what"])
                on_action(running)
            if kill_after and len(done) == kill_after:
                running.kill()
        errors = running.stderr.read()
        timer.cancel()
    return running.returncode, done, errors
