"""A small model of a broker's semantics, by which plans are carried out in tests, and topologies for it."""

from __future__ import annotations

from dataclasses import replace

from rabbit_chx import Release, Ring
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    MODULUS_HASH,
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Slots,
    Topology,
)
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)


class Broker:
    """Exchanges, queues, policies and bindings; every consistent-hash exchange has its ring.

    It knows no plan, only commands.
    """

    def __init__(self, release: str = "4.3", **observed) -> None:
        self.release = Release.parse(release)
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.policies: dict[str, Policy] = {}
        self.bindings: list[Binding] = []
        self.rings: dict[str, Ring] = {}
        self.rings_seen: list[tuple[str, Ring]] = []
        self.backlog: dict[str, int] = {}
        self.extra = observed

    def carry_out(self, steps) -> Broker:
        for step in steps:
            self.do(step)
        return self

    def do(self, step) -> None:
        match step:
            case DeclareExchange(exchange=exchange):
                assert exchange.name not in self.exchanges, "declared before"
                self.exchanges[exchange.name] = exchange
                if exchange.type == CONSISTENT_HASH:
                    self.rings[exchange.name] = Ring(release=self.release)
            case DeclareQueue(queue=queue):
                assert queue.name not in self.queues, "declared before"
                self.queues[queue.name] = queue
            case Bind(binding=bound):
                self.bind(bound)
            case Unbind(binding=bound):
                self.unbind(bound)
            case SetPolicy(policy=policy):
                self.policies[policy.name] = policy
            case ClearPolicy(name=name):
                del self.policies[name]
            case DeleteExchange(name=name):
                assert not [bound for bound in self.bindings if bound.source == name], "if-unused"
                self._gone(ToExchange(name))
                del self.exchanges[name]
                self.rings.pop(name, None)
            case DeleteQueue(name=name, force=force):
                assert force or not self.backlog.get(name), "if-empty"
                self._gone(name)
                del self.queues[name]

    def bind(self, bound: Binding) -> None:
        assert bound.source in self.exchanges, f"no exchange {bound.source}"
        there = self.exchanges if isinstance(bound.destination, ToExchange) else self.queues
        assert str(getattr(bound.destination, "name", bound.destination)) in there, bound
        assert bound not in self.bindings, "bound before"
        self.bindings.append(bound)
        self._change_ring(Ring.bind, bound)

    def unbind(self, bound: Binding) -> None:
        assert bound in self.bindings, f"not bound: {bound}"
        self.bindings.remove(bound)
        self._change_ring(Ring.unbind, bound)

    def _change_ring(self, change, bound: Binding) -> None:
        if bound.source in self.rings:
            ring = change(self.rings[bound.source], bound.destination, bound.key, bound.arguments)
            self.rings[bound.source] = ring
            self.rings_seen.append((bound.source, ring))

    def _gone(self, destination) -> None:
        for bound in [bound for bound in self.bindings if bound.destination == destination]:
            self.unbind(bound)

    def seen(self, **changes) -> Observed:
        """What a reader finds: listed bindings in an order of their own, and the rings as they are."""
        listed = sorted(self.bindings, key=lambda bound: (bound.source, str(bound.destination), bound.key))
        topology = Topology(
            exchanges=tuple(self.exchanges.values()),
            queues=tuple(self.queues.values()),
            bindings=tuple(listed),
            policies=tuple(self.policies.values()),
        )
        observed = Observed(
            topology, self.release, rings=dict(self.rings), backlog=dict(self.backlog), **self.extra
        )
        return replace(observed, **changes)


def hashed(name: str, queues, **rest) -> Topology:
    """One consistent-hash exchange over queues, which a file could hold."""
    weights = dict(queues) if isinstance(queues, dict) else dict.fromkeys(queues, 1)
    return Topology(
        exchanges=(Exchange(name, CONSISTENT_HASH),),
        queues=tuple(Queue(queue, "quorum") for queue in weights),
        bindings=tuple(Binding(name, queue, str(weight)) for queue, weight in weights.items()),
        **rest,
    )


def slotted(name: str, queues, *, count: int = 64, top: str = MODULUS_HASH, **arguments) -> Topology:
    """One exchange with slots over queues."""
    weights = dict(queues) if isinstance(queues, dict) else dict.fromkeys(queues, 1)
    return Topology(
        exchanges=(Exchange(name, top, arguments=arguments),),
        queues=tuple(Queue(queue, "quorum") for queue in weights),
        slots=(Slots(name, count, weights),),
    )


def made(wanted: Topology, **kind) -> Broker:
    """A broker on which a topology was planned and applied."""
    broker = Broker(**kind)
    found = plan(wanted, broker.seen())
    assert not found.refusals
    assert not found.slot_moves
    broker.carry_out(found.steps)
    broker.rings_seen.clear()
    return broker
