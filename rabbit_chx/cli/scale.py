"""``rabbit-chx scale``: change the number of queues while members of a group consume them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import click

from rabbit_chx.base.text import listed
from rabbit_chx.broker.reading.reader import visible_nodes
from rabbit_chx.changes.records import unfinished_on
from rabbit_chx.cli.ask.broker_access import BrokerAccess, for_each_vhost, topology_options
from rabbit_chx.cli.ask.options import exchange_option, output_option, refuse, the_exchange
from rabbit_chx.cli.carry_out import carry_out_plans, print_status, print_unfinished, refused
from rabbit_chx.cli.changes import (
    agreed,
    check_can_ask,
    confirmed,
    is_refused,
    print_plan,
    read_and_print,
    warn_of_older_file,
)
from rabbit_chx.cli.completion import queues
from rabbit_chx.cli.plan import max_moved_option, parse_new, planned
from rabbit_chx.cli.show.file_writer import (
    topology_file,
    warn_of_unknown_orders,
    with_queues_of_broker,
    write_file,
)
from rabbit_chx.cli.show.output import echo, has_changed, notice, print_json, tell
from rabbit_chx.cli.show.plan_rows import condense
from rabbit_chx.cli.verb import Exit, FloatRange, bundle, option, verb
from rabbit_chx.errors import InvalidValue, RabbitChxError, Unquoted
from rabbit_chx.mirror.ring import Destination
from rabbit_chx.topology.file.dump import excerpt
from rabbit_chx.topology.graph import sources_of
from rabbit_chx.topology.model import OWN, Observed, Topology, bound_in
from rabbit_chx.topology.planning.drain_order import held_queues
from rabbit_chx.topology.planning.plan_back import FINISH, plan_back
from rabbit_chx.topology.planning.scaled import differing, possible_queues, scaled
from rabbit_chx.topology.planning.steps import Plan, Unbind, left_behind

_of_queues = partial(option, group="Queues")
_MATCH: Final = (
    "`rabbit-chx scale FILE --write` writes the broker's queues into the file, and --remove NAME can then remove one; "
    "`rabbit-chx scale FILE` gives the broker those of the file and deletes the others, and `rabbit-chx plan FILE` shows what changes"
)


@dataclass(frozen=True)
class _Change:
    """Another number of queues of one exchange of the file."""

    file: Topology
    exchange: str
    to: int | None
    add: int | list[str]
    remove: int | list[str]

    def wanted(self, taken: Collection[Destination] = ()) -> Topology:
        """The topology of the file with these queues; no new one gets a name that is taken."""
        return scaled(self.file, self.exchange, to=self.to, add=self.add, remove=self.remove, taken=taken)

    def used_elsewhere(self, live: BrokerAccess) -> set[Destination]:
        """What only other exchanges of the broker lead to; a new queue of an interrupted change is bound here, if at all."""
        management = live.management
        visible_nodes(management)  # fails soon if a node is silent
        own = {self.exchange, *sources_of(self.file, self.exchange)}
        bindings = [each for each in management.bindings(self.file.vhost) if each.source]
        here = {each.destination for each in bindings if each.source in own}
        return {each.destination for each in bindings if not each.source.startswith(OWN)} - here

    def check(self, made: Plan, observed: Observed, wanted: Topology) -> None:
        """Refuse a plan that would remove or add more queues than asked for, because file and broker differ."""
        gone, new = differing(self.file, wanted, self.exchange, made, observed, is_total=self.to is not None)
        sides = (("on the broker", gone), ("in the file", new))
        if texts := [f"{listed(queues)} bound only {where}" for where, queues in sides if queues]:
            raise InvalidValue(
                f"change of exchange {self.exchange!r}",
                Unquoted(" and ".join(texts)),
                "a file with the queues that the broker has",
                _MATCH,
            )

    def of_unknown_order(self, observed: Observed, wanted: Topology) -> list[str]:
        """The exchange, if its ring on the broker is not known, so that new queues have no known place in it."""
        ring = observed.rings.get(self.exchange)
        is_unknown = ring is not None and not ring.known and wanted.bindings != self.file.bindings
        return [self.exchange] if is_unknown else []


def _with_queues(given: dict[str, Any]) -> dict[str, Any]:
    """The topologies with the wanted number of queues, and the change that this is, if any."""
    to, add, remove, exchange = map(given.pop, ("to", "add", "remove", "exchange"))
    given["changed"] = None
    is_given = any(each is not None for each in (to, add, remove))
    modes = (given["status"], given["abort"], given["write"] or is_given)
    if sum(modes) > 1:
        raise click.UsageError(
            "--status and --abort cannot be combined with each other or with --write, --to, --add and --remove"
        )
    if given["write"]:
        topology_file(click.get_current_context().params["file"])  # raises if it is not one
    if not is_given:
        refuse("exchange", on="a change without --to, --add and --remove")
        return given
    if to is not None and (add is not None or remove is not None):
        raise click.UsageError("--to cannot be combined with --add and --remove")
    if len(given["topologies"]) > 1:
        raise click.UsageError("FILE has several virtual hosts: choose one with --vhost")
    (topology,) = given["topologies"]
    change = _Change(topology, the_exchange(topology, exchange), to, add or 0, remove or 0)
    return given | {"topologies": (change.wanted(),), "changed": change}


_queue_options = bundle(
    exchange_option(group="Queues", help="The exchange whose queues change, if the file has several."),
    _of_queues(
        "--to",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="The new number of queues: append queues, or remove the last ones.",
    ),
    _of_queues("--add", metavar="N|NAMES", callback=parse_new, help="Add N queues, or these (a,b)."),
    _of_queues(
        "--remove",
        metavar="N|NAMES",
        callback=parse_new,
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
        Exit.FINE: "the exchange has the requested queues",
        Exit.FAILED: "refused, declined or failed; no bindings were changed, and no queue was left held",
        Exit.DIFFERENT: "with --dry-run: changes needed; with --status: a change is unfinished",
        Exit.PARTLY: "a change is unfinished, this one or an earlier one: --status shows it; or after a change, another virtual host "
        "failed, or FILE could not be written. The same command continues",
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
    type=FloatRange(1, 86_400),
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
    help="Abandon an interrupted change: restore the bindings before it, keeping the order of keys.",
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
    changed: _Change | None,
    status: bool,
    abort: bool,
    write: bool,
    **options: Any,
) -> int:
    """Change the number of queues of an exchange while members of a Group consume them; every key keeps its order.

    Without --to, --add and --remove, the queues of FILE are applied. The queues that gain keys are held, the bindings
    are changed, the queues that lose keys are drained, and the held queues are released. Members need no restart. After
    an interruption, run the same command again to continue, or abandon the change with --abort.
    """
    run = _Run(changed=changed, **options)
    live, output = run.live, run.output
    only_looks = run.dry_run or status or (write and changed is None)
    hint = "`rabbit-chx plan` shows what would be done"
    check_can_ask("scale", "--yes or --dry-run", hint, yes=run.yes or only_looks)
    if live.amqp_only:
        raise click.UsageError("scale needs the management API, which --amqp-only leaves out")

    if status:
        found = [print_status(live, wanted.vhost, output) for wanted in topologies]
        return Exit.DIFFERENT if any(found) else Exit.FINE
    file = click.get_current_context().params["file"]
    if write and changed is None:
        observed = live.read(topologies[0])
        there = with_queues_of_broker(topologies[0], observed)
        warn_of_unknown_orders(there.unordered - topologies[0].unordered, observed)
        differs = write_file(file, there, dry_run=run.dry_run)
        return Exit.DIFFERENT if differs and run.dry_run else Exit.FINE
    if changed:
        topologies = (changed.wanted(changed.used_elsewhere(live)),)
    code = for_each_vhost(topologies, run.abort if abort else run.scale)
    made = replace(topologies[0], unordered=topologies[0].unordered.union(run.unordered))
    if write and code == Exit.FINE and not run.dry_run:
        try:
            write_file(file, made)
        except RabbitChxError as error:
            if not (changed and has_changed()):
                raise
            notice("Error", str(error))
            _print_file(made, changed.exchange, output)
            return Exit.PARTLY
    elif changed and (code == Exit.FINE or run.begun) and (output == "json" or made != changed.file):
        _print_file(made, changed.exchange, output)
    return code


@dataclass(frozen=True)
class _Run:
    """The broker, and the options of a change."""

    changed: _Change | None
    live: BrokerAccess
    output: str
    group: str | None
    timeout: float
    max_moved: float
    yes: bool
    dry_run: bool
    verbose: bool
    begun: list[Plan] = field(default_factory=list)
    """The changes that were begun, besides the end of an interrupted one."""
    unordered: list[str] = field(default_factory=list)
    """The exchange of the change, if its queues are bound already in an order that is not known."""

    def scale(self, wanted: Topology) -> int:
        """Finish an interrupted change, and make the broker match the topology."""
        # The plan for one exchange makes the others match the file, too.
        finishes = {"", self.changed.exchange} if self.changed else ()
        unfinished = print_unfinished(self.live, wanted, finishes)
        failed = Exit.PARTLY if unfinished else Exit.FAILED
        if unfinished and not self.dry_run:
            if not confirmed("Finish the interrupted change?", yes=self.yes):
                return failed
            if code := self._carry_out(Plan(wanted.vhost), failed, more=True):
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
        if is_refused(wanted, made):
            return refused(failed)
        try:
            if self.changed:
                self.changed.check(made, observed, wanted)
                self.unordered.extend(self.changed.of_unknown_order(observed, wanted))
            held_queues(made)
        except InvalidValue as reason:
            notice("Refused", str(reason))
            return refused(failed)
        removed, deleted = _removed(wanted, made, observed)
        if deleted:
            _print_deletions(deleted, self.output)
        if not self.changed:
            warn_of_older_file(wanted, made, observed)
        if self.dry_run:
            return Exit.DIFFERENT if unfinished or made.steps else Exit.FINE
        if not made.steps:
            return self._carry_out(Plan(wanted.vhost), failed) if unfinished else Exit.FINE
        if not agreed(made, yes=self.yes):
            return refused(failed)
        return self._carry_out(made, failed, removed=removed)

    def abort(self, wanted: Topology) -> int:
        """Restore the bindings before an interrupted change."""
        found = unfinished_on(self.live.management, wanted.vhost)
        if not found:
            echo(f"Virtual host {wanted.vhost!r}: no change is unfinished.", err=True)
            return Exit.FINE
        record = found.record
        try:
            if record is None:
                raise InvalidValue(
                    "change to abandon", Unquoted("one without a record"), "one that is recorded", FINISH
                )
            observed = read_and_print(self.live, wanted, verbose=self.verbose)
            made = plan_back(record.before, record.removed, wanted, observed)
            held_queues(made, FINISH)
        except RabbitChxError as reason:
            notice("Refused", str(reason))
            return Exit.PARTLY
        if made.steps or made.refusals:
            print_plan(made, self.output, verbose=self.verbose, keeps_order=True)
        if made.refusals:
            return Exit.PARTLY
        # Others may have written the record.
        created = tuple(sorted({*record.created}.intersection(possible_queues(wanted))))
        if created:
            _print_deletions(created, self.output)
        if kept := sorted({*record.created}.difference(created)):
            notice(
                "Note",
                f"{listed(kept)}: not deleted, because FILE has no such queue. Add the change's queues to it, or delete them",
            )
        if self.dry_run:
            return Exit.DIFFERENT
        if not confirmed("Abandon the interrupted change?", yes=self.yes):
            return Exit.PARTLY
        restores = replace(record, created=created)
        return self._carry_out(made, Exit.PARTLY, restores=restores, removed=created)

    def _carry_out(self, made: Plan, failed: Exit, **options: Any) -> Exit:
        """Carry out a plan; ``failed`` is the exit code if it changes nothing."""
        options |= {"group": self.group, "timeout": self.timeout}
        exchange = self.changed.exchange if self.changed else ""
        code = carry_out_plans(self.live, [made], self.output, exchange=exchange, **options)
        if code == Exit.FAILED:
            return failed
        if made.steps:
            self.begun.append(made)
        return code


def _removed(wanted: Topology, made: Plan, observed: Observed) -> tuple[set[str], set[str]]:
    """The queues that the plan unbinds and the topology no longer names; and those of them that no binding leads to then.

    The plan keeps the bindings of exchanges that are not in the file.
    """
    unbound = (step.binding.destination for step in made.steps if isinstance(step, Unbind))
    named = bound_in(wanted) | {queue.name for queue in wanted.queues}
    removed = {each for each in unbound if isinstance(each, str)} - named
    return removed, removed & left_behind(made, observed)


def _print_deletions(removed: Collection[str], output: str) -> None:
    text = f"once drained and empty, these are deleted: {', '.join(condense(sorted(map(repr, removed))))}"
    if output == "json":
        print_json("note", note=text)
    else:
        notice("Note", text, err=False)


def _print_file(wanted: Topology, exchange: str, output: str) -> None:
    """Print what to write into the file so that it matches the broker."""
    text = excerpt(wanted, exchange)
    before = "Write this into the file, or the next `apply` undoes the change (--write writes it):"
    tell(output, f"{before}\n\n{text.rstrip()}", "file", exchange=exchange, text=text)
