"""``rabbit-chx group``: show the members of a group and the queues that each works on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

import click

from rabbit_chx.broker.amqp import connect
from rabbit_chx.broker.reading.reader import count_messages
from rabbit_chx.cli.options import Login, broker_options, output_option
from rabbit_chx.cli.output import echo, print_json
from rabbit_chx.cli.tables import Table, show
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.consuming.member.roll_call import MemberStatus, members_over, workers_of

_EVERY: Final = 2.0
_NUMBERS: Final = ("queues", "per second", "unhandled")


@verb(
    examples=[
        "rabbit-chx group billing -U amqp://user@host/ --password-file pw",
        "rabbit-chx group billing --watch",
        "rabbit-chx group billing --output json",
    ],
    exit_codes={
        Exit.FINE: "every queue has a member that answers",
        Exit.DIFFERENT: "no members, or a member does not answer",
    },
)
@click.argument("name", metavar="GROUP")
@broker_options
@option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@output_option
def group(
    *,
    name: str,
    url: str | None,
    login: Login,
    watch: bool,
    output: str,
) -> int:
    """Show the members of GROUP, and for each queue the member that works on it, its rate and its backlog.

    The members report these values. *Ready* messages are still in the queue. *Unhandled* messages are with the member,
    and *oldest* is how long the oldest of them has been there.
    """
    if url is None:
        raise click.UsageError("missing broker URL: pass --url or set AMQP_URL")
    with connect(url, name="rabbit-chx group", **login) as connection:
        while True:
            found = members_over(connection, name)
            ready = count_messages(connection, workers_of(found))
            if watch and sys.stdout.isatty():
                click.clear()
            _print(name, found, ready, output)
            if not watch:
                break
            connection.sleep(_EVERY)
    return Exit.FINE if found and all(member.answered for member in found) else Exit.DIFFERENT


def _print(name: str, found: Sequence[MemberStatus], ready: Mapping[str, int], output: str) -> None:
    workers = workers_of(found)
    if output == "json":
        for member in found:
            print_json("member", seat=member.seat, host=member.host, pid=member.pid, answered=member.answered)
        for queue, member in sorted(workers.items()):
            status = asdict(member.queues[queue])
            del status["priority"]
            print_json("group_queue", queue=queue, seat=member.seat, ready=ready.get(queue), **status)
        return
    if not found:
        echo(f"Group {name!r} has no members.")
        return
    show(_member_table(found, workers), title=f"Group {name}")
    show(_queue_table(workers, ready))


def _member_table(found: Sequence[MemberStatus], workers: Mapping[str, MemberStatus]) -> Table:
    shown = Table(
        "seat", "host", "pid", "queues", "per second", "unhandled", right=("seat", "pid", *_NUMBERS)
    )
    for member in found:
        if not member.answered:
            shown.add_row(str(member.seat), "does not answer")
            continue
        mine = [member.queues[queue] for queue, worker in workers.items() if worker is member]
        rate, waiting = sum(each.rate for each in mine), sum(each.waiting for each in mine)
        shown.add_row(
            str(member.seat), member.host, str(member.pid), str(len(mine)), f"{rate:,.1f}", f"{waiting:,}"
        )
    return shown


def _queue_table(workers: Mapping[str, MemberStatus], ready: Mapping[str, int]) -> Table:
    shown = Table(
        "queue", "seat", "ready", *_NUMBERS[1:], "oldest", "", right=("seat", "ready", *_NUMBERS, "oldest")
    )
    for queue, member in sorted(workers.items()):
        status = member.queues[queue]
        oldest = "" if status.oldest is None else f"{status.oldest:,.0f} s"
        state = "held" if status.hold else f"failed {status.failures} times" if status.failures else ""
        count = f"{ready[queue]:,}" if queue in ready else "?"
        shown.add_row(
            queue, str(member.seat), count, f"{status.rate:,.1f}", f"{status.waiting:,}", oldest, state
        )
    return shown
