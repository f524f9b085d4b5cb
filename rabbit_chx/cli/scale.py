"""``rabbit-chx scale``: change the number of queues while members of a group consume them."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from rabbit_chx.cli.broker_access import BrokerAccess, for_each_vhost, topology_options
from rabbit_chx.cli.carry_out import carry_out_plans, print_held
from rabbit_chx.cli.changes import agreed, check_can_ask, read_and_print
from rabbit_chx.cli.completion import queues
from rabbit_chx.cli.options import check_names, exchange_option, output_option, the_exchange
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.plan import parse_new, planned
from rabbit_chx.cli.verb import Exit, bundle, option, verb
from rabbit_chx.consuming.changes.held_queues import held_queues
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.dump import excerpt
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.scaled import scaled
from rabbit_chx.topology.planning.steps import Plan, Unbind

_of_queues = partial(option, group="Queues")


def _with_queues(given: dict[str, Any]) -> dict[str, Any]:
    """The topologies with the wanted number of queues, and the exchange whose queues change, if any."""
    to, add, remove, exchange = map(given.pop, ("to", "add", "remove", "exchange"))
    given["changed"] = None
    if to is None and not add and not remove:
        return given
    if to is not None and (add or remove):
        raise click.UsageError("--to excludes --add and --remove")
    if len(given["topologies"]) > 1:
        raise click.UsageError("FILE has several virtual hosts: choose one with --vhost")
    (topology,) = given["topologies"]
    given["changed"] = name = the_exchange(topology, exchange)
    wanted = scaled(topology, name, to=to, add=parse_new(add), remove=parse_new(remove))
    return given | {"topologies": (wanted,)}


_queue_options = bundle(
    exchange_option(group="Queues", help="The exchange whose queues change, if the file has several."),
    _of_queues(
        "--to",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="The new number of queues: append queues, or remove the last ones.",
    ),
    _of_queues("--add", metavar="N|NAMES", callback=check_names, help="Add N queues, or these (a,b)."),
    _of_queues(
        "--remove",
        metavar="N|NAMES",
        callback=check_names,
        shell_complete=queues,
        help="Remove the last N queues, or these (a,b).",
    ),
    gather=_with_queues,
)


@verb(
    examples=[
        "rabbit-chx scale topology.yaml -x orders --to 12",
        "rabbit-chx scale topology.yaml -x tenants --remove tenants.3 --yes",
        "rabbit-chx scale topology.yaml",
    ],
    exit_codes={
        Exit.FINE: "the broker has these queues",
        Exit.FAILED: "refused, declined or failed; nothing was changed and no queue is held",
        Exit.DIFFERENT: "with --dry-run: changes needed",
        Exit.PARTLY: "stopped after some steps; run the same command again to continue",
    },
)
@topology_options
@_queue_options
@option(
    "--group",
    metavar="NAME",
    help="The group that consumes the queues. Default: a new queue goes to the groups whose queues lose keys to it.",
)
@option(
    "--timeout",
    type=click.FloatRange(1, 86_400),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long members may take to drain the queues that lose keys.",
)
@option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@option("-v", "--verbose", is_flag=True, help="List every step, and how the order of each ring is known.")
@output_option
def scale(
    *,
    topologies: tuple[Topology, ...],
    live: BrokerAccess,
    changed: str | None,
    group: str | None,
    timeout: float,
    yes: bool,
    dry_run: bool,
    verbose: bool,
    output: str,
) -> int:
    """Change the number of queues of an exchange while members of a Group consume them; every key keeps its order.

    Without --to, --add and --remove, the queues of FILE are applied. The queues that gain keys are held, the bindings
    are changed, the queues that lose keys are drained, and the held queues are released. Members need no restart. After
    an interruption, run the same command again to continue.
    """
    check_can_ask(
        "scale", "--yes or --dry-run", "`rabbit-chx plan` shows what would be done", yes=yes or dry_run
    )
    if live.amqp_only:
        raise click.UsageError("scale needs the management API, which --amqp-only leaves out")

    def scale_one(wanted: Topology) -> int:
        held = print_held(live, wanted)
        if held and not dry_run:
            if not (yes or click.confirm("Finish the interrupted change?", err=True)):
                echo("Nothing was changed.", err=True)
                return Exit.FAILED
            if code := carry_out_plans(live, [Plan(wanted.vhost)], output, group=group, timeout=timeout):
                return code
        observed = read_and_print(live, wanted, verbose=verbose)
        made = planned(wanted, observed, live, output, verbose=verbose, max_moved=1.0)
        refused = _is_refused(wanted, made)
        plan = Plan(wanted.vhost) if refused else made
        if dry_run:
            return Exit.FAILED if refused else Exit.DIFFERENT if held or plan.steps else Exit.FINE
        if not plan.steps:
            return (Exit.PARTLY if held else Exit.FAILED) if refused else Exit.FINE
        if not (yes or agreed(plan)):
            echo("Nothing was changed.", err=True)
            return Exit.FAILED
        return carry_out_plans(
            live, [plan], output, group=group, removed=_removed(wanted, plan), timeout=timeout
        )

    code = for_each_vhost(topologies, scale_one)
    if changed and code in (Exit.FINE, Exit.PARTLY):
        _print_file(topologies[0], changed, output)
    return code


def _is_refused(wanted: Topology, made: Plan) -> bool:
    """Whether the plan must not be carried out; the reason is printed."""
    if made.refusals or any(finding.severity == "error" for finding in lint(wanted)):
        return True
    try:
        held_queues(made)
    except InvalidValue as reason:
        notice("Refused", str(reason))
        return True
    return False


def _removed(wanted: Topology, made: Plan) -> set[str]:
    """The queues that the plan unbinds and the topology no longer names."""
    unbound = {step.binding.destination for step in made.steps if isinstance(step, Unbind)}
    named = {queue.name for queue in wanted.queues} | {
        queue for each in wanted.slots for queue in each.queues
    }
    named |= {str(each.destination) for each in wanted.bindings}
    return {each for each in unbound if isinstance(each, str)} - named


def _print_file(wanted: Topology, exchange: str, output: str) -> None:
    """Print what to write into the file so that it matches the broker."""
    text = excerpt(wanted, exchange)
    if output == "json":
        print_json("file", exchange=exchange, text=text)
    else:
        echo(f"Write this into the file, or the next `apply` undoes the change:\n\n{text}", nl=False)
