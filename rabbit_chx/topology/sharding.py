"""The sharding plugin: which queues its policy makes, and which of them a message lands on.

A policy with ``shards-per-node`` on an exchange makes the queues ``sharding: <exchange> - <node> - <n>`` on every
running node and binds them with the policy's ``routing-key``. Consumers ask for a queue by the exchange's name, and
each is attached to the shard of its own node that has the fewest. Pure: the policy is set elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rabbit_chx.errors import InvalidValue, Unpredictable
from rabbit_chx.exchange import ConsistentHashExchange
from rabbit_chx.partitioning import ModulusHashExchange
from rabbit_chx.topology.model import CONSISTENT_HASH, MODULUS_HASH, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rabbit_chx.releases import Release, Store
    from rabbit_chx.topology.model import Exchange, Topology

__all__ = ["Sharding", "sharding_of"]


@dataclass(frozen=True, slots=True)
class Sharding:
    """One exchange as the plugin shards it.

    >>> Sharding("logs", 2, nodes=("rabbit@a",)).shards
    ('sharding: logs - rabbit@a - 0', 'sharding: logs - rabbit@a - 1')
    """

    exchange: str
    """Also the name by which consumers ask for a shard."""
    shards_per_node: int
    routing_key: str = ""
    """With which the shards are bound; the weight, where the exchange is an ``x-consistent-hash``."""
    nodes: tuple[str, ...] = ()
    """The names of the running nodes, such as ``rabbit@host``."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The queues that the policy makes, in the order in which one node binds its own."""
        return tuple(
            shard_name(self.exchange, node, number)
            for node in self.nodes
            for number in range(self.shards_per_node)
        )

    def policy(self, name: str) -> Policy:
        """The policy that has the exchange sharded so."""
        definition = {"shards-per-node": self.shards_per_node, "routing-key": self.routing_key}
        return Policy(name, f"^{re.escape(self.exchange)}$", "exchanges", definition)

    def mirror(
        self,
        type_: str = MODULUS_HASH,
        *,
        release: str | Release = "4.3",
        store: str | Store | None = None,
    ) -> ModulusHashExchange | ConsistentHashExchange:
        """The exchange over these shards, to ask where a key lands.

        An ``x-modulus-hash`` is predictable on Mnesia and from 4.3 on. An ``x-consistent-hash`` is on a single
        node whose policy was set once: in a cluster only a broker knows which node's shards were bound first.
        """
        if type_ == MODULUS_HASH:
            pairs = [(shard, self.routing_key) for shard in self.shards]
            return ModulusHashExchange(pairs, release=release, store=store)
        if type_ != CONSISTENT_HASH:
            raise InvalidValue(
                f"type of the sharded exchange {self.exchange!r}",
                type_,
                f"{MODULUS_HASH} or {CONSISTENT_HASH}",
                "Any other type sends a message to all shards or to none",
            )
        if len(self.nodes) > 1:
            raise Unpredictable(
                f"the shards of {self.exchange!r} stand on {len(self.nodes)} nodes, and which node's were bound "
                "first only the ring tells: read it from the node"
            )
        bindings = [(shard, self.routing_key) for shard in self.shards]
        return ConsistentHashExchange(bindings, release=release, store=store)

    # rabbit_sharding_shard.erl, maybe_update_shards/2, which adds queues and takes none away; and
    # rabbit_sharding_interceptor.erl, least_consumers/3, which looks at the policy's numbers alone.
    def left_behind(self, topology: Topology) -> tuple[str, ...]:
        """The queues of a former policy that are bound still: they fill up, and no consumer is led to them."""
        ours = re.compile(re.escape(f"sharding: {self.exchange} - ") + r".+ - \d+", re.ASCII)
        bound = dict.fromkeys(
            bound.destination
            for bound in topology.bindings_from(self.exchange)
            if isinstance(bound.destination, str)
        )
        return tuple(name for name in bound if ours.fullmatch(name) and name not in self.shards)


# rabbit_sharding_util.erl, make_queue_name/3.
def shard_name(exchange: str, node: str, number: int) -> str:
    """The name of one shard."""
    return f"sharding: {exchange} - {node} - {number}"


def sharding_of(topology: Topology, exchange: str, nodes: Sequence[str]) -> Sharding | None:
    """How the plugin shards an exchange, by the policy that applies to it; None where none does."""
    found = topology.exchange(exchange)
    if found is None:
        raise InvalidValue(
            "exchange",
            exchange,
            "one of " + (", ".join(each.name for each in topology.exchanges) or "none"),
            "A policy shards exchanges that exist",
        )
    policy = topology.policy_of(found)
    if policy is None or "shards-per-node" not in policy.definition:
        return None
    per_node = _whole(policy.name, policy.definition["shards-per-node"])
    routing_key = policy.definition.get("routing-key", "")
    return Sharding(exchange, per_node, _text(policy.name, routing_key, found), tuple(nodes))


# rabbit_sharding_policy_validator.erl, validate_policy/1, which takes fractions too and cannot count to them.
def _whole(policy: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise InvalidValue(
            f"shards-per-node of policy {policy!r}",
            value,
            "a whole number from 0 on",
            "Write it without quotes",
        )
    return value


def _text(policy: str, value: Any, exchange: Exchange) -> str:
    if not isinstance(value, str):
        hint = "it is the weight" if exchange.type == CONSISTENT_HASH else "any will do"
        raise InvalidValue(
            f"routing-key of policy {policy!r}",
            value,
            "text",
            f'write it in quotes, such as "1": {hint}',
        )
    return value
