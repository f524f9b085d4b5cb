"""``rabbit-chx plan``: the steps that make a broker match a file, and what they move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.broker_access import broker_access_options
from rabbit_chx.cli.changes import print_findings, print_plan, print_rings, print_strategies
from rabbit_chx.cli.completion import queues
from rabbit_chx.cli.options import (
    FILE,
    check_names,
    exchange_option,
    output_option,
    release_option,
    the_exchange,
)
from rabbit_chx.cli.output import echo
from rabbit_chx.cli.progress import waiting
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.cli.vhosts import for_each_vhost, load_topologies, vhosts_option
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.cli.broker_access import BrokerAccess
    from rabbit_chx.topology.model import Observed, Topology

__all__ = ["parse_new", "parse_new_weight", "plan", "plan_options", "what_if_options"]

CHANGES: Final = "Changes"
WHAT_IF: Final = "What if"


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of both ``plan`` and ``apply``."""
    for each in (
        option(
            "-v",
            "--verbose",
            group=CHANGES,
            is_flag=True,
            help="List every step, and how the order of each ring is known.",
        ),
        option(
            "--force",
            group=CHANGES,
            is_flag=True,
            help="Ignore --max-moved, and delete queues that hold messages.",
        ),
        option("--prune", group=CHANGES, is_flag=True, help="Also remove what the file does not name."),
        option(
            "--max-moved",
            group=CHANGES,
            type=click.FloatRange(0, 100),
            default=50.0,
            show_default=True,
            metavar="PERCENT",
            help="Refuse a change in place that moves more of an exchange's keys at any moment.",
        ),
        option(
            "--strategy",
            group=CHANGES,
            metavar="WAY",
            help="How to change rings: append, in place, remove-last, swap, blue/green or slots. Default: the cheapest to the order of the file.",
        ),
    ):
        command = each(command)
    return command


def what_if_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for changes whose cost is shown without a broker."""
    for each in (
        option(
            "--weight",
            "weights",
            group=WHAT_IF,
            multiple=True,
            metavar="NAME=W",
            callback=check_names,
            help="Show the cost of another weight for this queue.",
        ),
        option(
            "--remove",
            group=WHAT_IF,
            multiple=True,
            metavar="NAME",
            shell_complete=queues,
            callback=check_names,
            help="Show the cost of removing this queue.",
        ),
        option(
            "--add",
            group=WHAT_IF,
            metavar="N|NAMES",
            callback=check_names,
            help="Show the cost of N more queues, or of these (a,b).",
        ),
    ):
        command = each(command)
    return command


@verb(
    examples=[
        "rabbit-chx plan topology.yaml -U amqp://user@host/ --password-file pw",
        "rabbit-chx plan topology.yaml --against deployed.yaml",
        "rabbit-chx plan topology.yaml --add 2",
        "rabbit-chx plan topology.yaml --remove orders.01 --weight orders.00=3",
    ],
    exit_codes={
        Exit.FINE: "no changes needed",
        Exit.FAILED: "refused, or failed",
        Exit.DIFFERENT: "changes needed",
    },
)
@click.argument("file", type=FILE)
@vhosts_option
@broker_access_options
@plan_options
@what_if_options
@exchange_option(WHAT_IF, "The exchange to change, if the file has several.")
@release_option(WHAT_IF, "The release, if no broker is read.")
@click.option(
    "--against", type=FILE, metavar="FILE", help="Plan from what FILE says instead of from a broker."
)
@output_option
def plan(
    *,
    file: str,
    vhosts: tuple[str, ...],
    live: BrokerAccess,
    against: str | None,
    add: str | None,
    remove: tuple[str, ...],
    weights: tuple[str, ...],
    exchange: str | None,
    release: str,
    output: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Show the steps that make a broker match FILE, and the exact share of keys each moves. Nothing is changed."""
    from rabbit_chx.topology.checks.lint import lint
    from rabbit_chx.topology.planning.plan import plan as plan_steps

    options["max_moved"] /= 100

    def plan_one(wanted: Topology) -> int:
        if add or remove or weights:
            _advise(wanted, the_exchange(wanted, exchange), add, remove, weights, release, output)
            return Exit.FINE
        observed = _assumed(against, wanted.vhost, release) if against else live.read(wanted)
        with waiting("Computing the plan"):
            made = plan_steps(wanted, observed, **options)
        print_findings(lint(wanted, observed))
        if not against:
            print_rings(observed, verbose=verbose)
        print_plan(made, output, verbose=verbose)
        return Exit.FAILED if made.refusals else Exit.DIFFERENT if made.steps else Exit.FINE

    return for_each_vhost(load_topologies(file, vhosts, live.url), plan_one)


def _assumed(against: str, vhost: str, release: str) -> Observed:
    """The state of a broker to which only the file ``against`` was applied."""
    from rabbit_chx.topology.file.load import load
    from rabbit_chx.topology.planning.what_if import assume_applied

    return assume_applied(load(against, vhost=vhost), release)


def _advise(
    topology: Topology,
    exchange: str,
    add: str | None,
    remove: tuple[str, ...],
    weights: tuple[str, ...],
    release: str,
    output: str,
) -> None:
    from rabbit_chx.topology.planning.what_if import what_if

    weighed = dict(map(parse_new_weight, weights))
    with waiting("Computing the strategies"):
        strategies = what_if(
            topology, exchange, add=parse_new(add), remove=remove, weights=weighed, release=release
        )
    if output == "table":
        echo(f"Exchange {exchange!r}, RabbitMQ {release}, from the file alone")
    print_strategies(strategies, output, exchange=exchange)


def parse_new(text: str | None) -> int | list[str]:
    """Parse the number or the names of new queues."""
    return int(text) if text and text.isascii() and text.isdigit() else text.split(",") if text else 0


def parse_new_weight(text: str) -> tuple[str, int]:
    """Parse a queue and its new weight."""
    from rabbit_chx.ring import parse_weight

    name, equals, weight = text.rpartition("=")
    if not equals:
        raise InvalidValue("--weight", text, "NAME=WEIGHT")
    return name, parse_weight(weight, of=name)
