"""A virtual host on the cluster with the two topologies of the fault tests, and their mirrors.

    hashed    an x-consistent-hash exchange over three quorum queues
    slots     an x-modulus-hash exchange over sixteen slots, which share three other quorum queues

Both are made by `apply`, so that their binds are numbered, and both have a mirror that predicts the queue of each key.
`check_rings` compares the ring of every exchange on each node with the mirror.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from contextlib import contextmanager
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
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from rabbit_chx.mirror.ring import Destination

HASHED, SLOTTED = "hashed", "slots"
WEIGHTS = {"hashed.0": 1, "hashed.1": 3, "hashed.2": 2}
SHARES = {"slots.0": 1, "slots.1": 1, "slots.2": 1}
CONTROL = "control."
"""Prefix of the exchanges of controls, which have no mirror."""
SLOTS = Slots(SLOTTED, 16, SHARES)
QUEUES = {HASHED: list(WEIGHTS), SLOTTED: list(SHARES)}


def differing(rings, wanted) -> list[str]:
    """The exchanges whose ring differs, or that are in one of the two only."""
    return [name for name in rings.keys() | wanted.keys() if rings.get(name) != wanted.get(name)]


def shortened(rings):
    """The rings without their last buckets, which a comparison must notice."""
    return {name: ring[:-1] for name, ring in rings.items() if isinstance(ring, list)}


class Site:
    """The virtual host, accessible through any node."""

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
        """Continue in another, empty virtual host."""
        self.__exit__()
        self.__enter__()

    # -- access --------------------------------------------------------------------------------------------

    def url(self, member: Member) -> str:
        parts = urlsplit(member.url)
        return f"amqp://{parts.username}:{parts.password}@{parts.hostname}:{parts.port}/{quote(self.vhost, safe='')}"

    def urls(self, first: Member) -> list[str]:
        """The URLs of all nodes, in turn from this one on."""
        return [self.url(member) for member in self.cluster.in_turn(first)]

    @contextmanager
    def channel(self, member: Member):
        with pika.BlockingConnection(pika.URLParameters(self.url(member))) as connection:
            yield connection.channel()

    def management(self, member: Member) -> Management:
        credentials = (member.username, member.password)
        return Management(member.management_url, credentials=lambda: credentials, timeout=60)

    # -- the topologies ------------------------------------------------------------------------------------

    def build(self, through: Member) -> None:
        """Make both topologies through one node, which then has the leaders of all their queues."""
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
        bounds = [
            bound for bound in self.management(member).bindings(self.vhost) if bound.source in SLOTS.names
        ]
        assert len(bounds) == SLOTS.count
        return {bound.source: bound.destination for bound in bounds}

    # -- what the mirror says ------------------------------------------------------------------------------

    def landing(self, exchange: str, keys: list[str]) -> list[str]:
        """The queue in which a message of each key must be."""
        if exchange == HASHED:
            mirror = ConsistentHashExchange(self.rings[HASHED])
            return [mirror.destinations[index] for index in mirror.route_many(keys)]
        top = ModulusHashExchange(map(ToExchange, SLOTS.names), release=self.release)
        queue_of = {slot: self.rings[slot].destinations[0] for slot in SLOTS.names}
        return [queue_of[top.destinations[index].name] for index in top.route_many(keys)]

    def on_nodes(self, *members: Member) -> dict[str, list[Destination]]:
        """The rings of these nodes (default: all), which must be the same on each."""
        first, *others = self.each_node(*members)
        assert all(other == first for other in others), "the nodes have different rings"
        return first

    def each_node(self, *members: Member) -> list[dict[str, list[Destination]]]:
        """The rings of all exchanges but those of controls, one dict for each node."""
        found = (read_rings(member, self.vhost) for member in members or self.cluster.members)
        return [
            {name: ring for name, ring in rings.items() if not name.startswith(CONTROL)} for rings in found
        ]

    def check_rings(self, *members: Member) -> None:
        """Compare the rings of these nodes (default: all) with the mirror; a follower of Khepri may be a moment late."""
        wanted = {name: list(ring.bucket_map) for name, ring in self.rings.items()}
        started = time.monotonic()
        while True:
            found = self.each_node(*members)
            wrong = [name for rings in found for name in differing(rings, wanted)]
            if not wrong or time.monotonic() - started > PATIENCE:
                break
        sensed = sum(len(differing(shortened(rings), wanted)) for rings in found)
        seconds = time.monotonic() - started
        self.cluster.compared.append((len(wanted) * len(found), len(wrong), sensed, seconds))
        assert not wrong, wrong

    def learn_rings(self) -> set[str]:
        """Read the rings; return those in another order than before. None may have other buckets."""
        changed = set()
        for name, buckets in self.on_nodes().items():
            before = self.rings[name]
            self.rings[name] = Ring.read(buckets, bindings=before.bindings, release=self.release)
            assert Counter(buckets) == Counter(before.bucket_map), name
            changed |= {name} if self.rings[name].runs != before.runs else set()
        return changed

    def check_landing(self) -> None:
        """Messages published through each node arrive where the mirror predicts."""
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
        """Check how the HTTP API of one node alone shows the ring, and that it is right."""
        observed = read(self.management(member), self.vhost)
        assert observed.ring_sources[HASHED] == source
        if source != "unknown":
            assert observed.rings[HASHED].runs == self.rings[HASHED].runs
