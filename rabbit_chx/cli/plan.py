"""``rabbit-chx plan``: what it would take to make a broker what a file says, and what it would cost."""

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
    from rabbit_chx.topology.model import Topology

__all__ = ["parse_new", "parse_new_weight", "plan", "plan_options", "what_if_options"]

CHANGES: Final = "The way to change"
WHAT_IF: Final = "What if"


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both ``plan`` and ``apply`` let a user choose."""
    for each in (
        option(
            "-v",
            "--verbose",
            group=CHANGES,
            is_flag=True,
            help="List every single step, and how each ring is known.",
        ),
        option(
            "--force",
            group=CHANGES,
            is_flag=True,
            help="Do it although it moves more, or a queue to delete holds messages.",
        ),
        option("--prune", group=CHANGES, is_flag=True, help="Also take away what the file does not name."),
        option(
            "--max-moved",
            group=CHANGES,
            type=click.FloatRange(0, 100),
            default=50.0,
            show_default=True,
            metavar="PERCENT",
            help="Refuse a change in place that sends more of an exchange's keys elsewhere at any moment.",
        ),
        option(
            "--strategy",
            group=CHANGES,
            metavar="WAY",
            help="How rings change: append, in place, remove-last, swap, blue/green or slots; by default the cheapest to the file's order.",
        ),
    ):
        command = each(command)
    return command


def what_if_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Changes whose cost is asked for; no broker is."""
    for each in (
        option(
            "--weight",
            "weights",
            group=WHAT_IF,
            multiple=True,
            metavar="NAME=W",
            callback=check_names,
            help="What would it cost to give this queue another weight?",
        ),
        option(
            "--remove",
            group=WHAT_IF,
            multiple=True,
            metavar="NAME",
            shell_complete=queues,
            callback=check_names,
            help="What would it cost to remove this queue?",
        ),
        option(
            "--add",
            group=WHAT_IF,
            metavar="N|NAMES",
            callback=check_names,
            help="What would N more queues cost, or these (a,b)?",
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
        Exit.FINE: "nothing is to be done",
        Exit.FAILED: "it is refused, or failed",
        Exit.DIFFERENT: "something is to be done",
    },
)
@click.argument("file", type=FILE)
@vhosts_option
@broker_access_options
@plan_options
@what_if_options
@exchange_option(WHAT_IF, "The exchange that is asked about, where the file has several.")
@release_option(WHAT_IF, "The release, where no broker is asked.")
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
    """Show the steps from what stands on a broker to what FILE says, and the exact share of keys each moves.

    Nothing is changed.
    """
    from rabbit_chx.topology.checks.lint import lint
    from rabbit_chx.topology.file.load import load
    from rabbit_chx.topology.planning.plan import plan as plan_steps
    from rabbit_chx.topology.planning.what_if import assume_applied

    options["max_moved"] /= 100

    def plan_one(wanted: Topology) -> int:
        if add or remove or weights:
            _advise(wanted, the_exchange(wanted, exchange), add, remove, weights, release, output)
            return Exit.FINE
        observed = (
            assume_applied(load(against, vhost=wanted.vhost), release) if against else live.read(wanted)
        )
        with waiting("Working out the steps"):
            made = plan_steps(wanted, observed, **options)
        print_findings(lint(wanted, observed))
        if not against:
            print_rings(observed, verbose=verbose)
        print_plan(made, output, verbose=verbose)
        return Exit.FAILED if made.refusals else Exit.DIFFERENT if made.steps else Exit.FINE

    return for_each_vhost(load_topologies(file, vhosts, live.url), plan_one)


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
    with waiting("Working out the ways"):
        ways = what_if(
            topology, exchange, add=parse_new(add), remove=remove, weights=weighed, release=release
        )
    if output == "table":
        echo(f"Exchange {exchange!r}, RabbitMQ {release}, from the file alone")
    print_strategies(ways, output, exchange=exchange)


def parse_new(text: str | None) -> int | list[str]:
    """How many queues are new, or which."""
    return int(text) if text and text.isascii() and text.isdigit() else text.split(",") if text else 0


def parse_new_weight(text: str) -> tuple[str, int]:
    """A queue and the weight that it is to have."""
    from rabbit_chx.ring import parse_weight

    name, equals, weight = text.rpartition("=")
    if not equals:
        raise InvalidValue("--weight", text, "NAME=WEIGHT")
    return name, parse_weight(weight, of=name)
