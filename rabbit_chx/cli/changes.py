"""How plans, costs and findings are shown: tables for people, one JSON object a line for programs."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.cli.output import echo, notice, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rabbit_chx.topology.checks.lint import Finding
    from rabbit_chx.topology.model import Observed, RingSource
    from rabbit_chx.topology.planning.steps import Plan, RingChange, Strategy

__all__ = ["counted", "print_findings", "print_plan", "print_rings", "print_strategies"]

_MOST_ORDERS: Final = 5
_SOURCES: Final[dict[RingSource, str]] = {
    "trivial": "it has one binding at most, so there is no order",
    "node": "the node itself told its order",
    "record": "its order was recorded when it was applied",
    "x-bind-seq": "its order is told by the numbers that its binds carry",
    "inference": "its order was worked out from messages that were observed",
}


def counted(count: int, singular: str, plural: str = "") -> str:
    """How many of them.

    >>> counted(1, "step"), counted(2, "policy", "policies")
    ('1 step', '2 policies')
    """
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def print_findings(findings: Iterable[Finding]) -> None:
    """What lint says, on standard error."""
    from rabbit_chx.cli.plan_rows import condense

    by_severity = groupby(findings, key=lambda finding: finding.severity)
    for severity, found in by_severity:
        for text in condense(f"{one.where}: {one.message} [{one.code}]" for one in found):
            notice(severity.capitalize(), text)


def print_rings(observed: Observed, *, verbose: bool) -> None:
    """The orders that messages left possible, and with ``verbose`` how each ring is known, on standard error.

    Why a ring is unknown stands in the notes of a plan and among the drift, too.
    """
    from rabbit_chx.cli.plan_rows import condense

    said = []
    for name, ring in observed.rings.items():
        if verbose:
            how = _SOURCES[observed.ring_sources[name]] if ring.known else f"unknown: {ring.why_unknown}"
            said.append(f"Ring of exchange {name!r}: {how}")
        possible = observed.possible_rings.get(name, ())
        for number, each in enumerate(possible[:_MOST_ORDERS], start=1):
            order = ", ".join(f"{destination} ({weight})" for destination, weight in each.runs or ())
            said.append(f"Possible ring of exchange {name!r}, {number} of {len(possible)}: {order}")
    for line in condense(said):
        echo(line, err=True)


def print_plan(plan: Plan, output: str, *, verbose: bool = False) -> None:
    """All of a plan: its steps, what they cost, the other ways, and what has to be known."""
    from rabbit_chx.cli.plan_rows import condense, percent

    if output == "json":
        _print_plan_as_json(plan)
        return
    if plan.steps:
        _print_steps(plan, verbose=verbose)
    elif not plan.refusals:
        echo(f"Virtual host {plan.vhost!r} is as the file says: nothing to do.")
    for change in plan.changes:
        _print_change(change)
    for exchange, share in plan.slot_moves.items():
        echo(f"Exchange {exchange!r}: re-pointed slots take {percent(share)} of its keys along.")
    _print_waits(plan)
    for note in condense(plan.notes):
        notice("Note", note, err=False)
    for refusal in condense(plan.refusals):
        notice("Refused", refusal)


def _print_steps(plan: Plan, *, verbose: bool) -> None:
    from rich.text import Text

    from rabbit_chx.cli.plan_rows import rows_of
    from rabbit_chx.cli.tables import show, table

    rows = rows_of(plan, verbose=verbose)
    # Columns without anything in them would only make the steps narrow.
    extra = ["keys moved"] * any(row.share for row in rows)
    extra += ["waiting"] * any(row.waiting is not None for row in rows)
    shown = table("#", "step", *extra, right=("#", "keys moved", "waiting"), folds=("step",))
    number = 1
    for row in rows:
        last = number + row.count - 1
        mark = ("-", "red") if row.destructive else ("+", "green")
        cells = {
            "keys moved": row.share,
            "waiting": "" if row.waiting is None else f"{row.waiting:,}",
        }
        numbers = str(number) if number == last else f"{number}-{last}"
        shown.add_row(numbers, Text.assemble(mark, f" {row.text}"), *(cells[name] for name in extra))
        number = last + 1
    show(shown, title=f"Virtual host {plan.vhost!r}: {counted(len(plan.steps), 'step')}")


def _print_waits(plan: Plan) -> None:
    """Which consumers to hold so that the keys that move keep their order."""
    from rabbit_chx.cli.plan_rows import condense
    from rabbit_chx.cli.tables import show
    from rabbit_chx.topology.planning.drain_order import drain_first_in, drain_stages

    waits = drain_first_in(plan)
    if not waits:
        return

    def named(queues: Iterable[Any]) -> str:
        return ", ".join(condense(sorted(repr(str(each)) for each in queues)))

    stages = drain_stages(waits)
    if stages is None:
        mutual = set(waits) & set().union(*waits.values())
        show(
            f"Order: {named(mutual)} gain keys from each other, so draining cannot preserve the order of keys: stop all "
            "consumers until every queue is empty."
        )
        return
    losing = set().union(*(waits[one] for one in stages[0]))
    said = (
        f"Order: keys keep it if the consumers of {named(waits)} are held from before the change until the messages in "
        f"{named(losing)} are consumed (rabbit_chx.broker.applying.handover)"
    )
    if len(stages) > 1:
        said += f". Release them in {len(stages)} stages, each when the queues before it are drained as well"
    show(f"{said}.")


def _print_change(change: RingChange) -> None:
    from rabbit_chx.cli.plan_rows import percent

    if change.moved is None:
        echo(f"Exchange {change.exchange!r}: how many keys move is unknown. {change.before.why_unknown}")
    elif change.before.bindings:
        between = (
            f", {percent(change.moved_between)} at some moment"
            if change.moved_between != change.moved
            else ""
        )
        echo(f"Exchange {change.exchange!r}: {percent(change.moved)} of its keys move{between}.")
    if len(change.strategies) > 1:
        print_strategies(change.strategies, "table", exchange=change.exchange)


def print_strategies(ways: Iterable[Strategy], output: str, *, exchange: str) -> None:
    """The ways of one change, and what each costs."""
    ways = list(ways)
    if output == "json":
        for way in ways:
            print_json("strategy", exchange=exchange, **_way(way))
        return
    from rich.text import Text

    from rabbit_chx.cli.plan_rows import percent
    from rabbit_chx.cli.tables import show, table

    shown = table(
        "strategy",
        "keys moved",
        "at some moment",
        "what",
        right=("keys moved", "at some moment"),
        folds=("what",),
    )
    for way in ways:
        name = Text.assemble((way.name, "bold"), " *") if way.chosen else way.name
        shown.add_row(name, percent(way.moved), percent(way.moved_between), way.what)
    show(shown)


def _way(way: Strategy) -> dict[str, Any]:
    return {
        "strategy": way.name,
        "moved": way.moved,
        "moved_between": way.moved_between,
        "summary": way.summary,
        "order": way.order,
        "steps": [str(step) for step in way.steps],
        "chosen": way.chosen,
    }


def _print_plan_as_json(plan: Plan) -> None:
    from rabbit_chx.topology.planning.drain_order import drain_first_in

    for number, step in enumerate(plan.steps, start=1):
        print_json(
            "step",
            step=number,
            do=str(step),
            destructive=step.destructive,
            exchange=step.exchange_moved,
            moved=step.moved if step.exchange_moved else None,
            waiting=step.at_risk,
        )
    for change in plan.changes:
        print_json(
            "change",
            exchange=change.exchange,
            moved=change.moved,
            moved_between=change.moved_between,
            strategies=[_way(way) for way in change.strategies],
        )
    for exchange, share in plan.slot_moves.items():
        print_json("slots", exchange=exchange, moved=share)
    for gainer, losers in drain_first_in(plan).items():
        print_json("hold", hold=str(gainer), until_drained=sorted(map(str, losers)))
    for note in plan.notes:
        print_json("note", note=note)
    for refusal in plan.refusals:
        print_json("refusal", refusal=refusal)
