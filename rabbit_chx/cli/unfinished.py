"""``rabbit-chx scale --status``: what an interrupted or a running change has left on the broker."""

from __future__ import annotations

from typing import Final

from rabbit_chx.broker.reading.reader import count_messages
from rabbit_chx.cli.broker_access import BrokerAccess
from rabbit_chx.cli.output import echo, print_json
from rabbit_chx.cli.tables import Table, show
from rabbit_chx.consuming.changes.records import Unfinished, unfinished_on

_STATES: Final = {
    "held": "held",
    "draining": "being drained",
    "removing": "being drained, then deleted",
    "new": "new",
}


def print_status(live: BrokerAccess, vhost: str, output: str) -> bool:
    """Print what is held and what is being drained; return whether anything is unfinished."""
    management = live.management()
    found = unfinished_on(management, vhost)
    if not found:
        if output == "table":
            echo(f"Virtual host {vhost!r}: no change is unfinished.")
        return False
    states = _states(found)
    # Statistics are seconds old, but count messages that members have not acknowledged, too.
    earlier = {queue.name: count or 0 for queue, count in management.queues(vhost)}
    with live.amqp(vhost) as connection:
        now = count_messages(connection, states)
    counts = {name: max(count, earlier.get(name, 0)) for name, count in now.items()}
    _print_change(found, vhost, output)
    _print_queues(found, states, counts, output)
    return True


def _states(found: Unfinished) -> dict[str, str]:
    """The queues of a change, each with its state."""
    states = dict.fromkeys(found.record.created, "new") if found.record else {}
    for hold in found.holds:
        states |= {queue: "removing" if queue in hold.removed else "draining" for queue in hold.losing}
    return states | {hold.queue: "held" for hold in found.holds}


def _print_change(found: Unfinished, vhost: str, output: str) -> None:
    since = min((hold.since for hold in found.holds), default="")
    by = next((hold.by for hold in found.holds), "")
    is_abort = False
    if found.record is not None:
        since, by, is_abort = found.record.since, found.record.by, found.record.is_abort
    if output == "json":
        print_json("unfinished", vhost=vhost, since=since, by=by, aborting=is_abort, running=found.running)
        return
    what = "change is being given up" if is_abort else "change is unfinished"
    now = f"in progress: {found.running}" if found.running else "interrupted: no process is carrying it out"
    echo(
        f"Virtual host {vhost!r}: a {what}, begun {since or 'at an unknown time'} by {by or 'an unknown user'} ({now})."
    )


def _print_queues(found: Unfinished, states: dict[str, str], counts: dict[str, int], output: str) -> None:
    holds = {hold.queue: hold for hold in found.holds}
    if output == "json":
        for queue, state in sorted(states.items()):
            hold = holds.get(queue)
            losing = sorted(hold.losing) if hold else []
            print_json(
                "change_queue", queue=queue, state=state, messages=counts.get(queue), until_drained=losing
            )
        return
    if not states:
        return
    shown = Table(
        "queue", "state", "messages", "until drained", right=("messages",), wrapped=("until drained",)
    )
    for queue, state in sorted(states.items()):
        hold = holds.get(queue)
        count = f"{counts[queue]:,}" if queue in counts else "deleted"
        shown.add_row(queue, _STATES[state], count, ", ".join(sorted(hold.losing)) if hold else "")
    show(shown)
