"""``rabbit-chx replay``: publish parked or dead-lettered messages again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import click

from rabbit_chx.base.text import counted, printable, text_of
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect
from rabbit_chx.cli.ask.options import Login, connection_options, count_option, output_option
from rabbit_chx.cli.changes import check_can_ask, confirmed
from rabbit_chx.cli.show.output import echo, end_when_unheard, notice, print_json
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.consuming.replay import Choice, Origin, Outcome, Replayed, replay as replayed_messages
from rabbit_chx.errors import RabbitChxError

_MOST_SHOWN: Final = 20
"""The most destinations that are shown. Publishers can name any number of them."""


@verb(
    examples=[
        "rabbit-chx replay billing.parked --dry-run",
        "rabbit-chx replay billing.parked --only customer-17 --only customer-23",
        "rabbit-chx replay billing.parked --to orders --yes",
        "rabbit-chx replay orders.dead --limit 100 --yes --output json",
    ],
    exit_codes={
        Exit.FINE: "all selected messages were replayed, or listed",
        Exit.FAILED: "declined or failed; no message was removed from QUEUE",
        Exit.PARTLY: "some messages stay in QUEUE: their origin is unknown or not allowed, the broker refused them, or the "
        "connection was lost",
    },
)
@click.argument("queue", metavar="QUEUE")
@connection_options
@option("--only", multiple=True, metavar="KEY", help="Replay only messages with this original routing key.")
@option(
    "--to",
    multiple=True,
    metavar="EXCHANGE",
    help="Also replay messages to this exchange if only their publisher says that they came from it (amq.default: the default exchange).",
)
@count_option("--limit", help="Replay at most N messages.")
@option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@option("--dry-run", is_flag=True, help="List the messages and where they would go; change nothing.")
@output_option
def replay(
    *,
    queue: str,
    url: BrokerUrl,
    login: Login,
    only: Collection[str],
    to: Collection[str],
    limit: int | None,
    yes: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Publish the messages of QUEUE again, each to the exchange and with the routing key that it came from.

    Each message is removed from QUEUE after the broker has confirmed its copy: if the command is killed, no message is lost, and
    at most one exists twice. Headers that members and the broker have added are removed. Replayed messages are out of order:
    they come behind the later messages of their keys.

    Without --yes, a question shows how many messages go to each destination. The broker says where a dead-lettered message came
    from, and the member where a parked one did. A message stays in QUEUE if only its publisher says so, as of messages from
    streams, and --to does not name the exchange. Users with write permission on amq.default, and with --to all who can publish to
    QUEUE, can forge the headers of a parked message.
    """
    check_can_ask(
        "replay", "--yes or --dry-run", "--dry-run shows where the messages would go", yes=yes or dry_run
    )
    run = _Run(queue, url, login, Choice(only, to), limit, output)
    if dry_run:
        end_when_unheard()
    if not (yes or dry_run):
        found = run.listed()
        for line in _destinations(found):
            echo(line, err=True)
        if found and not confirmed(f"Replay {counted(found.total(), 'message')}?", yes=False):
            return Exit.FAILED
        run = replace(run, choice=replace(run.choice, destinations=found.keys()))
    return run.replay(dry_run=dry_run)


@dataclass(frozen=True)
class _Run:
    """One call of the command."""

    queue: str
    url: BrokerUrl
    login: Login
    choice: Choice
    limit: int | None
    output: str

    def listed(self) -> Counter[str]:
        """How many messages would go to each destination."""
        with self._each(dry_run=True) as found:
            return Counter(
                each.origin.destination for each in found if each.outcome is Outcome.LISTED and each.origin
            )

    def replay(self, *, dry_run: bool) -> Exit:
        """Replay or list the messages, and print the outcome of each."""
        counts: Counter[Outcome] = Counter()
        destinations: Counter[str] = Counter()
        with self._each(dry_run=dry_run) as found:
            try:
                for each in found:
                    counts[each.outcome] += 1
                    if each.origin and each.outcome in {Outcome.REPLAYED, Outcome.LISTED}:
                        destinations[each.origin.destination] += 1
                    _print(each, self.output)
            except (Exception, KeyboardInterrupt) as error:
                if counts and not dry_run:
                    echo(f"{self.queue}: {_summary(counts, dry_run=False)}", err=True)
                if counts[Outcome.REPLAYED] and isinstance(error, RabbitChxError):
                    notice("Error", str(error))
                    return Exit.PARTLY
                raise
        text = f"{self.queue}: {_summary(counts, dry_run=dry_run)}"
        echo("\n".join([text, *_destinations(destinations)]), err=self.output == "json")
        return Exit.PARTLY if counts[Outcome.UNKNOWN] or counts[Outcome.REFUSED] else Exit.FINE

    @contextmanager
    def _each(self, *, dry_run: bool) -> Iterator[Iterator[Replayed]]:
        is_second = self.choice.destinations is not None
        warn = (lambda _: None) if is_second else partial(notice, "Warning")
        with connect(self.url, connection_name="rabbit-chx replay", **self.login) as connection:
            yield replayed_messages(
                connection, self.queue, self.choice, limit=self.limit, dry_run=dry_run, warn=warn
            )


def _destinations(counts: Counter[str]) -> list[str]:
    """How many messages go to each destination: a line each, for the first ones."""
    lines = [f"  {count:,} to {where}" for where, count in counts.most_common(_MOST_SHOWN)]
    more = len(counts) - len(lines)
    return [*lines, f"  and {counted(more, 'more destination')}"] if more else lines


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
        origin["routing_key"] = _text(origin["routing_key"])
        message_id = _text(found.message.message_id)
        print_json("replay", outcome=found.outcome.value, message_id=message_id, **origin, error=found.error)
    elif found.outcome in {Outcome.LISTED, Outcome.UNKNOWN, Outcome.REFUSED}:
        echo(_line(found))


def _text(value: str | bytes | None) -> str | None:
    return None if value is None else text_of(value)


def _line(found: Replayed) -> str:
    origin = found.origin
    if origin is None:
        return f"{_text(found.message.message_id) or 'a message'}: no header says to which exchange it was published"
    where = (
        f"exchange {origin.exchange!r}, key {origin.routing_key!r}, from {origin.queue!r} ({origin.reason})"
    )
    return printable(f"{where}: {found.error}" if found.error else where)
