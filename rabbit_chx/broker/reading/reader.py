"""Read a virtual host of a live broker into the values that a topology file gives.

    observed = read(Management("http://user:password@host:15672"), "/", node=NodeCommand("docker exec ..."))
    observed = learn(observed, pairs)        # of `ring_order`: observed messages work out rings

The result leaves out what no file declares: the default exchange, unused ``amq.`` exchanges, everything called ``rabbit-chx.``
(the lock and the record of the order), and exclusive queues, which live as long as their connection. Exclusive queues
bound to an exchange that hashes stay, since they take keys. Nothing is changed on the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.amqp import server_properties, version_in
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.permissions import Needs, Resources
from rabbit_chx.broker.reading.node import NodeAccess, read_rings, read_worker_pool_size
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE, OrderRecord
from rabbit_chx.broker.reading.ring_order import CHANGED, OrderEvidence, in_ring_order, learn, ring_of
from rabbit_chx.broker.reasons import why_refused
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RingUnknown
from rabbit_chx.mirror.releases import Release, Store, with_flags
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange
from rabbit_chx.topology.model import (
    HASHING,
    OWN,
    RESERVED,
    Binding,
    Exchange,
    NodeState,
    Observed,
    Queue,
    RingSource,
    Topology,
)

if TYPE_CHECKING:
    import pika

_NOT_FOUND: Final = 404
_ASSUMED: Final = (
    "whether RabbitMQ {release} keeps its bindings in Mnesia or in Khepri: the user may not list the feature "
    "flags; {release.store}, the default of the release, is assumed"
)


def read(
    management: Management,
    vhost: str,
    *,
    node: NodeAccess | None = None,
    pairs: Mapping[str, Iterable[tuple[Any, Destination]]] | None = None,
    release: str | None = None,
    consumers: bool = False,
) -> Observed:
    """Read a virtual host.

    Args:
        management: the management API.
        vhost: the virtual host.
        node: provides the exact order of the rings, and ``default_worker_pool_size``.
        pairs: by exchange, the values that were hashed and the destinations that received them.
        release: mirror this release instead of the one that the broker reports.
        consumers: also read which queues have none.
    """
    # First: while a node is silent, the other requests wait for it much longer.
    nodes = visible_nodes(management)
    overview = management.overview()
    version = release or overview.release
    store = management.store(version)
    parsed = _with_flags(_mirrored(version, store, given=release is not None), management)
    # In this order, so that what a listed binding joins was there before it is looked for.
    bindings = management.bindings(vhost)
    exchanges = management.exchanges(vhost)
    counted = management.queues(vhost, consumers=consumers)
    queues = [queue for queue, *_ in counted]
    topology = _topology(vhost, exchanges, queues, bindings)
    policies = sorted(management.policies(vhost), key=lambda policy: policy.name)
    order = next((exchange for exchange in exchanges if exchange.name == ORDER_EXCHANGE), None)
    record = OrderRecord.read(bindings)
    evidence = OrderEvidence(parsed, order, overview.cluster, len(nodes) if nodes else None, record)
    rings, sources, unreadable = _rings(topology, evidence, node, management)
    kept = {queue.name for queue in topology.queues}
    unreadable_rings = frozenset(each.name for each in topology.hash_exchanges if each.name not in rings)
    topology = replace(topology, policies=tuple(policies), unordered=unreadable_rings)
    observed = Observed(
        topology=in_ring_order(topology, rings),
        release=parsed,
        exchange_types=overview.exchange_types,
        rings=rings,
        ring_sources=sources,
        unrecorded=_unrecorded(topology, evidence, rings, sources),
        backlog={
            queue.name: count for queue, count, *_ in counted if queue.name in kept and count is not None
        },
        worker_pool_size=None if node is None else read_worker_pool_size(node),
        cluster=overview.cluster,
        nodes=nodes,
        without_majority=_without_majority(management, vhost, nodes),
        recorded=record.queues,
        unconsumed=frozenset(each.queue.name for each in counted if each.is_unconsumed),
        unseen=tuple(unreadable) if store is not None else (*unreadable, _ASSUMED.format(release=parsed)),
    )
    return observed if pairs is None else learn(observed, pairs)


def _mirrored(version: str, store: Store | None, *, given: bool) -> Release:
    try:
        return Release.parse(version, store=store)
    except InvalidValue as unknown:
        if given:
            raise
        raise BrokerUnavailable(str(unknown), permanent=True) from None  # the caller made no mistake


def _with_flags(release: Release, management: Management) -> Release:
    if not release.unbind_spares_duplicates:
        return release
    flags: dict[str, bool] = {}
    with suppress(BrokerUnavailable):
        flags = management.feature_flags()
    return with_flags(release, flags)


def _topology(
    vhost: str, exchanges: list[Exchange], queues: list[Queue], bindings: list[Binding]
) -> Topology:
    """What a file could declare, sorted by name."""
    hashing = {exchange.name for exchange in exchanges if exchange.type in HASHING}
    hashed = {bound.destination for bound in bindings if bound.source in hashing}
    kept_queues = [
        queue
        for queue in queues
        if not queue.name.startswith(OWN) and (not queue.exclusive or queue.name in hashed)
    ]
    there: set[Destination] = {queue.name for queue in kept_queues}
    there |= {ToExchange(exchange.name) for exchange in exchanges if not exchange.name.startswith(OWN)}
    kept_bindings = [
        bound
        for bound in bindings
        if bound.source and ToExchange(bound.source) in there and bound.destination in there
    ]
    used = {bound.source for bound in kept_bindings}
    used |= {bound.destination.name for bound in kept_bindings if isinstance(bound.destination, ToExchange)}
    return Topology(
        vhost=vhost,
        exchanges=tuple(
            exchange
            for exchange in sorted(exchanges, key=lambda exchange: exchange.name)
            if ToExchange(exchange.name) in there
            and exchange.name
            # A predeclared exchange counts only if it is used.
            and (not exchange.name.startswith(RESERVED) or exchange.name in used)
        ),
        queues=tuple(sorted(kept_queues, key=lambda queue: queue.name)),
        bindings=tuple(kept_bindings),
    )


def _rings(
    topology: Topology, evidence: OrderEvidence, node: NodeAccess | None, management: Management
) -> tuple[dict[str, Ring], dict[str, RingSource], list[str]]:
    """The ring of each hash exchange, how it is known, and why some cannot be read."""
    on_node = None if node is None else read_rings(node, topology.vhost)
    rings: dict[str, Ring] = {}
    sources: dict[str, RingSource] = {}
    unreadable: list[str] = []
    for exchange in topology.hash_exchanges:
        name = exchange.name
        bindings = topology.bindings_from(name)
        buckets = None if on_node is None else on_node.get(name, RingUnknown(CHANGED))
        try:
            ring, source = ring_of(bindings, evidence, buckets)
        except InvalidValue as error:
            unreadable.append(f"the ring of exchange {name!r}: {error}")
            continue
        # A binding that was unbound after it was listed looks like a dead one.
        if source == "node" and ring.dead:
            now = management.bindings_from(topology.vhost, name)
            if sorted(map(repr, bindings)) != sorted(map(repr, now)):
                ring, source = replace(ring, runs=None, why_unknown=CHANGED), "unknown"
        rings[name], sources[name] = ring, source
    return rings, sources, unreadable


def _unrecorded(
    topology: Topology,
    evidence: OrderEvidence,
    rings: Mapping[str, Ring],
    sources: Mapping[str, RingSource],
) -> frozenset[str]:
    """The exchanges whose order is known, and could be recorded."""
    return frozenset(
        name
        for name, ring in rings.items()
        if sources[name] != "trivial" and evidence.lacks(ring, topology.bindings_from(name))
    )


def visible_nodes(management: Management) -> dict[str, NodeState] | None:
    """The nodes of the cluster; None if the user may not see them, for lack of the tag ``monitoring``."""
    try:
        return management.nodes()
    except BrokerUnavailable as error:
        if error.permanent:
            return None
        raise


def _without_majority(
    management: Management, vhost: str, nodes: Mapping[str, NodeState] | None
) -> tuple[str, ...]:
    """The quorum queues of which most members are down; while all nodes run, the broker is not asked."""
    down = {name for name, state in (nodes or {}).items() if not state.running}
    if not down:
        return ()
    members = management._members(vhost)
    return tuple(sorted(name for name, of in members.items() if 2 * len(down & set(of)) >= len(of)))


def read_existence(connection: pika.BlockingConnection, wanted: Topology) -> Observed:
    """Read what AMQP alone shows: which of the wanted exchanges and queues exist, and how many messages wait.

    Those that exist are listed as they are wanted, because AMQP does not show how they were declared.
    """
    properties = server_properties(connection)
    release = Release.parse(version_in(properties))
    slots = (exchange for slots in wanted.slots for exchange in slots.exchanges)
    every = (*wanted.exchanges, *slots)
    write: Resources = {("exchange", exchange.name) for exchange in every}
    write |= {("queue", queue.name) for queue in wanted.queues}
    ask = partial(_passive, connection, Needs(write=write))
    exchanges = [each for each in every if ask("exchange", each.name) is not None]
    found = {queue.name: ask("queue", queue.name) for queue in wanted.queues}
    queues = tuple(queue for queue in wanted.queues if found[queue.name] is not None)
    backlog = {queue.name: found[queue.name].method.message_count for queue in queues}
    why = "AMQP alone does not show its bindings; enable the management API"
    topology = Topology(vhost=wanted.vhost, exchanges=tuple(exchanges), queues=queues)
    unknown = Ring((), None, release, why)
    return Observed(
        topology=topology,
        release=release,
        rings={exchange.name: unknown for exchange in topology.hash_exchanges},
        ring_sources={exchange.name: "unknown" for exchange in topology.hash_exchanges},
        backlog=backlog,
        cluster=str(properties.get("cluster_name", "")),
        bindings_seen=False,
        unseen=(
            "types, arguments and flags of exchanges and queues: over AMQP alone they look as they are wanted",
            "bindings, weights and rings: AMQP lists none",
            "policies, exchange types and the metadata store: AMQP lists none",
            "exchanges and queues that are not in the file: AMQP lists none",
        ),
    )


def count_messages(connection: pika.BlockingConnection, queues: Iterable[str]) -> dict[str, int]:
    """The messages that are ready in these queues now; statistics of the management API are seconds old."""
    asked = tuple(queues)
    needs = Needs(write={("queue", name) for name in asked})
    found = {name: _passive(connection, needs, "queue", name) for name in asked}
    return {name: answer.method.message_count for name, answer in found.items() if answer is not None}


def _passive(connection: pika.BlockingConnection, needs: Needs, kind: str, name: str) -> Any:
    """The answer to a passive declaration, or None. A refusal closes the channel, so each declaration has a new one.

    From 4.3.1 on it needs any of the three permissions; write does the least harm. Before, it needs none.
    """
    from pika.exceptions import AMQPError, ChannelClosedByBroker

    try:
        channel = connection.channel()
        answer = getattr(channel, f"{kind}_declare")(name, passive=True)
        channel.close()
    except ChannelClosedByBroker as error:
        if error.reply_code == _NOT_FOUND:
            return None
        raise BrokerUnavailable(why_refused(error, needs, what="this look")) from None
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(why_refused(error, needs)) from None
    return answer
