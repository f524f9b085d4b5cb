"""A plan as the commands that carry it out: yielded one at a time, and sent the answer. This file opens no socket.

:func:`plan_commands` is one generator for all clients. It yields :class:`OnChannel`, which any AMQP client can do, and
:class:`OverHttp`, which the management API can; the driver sends what came back, or throws what went wrong:
:class:`Refused` by the broker, :class:`Lost` with the connection, ``BrokerUnavailable`` by the management API.

Three rules. A step that the broker may ignore in silence is read back. The first surprise ends it. And what is
done twice is done once: a step that finds its work done is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.broker.applying.broker_errors import why_refused
from rabbit_chx.broker.applying.lock import release_lock, take_lock
from rabbit_chx.broker.applying.protocol import Lost, OverHttp, Refused, Surprise
from rabbit_chx.broker.applying.step_commands import StepCommands, declare_exchange
from rabbit_chx.broker.reading.ring_order import marker
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable
from rabbit_chx.topology.planning.steps import Bind, ClearPolicy, DeleteQueue, SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rabbit_chx.broker.applying.protocol import Command
    from rabbit_chx.topology.planning.steps import Plan, Step

__all__ = ["Applied", "check_plan", "plan_commands"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan that was applied to its end, or would be where it was a dry run."""

    done: tuple[Step, ...] = ()
    """Steps that changed the broker."""
    skipped: tuple[Step, ...] = ()
    """Steps whose work was found done."""
    remaining: tuple[Step, ...] = ()
    """Steps of a dry run."""
    unverified: tuple[str, ...] = ()
    """What the broker was told, and may have ignored: nobody could look."""

    def __bool__(self) -> bool:
        return bool(self.done)


def check_plan(plan: Plan, vhost: str, *, seen: bool) -> None:
    """Refuse what cannot be applied at all, before anything is touched."""
    reasons = list(plan.refusals)
    if plan.steps and plan.vhost != vhost:
        reasons.append(
            f"the plan is for virtual host {plan.vhost!r}, but the connection leads to {vhost!r}: "
            "open one to the plan's"
        )
    blind = [step for step in plan.steps if isinstance(step, (SetPolicy, ClearPolicy)) or _asks_type(step)]
    if blind and not seen:
        reasons.append(
            f"it cannot be done over AMQP alone: {'; '.join(map(str, blind))}; policies are set over HTTP, and "
            "only there can be seen what kind of queue is deleted: give management="
        )
    if reasons:
        raise ApplyStopped("; ".join(reasons), remaining=plan.steps)


def _asks_type(step: Step) -> bool:
    return isinstance(step, DeleteQueue) and not step.force


def plan_commands(
    plan: Plan, *, holder: str, token: int, seen: bool, on_step: Callable[[Step], object] | None = None
) -> Generator[Command, Any, Applied]:
    """All commands of a plan, from taking the lock to giving it back.

    Args:
        plan: checked by `check_plan`.
        holder: who applies it, for whoever finds the lock taken.
        token: a number no other apply has.
        seen: whether there is a management API to look with.
        on_step: called with each step when it is done or found done.
    """
    if not plan.steps:
        return Applied()
    try:
        yield from take_lock(plan.vhost, holder, token, seen=seen)
    except _TROUBLE as trouble:
        raise ApplyStopped(_why(trouble, None, plan), remaining=plan.steps) from None
    try:
        return (yield from _all_steps(plan, StepCommands(plan.vhost, seen=seen), on_step))
    finally:
        # A driver throws in whatever ends its work, so this is reached by every way there is.
        yield from release_lock()


def _all_steps(
    plan: Plan, desk: StepCommands, on_step: Callable[[Step], object] | None
) -> Generator[Command, Any, Applied]:
    done: list[Step] = []
    skipped: list[Step] = []
    at: Step | None = None
    try:
        if desk.seen:
            yield from _mark_order(plan)
        for at in plan.steps:
            worked = yield from desk.work(at)
            (done if worked else skipped).append(at)
            if on_step is not None:
                on_step(at)
    except _TROUBLE as trouble:
        begun = len(done) + len(skipped)
        raise ApplyStopped(
            _why(trouble, at, plan),
            done=plan.steps[:begun],
            failed=at,
            remaining=plan.steps[begun + (at is not None) :],
        ) from None
    return Applied(tuple(done), tuple(skipped), unverified=tuple(desk.unverified))


def _mark_order(plan: Plan) -> Generator[Command, Any, None]:
    """Declare what tells later readers that the numbers of binds still give the order of the buckets.

    It is there until the rings are built anew, and to declare it again changes nothing; so its number is larger than
    that of any bind which is there already, and may have lost its place.
    """
    if any(isinstance(step, Bind) and step.binding.sequence is not None for step in plan.steps):
        cluster = (yield OverHttp("overview")).cluster
        bindings = yield OverHttp("bindings", (plan.vhost,))
        first = 1 + max((bound.sequence or 0 for bound in bindings), default=0)
        yield declare_exchange(marker(first, cluster))


_TROUBLE: Final = (Refused, Lost, Surprise, BrokerUnavailable)


def _why(trouble: Exception, step: Step | None, plan: Plan) -> str:
    match trouble:
        case Refused():
            return why_refused(trouble.code, trouble.text, step, plan.steps)
        case Lost() if step is not None:
            return f"{trouble}; whether this step was still done is not known: plan again"
        case BrokerUnavailable() if step is not None:
            return f"{trouble}; plan again to see whether this step was done"
        case _:
            return str(trouble)
