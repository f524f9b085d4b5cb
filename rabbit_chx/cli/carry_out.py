"""Changes while members of a group consume, for ``scale`` and ``rebalance``: carry out plans, and show what is unfinished."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

import click

from rabbit_chx.broker.applying.apply import this_process
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reading.reader import count_messages
from rabbit_chx.changes.records import Unfinished, unfinished_on
from rabbit_chx.changes.scaling import Done, carry_out
from rabbit_chx.cli.ask.broker_access import BrokerAccess, warn_of_tracer
from rabbit_chx.cli.show.output import echo, note_change, nothing_changed, notice, print_json, tell
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import Exit
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable, RabbitChxError
from rabbit_chx.topology.model import Topology
from rabbit_chx.topology.planning.plan_back import FINISH
from rabbit_chx.topology.planning.steps import Bind, Plan, Unbind

_RELEASED_IN: Final = 5.0
"""Seconds until the broker has released the lock of a command that was killed."""
_POLL: Final = 0.2
_STATES: Final = {
    "held": "held",
    "draining": "being drained",
    "removing": "being drained, then deleted",
    "new": "new",
}


def carry_out_plans(
    live: BrokerAccess, plans: Sequence[Plan], output: str, *, more: bool = False, **options: Any
) -> Exit:
    """Carry out the plans in order, as one change, and print each action; ``options`` are those of `carry_out`."""
    management = live.management
    finished: list[Done] = []

    def report(done: Done) -> None:
        finished.append(done)
        step = done.step and str(done.step)
        tell(output, str(done), "done", what=done.what, queue=done.queue or None, step=step)

    try:
        for plan in plans:
            with live.amqp(plan.vhost) as connection:
                unfinished = more or plan is not plans[-1]
                carry_out(plan, connection, management, on_done=report, more=unfinished, **options)
    except RabbitChxError as stopped:
        notice("Error", str(stopped))
        if isinstance(stopped, ApplyStopped) and stopped.in_doubt:
            finished.append(Done("step", step=stopped.failed))
        if not _left_unfinished(finished, management, plans):
            return Exit.FAILED
        note_change()
        return Exit.PARTLY
    except KeyboardInterrupt:
        _left_unfinished(finished, management, plans)
        raise
    note_change()
    return Exit.FINE


def _left_unfinished(finished: Sequence[Done], management: Management, plans: Sequence[Plan]) -> bool:
    """Print how to go on if this change or an earlier one is unfinished, as far as the broker tells; return whether.

    A change that another command is carrying out, which holds the lock, is not left to this one.
    """
    found: list[Unfinished] = []
    begun = bool(finished)
    with suppress(RabbitChxError):
        found = [unfinished_on(management, plan.vhost) for plan in plans]
        begun = any(map(_is_after_switch, finished))
    us = f"{this_process()},"  # a time may follow
    is_others = any(each.running and not f"{each.running},".startswith(us) for each in found)
    begun = begun or (any(found) and not is_others)
    if not begun and finished:
        echo("No bindings were changed; queues that were declared are kept.", err=True)
    elif not begun and is_others:
        echo(nothing_changed(), err=True)
    if begun:
        echo(
            "Not finished: run the same command again to continue; held queues stay held until then. `rabbit-chx scale FILE "
            "--status` shows them, and `--abort` abandons the change.",
            err=True,
        )
    return begun


def _is_after_switch(done: Done) -> bool:
    """Whether it is more than a queue that was declared, or held and released again."""
    return done.what in {"drain", "delete", "keep"} or isinstance(done.step, (Bind, Unbind))


# -- what is unfinished ---------------------------------------------------------------------------------


def print_unfinished(live: BrokerAccess, wanted: Topology, finishes: Collection[str] = ()) -> bool:
    """Print that an interrupted command left a change unfinished, with the queues that it left held; return whether.

    Exit if the command named an exchange that is not in ``finishes``, in which "" stands for a whole file; empty means any.

    Raises:
        BrokerUnavailable: another command is carrying the change out.
    """
    management, deadline = live.management, time.monotonic() + _RELEASED_IN
    while (
        (found := unfinished_on(management, wanted.vhost)) and found.running and time.monotonic() < deadline
    ):
        time.sleep(_POLL)
    if found and found.running:
        raise BrokerUnavailable(
            f"a change is in progress ({found.running}). {nothing_changed()} Run this command again when it has ended; "
            "`rabbit-chx scale FILE --status` shows it"
        )
    exchange = found.record.exchange if found.record else None
    if finishes and exchange is not None and exchange not in finishes:
        _exit_before_another_change(exchange)
    if found:
        names = ", ".join(repr(hold.queue) for hold in found.holds)
        left = f"left queues held, and is finished first: {names}" if names else "is finished first"
        notice("Note", f"an interrupted change {left}")
    removed = {queue.name for each in found.records for queue in each.removed}
    if removed := removed.union(*(hold.removed for hold in found.holds)):  # others may have written that
        notice(
            "Note",
            f"once it is finished, and they are empty, these are deleted: {', '.join(map(repr, sorted(removed)))}",
        )
    return bool(found)


def _exit_before_another_change(exchange: str) -> NoReturn:
    """Exit, because this command would release the held queues and delete the record, but leave the change half done."""
    of = f"exchange {exchange!r}" if exchange else "the whole file"
    notice("Refused", f"this command cannot finish the interrupted change of {of}")
    click.get_current_context().exit(refused(Exit.PARTLY))


def refused(failed: Exit, *, unfinished: bool = True) -> Exit:
    """The exit code of a change that was refused or failed; with an earlier one unfinished, say what finishes that."""
    if failed == Exit.PARTLY and unfinished:
        notice(
            "Note",
            f"the interrupted change is unfinished. {FINISH}. `rabbit-chx scale FILE --abort` abandons it",
        )
    return failed


def print_status(live: BrokerAccess, vhost: str, output: str) -> bool:
    """Print what is held and what is being drained; return whether anything is unfinished."""
    management = live.management
    found = unfinished_on(management, vhost)
    warn_of_tracer(management, vhost)
    if not found:
        if output == "table":
            echo(f"Virtual host {vhost!r}: no change is unfinished.")
        return False
    states = dict.fromkeys(found.record.created, "new") if found.record else {}
    for hold in found.holds:
        states |= {queue: "removing" if queue in hold.removed else "draining" for queue in hold.losing}
    states |= {hold.queue: "held" for hold in found.holds}
    # Statistics are seconds old, but count messages that members have not acknowledged, too.
    earlier = {queue.name: count or 0 for queue, count, *_ in management.queues(vhost)}
    with live.amqp(vhost) as connection:
        now = count_messages(connection, states)
    counts = {name: max(count, earlier.get(name, 0)) for name, count in now.items()}
    _print_change(found, vhost, output)
    _print_queues(found, states, counts, output)
    return True


def _print_change(found: Unfinished, vhost: str, output: str) -> None:
    since = min((hold.since for hold in found.holds), default="")
    by = next((hold.by for hold in found.holds), "")
    is_abort = False
    if found.record is not None:
        since, by, is_abort = found.record.since, found.record.by, found.record.is_abort
    what = "change is being abandoned" if is_abort else "change is unfinished"
    now = f"in progress: {found.running}" if found.running else "interrupted: no process is carrying it out"
    begun = f"begun {since or 'at an unknown time'} by {by or 'an unknown user'}"
    text = f"Virtual host {vhost!r}: a {what}, {begun} ({now})."
    fields = {"vhost": vhost, "since": since, "by": by, "aborting": is_abort, "running": found.running}
    tell(output, text, "unfinished", **fields)


def _print_queues(found: Unfinished, states: dict[str, str], counts: dict[str, int], output: str) -> None:
    losing = {hold.queue: sorted(hold.losing) for hold in found.holds}
    shown = Table(
        "queue", "state", "messages", "until drained", right=("messages",), wrapped=("until drained",)
    )
    for queue, state in sorted(states.items()):
        drained = losing.get(queue, [])
        if output == "json":
            messages = counts.get(queue)
            print_json("change_queue", queue=queue, state=state, messages=messages, until_drained=drained)
            continue
        count = f"{counts[queue]:,}" if queue in counts else "deleted"
        shown.add_row(queue, _STATES[state], count, ", ".join(drained))
    if states and output == "table":
        show(shown)
