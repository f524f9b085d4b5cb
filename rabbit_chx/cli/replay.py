"""``rabbit-chx replay``: publish parked or dead-lettered messages again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import fields
from functools import partial

import click

from rabbit_chx.broker.amqp import connect
from rabbit_chx.cli.options import Login, broker_options, count_option, output_option, vhost_option
from rabbit_chx.cli.output import echo, notice, print_json
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
@broker_options
@vhost_option
@option("--dry-run", is_flag=True, help="List the messages and where they would go; change nothing.")
@option("--only", multiple=True, metavar="KEY", help="Replay only messages with this original routing key.")
@count_option("--limit", help="Replay at most N messages.")
@output_option
def replay(
    *,
    queue: str,
    url: str | BrokerUrl | None,
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
    if url is None:
        raise click.UsageError("missing broker URL: pass --url or set AMQP_URL")
    counts: Counter[Outcome] = Counter()
    with connect(url, name="rabbit-chx replay", **login) as connection:
        found = replayed_messages(
            connection, queue, only=only, limit=limit, dry_run=dry_run, warn=partial(notice, "Warning")
        )
        for each in found:
            counts[each.outcome] += 1
            _print(each, output)
    echo(f"{queue}: {_summary(counts, dry_run=dry_run)}", err=output == "json")
    return Exit.PARTLY if counts[Outcome.UNKNOWN] or counts[Outcome.REFUSED] else Exit.FINE


def _summary(counts: Counter[Outcome], *, dry_run: bool) -> str:
    done = (
        f"{counts[Outcome.LISTED]:,} would be replayed"
        if dry_run
        else f"{counts[Outcome.REPLAYED]:,} replayed"
    )
    others = (
        (Outcome.OTHER_KEY, "with other keys"),
        (Outcome.UNKNOWN, "of unknown origin"),
        (Outcome.REFUSED, "refused"),
    )
    return ", ".join([done, *(f"{counts[outcome]:,} {what}" for outcome, what in others)])


def _print(found: Replayed, output: str) -> None:
    if output == "json":
        _print_json(found)
    elif found.outcome in {Outcome.LISTED, Outcome.UNKNOWN, Outcome.REFUSED}:
        echo(_line(found))


def _line(found: Replayed) -> str:
    origin = found.origin
    if origin is None:
        return f"{found.message.message_id or 'a message'}: no header says where it came from"
    where = (
        f"exchange {origin.exchange!r}, key {origin.routing_key!r}, from {origin.queue!r} ({origin.reason})"
    )
    return printable(f"{where}: {found.error}" if found.error else where)


def _print_json(found: Replayed) -> None:
    origin = {each.name: getattr(found.origin, each.name, None) for each in fields(Origin)}
    print_json(
        "replay",
        outcome=found.outcome.value,
        message_id=found.message.message_id,
        **origin,
        error=found.error,
    )
