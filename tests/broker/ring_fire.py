"""Exchanges that are changed at random, one command at a time, and compared with the mirror after each.

They share their destinations, so deleting a queue affects all of them. After each step, all rings are read from the
broker's node. A journal keeps all commands and rings; faulty mirrors are tried on it afterwards.

This file records nothing and asserts nothing; it returns the differences.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

from pika.exceptions import ChannelClosedByBroker

from rabbit_chx import Ring, RingBinding, ToExchange
from tests.broker.parity import close
from tests.patience import PATIENCE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from rabbit_chx.mirror.ring import Destination
    from tests.broker.parity import Lab

    Change: TypeAlias = Callable[[Ring], Ring]
    Mistake: TypeAlias = Callable[[Ring, Change], Ring]

WEIGHTS = ["1", "1", "2", "3", "5", "10", "+2", "007", "04"]
"""Weights as text, because their order as text differs from that of the numbers."""
QUEUES = [f"fire.q{i}" for i in range(12)]
BEHIND = [ToExchange(f"fire.x{i}") for i in range(4)]
ARGUMENTS = [{}, {}, {"note": 1}, {"note": 2}, {"why": "a reason"}]
REFUSED = ["0", "-1", "", "x", "1.5", " 1", "1_0"]
"""No weights: the broker closes the channel, and the ring stays as it is."""

CHANCES = {
    "bind": 24,
    "duplicate": 16,
    "unbind": 28,
    "unbind of nothing": 3,
    "refused bind": 3,
    "deleted queue": 6,
    "deleted queue, declared again": 6,
    "deleted destination exchange": 4,
    "exchange deleted and declared again": 1,
    "guest arrives": 5,
    "guest closes": 2,
    "guest is cut off": 2,
}
"""How often a step is taken. A guest is a connection with exclusive queues."""
UNCONFIRMED = ("guest closes", "guest is cut off")
"""What the broker may finish a moment later; 4.3 deletes exclusive queues behind the reply to a close, too."""


def same(ring: Ring) -> Ring:
    """No change."""
    return ring


@dataclass(frozen=True)
class Step:
    """One step: the mirrors before it, what it did to them, and the rings that the broker had after it."""

    what: str
    before: dict[str, Ring]
    changes: dict[str, Change]
    rings: dict[str, tuple[Destination, ...]]


class Fire:
    """The exchanges, their mirror, and the connections that the steps are taken over."""

    def __init__(
        self, lab: Lab, dice: random.Random, *, exchanges: int = 2, workers: int | None = None
    ) -> None:
        self.lab = lab
        self.dice = dice
        self.exchanges = [f"fire.{number}" for number in range(exchanges)]
        self._workers = workers
        self.mirror = {name: Ring(release=lab.release) for name in self.exchanges}
        self.journal: list[Step] = []
        self.wrong: list[str] = []
        """Each step after which the broker had another ring than the mirror."""
        self.reread = 0
        """Restarts after which only the broker could tell the order."""
        self._guest = None
        self._guests: list[str] = []
        self._named = 0
        self._steps = {
            "bind": self._bind_any,
            "duplicate": self._bind_again,
            "unbind": self._unbind_any,
            "unbind of nothing": self._unbind_nothing,
            "refused bind": self._bind_refused,
            "deleted queue": self._delete_queue,
            "deleted queue, declared again": lambda: self._delete_queue(again=True),
            "deleted destination exchange": self._delete_exchange_behind,
            "exchange deleted and declared again": self._anew,
            "guest arrives": self._arrive,
            "guest closes": self._leave,
            "guest is cut off": lambda: self._leave(cut=True),
        }

    def __enter__(self) -> Self:
        self._connect()
        for name in self.exchanges:
            self._channel.exchange_declare(name, "x-consistent-hash", durable=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._reconnect()
        for name in (*self.exchanges, *(exchange.name for exchange in BEHIND)):
            self._channel.exchange_delete(name)
        for queue in QUEUES:
            self._channel.queue_delete(queue)
        close(self._connection)

    def _connect(self) -> None:
        self._connection = self.lab.broker.connection()
        self._channel = self._connection.channel()

    def _reconnect(self) -> None:
        close(self._connection)
        self._connect()

    def run(self, steps: int, restarts: Sequence[str]) -> None:
        """Take so many steps, restarts at random moments among them."""
        moments = dict(zip(self.dice.sample(range(steps // 10, steps), len(restarts)), restarts, strict=True))
        for number in range(steps):
            if number in moments:
                self.restart(moments[number])
            else:
                self.step()

    def until_dead(self, count: int) -> None:
        """Take steps until this many listed bindings have no bucket."""
        while sum(len(ring.dead) for ring in self.mirror.values()) < count:
            self.step()

    # -- what is done after each step -------------------------------------------------------------------

    def step(self) -> None:
        """Change something at random, on the broker and in the mirror."""
        [what] = self.dice.choices(list(CHANCES), list(CHANCES.values()))
        self._follow(what, self._steps[what]())

    def _follow(self, what: str, changes: dict[str, Change]) -> None:
        """Change the mirror too, and hold it against the rings of the broker."""
        before = self.mirror
        self.mirror = {name: changes.get(name, same)(ring) for name, ring in before.items()}
        expected = {name: ring.bucket_map for name, ring in self.mirror.items()}
        rings = self.lab.rings(self.exchanges)
        deadline = time.monotonic() + PATIENCE
        # Nobody is told when the broker is done with the queues of a connection that has ended: only then is there
        # anything to wait for. What was confirmed has to be there at once.
        while what in UNCONFIRMED and rings != expected and time.monotonic() < deadline:
            rings = self.lab.rings(self.exchanges)
        self.lab.tally.rings += len(rings)
        self.journal.append(Step(what, before, changes, rings))
        for name in self.exchanges:
            if rings[name] != expected[name]:
                self._differs(what, name, rings[name])

    def _differs(self, what: str, name: str, ring: Sequence[Destination]) -> None:
        """Note a difference, and go on from what the broker has."""
        mirror = self.mirror[name]
        self.wrong.append(f"step {len(self.journal)}, {what}, {name}: {ring}, not {mirror.bucket_map}")
        self.mirror[name] = Ring.read(ring, bindings=mirror.bindings, release=mirror.release)

    # -- steps: each returns what it does to which mirror ---------------------------------------------------

    def _bind_any(self) -> dict[str, Change]:
        destination = self.dice.choice([*QUEUES, *BEHIND, *self._guests])
        return self._bind(self.dice.choice(self.exchanges), destination)

    def _bind_again(self) -> dict[str, Change]:
        """A second binding of a destination, or the very same one."""
        name = self.dice.choice(self.exchanges)
        if not self.mirror[name].bindings:
            return self._bind_any()
        return self._bind(name, self.dice.choice(self.mirror[name].bindings).destination)

    def _bind(self, name: str, destination: Destination) -> dict[str, Change]:
        binding = RingBinding.of(destination, self.dice.choice(WEIGHTS), self.dice.choice(ARGUMENTS))
        self._declare(destination)
        self._command("bind", name, binding)
        return {name: lambda ring: ring.bind(destination, binding.key, dict(binding.arguments))}

    def _unbind_any(self) -> dict[str, Change]:
        """Take any listed binding away: the only one of its destination, one of several, or a dead one."""
        name = self.dice.choice(self.exchanges)
        if not self.mirror[name].bindings:
            return self._bind_any()
        return self._unbind(name, self.dice.choice(self.mirror[name].bindings))

    def _unbind_nothing(self) -> dict[str, Change]:
        """Unbind a bound destination with a key that none of its bindings has."""
        name = self.dice.choice(self.exchanges)
        if not self.mirror[name].bindings:
            return self._bind_any()
        return self._unbind(name, replace(self.dice.choice(self.mirror[name].bindings), key="77"))

    def _unbind(self, name: str, binding: RingBinding) -> dict[str, Change]:
        self._command("unbind", name, binding)
        return {name: lambda ring: ring.unbind(binding.destination, binding.key, dict(binding.arguments))}

    def _bind_refused(self) -> dict[str, Change]:
        queue = self.dice.choice(QUEUES)
        self._declare(queue)
        try:
            self._channel.queue_bind(queue, self.dice.choice(self.exchanges), self.dice.choice(REFUSED))
        except ChannelClosedByBroker:
            self._channel = self._connection.channel()
        return {}  # whatever it answered, the ring shows whether it has refused

    def _delete_queue(self, *, again: bool = False) -> dict[str, Change]:
        queue = self.dice.choice(QUEUES)
        self._channel.queue_delete(queue)
        if again:
            self._declare(queue)
        return self._gone([queue])

    def _delete_exchange_behind(self) -> dict[str, Change]:
        exchange = self.dice.choice(BEHIND)
        self._channel.exchange_delete(exchange.name)
        return self._gone([exchange])

    def _anew(self) -> dict[str, Change]:
        name = self.dice.choice(self.exchanges)
        self._channel.exchange_delete(name)
        self._channel.exchange_declare(name, "x-consistent-hash", durable=True)
        return {name: lambda ring: Ring(release=ring.release)}

    def _arrive(self) -> dict[str, Change]:
        """A connection with three exclusive queues, one of which is bound; the others may be by later steps."""
        if self._guest is not None:
            return self._bind(self.dice.choice(self.exchanges), self.dice.choice(self._guests))
        self._guest = self.lab.broker.connection()
        self._guest_channel = self._guest.channel()
        self._named += 1
        self._guests = [f"fire.guest.{self._named}.{letter}" for letter in "abc"]
        for queue in self._guests:
            self._guest_channel.queue_declare(queue, exclusive=True)
        return self._bind(self.dice.choice(self.exchanges), self._guests[0])

    def _leave(self, *, cut: bool = False) -> dict[str, Change]:
        """The connection closes in an orderly way, or its socket is just gone; its queues go with it."""
        if self._guest is None:
            return {}
        if cut:
            self._guest._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        close(self._guest)
        self._guest, guests, self._guests = None, self._guests, []
        return self._gone(guests)

    # -- commands --------------------------------------------------------------------------------------------

    def _declare(self, destination: Destination) -> None:
        if isinstance(destination, ToExchange):
            self._channel.exchange_declare(destination.name, "fanout", durable=True)
        elif destination not in self._guests:
            self._channel.queue_declare(destination, durable=True)

    def _command(self, verb: str, name: str, binding: RingBinding) -> None:
        # an exclusive queue is its own connection's alone
        channel = self._guest_channel if binding.destination in self._guests else self._channel
        kind = "exchange" if isinstance(binding.destination, ToExchange) else "queue"
        command = getattr(channel, f"{kind}_{verb}")
        destination = getattr(binding.destination, "name", binding.destination)
        command(destination, name, binding.key, arguments=dict(binding.arguments))

    def _gone(self, destinations: Iterable[Destination]) -> dict[str, Change]:
        return {name: lambda ring: _without(ring, destinations) for name in self.exchanges}

    # -- restarts --------------------------------------------------------------------------------------------

    def restart(self, how: str) -> None:
        """Restart the broker, with guests in the house, and hold its rings against what the mirror foretells.

        Where that is nothing (several workers rebuild a ring on Mnesia), the ring is read, must hold each bound
        destination once, with the weight of one of its bindings, and is what the mirror goes on from.
        """
        self.lab.restart(how)
        self._reconnect()
        gone = self._leave()
        alive = {name: gone.get(name, same)(ring) for name, ring in self.mirror.items()}
        changes = {name: self._restarted(name, ring) for name, ring in alive.items()}
        self.reread += any(not self._foretold(ring).known for ring in alive.values())
        self._follow(how, changes)

    def _restarted(self, name: str, alive: Ring) -> Change:
        if self._foretold(alive).known:
            return lambda ring: self._foretold(_without(ring, {*_bound(ring)} - {*_bound(alive)}))
        read = Ring.read(self.lab.rings([name])[name], bindings=alive.bindings, release=self.lab.release)
        listed = {(binding.destination, binding.weight) for binding in alive.bindings}
        if not set(read.runs) <= listed or Counter(to for to, _ in read.runs) != Counter({*_bound(alive)}):
            self.wrong.append(f"step {len(self.journal)}, a restart, {name}: {read.runs} of {listed}")
        return lambda _ring: read

    def _foretold(self, ring: Ring) -> Ring:
        return ring.after_restart(worker_pool_size=self._workers)


def _bound(ring: Ring) -> Iterable[Destination]:
    return (binding.destination for binding in ring.bindings)


def _without(ring: Ring, destinations: Iterable[Destination]) -> Ring:
    for destination in destinations:
        ring = ring.delete(destination)
    return ring


# -- controls: mirrors that err ---------------------------------------------------------------------------------


def skipped(ring: Ring, change: Change) -> Ring:
    """A mirror that never hears of a step."""
    return ring


def duplicates_count(ring: Ring, change: Change) -> Ring:
    """A mirror in which the second binding of a destination has buckets too."""
    after = change(ring)
    if len(after.bindings) <= len(ring.bindings) or after.runs != ring.runs:
        return after
    new = after.bindings[-1]
    return replace(after, runs=(*after.runs, (new.destination, new.weight)))


def the_dead_live(ring: Ring, change: Change) -> Ring:
    """A mirror in which a destination keeps its buckets as long as any of its bindings is listed."""
    after = change(ring)
    if len(after.bindings) >= len(ring.bindings):
        return after
    return replace(after, runs=tuple(run for run in ring.runs if run[0] in {*_bound(after)}))


def noticed(journal: Sequence[Step], start: int, mistake: Mistake) -> int | None:
    """How many steps after a mistake the comparison shows it: 0 is at once, None never in this journal."""
    mirror = journal[start].before
    for number in range(start, len(journal)):
        step = journal[number]
        if mirror == step.before and number > start:
            return None  # it has healed: the destination was deleted, say
        apply = mistake if number == start else _rightly
        mirror = {name: apply(ring, step.changes.get(name, same)) for name, ring in mirror.items()}
        if any(not _has(ring, step.rings[name]) for name, ring in mirror.items()):
            return number - start
    return None


def _has(ring: Ring, buckets: Sequence[Destination]) -> bool:
    """Whether a mirror has these buckets; one with bindings too many cannot foretell every restart."""
    return ring.known and ring.bucket_map == buckets


def _rightly(ring: Ring, change: Change) -> Ring:
    return change(ring)
