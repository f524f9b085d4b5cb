"""A plan as the commands that carry it out, yielded one at a time. No connection is opened here.

:func:`plan_commands` is one generator for all clients. It yields AMQP commands (:class:`OnChannel`, :class:`Pipelined`)
and requests to the management API (:class:`OverHttp`). The driver sends the answer back, or throws :class:`Refused` for
a refusal of the broker, :class:`Lost` for a lost connection, ``BrokerUnavailable`` for the management API.

Steps that the broker may ignore are read back; the first surprise stops the plan; a step that is already done is
skipped, so a plan that stopped can be applied again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.broker.applying.broker_errors import why_refused
from rabbit_chx.broker.applying.lock import release_lock, take_lock
from rabbit_chx.broker.applying.order_writer import OrderWriter, bind_command
from rabbit_chx.broker.applying.read_back import Listed
from rabbit_chx.broker.applying.step_commands import StepCommands, batches
from rabbit_chx.broker.commands import (
    INTERNAL_ERROR,
    NOT_FOUND,
    Command,
    Lost,
    OnChannel,
    OverHttp,
    Pipelined,
    Refused,
    Surprise,
)
from rabbit_chx.broker.permissions import NOTHING, Needs
from rabbit_chx.broker.reading.order_record import ORDER_EXCHANGE, OrderRecord, anchor
from rabbit_chx.broker.reading.ring_order import OrderEvidence
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.releases import Release, with_flags
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.checks.cluster import why_unchangeable
from rabbit_chx.topology.model import CONSISTENT_HASH, Exchange, Observed
from rabbit_chx.topology.planning.drain_order import check_current
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeleteExchange,
    DeleteQueue,
    Plan,
    SetPolicy,
    Step,
    Unbind,
    ring_after,
)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a plan that was applied completely; of a dry run, what the result would be."""

    done: tuple[Step, ...] = ()
    """Steps that changed the broker."""
    skipped: tuple[Step, ...] = ()
    """Steps whose work was found done."""
    remaining: tuple[Step, ...] = ()
    """Steps of a dry run."""
    recorded: tuple[str, ...] = ()
    """Exchanges whose order was recorded although no step concerned them."""
    unverified: tuple[str, ...] = ()
    """What the broker may have ignored: without the management API, it could not be read back."""

    def __bool__(self) -> bool:
        return bool(self.done)


def check_plan(plan: Plan, vhost: str, *, seen: bool) -> None:
    """Refuse what cannot be applied at all, before anything is touched."""
    reasons = list(plan.refusals)
    if (plan.steps or plan.to_record) and plan.vhost != vhost:
        reasons.append(
            f"the plan is for virtual host {plan.vhost!r}, but the connection leads to {vhost!r}: "
            "open one to the plan's"
        )
    blind = [
        step
        for step in plan.steps
        if isinstance(step, (SetPolicy, ClearPolicy)) or (isinstance(step, DeleteQueue) and not step.force)
    ]
    if blind and not seen:
        reasons.append(
            f"it cannot be done over AMQP alone: {'; '.join(map(str, blind))}; policies are set over HTTP, and "
            f"only there can be seen what kind of queue is deleted: {Advice.SHOW_MORE}"
        )
    if reasons:
        raise ApplyStopped("; ".join(reasons), remaining=plan.steps)


def check_cluster(*, publishes: bool = False) -> Generator[Command, Any, None]:
    """Raise `Surprise` if the nodes of the cluster cannot be changed now; ``publishes`` as for `why_unchangeable`."""
    try:
        nodes = yield OverHttp("nodes")
    except BrokerUnavailable as error:
        if error.permanent:  # the user lacks the tag monitoring
            return
        raise
    if all(state.running and not (state.partitions or state.alarms) for state in nodes.values()):
        return
    overview = yield OverHttp("overview")
    release = Release.parse(overview.release, store=(yield OverHttp("store", (overview.release,))))
    if why := why_unchangeable(Observed(release=release, nodes=nodes), publishes=publishes):
        raise Surprise(why)


def plan_commands(
    plan: Plan,
    *,
    holder: str,
    seen: bool,
    record: bool = True,
    on_step: Callable[[Step], object] | None = None,
) -> Generator[Command, Any, Applied]:
    """All commands of a plan that passed `check_plan`, from taking the lock to releasing it.

    ``seen`` says whether there is a management API, which is required to read back and to record the order of rings.
    """
    if not (plan.steps or (plan.to_record and record and seen)):
        return Applied()
    work = StepCommands(plan.vhost, seen=seen, records=record and seen)
    try:
        if seen:
            yield from check_cluster()
        yield from take_lock(plan.vhost, holder, seen=seen)
    except _TROUBLE as trouble:
        if isinstance(trouble, Refused) and seen:  # to name all permissions that are missing
            with suppress(BrokerUnavailable):
                work.know_types((yield OverHttp("exchanges", (plan.vhost,))))
        raise ApplyStopped(_why(trouble, None, plan, work, NOTHING), remaining=plan.steps) from None
    try:
        return (yield from _all_steps(plan, work, on_step, NOTHING))
    finally:
        # The driver throws every error into this generator, so the lock is always released.
        yield from release_lock()


def commands_under_lock(
    plan: Plan, on_step: Callable[[Step], object], also: Needs
) -> Generator[Command, Any, Applied]:
    """The commands of a plan for a caller that holds the lock, and has a management API.

    ``also`` are further permissions that the caller needs; errors list them with those of the steps.
    """
    work = StepCommands(plan.vhost, seen=True, records=True)
    return (yield from _all_steps(plan, work, on_step, also))


def check_unchanged(plan: Plan) -> Generator[Command, Any, None]:
    """Raise InvalidValue if the bindings that a plan changes are not those it was made for; the caller holds the lock."""
    yield from _begin(plan, StepCommands(plan.vhost, seen=True, records=True))


def _all_steps(
    plan: Plan, work: StepCommands, on_step: Callable[[Step], object] | None, also: Needs
) -> Generator[Command, Any, Applied]:
    at: Step | None = None
    try:
        yield from _begin(plan, work)
        for batch in batches(plan.steps):
            at, before = batch[0], len(work.worked)
            try:
                yield from work.carry_out(batch)
            finally:
                if on_step is not None:
                    for step in plan.steps[before : len(work.worked)]:
                        on_step(step)
        recorded = yield from _record(plan, work)
    except _TROUBLE as error:
        trouble = yield from _cause(error, seen=work.seen)
        begun = len(work.worked)
        failed = None if at is None or begun == len(plan.steps) else plan.steps[begun]
        raise ApplyStopped(
            _why(trouble, failed, plan, work, also),
            done=plan.steps[:begun],
            failed=failed,
            remaining=plan.steps[begun + (failed is not None) :],
            in_doubt=failed is not None and (work.sent > begun or _has_unknown_result(error)),
        ) from None
    pairs = list(zip(plan.steps, work.worked, strict=True))
    return Applied(
        tuple(step for step, worked in pairs if worked),
        tuple(step for step, worked in pairs if not worked),
        recorded=recorded,
        unverified=tuple(work.unverified),
    )


def _has_unknown_result(trouble: Exception) -> bool:
    """Whether the broker may have carried the command out."""
    match trouble:
        case Refused():
            return trouble.code == INTERNAL_ERROR
        case BrokerUnavailable():
            return not trouble.permanent
        case _:
            return isinstance(trouble, Lost)


def _cause(trouble: Exception, *, seen: bool) -> Generator[Command, Any, Exception]:
    """The state of the cluster, if it explains that the broker failed or did not answer; else the trouble itself."""
    if seen and isinstance(trouble, (Refused, Lost)) and _has_unknown_result(trouble):
        try:
            yield from check_cluster()
        except Surprise as cause:
            return Surprise(
                f"the broker failed: {cause}. Then plan again: whether this step was still done is not known"
            )
        except BrokerUnavailable:
            pass
    return trouble


def _record(plan: Plan, work: StepCommands) -> Generator[Command, Any, tuple[str, ...]]:
    """Record the order of rings that is known, but that no step has recorded."""
    if work.order is None:
        return ()
    recorded = []
    for exchange in plan.to_record:
        commands = work.order.adopt(exchange, (yield OverHttp("bindings_from", (plan.vhost, exchange))))
        if commands:
            yield Pipelined(tuple(commands))
            recorded.append(exchange)
    return tuple(recorded)


def _begin(plan: Plan, work: StepCommands) -> Generator[Command, Any, None]:
    """Check that the plan is current, and read the record.

    If no record is kept, what is recorded of rings that lose a binding is voided.
    """
    unbound = {step.binding.source for step in plan.steps if isinstance(step, Unbind)}
    if not work.seen:
        yield from _void(unbound)
        return
    changes_rings = any(isinstance(step, (Bind, Unbind, DeleteExchange)) for step in plan.steps)
    if not (changes_rings or plan.to_record):
        return
    exchanges = yield OverHttp("exchanges", (plan.vhost,))
    work.know_types(exchanges)
    evidence = yield from order_evidence(plan.vhost, exchanges)
    work.release = evidence.release
    changed = {step.binding.source for step in plan.steps if isinstance(step, (Bind, Unbind))}
    now = yield from work.listed(changed & work.types.keys())
    bindings = (bound for each in now.values() for bound in each.values())
    check_current(plan, bindings, _reordered(plan, now, evidence))
    if work.records:
        # Not the rings before the changes of the plan: those that were recorded may have changed since it was made.
        work.order = OrderWriter(evidence, plan.to_record, _departing(plan))
    elif evidence.exchange is not None:
        yield from _void({source for source in unbound if work.types.get(source) == CONSISTENT_HASH})


def _reordered(plan: Plan, now: Mapping[str, Listed], evidence: OrderEvidence) -> set[str]:
    """The rings that had a recorded order when the plan was made, and have none now, or that of no point of the plan."""
    found = set()
    for change in plan.changes:
        bound = list(now.get(change.exchange, {}).values())
        is_before = {each.destination for each in bound} == {*change.before.destinations}
        # A single binding is known without a record.
        if is_before and len(bound) > 1 and change.exchange not in plan.to_record:
            steps = [step for step in plan.steps if isinstance(step, (Bind, Unbind))]
            own = [step for step in steps if step.binding.source == change.exchange]
            rings = accumulate(own, ring_after, initial=change.before)
            if all(evidence.lacks(ring, bound) for ring in rings):
                found.add(change.exchange)
    return found


def _void(exchanges: Collection[str]) -> Generator[Command, Any, None]:
    """Take the anchors of these exchanges away, if there is a record: their entries prove nothing any more."""
    if not exchanges:
        return
    try:
        yield OnChannel("exchange_declare", {"exchange": ORDER_EXCHANGE, "passive": True})
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
    else:
        yield Pipelined(tuple(bind_command("unbind", anchor(exchange)) for exchange in sorted(exchanges)))


def _departing(plan: Plan) -> set[tuple[str, Destination]]:
    """The rings of the plan, each with a queue that it unbinds and keeps."""
    rings = {change.exchange for change in plan.changes}  # not slots, which have one queue after the other
    found: set[tuple[str, Destination]] = set()
    for step in plan.steps:
        if isinstance(step, (Bind, Unbind)) and isinstance(step.binding.destination, str):
            change = found.add if isinstance(step, Unbind) else found.discard
            change((step.binding.source, step.binding.destination))
    deleted = {step.name for step in plan.steps if isinstance(step, DeleteQueue)}
    return {(source, queue) for source, queue in found if source in rings and queue not in deleted}


def order_evidence(vhost: str, exchanges: Iterable[Exchange]) -> Generator[Command, Any, OrderEvidence]:
    """Read what a virtual host shows of the order of its rings."""
    overview = yield OverHttp("overview")
    store = yield OverHttp("store", (overview.release,))
    found = next((exchange for exchange in exchanges if exchange.name == ORDER_EXCHANGE), None)
    nodes = None
    with suppress(BrokerUnavailable):  # the user lacks the tag monitoring
        nodes = len((yield OverHttp("nodes")))
    bindings = (yield OverHttp("bindings_from", (vhost, ORDER_EXCHANGE))) if found else ()
    release = Release.parse(overview.release, store=store)
    if release.unbind_spares_duplicates:
        flags: dict[str, bool] = {}
        with suppress(BrokerUnavailable):
            flags = yield OverHttp("feature_flags")
        release = with_flags(release, flags)
    return OrderEvidence(release, found, overview.cluster, nodes, OrderRecord.read(bindings))


_TROUBLE: Final = (Refused, Lost, Surprise, BrokerUnavailable, InvalidValue)


def _why(trouble: Exception, step: Step | None, plan: Plan, work: StepCommands, also: Needs) -> str:
    match trouble:
        case Refused():
            rings = _rings(plan, work) if work.records else set()
            return why_refused(trouble.code, trouble.text, step, plan.steps, rings, also)
        case Lost() if step is not None:
            return f"{trouble}; whether this step was still done is not known: plan again"
        case BrokerUnavailable() if step is not None and not trouble.permanent:
            return f"{trouble}; plan again to see whether this step was done"
        case _:
            return str(trouble)


def _rings(plan: Plan, work: StepCommands) -> set[str]:
    """The exchanges of the plan that keep a ring, as far as they are known yet."""
    declared = (step.exchange for step in plan.steps if isinstance(step, DeclareExchange))
    return {
        *(change.exchange for change in plan.changes),
        *(exchange.name for exchange in declared if exchange.type == CONSISTENT_HASH),
        *(name for name, kind in work.types.items() if kind == CONSISTENT_HASH),
    }
