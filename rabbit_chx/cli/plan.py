"""``rabbit-chx plan``: the steps that make a broker match a file, and what they move."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import Any

import click

from rabbit_chx import __version__
from rabbit_chx.base.advice import Advice
from rabbit_chx.cli.ask.broker_access import BrokerAccess, for_each_vhost, parts_behind, topology_options
from rabbit_chx.cli.ask.options import (
    FILE,
    check_names,
    exchanges_option,
    output_option,
    refuse,
    release_option,
    the_exchange,
)
from rabbit_chx.cli.changes import (
    is_refused,
    print_findings,
    print_plan,
    print_strategies,
    read_and_print,
    stranding,
    warn_of_older_file,
    warn_of_unfinished,
)
from rabbit_chx.cli.completion import queues
from rabbit_chx.cli.show.output import echo, notice, replace_file, waiting
from rabbit_chx.cli.verb import Exit, FloatRange, bundle, option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import parse_weight
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import Observed, Topology
from rabbit_chx.topology.planning.plan import plan as plan_steps
from rabbit_chx.topology.planning.plan_file import OPTIONS, Reviewed, SavedPlan, dumps_plan, is_plan_file
from rabbit_chx.topology.planning.steps import DeleteQueue, Plan, Unbind
from rabbit_chx.topology.planning.what_if import assume_applied, what_if

_of_changes = partial(option, group="Changes")
_of_what_if = partial(option, group="What if")

max_moved_option = partial(
    option,
    "--max-moved",
    type=FloatRange(0, 100),
    callback=lambda _context, _option, percent: percent / 100,
    show_default=True,
    metavar="PERCENT",
    help="Refuse to unbind queues if that moves a larger share of an exchange's keys at any moment.",
)
plan_options = bundle(
    _of_changes(
        "--strategy",
        metavar="STRATEGY",
        help="How to change rings: append, in place, remove-last, swap, blue/green or slots. Default: the cheapest that ends in the order of the file.",
    ),
    max_moved_option(group="Changes", default=50.0),
    _of_changes(
        "--prune",
        is_flag=True,
        help="Also remove what the file does not name. The queues of an exchange that hashes are always exactly those of the file.",
    ),
    _of_changes(
        "--force",
        is_flag=True,
        help="Ignore --max-moved, unbind queues that hold messages, and delete streams and queues that hold messages.",
    ),
    _of_changes(
        "-v", "--verbose", is_flag=True, help="List every step, and how the order of each ring is known."
    ),
)
"""The options of both ``plan`` and ``apply``."""


def _with_changes(given: dict[str, Any]) -> dict[str, Any]:
    add, remove, weights = map(given.pop, ("add", "remove", "weights"))
    if add is None and remove is None and not weights:
        return given | {"changes": {}}
    new = dict(map(parse_new_weight, weights))
    return given | {"changes": {"add": add or 0, "remove": remove or 0, "weights": new}}


def parse_new(context: click.Context, parameter: click.Parameter, text: str | None) -> int | list[str] | None:
    """The number or the names of queues to add or to remove, as the callback of an option."""
    if text is None:
        return None
    if not text.strip("0") or not all(text.split(",")):
        raise InvalidValue(parameter.opts[-1], text, "a number of queues from 1, or their names (a,b)")
    check_names(context, parameter, text)
    return int(text) if text.isascii() and text.isdigit() else text.split(",")


def parse_new_weight(text: str, option: str = "--weight") -> tuple[str, int]:
    """A queue and its new weight, or another number of an option."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        raise InvalidValue(option, text, "NAME=NUMBER")
    return name, parse_weight(weight, of=name)


what_if_options = bundle(
    _of_what_if(
        "--add",
        metavar="N|NAMES",
        callback=parse_new,
        help="Show the cost of N more queues, or of these (a,b).",
    ),
    _of_what_if(
        "--remove",
        metavar="N|NAMES",
        shell_complete=queues,
        callback=parse_new,
        help="Show the cost of removing the last N queues, or these (a,b).",
    ),
    _of_what_if(
        "--weight",
        "weights",
        multiple=True,
        metavar="NAME=WEIGHT",
        callback=check_names,
        help="Show the cost of another weight for this queue.",
    ),
    gather=_with_changes,
)
"""The options for changes whose cost is shown without a broker; the command gets arguments of `what_if` as ``changes``."""


def _check_plan_name(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    if path is not None and not is_plan_file(path):
        raise InvalidValue("--out", path, "a name that ends in .plan")
    return path


@verb(
    examples=[
        "rabbit-chx plan topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx plan topology.yaml --out release.plan",
        "rabbit-chx plan topology.yaml --against deployed.yaml",
        "rabbit-chx plan topology.yaml --add 2",
        "rabbit-chx plan topology.yaml --remove orders.01 --weight orders.00=3",
    ],
    exit_codes={
        Exit.FINE: "no changes needed",
        Exit.FAILED: "refused, or failed",
        Exit.DIFFERENT: "changes needed, or a ring is, or may be, in another order than in FILE",
    },
)
@topology_options
@plan_options
@what_if_options
@exchanges_option(
    help="Plan only this exchange and what it leads to. With --add, --remove or --weight: the exchange to change, if the file has several."
)
@release_option(group="What if", help="The release, if no broker is read.")
@option(
    "--against", type=FILE, metavar="FILE", help="Plan from the state that FILE describes, not from a broker."
)
@option(
    "-o",
    "--out",
    type=FILE,
    metavar="FILE",
    callback=_check_plan_name,
    help="Save the plan in FILE, whose name ends in .plan, for `rabbit-chx apply FILE`. It contains no password.",
)
@output_option
def plan(
    *,
    topologies: tuple[Topology, ...],
    live: BrokerAccess,
    against: str | None,
    changes: dict[str, Any],
    exchanges: tuple[str, ...],
    release: str,
    out: str | None,
    output: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Show the steps that make a broker match FILE, and the exact share of keys each moves. Nothing is changed."""
    _refuse_contradictions(changes, exchanges, against)
    if not changes:
        topologies = tuple(parts_behind(topologies, exchanges, without="prune"))
    reviewed: list[Reviewed] = []

    def plan_one(wanted: Topology) -> int:
        if changes:
            _advise(wanted, the_exchange(wanted, next(iter(exchanges), None)), changes, release, output)
            return Exit.FINE
        if against:
            observed = assume_applied(load(against, vhost=wanted.vhost), release)
            print_findings(lint(wanted, observed))
        else:
            observed = read_and_print(live, wanted, verbose=verbose)
        made = planned(wanted, observed, None if against else live, output, verbose=verbose, **options)
        if is_refused(wanted, made):
            return Exit.FAILED
        if out:
            reviewed.append(Reviewed.of(wanted, made, observed))
        return Exit.DIFFERENT if made.differs else Exit.FINE

    code = for_each_vhost(topologies, plan_one)
    if out:
        _save(out, SavedPlan(options, tuple(reviewed)), code)
    return code


def _refuse_contradictions(changes: dict[str, Any], exchanges: tuple[str, ...], against: str | None) -> None:
    if against:
        refuse("out", "node", "probe", "pairs", "amqp_only", on="a plan from another file (--against)")
    if not changes:
        return
    refuse(*OPTIONS, "against", "out", on="the cost of --add, --remove and --weight")
    if len(exchanges) > 1:
        raise click.UsageError("--add, --remove and --weight change one exchange: name one --exchange")


def _save(path: str, saved: SavedPlan, code: int) -> None:
    if code == Exit.FAILED:
        echo(f"The plan was not saved in {path}.", err=True)
        return
    replace_file(path, dumps_plan(saved, version=__version__), option="--out")
    echo(f"Saved the plan in {path}. `rabbit-chx apply {shlex.quote(path)}` applies it.", err=True)


def planned(
    wanted: Topology,
    observed: Observed,
    live: BrokerAccess | None,
    output: str,
    *,
    verbose: bool,
    held: bool = False,
    keeps_order: bool = False,
    reviewed: Reviewed | None = None,
    **options: Any,
) -> Plan:
    """Print and return the plan, with the messages that wait now in the queues of a live broker.

    ``held`` and ``keeps_order`` are those of `print_plan`; `scale`, which keeps the order, needs no advice to use it.
    A plan is refused if it is not the rest of the one that was ``reviewed``.
    """
    with waiting("Computing the plan"):
        made = plan_steps(wanted, observed, **options)
    if live is not None:
        recounted = live.recounted(observed, _losing(made, observed.topology))
        if recounted.backlog != observed.backlog:
            made = plan_steps(wanted, recounted, **options)
    if reviewed is not None:
        made = replace(made, refusals=(*made.refusals, *reviewed.refusals(made, observed)))
    left = [] if live is None or keeps_order else stranding(live, made, observed)
    if left and not options["force"]:
        made = replace(made, refusals=(*made.refusals, *(f"{each}; or {Advice.FORCE}" for each in left)))
        left = []
    print_plan(made, output, verbose=verbose, held=held, keeps_order=keeps_order)
    if live is not None and not keeps_order:
        warn_of_older_file(wanted, made, observed)
        for each in left:
            notice("Warning", each)
        warn_of_unfinished(live, wanted.vhost)
    return made


def _losing(made: Plan, topology: Topology) -> set[str]:
    """The queues that a plan may take keys from, or deletes."""
    losing = {each.destination for change in made.changes for each in change.before.bindings}
    losing |= {step.binding.destination for step in made.steps if isinstance(step, Unbind)}
    deleted = {step.name for step in made.steps if isinstance(step, DeleteQueue)}
    return deleted | {one for one in reachable(topology, losing) if isinstance(one, str)}


def _advise(topology: Topology, exchange: str, changes: dict[str, Any], release: str, output: str) -> None:
    """Print the cost of changes."""
    with waiting("Computing the strategies"):
        strategies = what_if(topology, exchange, **changes, release=release)
    if output == "table":
        echo(f"Exchange {exchange!r}, RabbitMQ {release}, from the file alone")
    print_strategies(strategies, output, exchange=exchange)
