"""Messages under way while a cluster is harmed: one stream through the hash exchange, one through slots, and controls.

The streams are those of the fault tests of one node (`tests.faults.load`), but each has the addresses of all three nodes.
In each round they begin at another node. At its end every message has to be where it should: in the books, and in the
very queue that the mirror names. The control publishes without confirms, over the node that the fault meets.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rabbit_chx.publishing import Timeouts
from tests.cluster.conftest import ROUNDS
from tests.cluster.nodes import Member
from tests.cluster.site import CONTROL, HASHED, QUEUES, SLOTTED, Site
from tests.faults.ledger import drain
from tests.faults.load import Control, Load, wait_until
from tests.proof import dice

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE = 0.08
"""Seconds between two batches: a fault may last for long, and what is published meanwhile is drained afterwards."""
PATIENCE = 180.0
"""Seconds for which a node may need to come back on a busy machine."""
STUCK = 45.0
"""Seconds after which a stream gives a connection up that lives and confirms nothing: after a cut, a broker may leave it so."""
MOST = 2_000
"""Messages of one stream that may be under way."""


class Stream(Load):
    """Publishes on and on, at a moderate pace."""

    def __init__(self, urls: list[str], exchange: str) -> None:
        timeouts = Timeouts(connect=3, reconnect=PATIENCE, confirm=STUCK)
        super().__init__(urls, exchange, max_in_flight=MOST, heartbeat=2, name=exchange, timeouts=timeouts)
        self.exchange = exchange

    def keys(self) -> list[str]:
        """Of all that was taken in."""
        return [self._key(row) for row in range(self.ledger.taken_in)]

    def _publish_batch(self) -> None:
        time.sleep(PAUSE)
        super()._publish_batch()


class Abrupt(Control):
    """Ends a broken connection as a machine does that goes down: what its kernel has not sent yet is gone.

    A kernel that lives goes on sending for a while, and the node may take it when it is back on its network.
    """

    def _publish_over(self, channel) -> None:
        transport = channel.connection._impl._transport
        transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        super()._publish_over(channel)


@dataclass
class Sum:
    """The books of one stream, or of the controls, over all rounds; a message is known by its round and its row."""

    taken_in: int = 0
    lost: set[tuple[int, int]] = field(default_factory=set)
    unexpected: set[tuple[int, int]] = field(default_factory=set)
    astray: int = 0
    duplicated: int = 0
    unknown: int = 0
    resent: int = 0

    def add(self, number: int, ledger) -> None:
        self.taken_in += ledger.taken_in
        self.lost |= {(number, row) for row in ledger.lost}
        self.unexpected |= {(number, row) for row in ledger.unexpected}
        self.duplicated += ledger.duplicated

    def as_load(self) -> SimpleNamespace:
        """What `judge` looks at."""
        return SimpleNamespace(ledger=self, publisher=SimpleNamespace(totals=self))


class Fire:
    """The streams of one scenario, their controls, and what became of them all."""

    def __init__(self, site: Site, scenario: str) -> None:
        self.site, self.scenario = site, scenario
        self.cluster = site.cluster
        self.sums = {HASHED: Sum(), SLOTTED: Sum()}
        self.losses = Sum()
        self.faults = 0
        self._stalls: list[float] = []
        self._reunited = self._reordered = False

    # -- a round -------------------------------------------------------------------------------------------

    def rounds(self) -> Iterator[Member]:
        """For each round the node at which the hash stream begins, which most faults make their victim."""
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

    def flow(self, control: Control | None = None) -> None:
        """Have everybody at work, for a random while."""
        for stream in self.streams:
            stream.flow()
        for stream in self.streams:
            stream.until_confirmed(self._dice.randrange(500, 2_500))
        if control is not None:
            control.flood()

    def broke_out(self) -> None:
        """The fault is there, now."""
        self.faults += 1
        self._since = time.monotonic()

    def flows(self, *streams: Stream) -> None:
        """Return when these streams (all) are confirmed again; what was under way counts as well as what is new."""
        for stream in streams or self.streams:
            stream.until_confirmed(stream.publisher.totals.pending + 500)
            assert stream.error is None, stream.error
        self._stalls.append(time.monotonic() - self._since)

    def stalls(self) -> None:
        """Wait until so much is under way that nobody can publish more."""
        for stream in self.streams:
            totals = stream.publisher
            wait_until(lambda it=totals: it.totals.pending > MOST * 3 // 4, "a stream stalls", PATIENCE)

    def hold(self) -> None:
        for stream in self.streams:
            stream.hold()

    def recover(self, victim: Member) -> None:
        """Return when the cluster is one again, and on Khepri all replicas are up to date.

        Mnesia may want nodes restarted after a partition, and the rings are taken as they are then. And a replica of
        4.0.5 that was cut off with messages of which the others know nothing never agrees with them again: the log says
        "term mismatch" every thirty seconds, and nobody can consume over that node. So another is asked.
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
        """Let a stream end, and look what is where; no key has a known place while the ring was another for a time."""
        queues = QUEUES[stream.exchange]
        stream.more(500)
        ledger = stream.finish(PATIENCE)
        assert stream.error is None, stream.error
        assert ledger.outcomes == {}
        found = stream.drain(self.site.url(self.reader), queues, quiet=2)
        total = self.sums[stream.exchange]
        total.add(self._number, ledger)
        total.unknown += stream.publisher.totals.unknown
        total.resent += stream.publisher.totals.resent
        if stream.exchange not in self._moved:
            wanted = self.site.landing(stream.exchange, stream.keys())
            for queue, rows in zip(queues, found, strict=True):
                total.astray += sum(wanted[row] != queue for row in rows if row < len(wanted))

    # -- the control ---------------------------------------------------------------------------------------

    def control(self, through: Member, **options) -> Control:
        """A control that publishes over one node, into a quorum queue that this node leads."""
        name = f"{CONTROL}{secrets.token_hex(3)}"
        with self.site.connection(through) as connection:
            channel = connection.channel()
            channel.exchange_declare(name, "x-consistent-hash", durable=True)
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(name, name, "1")
        control = Abrupt(self.site.url(through), name, **{"held": True, "heartbeat": 2, **options})
        control.queue = name
        control.start()
        return control

    def jam(self, control: Control, through: Member) -> None:
        """Have messages of a control wait for their queue: however orderly its node ends now, nobody brings them on."""
        through.eval(
            f"sys:suspend('{self.site.vhost}_{control.queue}')."
        )  # so RabbitMQ names a replica's process
        control.flood()

    def settle(self, control: Control) -> None:
        """Let a control whose connection lives on publish on, until all that it has ever sent is there."""
        control.flood()
        control.hold()
        with self.site.connection(self.reader) as connection:
            channel = connection.channel()

            def there() -> bool:
                count = channel.queue_declare(control.queue, passive=True).method.message_count
                return count >= control.ledger.taken_in

            wait_until(there, "the cluster makes up for what the control has sent meanwhile", PATIENCE)

    def account(self, control: Control) -> None:
        """Count what a control has lost."""
        url = self.site.url(self.reader)
        ledger = control.finish(url, [control.queue])
        for rows in drain(url, [control.queue], quiet=2):  # what the cluster was slow to deliver is not lost
            ledger.received.update(rows)
        self.losses.add(self._number, ledger)

    # -- the end -------------------------------------------------------------------------------------------

    def judge(self, judge, *, harmless: str = "") -> None:
        """Nothing is lost, and each message lies where the mirror says."""
        assert self.losses.taken_in
        for exchange, total in self.sums.items():
            what = self.scenario + (", slots" if exchange == SLOTTED else "")
            note = ", ".join(self._seen(exchange))
            judge(
                what,
                total.as_load(),
                area="Cluster",
                faults=self.faults,
                control=self.losses,
                harmless=harmless,
                note=note,
            )
        assert not any(total.astray for total in self.sums.values()), "messages in queues of other keys"

    def _seen(self, exchange: str) -> Iterator[str]:
        yield f"confirms again after {max(self._stalls):.1f} s"
        if self._reunited:
            yield "Mnesia stayed in parts until nodes were restarted"
        if self._reordered and exchange == HASHED:
            yield "the ring came back in another order"
        if astray := self.sums[exchange].astray:
            yield f"{astray:,} in another key's queue"


def broken(control: Control) -> None:
    """Wait until a control has noticed that its connection is gone."""
    before = control.broken
    wait_until(lambda: control.broken > before, "the control sees that its node is gone", PATIENCE)
