"""The steps of a plan, each one command to the broker, and the plan itself.

Steps are values that describe a command and the keys that it moves. :mod:`rabbit_chx.broker.applying` carries them
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from rabbit_chx.mirror.ring import Destination, Ring, named
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, wire_text


@dataclass(frozen=True, slots=True)
class _Step:
    """The attributes of all steps."""

    exchange_moved: str | None = field(default=None, kw_only=True)
    """The exchange whose keys this step moves."""
    moved: float | None = field(default=0.0, kw_only=True)
    """The exact share of that exchange's keys that this step moves to another destination; None if the ring is
    unknown."""
    at_risk: int | None = field(default=None, kw_only=True)
    """The number of messages in the queues that lose keys in this step; None if unknown."""

    destructive: ClassVar[bool] = False
    """Whether the step unbinds or deletes something."""


@dataclass(frozen=True, slots=True)
class DeclareExchange(_Step):
    """``exchange.declare``."""

    exchange: Exchange

    def __str__(self) -> str:
        return f"declare exchange {self.exchange.name!r} of type {self.exchange.type}"


@dataclass(frozen=True, slots=True)
class DeclareQueue(_Step):
    """``queue.declare``."""

    queue: Queue

    def __str__(self) -> str:
        return f"declare {self.queue.type} queue {self.queue.name!r}"


@dataclass(frozen=True, slots=True)
class Bind(_Step):
    """``queue.bind`` or ``exchange.bind``."""

    binding: Binding

    def __str__(self) -> str:
        return f"bind {_shown(self.binding, 'to')}"


@dataclass(frozen=True, slots=True)
class Unbind(_Step):
    """``queue.unbind`` or ``exchange.unbind``, with the key and arguments of the binding."""

    binding: Binding
    stay: tuple[Destination, ...] = field(default=(), kw_only=True)
    """The destinations that stay bound to a slot after this step, and gain its keys."""

    destructive: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"unbind {_shown(self.binding, 'from')}"


@dataclass(frozen=True, slots=True)
class DeleteExchange(_Step):
    """``exchange.delete``, with ``if-unused``."""

    name: str

    destructive: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"delete exchange {self.name!r}"


@dataclass(frozen=True, slots=True)
class DeleteQueue(_Step):
    """``queue.delete``, with ``if-empty`` and ``if-unused`` unless forced."""

    name: str
    force: bool = False

    destructive: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"delete queue {self.name!r}" + (" with what is in it" if self.force else "")


@dataclass(frozen=True, slots=True)
class SetPolicy(_Step):
    """Set a policy over HTTP."""

    policy: Policy

    def __str__(self) -> str:
        return f"set policy {self.policy.name!r} on {self.policy.pattern!r}"


@dataclass(frozen=True, slots=True)
class ClearPolicy(_Step):
    """Delete a policy over HTTP."""

    name: str

    destructive: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"clear policy {self.name!r}"


Step: TypeAlias = (
    DeclareExchange | DeclareQueue | Bind | Unbind | DeleteExchange | DeleteQueue | SetPolicy | ClearPolicy
)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to change a ring, with its cost."""

    name: str
    """``append``, ``in place``, ``remove-last``, ``swap``, ``blue/green`` or ``slots``."""
    summary: str
    """A description in one line."""
    moved: float | None
    """The exact share of keys that change destination; None if the ring is unknown."""
    moved_between: float | None
    """The share that is on another destination at any moment, including keys that return."""
    after: Ring | None = None
    """The resulting ring."""
    steps: tuple[Step, ...] = ()
    """The commands, if the strategy consists of commands only."""
    order: tuple[str, ...] | None = None
    """The order of destinations to write into the file, if the resulting order differs from the file's."""
    chosen: bool = False

    @property
    def what(self) -> str:
        """The summary, with the order to write into the file, if any."""
        return self.summary + (
            "" if self.order is None else f"; write this order into the file: {', '.join(self.order)}"
        )


@dataclass(frozen=True, slots=True)
class RingChange:
    """The effect of a plan on the keys of one exchange, and all possible strategies."""

    exchange: str
    before: Ring
    after: Ring
    moved: float | None
    moved_between: float | None
    strategies: tuple[Strategy, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from a broker to the wanted topology, in a safe order."""

    vhost: str
    steps: tuple[Step, ...] = ()
    changes: tuple[RingChange, ...] = ()
    slot_moves: Mapping[str, float] = field(default_factory=dict)
    """The exact share of keys that change queue, for each top exchange of slots."""
    notes: tuple[str, ...] = ()
    """Notes about restarts, limits and objects that were left alone."""
    refusals: tuple[str, ...] = ()
    """The reasons why the plan must not be applied, each with a hint."""
    left_alone: tuple[str, ...] = ()
    """Differences that the plan leaves unless the caller asks for more: rings of another or unknown order."""
    to_record: Mapping[str, Ring] = field(default_factory=dict)
    """The rings whose order is known but not recorded, by exchange; applying the plan records them, even without steps."""
    streams: frozenset[str] = frozenset()
    """The queues of the topology and of the broker that are streams: they keep their messages, so they are never drained."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def differs(self) -> bool:
        """Whether the broker differs, or may differ, from the topology, in something to apply or in the order of a ring."""
        return bool(self.steps or self.left_alone)

    @property
    def destructive(self) -> tuple[Step, ...]:
        """The steps that unbind or delete something."""
        return tuple(step for step in self.steps if step.destructive)


def ring_after(ring: Ring, step: Bind | Unbind) -> Ring:
    """The ring of an exchange after a step that binds to it or unbinds from it."""
    change = ring.bind if isinstance(step, Bind) else ring.unbind
    return change(step.binding.destination, step.binding.key, step.binding.arguments)


def left_behind(plan: Plan, observed: Observed) -> set[str]:
    """The queues that a plan unbinds from everything and keeps."""
    bound = {each._identity for each in observed.topology.bindings}
    unbound: set[str] = set()
    for step in plan.steps:
        if isinstance(step, Bind):
            bound.add(step.binding._identity)
        elif isinstance(step, Unbind):
            bound.discard(step.binding._identity)
            unbound |= {step.binding.destination} if isinstance(step.binding.destination, str) else set()
    deleted = {step.name for step in plan.steps if isinstance(step, DeleteQueue)}
    return unbound - {destination for _, destination, *_ in bound} - deleted


def _shown(binding: Binding, preposition: str) -> str:
    text = f"{named(binding.destination)} {preposition} exchange {binding.source!r} with key {binding.key!r}"
    return text + (f" and arguments {wire_text(dict(binding.arguments))}" if binding.arguments else "")
