"""``rabbit-chx scale``: change the number of queues while members of a group consume them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from rabbit_chx.cli.broker_access import BrokerAccess, for_each_vhost, topology_options
from rabbit_chx.cli.carry_out import carry_out_plans, print_unfinished
from rabbit_chx.cli.changes import agreed, check_can_ask, confirmed, print_plan, read_and_print
from rabbit_chx.cli.completion import queues
from rabbit_chx.cli.file_writer import with_queues_of_broker, write_file
from rabbit_chx.cli.options import check_names, exchange_option, output_option, the_exchange
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.plan import max_moved_option, parse_new, planned
from rabbit_chx.cli.unfinished import print_status
from rabbit_chx.cli.verb import Exit, bundle, option, verb
from rabbit_chx.consuming.changes.held_queues import held_queues
from rabbit_chx.consuming.changes.records import FINISH, plan_back, unfinished_on
from rabbit_chx.errors import InvalidValue, RabbitChxError
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
    modes = (given["status"], given["abort"], bool(given["write"] or to or add or remove))
    if sum(modes) > 1:
        raise click.UsageError("--status and --abort exclude each other, --write, --to, --add and --remove")
    if given["write"] and len(given["topologies"]) > 1:
        raise click.UsageError("FILE has several virtual hosts: --write needs a topology file")
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
        "rabbit-chx scale topology.yaml -x orders --to 12 --write --yes",
        "rabbit-chx scale topology.yaml --status",
        "rabbit-chx scale topology.yaml --abort --yes",
    ],
    exit_codes={
        Exit.FINE: "the broker has these queues",
        Exit.FAILED: "refused, declined or failed; nothing was changed, and no queue is known to be held",
        Exit.DIFFERENT: "with --dry-run: changes needed; with --status: a change is unfinished",
        Exit.PARTLY: "a change is unfinished, this one or an earlier one: --status shows it, the same command continues it",
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
@max_moved_option(default=100.0)
@option(
    "--status",
    is_flag=True,
    help="Show what an interrupted or running change holds and drains; change nothing.",
)
@option(
    "--abort",
    is_flag=True,
    help="Give an interrupted change up: restore the bindings before it, keeping the order of keys.",
)
@option(
    "--write",
    is_flag=True,
    help="Write the new queues into FILE; without --to, --add and --remove: those on the broker, which is not changed. "
    "If FILE has comments, only show what to change.",
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
    max_moved: float,
    status: bool,
    abort: bool,
    write: bool,
    yes: bool,
    dry_run: bool,
    verbose: bool,
    output: str,
) -> int:
    """Change the number of queues of an exchange while members of a Group consume them; every key keeps its order.

    Without --to, --add and --remove, the queues of FILE are applied. The queues that gain keys are held, the bindings
    are changed, the queues that lose keys are drained, and the held queues are released. Members need no restart. After
    an interruption, run the same command again to continue, or give the change up with --abort.
    """
    only_looks = dry_run or status or (write and changed is None)
    check_can_ask(
        "scale", "--yes or --dry-run", "`rabbit-chx plan` shows what would be done", yes=yes or only_looks
    )
    if live.amqp_only:
        raise click.UsageError("scale needs the management API, which --amqp-only leaves out")

    if status:
        found = [print_status(live, wanted.vhost, output) for wanted in topologies]
        return Exit.DIFFERENT if any(found) else Exit.FINE
    file = click.get_current_context().params["file"]
    if write and changed is None:
        write_file(file, with_queues_of_broker(topologies[0], live.read(topologies[0])))
        return Exit.FINE
    run = _Run(live, output, group, timeout, max_moved / 100, yes=yes, dry_run=dry_run, verbose=verbose)
    code = for_each_vhost(topologies, run.abort if abort else run.scale)
    if write and code == Exit.FINE and not dry_run:
        write_file(file, topologies[0])
    elif changed and code in (Exit.FINE, Exit.PARTLY):
        _print_file(topologies[0], changed, output)
    return code


@dataclass(frozen=True)
class _Run:
    """One run of the command."""

    live: BrokerAccess
    output: str
    group: str | None
    timeout: float
    max_moved: float
    yes: bool
    dry_run: bool
    verbose: bool

    def scale(self, wanted: Topology) -> int:
        """Finish an interrupted change, and make the broker match the topology."""
        unfinished = print_unfinished(self.live, wanted)
        failed = Exit.PARTLY if unfinished else Exit.FAILED
        if unfinished and not self.dry_run:
            if not self._may("Finish the interrupted change?"):
                return failed
            if code := self._carry_out(Plan(wanted.vhost), more=True):
                return code
        try:
            return self._change(wanted, failed)
        except RabbitChxError as error:
            if failed == Exit.FAILED:
                raise
            notice("Error", str(error))
            return failed

    def _change(self, wanted: Topology, failed: Exit) -> int:
        """Plan and carry out; ``failed`` is the exit code if nothing more is changed."""
        unfinished = failed == Exit.PARTLY
        observed = read_and_print(self.live, wanted, verbose=self.verbose)
        made = planned(
            wanted,
            observed,
            self.live,
            self.output,
            verbose=self.verbose,
            held=unfinished and self.dry_run,
            keeps_order=True,
            max_moved=self.max_moved,
        )
        if _is_refused(wanted, made):
            return failed
        if self.dry_run:
            return Exit.DIFFERENT if unfinished or made.steps else Exit.FINE
        if not made.steps:
            return self._carry_out(Plan(wanted.vhost)) if unfinished else Exit.FINE
        if not (self.yes or agreed(made)):
            echo("Nothing was changed.", err=True)
            return failed
        return self._carry_out(made, removed=_removed(wanted, made))

    def abort(self, wanted: Topology) -> int:
        """Restore the bindings before an interrupted change."""
        found = unfinished_on(self.live.management(), wanted.vhost)
        if not found:
            echo(f"Virtual host {wanted.vhost!r}: no change is unfinished.", err=True)
            return Exit.FINE
        record = found.record
        try:
            if record is None:
                raise InvalidValue(
                    "change to give up", "one without a record", "one that is recorded", FINISH
                )
            made = plan_back(record, wanted, read_and_print(self.live, wanted, verbose=self.verbose))
            held_queues(made)
        except RabbitChxError as reason:
            notice("Refused", str(reason))
            return Exit.PARTLY
        if made.steps or made.refusals:
            print_plan(made, self.output, verbose=self.verbose, keeps_order=True)
        if made.refusals:
            return Exit.PARTLY
        if self.dry_run:
            return Exit.DIFFERENT
        if not self._may("Give the interrupted change up?"):
            return Exit.PARTLY
        return self._carry_out(made, restores=record, removed=record.created)

    def _may(self, question: str) -> bool:
        return confirmed(question, yes=self.yes)

    def _carry_out(self, made: Plan, **options: Any) -> Exit:
        return carry_out_plans(
            self.live, [made], self.output, group=self.group, timeout=self.timeout, **options
        )


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
        echo(
            f"Write this into the file, or the next `apply` undoes the change (--write writes it):\n\n{text}",
            nl=False,
        )
