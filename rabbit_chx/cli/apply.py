"""``rabbit-chx apply``: make a broker match a file, step by step."""

from __future__ import annotations

from typing import Any, Final

from rabbit_chx.base.text import counted, listed
from rabbit_chx.broker.applying.apply import apply as apply_steps
from rabbit_chx.cli.ask.broker_access import BrokerAccess, for_each_vhost, parts_behind, plan_file_options
from rabbit_chx.cli.ask.options import exchanges_option, output_option
from rabbit_chx.cli.changes import agreed, check_can_ask, is_refused, read_and_print
from rabbit_chx.cli.plan import plan_options, planned
from rabbit_chx.cli.show.output import echo, note_change, nothing_changed, notice, print_json, tell
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.plan_file import SavedPlan
from rabbit_chx.topology.planning.steps import Plan, Step

_HINT: Final = "`rabbit-chx plan FILE` shows what would be done"


@verb(
    examples=[
        "rabbit-chx apply topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx apply topology.yaml --yes",
        "rabbit-chx apply topology.yaml --dry-run",
        "rabbit-chx apply release.plan",
    ],
    exit_codes={
        Exit.FINE: "applied, or nothing to apply; `check` also compares the order of rings",
        Exit.FAILED: "refused, declined or failed; nothing was changed",
        Exit.DIFFERENT: "with --dry-run: changes needed",
        Exit.PARTLY: "stopped after some changes, or it is not known whether any was made; fix the cause, and the same command applies the rest",
    },
)
@plan_file_options
@exchanges_option(help="Apply only this exchange and what it leads to.")
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
    saved: SavedPlan | None,
    exchanges: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    no_record: bool,
    anonymous: bool,
    output: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Show the plan for FILE, ask for confirmation, and apply it to a broker.

    Steps of one kind are sent together, and read back before the next ones. The first step that fails, or whose result
    differs from the plan, ends the command. Applying the same file again changes nothing. The order of rings is recorded on the broker, also
    if it is known (--node, --pairs, --probe) and nothing else changes: other commands then need no access to a node.

    FILE may be a plan that was saved with --out. It is applied without a question, or refused if the broker has changed.
    """
    yes, options = (True, {**saved.options}) if saved else (yes, options)
    check_can_ask("apply", "--yes or --dry-run", _HINT, yes=yes or dry_run)

    def apply_one(wanted: Topology) -> int:
        observed = read_and_print(live, wanted, verbose=verbose)
        reviewed = saved.of(wanted.vhost) if saved else None
        made = planned(wanted, observed, live, output, verbose=verbose, reviewed=reviewed, **options)
        if is_refused(wanted, made):
            echo(nothing_changed(), err=True)
            return Exit.FAILED
        if dry_run or not (made.steps or (made.to_record and not no_record)):
            return Exit.DIFFERENT if dry_run and made.differs else Exit.FINE
        if made.steps and not agreed(made, yes=yes):
            return Exit.FAILED
        return _apply(live, made, output, record=not no_record, holder="" if anonymous else None)

    return for_each_vhost(parts_behind(topologies, exchanges, without="prune"), apply_one)


def _other_way_on(plan: Plan) -> str:
    """What to do where the same command would not continue: a strategy that leaves the order of the file is not chosen again."""
    chosen = [each for change in plan.changes for each in change.strategies if each.chosen]
    if any(each.order for each in chosen):
        return "Write the order that the plan shows into the file, and apply that to continue."
    return ""


def _apply(live: BrokerAccess, plan: Plan, output: str, **options: Any) -> int:
    """Apply a plan and print its steps."""
    total = len(plan.steps)
    count = 0

    def done(step: Step) -> None:
        nonlocal count
        count += 1
        tell(output, f"[{count}/{total}] {step}", "done", done=count, of=total, step=str(step))

    with live.amqp(plan.vhost) as connection:
        try:
            management = None if live.amqp_only else live.management
            applied = apply_steps(connection, plan, management=management, on_step=done, **options)
        except ApplyStopped as stopped:
            notice("Error", str(stopped))
            if not (stopped.done or stopped.in_doubt):
                return Exit.FAILED
            done_for_certain = f"{'at least ' if stopped.in_doubt else ''}{len(stopped.done)}"
            rest = _other_way_on(plan) or "With the cause removed, the same command applies the rest."
            echo(f"Steps done: {done_for_certain} of {total}. {rest}", err=True)
            return Exit.PARTLY
        except KeyboardInterrupt:
            if count:  # steps are sent together, and counted once the broker has answered
                rest = _other_way_on(plan) or "Run the same command again to apply the rest."
                echo(f"Steps done: at least {count} of {total}. {rest}", err=True)
            raise
    for what in applied.unverified:
        notice("Not verified", what)
    if output == "table" and total:
        echo(f"Done: {counted(total, 'step')}.")
    if output == "json":
        for exchange in applied.recorded:
            print_json("recorded", exchange=exchange)
    elif applied.recorded:
        echo(f"Recorded the bind order of {listed(applied.recorded, 'exchange')}.")
    note_change()
    return Exit.FINE
