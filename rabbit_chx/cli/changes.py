"""Print plans, costs and findings as tables or as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

import click

from rabbit_chx.base.text import counted, listed, percent
from rabbit_chx.cli.ask.broker_access import BrokerAccess, note_unproven
from rabbit_chx.cli.show.output import echo, nothing_changed, notice, print_json
from rabbit_chx.cli.show.plan_rows import condense, rows_of
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.topology.checks.cluster import cluster_problems
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.checks.lint_rules import Finding
from rabbit_chx.topology.model import Observed, RingSource, Topology, bound_in
from rabbit_chx.topology.planning.drain_order import drain_first_in, drain_stages
from rabbit_chx.topology.planning.steps import (
    Bind,
    DeclareQueue,
    Plan,
    RingChange,
    Strategy,
    Unbind,
    left_behind,
)
from rabbit_chx.working.markers import HOLDS

_MOST_ORDERS: Final = 5
_SOURCES: Final[dict[RingSource, str]] = {
    "trivial": "it has at most one binding",
    "node": "its order was read from the node",
    "record": "its order was recorded when it was applied",
    "inference": "its order was inferred from observed messages",
}


def check_can_ask(verb: str, instead: str, hint: str, *, yes: bool) -> None:
    """Raise if the command needs confirmation but cannot ask for it."""
    if not (yes or (sys.stdin is not None and sys.stdin.isatty())):
        text = f"`{verb}` asks for confirmation, but stdin is not a terminal: pass {instead}"
        raise click.UsageError(f"{text}. {hint}")


def agreed(*plans: Plan, yes: bool) -> bool:
    """Ask whether to apply the plans, as `confirmed` does."""
    steps = sum(len(plan.steps) for plan in plans)
    destructive = sum(len(plan.destructive) for plan in plans)
    warning = f" Steps that unbind or delete something: {destructive}." if destructive else ""
    return confirmed(f"Apply {counted(steps, 'step')}?{warning}", yes=yes)


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask, unless --yes has answered; after a no, say that nothing was changed."""
    agreed = yes or click.confirm(question, err=True)
    if not agreed:
        echo(nothing_changed(), err=True)
    return agreed


def is_refused(wanted: Topology, plan: Plan) -> bool:
    """Whether a plan must not be carried out: it repairs or refuses problems of the broker, but the file must have no errors."""
    return bool(plan.refusals) or any(finding.severity == "error" for finding in lint(wanted))


def print_findings(findings: Iterable[Finding]) -> None:
    """Print the findings of lint on standard error."""
    for severity, found in groupby(findings, key=lambda finding: finding.severity):
        for text in condense(f"{one.where}: {one.message} [{one.code}]" for one in found):
            notice(severity.capitalize(), text)


def read_and_print(live: BrokerAccess, wanted: Topology, *, verbose: bool) -> Observed:
    """Read the broker; print the findings of lint and the sources of the rings."""
    observed = live.read(wanted)
    warn_of_cluster(observed)
    print_findings(lint(wanted, observed))
    _print_rings(observed, verbose=verbose)
    note_unproven(observed, (each.name for each in wanted.expanded().hash_exchanges))
    return observed


def warn_of_cluster(observed: Observed) -> None:
    """Print what is wrong with the nodes of the cluster."""
    for problem in cluster_problems(observed):
        notice("Warning", problem)


def _print_rings(observed: Observed, *, verbose: bool) -> None:
    """Print the possible orders of unknown rings on standard error, with ``verbose`` also the source of each ring.

    The notes of a plan and the drift also give the reason why a ring is unknown.
    """
    lines = []
    for name, ring in observed.rings.items():
        if verbose:
            how = _SOURCES[observed.ring_sources[name]] if ring.known else f"unknown: {ring.why_unknown}"
            lines.append(f"Ring of exchange {name!r}: {how}")
        possible = observed.possible_rings.get(name, ())
        for number, each in enumerate(possible[:_MOST_ORDERS], start=1):
            order = ", ".join(f"{destination} ({weight})" for destination, weight in each.runs or ())
            lines.append(f"Possible ring of exchange {name!r}, {number} of {len(possible)}: {order}")
    for line in condense(lines):
        echo(line, err=True)


def warn_of_unfinished(live: BrokerAccess, vhost: str) -> None:
    """Warn of an unfinished change under load: with other bindings, it can no longer keep the order of keys."""
    found = False
    if not live.amqp_only:
        with suppress(BrokerUnavailable):
            found = any(queue.name.startswith(HOLDS) for queue, *_ in live.management.queues(vhost))
    if found:
        notice(
            "Warning",
            "a change by `scale` or `rebalance` is unfinished: finish or abandon it before other bindings change, or keys lose "
            "their order. `rabbit-chx scale FILE --status` shows it",
        )


def stranding(live: BrokerAccess, plan: Plan, observed: Observed) -> list[str]:
    """The queues that a plan unbinds with messages in them: members of a group that restart no longer consume them."""
    if plan.refusals:
        return []
    left = left_behind(plan, observed)
    waiting = live.recounted(observed, left).backlog
    return [
        f"queue {queue!r} is unbound with {counted(waiting[queue], 'message')} in it: `rabbit-chx scale FILE` makes the "
        "same change, but drains the queue first"
        for queue in sorted(left)
        if waiting.get(queue)
    ]


def warn_of_older_file(wanted: Topology, plan: Plan, observed: Observed) -> None:
    """Say that a plan may undo what `scale` did: the queues of the file and the broker differ, and the file may be older."""
    unbound = {step.binding.destination for step in plan.steps if isinstance(step, Unbind)}
    gone = sorted(each for each in unbound - bound_in(wanted) if isinstance(each, str))
    declared = {step.queue.name for step in plan.steps if isinstance(step, DeclareQueue)}
    binds = [step.binding for step in plan.steps if isinstance(step, Bind)]
    new = {each.destination for each in binds if observed.topology.bindings_from(each.source)} & declared
    for where, queues, what in (("broker", gone, "added"), ("file", sorted(map(str, new)), "removed")):
        if queues:
            notice(
                "Note",
                f"only the {where} has {listed(queues)}: if `scale` {what} {'it' if len(queues) == 1 else 'them'}, the file is older than the broker, and "
                "`rabbit-chx scale FILE --write` writes the broker's queues into it",
            )


def print_plan(
    plan: Plan, output: str, *, verbose: bool = False, held: bool = False, keeps_order: bool = False
) -> None:
    """Print the steps of a plan, the keys that they move, the other strategies, and notes.

    ``held`` says that an interrupted change is unfinished, ``keeps_order`` that the command itself holds and drains queues.
    """
    if output == "json":
        _print_plan_as_json(plan)
        return
    if plan.steps:
        _print_steps(plan, verbose=verbose)
    elif held:
        echo(f"Virtual host {plan.vhost!r}: no other changes needed.")
    elif not plan.refusals and not plan.left_alone:
        # `scale --to`, `--add` and `--remove` compare the broker with other queues than those of the file.
        state = "has these queues already" if keeps_order else "matches the file"
        echo(f"Virtual host {plan.vhost!r} {state}: no changes needed.")
    for change in plan.changes:
        _print_change(change)
    for exchange, share in plan.slot_moves.items():
        echo(f"Exchange {exchange!r}: the slots that change move {percent(share)} of its keys.")
    if order := _order(plan, keeps_order=keeps_order):
        show(order)
    for note in condense((*plan.left_alone, *plan.notes, *_unrecorded(plan))):
        notice("Note", note, err=False)
    for refusal in condense(plan.refusals):
        notice("Refused", refusal)


def _unrecorded(plan: Plan) -> Iterator[str]:
    if plan.to_record:
        yield (
            f"the broker has no record of the bind order of {listed(sorted(plan.to_record), 'exchange')}: `apply` records it, "
            "and other commands then need no access to a node"
        )


def _print_steps(plan: Plan, *, verbose: bool) -> None:
    rows = rows_of(plan, verbose=verbose)
    columns = {
        "keys moved": [row.share for row in rows],
        "waiting": ["" if row.waiting is None else f"{row.waiting:,}" for row in rows],
    }
    # Omit empty columns, so that the steps get more width.
    extra = {name: cells for name, cells in columns.items() if any(cells)}
    shown = Table("#", "step", *extra, right=("#", *extra), wrapped=("step",))
    first = 1
    for row, *cells in zip(rows, *extra.values(), strict=True):
        last = first + row.count - 1
        mark = ("-", "red") if row.destructive else ("+", "green")
        numbers = str(first) if first == last else f"{first}-{last}"
        shown.add_row(numbers, (mark, (f" {row.text}", "")), *cells)
        first = last + 1
    show(shown, title=f"Virtual host {plan.vhost!r}: {counted(len(plan.steps), 'step')}")


def _order(plan: Plan, *, keeps_order: bool) -> str:
    """The consumers that are held, or are to be held, so that moving keys keep their order; empty if no keys move."""
    drain_first = drain_first_in(plan)
    if not drain_first:
        return ""

    def named(queues: Iterable[Any]) -> str:
        return ", ".join(condense(sorted(repr(str(each)) for each in queues)))

    named_ones = {one for gainer, losers in drain_first.items() for one in (gainer, *losers)}
    if moving := named_ones & plan.streams:
        return (
            f"Order: streams keep their messages, so later messages of a key that moves between {named(moving)} are in another "
            "stream than the earlier ones. Consumers that need their order read the old stream up to the change first."
        )
    stages = drain_stages(drain_first)
    if stages is None:
        mutual = set(drain_first) & set().union(*drain_first.values())
        return (
            f"Order: {named(mutual)} gain keys from each other, so draining cannot preserve the order of keys: stop all "
            "consumers until every queue is empty."
        )
    losing = set().union(*(drain_first[one] for one in stages[0]))
    in_stages = f", queue by queue in {len(stages)} stages" if len(stages) > 1 else ""
    if keeps_order:
        return (
            f"Order: every key keeps it. The messages that reach {named(drain_first)} after the change wait until those in "
            f"{named(losing)} are handled{in_stages}."
        )
    text = (
        f"Order: keys keep it if the consumers of {named(drain_first)} are held from before the change until the messages in "
        f"{named(losing)} are consumed, as `rabbit-chx scale` does for groups"
    )
    if len(stages) > 1:
        text += f". Release them in {len(stages)} stages, each when the queues before it are drained as well"
    return f"{text}."


def _print_change(change: RingChange) -> None:
    if change.moved is None:
        echo(f"Exchange {change.exchange!r}: how many keys move is unknown: {change.before.why_unknown}")
    elif change.before.bindings:
        differs = change.moved_between != change.moved
        between = f", {percent(change.moved_between)} at some moment" if differs else ""
        echo(f"Exchange {change.exchange!r}: {percent(change.moved)} of its keys move{between}.")
    if len(change.strategies) > 1:
        print_strategies(change.strategies, "table", exchange=change.exchange)


def print_strategies(strategies: Iterable[Strategy], output: str, *, exchange: str) -> None:
    """Print the strategies for one change, with their costs."""
    if output == "json":
        for each in strategies:
            print_json("strategy", exchange=exchange, **_strategy(each))
        return
    numbers = ("keys moved", "at some moment")
    shown = Table("strategy", *numbers, "what", right=numbers, wrapped=("what",))
    for each in strategies:
        name = ((each.name, "bold"), (" *", "")) if each.chosen else each.name
        shown.add_row(name, percent(each.moved), percent(each.moved_between), each.what)
    show(shown)


def _strategy(strategy: Strategy) -> dict[str, Any]:
    return {
        "strategy": strategy.name,
        "moved": strategy.moved,
        "moved_between": strategy.moved_between,
        "summary": strategy.summary,
        "order": strategy.order,
        "steps": [str(step) for step in strategy.steps],
        "chosen": strategy.chosen,
    }


def _print_plan_as_json(plan: Plan) -> None:
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
            strategies=[_strategy(each) for each in change.strategies],
        )
    for exchange, share in plan.slot_moves.items():
        print_json("slots", exchange=exchange, moved=share)
    for gainer, losers in drain_first_in(plan).items():
        print_json("hold", hold=str(gainer), until_drained=sorted(map(str, losers)))
    for note in (*plan.left_alone, *plan.notes, *_unrecorded(plan)):
        print_json("note", note=note)
    for refusal in plan.refusals:
        print_json("refusal", refusal=refusal)
