"""Carry out plans while members of a group consume, for ``scale`` and ``rebalance``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rabbit_chx.broker.management import Management
from rabbit_chx.cli.broker_access import BrokerAccess
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.verb import Exit
from rabbit_chx.consuming.changes.outcomes import Done
from rabbit_chx.consuming.changes.records import unfinished_on
from rabbit_chx.consuming.changes.scaling import carry_out
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.steps import Plan


def print_unfinished(live: BrokerAccess, wanted: Topology) -> bool:
    """Print that an interrupted command left a change unfinished, with the queues that it left held; return whether."""
    live.check_nodes()
    found = unfinished_on(live.management(), wanted.vhost)
    if found:
        names = ", ".join(repr(hold.queue) for hold in found.holds)
        left = f"left queues held, and is finished first: {names}" if names else "is finished first"
        notice("Note", f"an interrupted change {left}")
    return bool(found)


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
        begun = count > 0 or _is_unfinished(management, plans)
        _print_begun(begun=begun)
        return Exit.PARTLY if begun else Exit.FAILED
    except KeyboardInterrupt:
        _print_begun(begun=count > 0 or _is_unfinished(management, plans))
        raise
    return Exit.FINE


def _is_unfinished(management: Management, plans: Sequence[Plan]) -> bool:
    """Whether this change or an earlier one is unfinished; not known if the broker cannot be reached."""
    with suppress(RabbitChxError):
        return any(unfinished_on(management, plan.vhost) for plan in plans)
    return False


def _print_begun(*, begun: bool) -> None:
    if begun:
        echo(
            "Not finished: run the same command again to continue; held queues stay held until then. `rabbit-chx scale FILE "
            "--status` shows them, and `--abort` gives the change up.",
            err=True,
        )
