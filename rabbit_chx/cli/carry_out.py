"""Carry out plans while members of a group consume, for ``scale`` and ``rebalance --apply``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rabbit_chx.broker.management import Management
from rabbit_chx.cli.broker_access import BrokerAccess
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.verb import Exit
from rabbit_chx.consuming.changes.holds import holds_on
from rabbit_chx.consuming.changes.scaling import Done, carry_out
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.steps import Plan


def print_held(live: BrokerAccess, wanted: Topology) -> bool:
    """Print the queues that an interrupted command left held and return whether there are any."""
    held = holds_on(live.management(), wanted.vhost)
    if held:
        names = ", ".join(repr(hold.queue) for hold in held)
        notice("Note", f"an interrupted change left queues held, and is finished first: {names}")
    return bool(held)


def carry_out_plans(live: BrokerAccess, plans: Sequence[Plan], output: str, **options: Any) -> Exit:
    """Carry out the plans in order and print each action; ``options`` are those of `carry_out`."""
    management = live.management()
    count = 0

    def show(done: Done) -> None:
        nonlocal count
        count += 1
        if output == "json":
            print_json("done", what=done.what, queue=done.queue or None, step=done.step and str(done.step))
        else:
            echo(str(done))

    try:
        for plan in plans:
            with live.amqp(plan.vhost) as connection:
                carry_out(plan, connection, management, on_done=show, **options)
    except RabbitChxError as stopped:
        notice("Error", str(stopped))
        begun = count > 0 or _is_held(management, plans)
        _print_unfinished(begun=begun)
        return Exit.PARTLY if begun else Exit.FAILED
    except KeyboardInterrupt:
        _print_unfinished(begun=count > 0)
        raise
    return Exit.FINE


def _is_held(management: Management, plans: Sequence[Plan]) -> bool:
    """Whether queues are held, by this change or an earlier one; not known if the broker cannot be reached."""
    with suppress(RabbitChxError):
        return any(holds_on(management, plan.vhost) for plan in plans)
    return False


def _print_unfinished(*, begun: bool) -> None:
    if begun:
        echo(
            "Not finished: run the same command again to continue. Held queues stay held until then.",
            err=True,
        )
