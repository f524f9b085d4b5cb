"""``rabbit-chx group``: show the members of a group and the queues that each works on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

import click

from rabbit_chx.base.text import counted
from rabbit_chx.broker.reading.reader import count_messages, read
from rabbit_chx.changes.records import unfinished_on
from rabbit_chx.cli.ask.broker_access import BrokerAccess, live_options, warn_of_tracer
from rabbit_chx.cli.ask.options import output_option
from rabbit_chx.cli.show.output import echo, end_when_unheard, notice, print_json
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.stream_group import EVERY, GroupOfStreams, stream_group, stream_options
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.consuming.member.roll_call import MemberStatus, members_over, workers_of
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.topology.checks.drift import stranded
from rabbit_chx.topology.model import Topology

_MOST_QUEUES: Final = 1_000
"""Of a member, which may report any names. For each shown queue, the broker is asked for the number of messages."""
_NUMBERS: Final = ("queues", "per second", "unhandled")


@verb(
    examples=[
        "rabbit-chx group billing -U amqp://user@host/ --password-file pw",
        "rabbit-chx group billing --watch",
        "rabbit-chx group billing --output json",
        "rabbit-chx group billing --exchange orders",
        "rabbit-chx group billing --super-stream orders --reset 2026-01-31T08:00:00Z",
    ],
    exit_codes={
        Exit.FINE: "every member answers; every stream has a member, or members cannot be seen",
        Exit.FAILED: "the group has members, so --reset was refused; or the change was declined",
        Exit.DIFFERENT: "no members, a stream without one, a member that does not answer, a held queue, or an unbound queue "
        "with messages",
    },
)
@click.argument("name", metavar="GROUP")
@live_options
@option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
@stream_options
@output_option
def group(*, name: str, live: BrokerAccess, watch: bool, streams: GroupOfStreams | None, output: str) -> int:
    """Show the members of GROUP, and for each queue the member that works on it, its rate and its backlog.

    The members report these values. *Ready* messages are still in the queue. *Unhandled* messages are with the member,
    and *oldest* is how long the oldest of them has been there. The management API tells which queues an unfinished change
    holds, and which queues are no longer bound but still have messages.

    For a group on streams, with --super-stream, --exchange or --stream, it shows the member of each stream, the offset
    that the group has stored, and its lag: the offsets that follow. Members are listed by the plugin
    rabbitmq_stream_management, or by a node (--node).
    """
    if watch:
        end_when_unheard()
    if streams is not None:
        return stream_group(streams, watch=watch, output=output)
    vhost = live.given.vhost
    with live.amqp(vhost, connection_name="rabbit-chx group") as connection:
        while True:
            found = members_over(connection, name)
            ready = count_messages(connection, _shown(workers_of(found))[0])
            if watch:
                click.clear()  # a terminal only
            _print(name, found, ready, output)
            has_problems = _print_problems(live, vhost, name, found, output)
            if not watch:
                break
            connection.sleep(EVERY)
    fine = found and all(member.answered for member in found) and not has_problems
    return Exit.FINE if fine else Exit.DIFFERENT


def _print_problems(
    live: BrokerAccess, vhost: str, group: str, found: Sequence[MemberStatus], output: str
) -> bool:
    """Print the queues whose messages wait for more than a member; return whether there are any.

    These are the held queues of a group, and the unbound queues with messages of the exchanges that it consumes.
    """
    try:
        management = live.management
        unfinished = unfinished_on(management, vhost)
        observed = read(management, vhost)
        warn_of_tracer(management, vhost)
    except (BrokerUnavailable, InvalidValue) as error:  # of a record that others have written
        notice("Note", f"held and unbound queues are not shown: {error}")
        return False
    mine = {queue for member in found for queue in member.queues}
    problems: list[tuple[str, str, int | None, str]] = []
    for hold in unfinished.holds:
        if group in hold.groups or hold.queue in mine:
            text = f"held since {hold.since} by {hold.by}; `rabbit-chx scale FILE --status` shows the change"
            problems.append((hold.queue, "held", observed.backlog.get(hold.queue), text))
    for each in stranded(_consumed(observed.topology, mine), observed):
        text = f"no longer bound to exchange {each.exchange!r}"
        problems.append((each.queue, "unbound", each.messages, text))
    for queue, state, messages, text in problems:
        if output == "json":
            print_json("group_problem", queue=queue, state=state, messages=messages, message=text)
        else:
            count = "" if messages is None else f" ({counted(messages, 'message')})"
            notice("Warning", f"queue {queue!r}{count}: {text}")
    return bool(problems)


def _consumed(topology: Topology, queues: Collection[str]) -> Topology:
    """The exchanges of a topology that are bound to one of these queues, without its queues."""
    sources = {each.source for each in topology.bindings if each.destination in queues}
    exchanges = tuple(each for each in topology.exchanges if each.name in sources)
    return replace(topology, exchanges=exchanges, queues=())


def _print(name: str, found: Sequence[MemberStatus], ready: Mapping[str, int], output: str) -> None:
    workers = workers_of(found)
    shown, omitted = _shown(workers)
    if output == "json":
        for member in found:
            print_json(
                "member",
                seat=member.seat,
                host=member.host,
                pid=member.pid,
                answered=member.answered,
                omitted=omitted[member.seat],
            )
        for queue, member in shown.items():
            status = asdict(member.queues[queue])
            del status["priority"]
            print_json("group_queue", queue=queue, seat=member.seat, ready=ready.get(queue), **status)
        return
    if not found:
        echo(
            f"Group {name!r} has no members. For a group on streams, pass --super-stream, --exchange or --stream."
        )
        return
    show(_member_table(found, workers), title=f"Group {name}")
    show(_queue_table(shown, ready))
    for seat, number in sorted(omitted.items()):
        echo(f"Seat {seat}: not shown: {counted(number, 'more queue', 'more queues')}.")


def _shown(workers: Mapping[str, MemberStatus]) -> tuple[dict[str, MemberStatus], Counter[int]]:
    """The first queues of each member, and how many more each has."""
    counts = Counter[int]()
    shown: dict[str, MemberStatus] = {}
    for queue, member in sorted(workers.items()):
        counts[member.seat] += 1
        if counts[member.seat] <= _MOST_QUEUES:
            shown[queue] = member
    return shown, counts - Counter(dict.fromkeys(counts, _MOST_QUEUES))


def _member_table(found: Sequence[MemberStatus], workers: Mapping[str, MemberStatus]) -> Table:
    shown = Table("seat", "host", "pid", *_NUMBERS, right=("seat", "pid", *_NUMBERS))
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
    for queue, member in workers.items():
        status = member.queues[queue]
        oldest = "" if status.oldest is None else f"{status.oldest:,.0f} s"
        state = (
            "held" if status.hold else f"failed {counted(status.failures, 'time')}" if status.failures else ""
        )
        count = f"{ready[queue]:,}" if queue in ready else "?"
        shown.add_row(
            queue, str(member.seat), count, f"{status.rate:,.1f}", f"{status.waiting:,}", oldest, state
        )
    return shown
