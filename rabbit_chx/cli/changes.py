"""How plans, costs and findings are shown: tables for people, one JSON object a line for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rabbit_chx.topology.lint import Finding
    from rabbit_chx.topology.steps import Plan, RingChange, Step, Way

__all__ = ["print_findings", "print_json", "print_plan", "print_ways"]


def print_json(**row: Any) -> None:
    """One object on a line of standard output."""
    click.echo(json.dumps(row, ensure_ascii=False))


def print_findings(findings: Iterable[Finding]) -> None:
    """What lint says, on standard error."""
    for finding in findings:
        colour = "red" if finding.severity == "error" else "yellow"
        label = click.style(f"{finding.severity}:", fg=colour)
        click.echo(f"{label} {finding.where}: {finding.message} [{finding.code}]", err=True)


def print_plan(plan: Plan, output: str) -> None:
    """All of a plan: its steps, what they cost, the other ways, and what has to be known."""
    if output == "json":
        _print_plan_as_json(plan)
        return
    if plan.steps:
        _print_steps(plan)
    else:
        click.echo(f"Virtual host {plan.vhost!r} is as the file says: nothing to do.")
    for change in plan.changes:
        _print_change(change)
    for exchange, share in plan.slot_moves.items():
        click.echo(f"Exchange {exchange!r}: re-pointed slots take {share:.2%} of its keys along.")
    for note in plan.notes:
        click.echo(f"Note: {note}")
    for refusal in plan.refusals:
        click.echo(click.style("Refused: ", fg="red") + refusal, err=True)


def _print_steps(plan: Plan) -> None:
    from rabbit_chx.cli.tables import console, table

    shown = table("#", "step", "keys moved", "waiting", right=("#", "keys moved", "waiting"))
    for number, step in enumerate(plan.steps, start=1):
        mark = "[red]-[/]" if step.destructive else "[green]+[/]"
        waiting = "" if not step.moved or step.at_risk is None else f"{step.at_risk:,}"
        shown.add_row(str(number), f"{mark} {_escaped(step)}", _step_share(step), waiting)
    out = console()
    count = len(plan.steps)
    out.print(f"Virtual host {plan.vhost!r}: {count} step{'s' if count > 1 else ''}", style="bold")
    out.print(shown)


def _escaped(step: Step) -> str:
    from rich.markup import escape

    return escape(str(step))


def _step_share(step: Step) -> str:
    if step.exchange_moved is None:
        return ""
    return "unknown" if step.moved is None else f"{step.moved:.2%}"


def _share(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.2%}"


def _print_change(change: RingChange) -> None:
    if change.moved is None:
        click.echo(
            f"Exchange {change.exchange!r}: how many keys move is unknown. {change.before.why_unknown}"
        )
    elif change.before.bindings:
        between = (
            f", {_share(change.moved_between)} at some moment" if change.moved_between != change.moved else ""
        )
        click.echo(f"Exchange {change.exchange!r}: {change.moved:.2%} of its keys move{between}.")
    if len(change.ways) > 1:
        print_ways(change.ways, "table", exchange=change.exchange)


def print_ways(ways: Iterable[Way], output: str, *, exchange: str) -> None:
    """The ways of one change, and what each costs."""
    ways = list(ways)
    if output == "json":
        for way in ways:
            print_json(exchange=exchange, **_way(way))
        return
    from rich.markup import escape

    from rabbit_chx.cli.tables import console, table

    shown = table("way", "keys moved", "at some moment", "what", right=("keys moved", "at some moment"))
    for way in ways:
        name = f"[bold]{way.name}[/] *" if way.chosen else way.name
        order = "" if way.order is None else f"; write this order into the file: {', '.join(way.order)}"
        shown.add_row(name, _share(way.moved), _share(way.moved_between), escape(way.summary + order))
    console().print(shown)


def _way(way: Way) -> dict[str, Any]:
    return {
        "way": way.name,
        "moved": way.moved,
        "moved_between": way.moved_between,
        "summary": way.summary,
        "order": way.order,
        "steps": [str(step) for step in way.steps],
        "chosen": way.chosen,
    }


def _print_plan_as_json(plan: Plan) -> None:
    for number, step in enumerate(plan.steps, start=1):
        print_json(
            step=number,
            do=str(step),
            destructive=step.destructive,
            exchange=step.exchange_moved,
            moved=step.moved if step.exchange_moved else None,
            waiting=step.at_risk,
        )
    for change in plan.changes:
        print_json(
            exchange=change.exchange,
            moved=change.moved,
            moved_between=change.moved_between,
            ways=[_way(way) for way in change.ways],
        )
    for exchange, share in plan.slot_moves.items():
        print_json(exchange=exchange, moved=share)
    for note in plan.notes:
        print_json(note=note)
    for refusal in plan.refusals:
        print_json(refusal=refusal)
