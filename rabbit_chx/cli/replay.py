"""``rabbit-chx replay``: publish parked or dead-lettered messages again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

import click

from rabbit_chx.broker.amqp import connect
from rabbit_chx.cli.options import Login, connection_options, count_option, output_option
from rabbit_chx.cli.output import echo, even_unheard, notice, print_json
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.consuming.replay import Origin, Outcome, Replayed, replay as replayed_messages
from rabbit_chx.text import printable
from rabbit_chx.urls import BrokerUrl


@verb(
    examples=[
        "rabbit-chx replay billing.parked --dry-run",
        "rabbit-chx replay billing.parked --only customer-17 --only customer-23",
        "rabbit-chx replay orders.dead --limit 100 --output json",
    ],
    exit_codes={
        Exit.FINE: "all selected messages were replayed, or listed",
        Exit.PARTLY: "some messages stay in QUEUE: their origin is unknown, or the broker refused them",
    },
)
@click.argument("queue", metavar="QUEUE")
@connection_options
@option("--dry-run", is_flag=True, help="List the messages and where they would go; change nothing.")
@option("--only", multiple=True, metavar="KEY", help="Replay only messages with this original routing key.")
@count_option("--limit", help="Replay at most N messages.")
@output_option
def replay(
    *,
    queue: str,
    url: BrokerUrl,
    login: Login,
    dry_run: bool,
    only: Collection[str],
    limit: int | None,
    output: str,
) -> int:
    """Publish the messages of QUEUE again, each to the exchange and with the routing key that it came from.

    Each message is removed from QUEUE after the broker has confirmed its copy: if the command is killed, no message is lost, and
    at most one exists twice. Headers that members and the broker have added are removed. Replayed messages are out of order:
    they come behind the later messages of their keys.

    The headers say where a message came from, so anyone who can publish to QUEUE decides where it goes: look at --dry-run first.
    """
    counts: Counter[Outcome] = Counter()
    with connect(url, name="rabbit-chx replay", **login) as connection:
        found = replayed_messages(
            connection, queue, only=only, limit=limit, dry_run=dry_run, warn=partial(notice, "Warning")
        )
        try:
            for each in found:
                counts[each.outcome] += 1
                with nullcontext() if dry_run else even_unheard():
                    _print(each, output)
        except (Exception, KeyboardInterrupt):
            if counts and not dry_run:
                echo(f"{queue}: {_summary(counts, dry_run=False)}", err=True)
            raise
    echo(f"{queue}: {_summary(counts, dry_run=dry_run)}", err=output == "json")
    return Exit.PARTLY if counts[Outcome.UNKNOWN] or counts[Outcome.REFUSED] else Exit.FINE


def _summary(counts: Counter[Outcome], *, dry_run: bool) -> str:
    shown = {Outcome.LISTED: "would be replayed"} if dry_run else {Outcome.REPLAYED: "replayed"}
    shown |= {
        Outcome.OTHER_KEY: "with other keys",
        Outcome.UNKNOWN: "of unknown origin",
        Outcome.REFUSED: "refused",
    }
    return ", ".join(f"{counts[outcome]:,} {what}" for outcome, what in shown.items())


def _print(found: Replayed, output: str) -> None:
    if output == "json":
        origin = {each.name: getattr(found.origin, each.name, None) for each in fields(Origin)}
        message = found.message.message_id
        print_json("replay", outcome=found.outcome.value, message_id=message, **origin, error=found.error)
    elif found.outcome in {Outcome.LISTED, Outcome.UNKNOWN, Outcome.REFUSED}:
        echo(_line(found))


def _line(found: Replayed) -> str:
    origin = found.origin
    if origin is None:
        return f"{found.message.message_id or 'a message'}: no header says to which exchange it was published"
    where = (
        f"exchange {origin.exchange!r}, key {origin.routing_key!r}, from {origin.queue!r} ({origin.reason})"
    )
    return printable(f"{where}: {found.error}" if found.error else where)
