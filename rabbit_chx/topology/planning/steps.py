"""The changes that can be made to a broker, one command each, and a plan: some of them in order.

Steps are values: they say what is to be done, and what it moves. Doing them is the business of
:mod:`rabbit_chx.broker.applying`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from rabbit_chx.topology.model import wire_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rabbit_chx.ring import Ring
    from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue

__all__ = [
    "Bind",
    "ClearPolicy",
    "DeclareExchange",
    "DeclareQueue",
    "DeleteExchange",
    "DeleteQueue",
    "Plan",
    "RingChange",
    "SetPolicy",
    "Step",
    "Strategy",
    "Unbind",
]


@dataclass(frozen=True, slots=True)
class _Step:
    """What all steps have."""

    exchange_moved: str | None = field(default=None, kw_only=True)
    """The exchange whose keys this step moves."""
    moved: float | None = field(default=0.0, kw_only=True)
    """The exact share of that exchange's keys which go elsewhere after this step than before it; None
    where the ring is unknown."""
    at_risk: int | None = field(default=None, kw_only=True)
    """Messages waiting in the queues that lose keys by this step; None where nobody counted."""

    @property
    def destructive(self) -> bool:
        """Whether it takes away something that only its maker could bring back."""
        return False


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
    """``queue.unbind`` or ``exchange.unbind``, with key and arguments as they were bound."""

    binding: Binding

    @property
    def destructive(self) -> bool:
        """Messages take another way from here on."""
        return True

    def __str__(self) -> str:
        return f"unbind {_shown(self.binding, 'from')}"


@dataclass(frozen=True, slots=True)
class DeleteExchange(_Step):
    """``exchange.delete``, with ``if-unused``."""

    name: str

    @property
    def destructive(self) -> bool:
        """The exchange is gone."""
        return True

    def __str__(self) -> str:
        return f"delete exchange {self.name!r}"


@dataclass(frozen=True, slots=True)
class DeleteQueue(_Step):
    """``queue.delete``, only if it is empty and without consumers unless it is forced."""

    name: str
    force: bool = False

    @property
    def destructive(self) -> bool:
        """The queue is gone, and what was in it."""
        return True

    def __str__(self) -> str:
        return f"delete queue {self.name!r}" + (" with what is in it" if self.force else "")


@dataclass(frozen=True, slots=True)
class SetPolicy(_Step):
    """A policy set, over HTTP."""

    policy: Policy

    def __str__(self) -> str:
        return f"set policy {self.policy.name!r} on {self.policy.pattern!r}"


@dataclass(frozen=True, slots=True)
class ClearPolicy(_Step):
    """A policy taken away, over HTTP."""

    name: str

    @property
    def destructive(self) -> bool:
        """What it ruled is ruled by the next one."""
        return True

    def __str__(self) -> str:
        return f"clear policy {self.name!r}"


Step: TypeAlias = (
    DeclareExchange | DeclareQueue | Bind | Unbind | DeleteExchange | DeleteQueue | SetPolicy | ClearPolicy
)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to change a ring, and what it costs."""

    name: str
    """``append``, ``in place``, ``swap``, ``blue/green``, ``slots``."""
    summary: str
    """One line for people."""
    moved: float | None
    """The exact share of keys that end elsewhere than they began; None where the ring is unknown."""
    moved_between: float | None
    """The share that is elsewhere at any moment between, those that come back included."""
    after: Ring | None = None
    """The ring it ends with."""
    steps: tuple[Step, ...] = ()
    """The commands, where it is made of commands alone."""
    order: tuple[str, ...] | None = None
    """The order of destinations to write into the file, where this way ends with another than the file's."""
    chosen: bool = False

    @property
    def what(self) -> str:
        """The summary, with what has to be written into the file."""
        return self.summary + (
            "" if self.order is None else f"; write this order into the file: {', '.join(self.order)}"
        )


@dataclass(frozen=True, slots=True)
class RingChange:
    """What a plan does to the keys of one exchange, and the other ways there would have been."""

    exchange: str
    before: Ring
    after: Ring
    moved: float | None
    moved_between: float | None
    strategies: tuple[Strategy, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from what is to what should be, in the one safe order."""

    vhost: str
    steps: tuple[Step, ...] = ()
    changes: tuple[RingChange, ...] = ()
    slot_moves: Mapping[str, float] = field(default_factory=dict)
    """For every top exchange over slots the exact share of its keys that is re-pointed."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: restarts, limits, things that were left alone."""
    refusals: tuple[str, ...] = ()
    """Why the plan must not be applied, each with what to do instead."""
    left_alone: tuple[str, ...] = ()
    """Differences that no step changes unless the caller asks for it: rings of another or an unknown order."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def destructive(self) -> tuple[Step, ...]:
        """The steps that take something away."""
        return tuple(step for step in self.steps if step.destructive)


def _shown(binding: Binding, preposition: str) -> str:
    to_queue = isinstance(binding.destination, str)
    kind, name = (
        ("queue", binding.destination) if to_queue else ("exchange", getattr(binding.destination, "name", ""))
    )
    text = f"{kind} {name!r} {preposition} exchange {binding.source!r} with key {binding.key!r}"
    return text + (f" and arguments {wire_text(dict(binding.arguments))}" if binding.arguments else "")
