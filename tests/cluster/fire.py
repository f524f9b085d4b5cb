"""A fault in a cluster while messages are published: to the hash exchange, to slots, and by a naive control.

The publishers know the addresses of all three nodes, and begin each round at another one. At the end of a round every
message must be in the ledger, and in the very queue that the mirror predicts. The control publishes without confirms,
through the node that the fault hits.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rabbit_chx.publishing import Timeouts
from tests.cluster.conftest import ROUNDS
from tests.cluster.nodes import Member
from tests.cluster.site import CONTROL, HASHED, QUEUES, SLOTTED, Site
from tests.faults.load import Control, Load
from tests.patience import PATIENCE, wait_until
from tests.proof import dice
from tests.queues import bind_ring, message_count

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE = 0.08
"""Seconds between two batches: a fault may last long, and what is published meanwhile must be drained afterwards."""
SLOW = 2 * PATIENCE
"""Seconds in which a node returns, on a busy machine."""
STUCK = 45.0
"""Confirm timeout: after a partition, a broker may leave a connection alive that confirms nothing."""
MOST = 2_000
"""Messages of one publisher in flight."""


class Stream(Load):
    """Publishes at a moderate pace."""

    def __init__(self, urls: list[str], exchange: str) -> None:
        timeouts = Timeouts(connect=3, reconnect=SLOW, confirm=STUCK)
        super().__init__(
            urls, exchange, max_in_flight=MOST, heartbeat=2, connection_name=exchange, timeouts=timeouts
        )
        self.exchange = exchange

    def keys(self) -> list[str]:
        """The keys of all accepted messages."""
        return [self._key(row) for row in range(self.ledger.taken_in)]

    def _publish_batch(self) -> None:
        time.sleep(PAUSE)
        super()._publish_batch()


class Abrupt(Control):
    """Ends a broken connection like a machine that loses power: unsent bytes are lost.

    A running kernel continues to send them for a while, and the node may read them when its network is back.
    """

    def _publish_over(self, channel) -> None:
        transport = channel.connection._impl._transport
        transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        super()._publish_over(channel)


@dataclass
class Sum:
    """The ledgers of one publisher, or of the controls, over all rounds; a message is a pair of round and row."""

    taken_in: int = 0
    lost: set[tuple[int, int]] = field(default_factory=set)
    unexpected: set[tuple[int, int]] = field(default_factory=set)
    misrouted: int = 0
    duplicated: int = 0
    unknown: int = 0
    resent: int = 0

    def add(self, number: int, ledger) -> None:
        self.taken_in += ledger.taken_in
        self.lost |= {(number, row) for row in ledger.lost}
        self.unexpected |= {(number, row) for row in ledger.unexpected}
        self.duplicated += ledger.duplicated


class Fire:
    def __init__(self, site: Site, scenario: str) -> None:
        self.site, self.scenario = site, scenario
        self.cluster = site.cluster
        self.sums = {HASHED: Sum(), SLOTTED: Sum()}
        self.losses = Sum()
        self.streams: list[Stream] = []
        self.controls: list[Control] = []
        self.faults = 0
        self._stalls: list[float] = []
        self._reunited = self._reordered = False

    # -- a round -------------------------------------------------------------------------------------------

    def rounds(self) -> Iterator[Member]:
        """In each round, yield the node at which the hash publisher begins; most faults hit this node."""
        for self._number in range(ROUNDS):
            if self._number:
                self.site.renew()
            self.site.build(self.cluster.members[0])
            self.site.check_rings()
            first, second, _ = self.cluster.in_turn(self.cluster.members[self._number % 3])
            self.reader = self.cluster.members[0]
            self._dice = dice(self.scenario, self.cluster.version, self._number)
            self._moved: set[str] = set()
            self.hashed = Stream(self.site.urls(first), HASHED).start()
            self.slotted = Stream(self.site.urls(second), SLOTTED).start()
            self.streams = [self.hashed, self.slotted]
            yield first
            for stream in self.streams:
                self._end(stream)
            self.site.check_rings()

    def leader(self, *, ask: Member) -> Member:
        """The node that leads the first queue of the hash exchange."""
        return self.cluster.leader(QUEUES[HASHED][0], self.site.vhost, ask=ask)

    def until_a_new_leader(self, victim: Member) -> None:
        other = self.cluster.others(victim)[0]
        wait_until(lambda: self.leader(ask=other) is not victim, "another node leads", SLOW)

    def flow(self, control: Control | None = None) -> None:
        """Let everybody publish for a random while."""
        for stream in self.streams:
            stream.flow()
        for stream in self.streams:
            stream.until_confirmed(self._dice.randrange(500, 2_500))
        if control is not None:
            control.flood()

    def broke_out(self) -> None:
        """Note the time of the fault."""
        self.faults += 1
        self._since = time.monotonic()

    def flows(self, *streams: Stream) -> None:
        """Return when new messages of these publishers (default: all) are confirmed again."""
        for stream in streams or self.streams:
            stream.until_confirmed(stream.publisher.totals.pending + 500)
            assert stream.error is None, stream.error
        self._stalls.append(time.monotonic() - self._since)

    def stalls(self) -> None:
        """Wait until so many messages are in flight that nothing more is accepted."""
        for stream in self.streams:
            pending = lambda it=stream.publisher: it.totals.pending  # noqa: E731
            wait_until(lambda pending=pending: pending() > MOST * 3 // 4, "a publisher stalls", SLOW)

    def hold(self) -> None:
        for stream in self.streams:
            stream.hold()

    def recover(self, victim: Member) -> None:
        """Return when the cluster is one again, and on Khepri all replicas are up to date.

        Mnesia may need restarts of nodes after a partition, and the rings are then read again. A replica of 4.0.5 that was
        cut off with messages that the others do not know never agrees with them again: the log says "term mismatch" every
        thirty seconds, and no client can consume through that node, so the queues are drained through another.
        """
        if self.cluster.store == "khepri":
            return self.cluster.whole()
        self.reader = self.cluster.others(victim)[0]
        self.cluster.run()
        self._reunited |= self.cluster.reunite(trusted=self.reader)
        self._moved |= self.site.learn_rings()
        assert self._moved <= {HASHED}
        self._reordered |= bool(self._moved)
        return None

    def _end(self, stream: Stream) -> None:
        """End a publisher and check its queues; if the ring changed meanwhile, the queue of a key is not known."""
        queues = QUEUES[stream.exchange]
        stream.more(500)
        ledger = stream.finish(SLOW)
        assert stream.error is None, stream.error
        assert ledger.outcomes == {}
        found = stream.drain(self.site.url(self.reader), queues, quiet=2)
        total, totals = self.sums[stream.exchange], stream.publisher.totals
        total.add(self._number, ledger)
        total.unknown += totals.unknown
        total.resent += totals.resent
        if stream.exchange not in self._moved:
            wanted = self.site.landing(stream.exchange, stream.keys())
            for queue, rows in zip(queues, found, strict=True):
                total.misrouted += sum(wanted[row] != queue for row in rows if row < len(wanted))

    # -- the control ---------------------------------------------------------------------------------------

    def control(self, through: Member, **options) -> Control:
        """A control that publishes through a node, into a quorum queue that this node leads."""
        name = f"{CONTROL}{secrets.token_hex(3)}"
        with self.site.channel(through) as channel:
            bind_ring(channel, name, [name], {"x-queue-type": "quorum"})
        control = Abrupt(self.site.url(through), name, **{"heartbeat": 2, **options})
        control.queue = name
        control.start()
        self.controls.append(control)
        return control

    def jam(self, control: Control, through: Member) -> None:
        """Suspend the queue of a control, so that even an orderly stop of its node loses messages."""
        through.eval(f"sys:suspend('{self.site.vhost}_{control.queue}').")  # RabbitMQ's name of a replica
        control.until_jammed()

    def settle(self, control: Control) -> None:
        """Let a control whose connection survived publish until everything that it has sent is in its queue."""
        control.flood()
        control.hold()
        with self.site.channel(self.reader) as channel:

            def arrived() -> bool:
                count = message_count(channel, control.queue)
                return count >= control.ledger.taken_in

            wait_until(arrived, "all messages of the control arrive", SLOW)

    def account(self, control: Control) -> None:
        """Count what a control has lost; what the cluster is slow to deliver is not lost."""
        url = self.site.url(self.reader)
        self.losses.add(self._number, control.finish(url, [control.queue], quiet=2))

    # -- the end -------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """End the publishers that a failed test has left running."""
        for stream in self.streams:
            stream.abandon()
        for control in self.controls:
            control.stop()

    def judge(self, judge, *, harmless: str = "") -> None:
        """Nothing is lost, and each message is in the queue that the mirror predicts."""
        assert self.losses.taken_in
        control = {"control": self.losses, "harmless": harmless, "faults": self.faults}
        for exchange, total in self.sums.items():
            what = self.scenario + (", slots" if exchange == SLOTTED else "")
            judge(what, total, total, area="Cluster", note=", ".join(self._notes(exchange)), **control)
        assert not any(total.misrouted for total in self.sums.values()), "messages in queues of other keys"

    def _notes(self, exchange: str) -> Iterator[str]:
        yield f"confirms again after {max(self._stalls):.1f} s"
        if self._reunited:
            yield "Mnesia stayed in parts until nodes were restarted"
        if self._reordered and exchange == HASHED:
            yield "the ring came back in another order"
        if misrouted := self.sums[exchange].misrouted:
            yield f"{misrouted:,} in another key's queue"
