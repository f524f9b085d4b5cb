"""``rabbit-chx apply``: make a broker match a file, step by step."""

from __future__ import annotations

from typing import Any

from rabbit_chx.broker.applying.apply import apply as apply_steps
from rabbit_chx.cli.broker_access import BrokerAccess, for_each_vhost, topology_options
from rabbit_chx.cli.changes import (
    agreed,
    check_can_ask,
    read_and_print,
    warn_of_older_file,
    warn_of_stranding,
)
from rabbit_chx.cli.options import output_option
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.plan import plan_options, planned
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.text import counted
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.steps import Plan, Step


@verb(
    examples=[
        "rabbit-chx apply topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx apply topology.yaml --yes",
        "rabbit-chx apply topology.yaml --dry-run",
    ],
    exit_codes={
        Exit.FINE: "nothing is left to apply; `check` also compares the order of rings",
        Exit.FAILED: "refused, declined or failed; nothing was changed",
        Exit.DIFFERENT: "with --dry-run: changes needed",
        Exit.PARTLY: "stopped after some changes; without what stopped it, the same command applies the rest",
    },
)
@topology_options
@plan_options
@option("-y", "--yes", is_flag=True, help="Apply without asking for confirmation.")
@option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@option("--no-record", is_flag=True, help="Do not record the order of rings on the broker.")
@option("--anonymous", is_flag=True, help="Write no user, host or process into the lock.")
@output_option
def apply(
    *,
    topologies: tuple[Topology, ...],
    live: BrokerAccess,
    yes: bool,
    dry_run: bool,
    no_record: bool,
    anonymous: bool,
    output: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Show the plan for FILE, ask for confirmation, and apply it to a broker.

    Each step is read back before the next one. The first step that fails, or whose result differs from the plan,
    ends the command. Applying the same file again changes nothing. The order of rings is recorded on the broker, also
    if it is known (--node, --pairs, --probe) and nothing else changes: other commands then need no access to a node.
    """
    hint = "`rabbit-chx plan FILE` shows what would be done"
    check_can_ask("apply", "--yes or --dry-run", hint, yes=yes or dry_run)
    changed: list[str] = []

    def apply_one(wanted: Topology) -> int:
        observed = read_and_print(live, wanted, verbose=verbose)
        made = planned(wanted, observed, live, output, verbose=verbose, **options)
        warn_of_older_file(wanted, made, observed)
        warn_of_stranding(live, made, observed)
        # The plan repairs or refuses problems of the broker; the file itself must have no errors.
        if not made.refusals and all(finding.severity != "error" for finding in lint(wanted)):
            records = bool(made.to_record) and not (no_record or live.amqp_only)
            if dry_run or not (made.steps or records):
                return Exit.DIFFERENT if dry_run and made.differs else Exit.FINE
            if yes or not made.steps or agreed(made):
                holding = {"record": not no_record, "holder": "" if anonymous else None}
                return _apply(live, made, output, changed, **holding)
        echo("Nothing was changed.", err=True)
        return Exit.FAILED

    return for_each_vhost(topologies, apply_one, changed)


def _apply(live: BrokerAccess, plan: Plan, output: str, changed: list[str], **options: Any) -> int:
    """Apply a plan and print its steps; a virtual host in which all of them are done is added to ``changed``."""
    total = len(plan.steps)
    count = 0

    def done(step: Step) -> None:
        nonlocal count
        count += 1
        if output == "json":
            print_json("done", done=count, of=total, step=str(step))
        else:
            echo(f"[{count}/{total}] {step}")

    with live.amqp(plan.vhost) as connection:
        try:
            management = None if live.amqp_only else live.management()
            applied = apply_steps(connection, plan, management=management, on_step=done, **options)
        except ApplyStopped as stopped:
            notice("Error", str(stopped))
            _print_done(len(stopped.done), total)
            return Exit.PARTLY if stopped.done else Exit.FAILED
        except KeyboardInterrupt:
            _print_done(count, total)
            raise
    for what in applied.unverified:
        notice("Not verified", what)
    if output == "table" and total:
        echo(f"Done: {counted(total, 'step')}.")
    for exchange in applied.recorded:
        if output == "json":
            print_json("recorded", exchange=exchange)
        else:
            echo(f"Recorded the bind order of exchange {exchange!r}.")
    changed.append(plan.vhost)
    return Exit.FINE


def _print_done(count: int, total: int) -> None:
    if count:
        echo(f"Steps done: {count} of {total}. Run the same command again to apply the rest.", err=True)
