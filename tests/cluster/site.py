"""A virtual host of its own on the cluster, with the two topologies that faults are let loose on, and their mirrors.

    hashed    an x-consistent-hash exchange over three quorum queues
    slots     an x-modulus-hash exchange over sixteen slots, which share three other quorum queues

Both are made by `apply`, so that their binds are numbered, and both have a mirror that says of each key in which queue it
has to lie. `check_rings` holds the ring of every exchange, as each node has it, against what the binds made.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlsplit

import pika

from rabbit_chx import ConsistentHashExchange, ModulusHashExchange, Release, Ring, ToExchange
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reading.node import read_rings
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Binding, Exchange, Queue, Slots, Topology
from rabbit_chx.topology.planning.plan import plan
from tests.cluster.nodes import Cluster, Member
from tests.faults.ledger import body, drain

if TYPE_CHECKING:
    from rabbit_chx.ring import Destination

HASHED, SLOTTED = "hashed", "slots"
WEIGHTS = {"hashed.0": 1, "hashed.1": 3, "hashed.2": 2}
SHARES = {"slots.0": 1, "slots.1": 1, "slots.2": 1}
LATE = 60.0
"""Seconds for which a node may be late with a ring."""
CONTROL = "control."
"""So begin the exchanges of controls, which have no mirror."""
SLOTS = Slots(SLOTTED, 16, SHARES)
QUEUES = {HASHED: list(WEIGHTS), SLOTTED: list(SHARES)}


@dataclass
class Parity:
    """How often a ring of a node was held against the mirror, and how often one without its last bucket was noticed."""

    rings: int = 0
    wrong: int = 0
    sensed: int = 0
    seconds: float = 0.0


PARITY: defaultdict[str, Parity] = defaultdict(Parity)
"""By release."""


def differing(rings, wanted) -> list[str]:
    """The exchanges of which two nodes, or a node and the mirror, do not have the same ring."""
    return [name for name in rings.keys() | wanted.keys() if rings.get(name) != wanted.get(name)]


def shortened(rings):
    """Rings without their last buckets."""
    return {name: ring[:-1] for name, ring in rings.items() if isinstance(ring, list)}


class Site:
    """The virtual host, seen from any node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.release = Release.parse(cluster.version, store=cluster.store)

    def __enter__(self) -> Self:
        self.vhost = f"cluster {uuid.uuid4().hex[:8]}"
        member = self.cluster.members[0]
        management = self.management(member)
        management._request("PUT", ["vhosts", self.vhost], body={})
        every = dict.fromkeys(("configure", "write", "read"), ".*")
        management._request("PUT", ["permissions", self.vhost, member.username], body=every)
        return self

    def __exit__(self, *_: object) -> None:
        self.management(self.cluster.members[0])._request("DELETE", ["vhosts", self.vhost])

    def renew(self) -> None:
        """Go on in another virtual host, with nothing in it."""
        self.__exit__()
        self.__enter__()

    # -- the ways in ---------------------------------------------------------------------------------------

    def url(self, member: Member) -> str:
        parts = urlsplit(member.url)
        return f"amqp://{parts.username}:{parts.password}@{parts.hostname}:{parts.port}/{quote(self.vhost, safe='')}"

    def urls(self, first: Member) -> list[str]:
        """Those of all nodes, in turn from one on."""
        return [self.url(member) for member in self.cluster.in_turn(first)]

    def connection(self, member: Member) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url(member)))

    def management(self, member: Member) -> Management:
        credentials = (member.username, member.password)
        return Management(member.management_url, credentials=lambda: credentials, timeout=60)

    # -- what stands there ---------------------------------------------------------------------------------

    def build(self, through: Member) -> None:
        """Make both topologies over one node, which then has the leaders of all their queues."""
        bindings = [Binding(HASHED, queue, str(weight)) for queue, weight in WEIGHTS.items()]
        wanted = Topology(
            self.vhost,
            (Exchange(HASHED, CONSISTENT_HASH), Exchange(SLOTTED, MODULUS_HASH)),
            tuple(Queue(name, "quorum") for name in (*WEIGHTS, *SHARES)),
            tuple(bindings),
            slots=(SLOTS,),
        )
        management = self.management(through)
        steps = plan(wanted, read(management, self.vhost))
        apply(self.url(through), steps, management=management)
        pointing = self.pointing(through)
        assert set(pointing.values()) == set(SHARES)
        self.rings = {HASHED: Ring.of(WEIGHTS, release=self.release)}
        self.rings |= {slot: Ring.of([queue], release=self.release) for slot, queue in pointing.items()}

    def pointing(self, member: Member) -> dict[str, str]:
        """The queue of each slot, of which none has two."""
        bounds = [
            bound for bound in self.management(member).bindings(self.vhost) if bound.source in SLOTS.names
        ]
        assert len(bounds) == SLOTS.count
        return {bound.source: bound.destination for bound in bounds}

    # -- what the mirror says ------------------------------------------------------------------------------

    def landing(self, exchange: str, keys: list[str]) -> list[str]:
        """The queue in which a message of each key has to lie."""
        if exchange == HASHED:
            mirror = ConsistentHashExchange(self.rings[HASHED])
            return [mirror.destinations[index] for index in mirror.route_many(keys)]
        top = ModulusHashExchange(map(ToExchange, SLOTS.names), release=self.release)
        queue_of = {slot: self.rings[slot].destinations[0] for slot in SLOTS.names}
        return [queue_of[top.destinations[index].name] for index in top.route_many(keys)]

    def on_nodes(self, *members: Member) -> dict[str, list[Destination]]:
        """The rings as these nodes (all) have them, each asked by itself: they have to be the same."""
        first, *others = self.each_node(*members)
        assert all(other == first for other in others), "the nodes have different rings"
        return first

    def each_node(self, *members: Member) -> list[dict[str, list[Destination]]]:
        """The rings of all exchanges but those of controls, node by node."""
        found = (read_rings(member, self.vhost) for member in members or self.cluster.members)
        return [
            {name: ring for name, ring in rings.items() if not name.startswith(CONTROL)} for rings in found
        ]

    def check_rings(self, *members: Member) -> None:
        """These nodes (all) have every ring as the mirror has it; a follower of Khepri may be a moment late."""
        wanted = {name: list(ring.bucket_map) for name, ring in self.rings.items()}
        started = time.monotonic()
        while True:
            found = self.each_node(*members)
            wrong = [name for rings in found for name in differing(rings, wanted)]
            if not wrong or time.monotonic() - started > LATE:
                break
        parity = PARITY[self.cluster.version]
        parity.rings += len(wanted) * len(found)
        parity.wrong += len(wrong)
        parity.seconds += time.monotonic() - started
        parity.sensed += sum(len(differing(shortened(rings), wanted)) for rings in found)
        assert not wrong, wrong

    def learn_rings(self) -> set[str]:
        """Take the rings as they are now; those that have another order than before, but never other buckets."""
        changed = set()
        for name, buckets in self.on_nodes().items():
            before = self.rings[name]
            self.rings[name] = Ring.read(buckets, bindings=before.bindings, release=self.release)
            assert Counter(buckets) == Counter(before.bucket_map), name
            changed |= {name} if self.rings[name].runs != before.runs else set()
        return changed

    def check_landing(self) -> None:
        """Messages that are published over each node lie where the mirror says."""
        keys = [f"customer-{number}" for number in range(300)]
        for exchange, queues in QUEUES.items():
            wanted = self.landing(exchange, keys)
            for member in self.cluster.members:
                with Publisher(self.url(member), exchange) as publisher:
                    publisher.publish_many([body(row) for row in range(len(keys))], keys)
                found = drain(self.url(member), queues)
                assert [len(rows) for rows in found] == [wanted.count(queue) for queue in queues]
                assert all(
                    wanted[row] == queue for queue, rows in zip(queues, found, strict=True) for row in rows
                )

    def check_recorded(self, member: Member, source: str) -> None:
        """How the ring is known to somebody who may ask the HTTP API of one node only, and that it is so."""
        observed = read(self.management(member), self.vhost)
        assert observed.ring_sources[HASHED] == source
        if source != "unknown":
            assert observed.rings[HASHED].runs == self.rings[HASHED].runs
