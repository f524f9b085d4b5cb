"""``rabbit-chx apply``: make a broker match a file, step by step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rabbit_chx.cli.broker_access import broker_access_options
from rabbit_chx.cli.changes import counted, print_findings, print_plan, print_rings
from rabbit_chx.cli.options import FILE, output_option
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.plan import plan_options
from rabbit_chx.cli.progress import waiting
from rabbit_chx.cli.verb import Exit, verb
from rabbit_chx.cli.vhosts import for_each_vhost, load_topologies, vhosts_option
from rabbit_chx.errors import ApplyStopped, InvalidValue, Unquoted

if TYPE_CHECKING:
    from rabbit_chx.cli.broker_access import BrokerAccess
    from rabbit_chx.topology.model import Topology
    from rabbit_chx.topology.planning.steps import Plan, Step


@verb(
    examples=[
        "rabbit-chx apply topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx apply topology.yaml --yes",
        "rabbit-chx apply topology.yaml --dry-run",
    ],
    exit_codes={
        Exit.FINE: "the broker is what FILE says",
        Exit.FAILED: "it is refused, or failed, and nothing was changed",
        Exit.DIFFERENT: "with --dry-run: something is to be done",
        Exit.PARTLY: "it stopped on the way: plan again, and apply what is left",
    },
)
@click.argument("file", type=FILE)
@vhosts_option
@broker_access_options
@plan_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--no-record", is_flag=True, help="Do not record the order of rings on the broker.")
@click.option("--anonymous", is_flag=True, help="Write no user, host or process into the lock.")
@output_option
def apply(
    *,
    file: str,
    vhosts: tuple[str, ...],
    live: BrokerAccess,
    yes: bool,
    dry_run: bool,
    no_record: bool,
    anonymous: bool,
    output: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Show the plan for FILE, ask, and carry it out: one step at a time, each read back, up to the first surprise.

    A second apply does nothing.
    """
    if not (yes or dry_run):
        _check_terminal()
    options["max_moved"] /= 100
    written = {"record": not no_record, "holder": "" if anonymous else None}

    def apply_one(wanted: Topology) -> int:
        made, refused = _plan(live, wanted, output, verbose=verbose, options=options)
        if refused:
            echo("Nothing was changed.", err=True)
            return Exit.FAILED
        if dry_run or not made.steps:
            return Exit.DIFFERENT if made.steps else Exit.FINE
        return _ask_and_apply(live, made, output, written, yes=yes)

    return for_each_vhost(load_topologies(file, vhosts, live.url), apply_one)


def _plan(
    live: BrokerAccess, wanted: Topology, output: str, *, verbose: bool, options: dict[str, Any]
) -> tuple[Plan, bool]:
    """Print and return the plan, and whether it is refused."""
    from rabbit_chx.topology.checks.lint import lint
    from rabbit_chx.topology.planning.plan import plan

    observed = live.read(wanted)
    with waiting("Working out the steps"):
        made = plan(wanted, observed, **options)
    print_findings(lint(wanted, observed))
    print_rings(observed, verbose=verbose)
    print_plan(made, output, verbose=verbose)
    # The plan repairs or refuses problems of the broker; the file itself must have no errors.
    return made, bool(made.refusals) or any(finding.severity == "error" for finding in lint(wanted))


def _check_terminal() -> None:
    if not sys.stdin.isatty():
        raise InvalidValue(
            "input",
            Unquoted("stdin, which is not a terminal, so `apply` cannot ask"),
            "--yes or --dry-run",
            "`rabbit-chx plan FILE` shows what would be done",
        )


def _ask_and_apply(live: BrokerAccess, plan: Plan, output: str, written: dict[str, Any], *, yes: bool) -> int:
    if yes or _agreed(plan):
        return _apply(live, plan, output, written)
    echo("Nothing was changed.", err=True)
    return Exit.FAILED


def _agreed(plan: Plan) -> bool:
    count = len(plan.destructive)
    warning = f" {count} of them take{'s' * (count == 1)} something away." if count else ""
    return click.confirm(f"Apply {counted(len(plan.steps), 'step')}?{warning}", err=True)


def _apply(live: BrokerAccess, plan: Plan, output: str, written: dict[str, Any]) -> int:
    from rabbit_chx.broker.applying.apply import apply as apply_steps

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
            applied = apply_steps(connection, plan, management=live.management(), on_step=done, **written)
        except ApplyStopped as stopped:
            notice("Error", str(stopped))
            _say_what_is_done(len(stopped.done), total)
            return Exit.PARTLY if stopped.done else Exit.FAILED
        except KeyboardInterrupt:
            _say_what_is_done(count, total)
            raise
    for what in applied.unverified:
        notice("Not verified", what)
    if output == "table":
        echo(f"Done: {counted(total, 'step')}.")
    return Exit.FINE


def _say_what_is_done(count: int, total: int) -> None:
    if count:
        are = "is" if count == 1 else "are"
        echo(
            f"{counted(count, 'step')} of {total} {are} done: the same command goes on from there.", err=True
        )
