"""``rabbit-chx plan``: what it would take to make a broker what a file says, and what it would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.changes import print_findings, print_plan, print_rings, print_ways
from rabbit_chx.cli.live import live_options
from rabbit_chx.cli.options import output_option, the_exchange
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.cli.live import Live
    from rabbit_chx.topology.model import Topology

__all__ = ["parse_new", "parse_new_weight", "plan", "plan_options", "what_if_options"]

PENDING: Final = 2
FAILED: Final = 1


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both ``plan`` and ``apply`` let a user choose."""
    for option in (
        click.option(
            "--way",
            metavar="WAY",
            help="How rings change: append, in place, swap, blue/green or slots; by default the cheapest to the file's order.",
        ),
        click.option(
            "--max-moved",
            type=click.FloatRange(0, 100),
            default=50.0,
            show_default=True,
            metavar="PERCENT",
            help="Refuse a change in place that sends more of an exchange's keys elsewhere at any moment.",
        ),
        click.option("--prune", is_flag=True, help="Also take away what the file does not name."),
        click.option(
            "-v", "--verbose", is_flag=True, help="List every single step, and how each ring is known."
        ),
        click.option(
            "--force", is_flag=True, help="Do it although it moves more, or a queue to delete holds messages."
        ),
    ):
        command = option(command)
    return command


def what_if_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Changes whose cost is asked for; no broker is."""
    for option in (
        click.option(
            "--weight", "weights", multiple=True, metavar="NAME=W", help="What if it had this weight?"
        ),
        click.option(
            "--remove", multiple=True, metavar="NAME", help="What would it cost to remove this queue?"
        ),
        click.option("--add", metavar="N|NAMES", help="What would N more queues cost, or these (a,b)?"),
    ):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  rabbit-chx plan topology.yaml -U amqp://user@host/ --password-file pw
  rabbit-chx plan topology.yaml --against deployed.yaml
  rabbit-chx plan topology.yaml --add 2
  rabbit-chx plan topology.yaml --remove orders.01 --weight orders.00=3
"""
)
@click.argument("file")
@live_options
@plan_options
@click.option("--against", metavar="FILE", help="Plan from what FILE says instead of from a broker.")
@what_if_options
@click.option("--exchange", metavar="X", help="The exchange that is asked about, where the file has several.")
@click.option(
    "-r",
    "--release",
    default="4.3",
    show_default=True,
    metavar="R",
    help="The release, where no broker is asked.",
)
@output_option
def plan(
    *,
    file: str,
    live: Live,
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

    Nothing is changed. Exit code 0 means that nothing is to be done, 2 that something is, 1 that it is refused.
    """
    from rabbit_chx.topology.assumed import assumed
    from rabbit_chx.topology.lint import lint
    from rabbit_chx.topology.load import load
    from rabbit_chx.topology.plan import plan as plan_steps

    wanted = load(file)
    if add or remove or weights:
        _advise(wanted, the_exchange(wanted, exchange), add, remove, weights, release, output)
        return 0
    observed = assumed(load(against), release) if against else live.read(wanted)
    options["max_moved"] /= 100
    made = plan_steps(wanted, observed, **options)
    print_findings(lint(wanted, observed))
    if not against:
        print_rings(observed, verbose=verbose)
    print_plan(made, output, verbose=verbose)
    return FAILED if made.refusals else PENDING if made.steps else 0


def _advise(
    topology: Topology,
    exchange: str,
    add: str | None,
    remove: tuple[str, ...],
    weights: tuple[str, ...],
    release: str,
    output: str,
) -> None:
    from rabbit_chx.topology.advice import advise

    weighed = dict(map(parse_new_weight, weights))
    ways = advise(topology, exchange, add=parse_new(add), remove=remove, weights=weighed, release=release)
    if output == "table":
        click.echo(f"Exchange {exchange!r}, RabbitMQ {release}, from the file alone")
    print_ways(ways, output, exchange=exchange)


def parse_new(text: str | None) -> int | list[str]:
    """How many queues are new, or which."""
    return int(text) if text and text.isascii() and text.isdigit() else text.split(",") if text else 0


def parse_new_weight(text: str) -> tuple[str, int]:
    """A queue and the weight that it is to have."""
    from rabbit_chx.ring import parse_weight

    name, equals, weight = text.rpartition("=")
    if not equals:
        raise InvalidValue("--weight", got=text, allowed="NAME=WEIGHT")
    return name, parse_weight(weight, of=name)
