"""``rabbit-chx publish``: the rows of a file, each confirmed."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.options import FILE, broker_options, output_option
from rabbit_chx.cli.output import echo, log_to_stderr, notice, print_json
from rabbit_chx.cli.resume import Position
from rabbit_chx.cli.verb import Exit, option, verb
from rabbit_chx.errors import InvalidValue, PublishFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from rabbit_chx.cli.row_files import Batch
    from rabbit_chx.publishing import Publisher, Totals

_FAILURES_SHOWN: Final = 5
_MESSAGES: Final = "The messages"


@verb(
    examples=[
        "rabbit-chx publish orders.csv --exchange orders --key-column customer",
        "rabbit-chx publish events.parquet -x events -k user --property message_id=id",
        "zcat log.jsonl.gz | rabbit-chx publish - --format jsonl -x logs --rate 5000",
        "rabbit-chx publish big.csv -x orders -k customer --resume big.position",
    ],
    exit_codes={
        Exit.FINE: "every row was confirmed and routed",
        Exit.FAILED: "some row was not",
    },
)
@click.argument("file", type=FILE)
@broker_options
@option("-x", "--exchange", group=_MESSAGES, required=True, metavar="X", help="Where the messages go.")
@option(
    "-k",
    "--key-column",
    group=_MESSAGES,
    metavar="C",
    help="The column with the routing key; empty keys without it.",
)
@option(
    "--body-column",
    group=_MESSAGES,
    metavar="C",
    help="The column with the body; the whole row as JSON without it.",
)
@option(
    "--header",
    "headers",
    group=_MESSAGES,
    multiple=True,
    metavar="NAME[=C]",
    help="A header, from the column C or NAME.",
)
@option(
    "--property",
    "properties",
    group=_MESSAGES,
    multiple=True,
    metavar="NAME=C",
    help="A property, such as message_id=C.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "jsonl", "parquet", "arrow"]),
    help="What FILE is; by its name else.",
)
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="At most N messages a second.")
@click.option(
    "--resume",
    "position_file",
    type=FILE,
    metavar="FILE",
    help="Keep the position in FILE, and start from there.",
)
@output_option
def publish(
    *,
    file: str,
    url: str | None,
    password_file: Path | None,
    tls: ssl.SSLContext | None,
    exchange: str,
    key_column: str | None,
    body_column: str | None,
    headers: tuple[str, ...],
    properties: tuple[str, ...],
    kind: str | None,
    rate: int | None,
    position_file: str | None,
    output: str,
) -> int:
    """Publish each row of FILE (- is stdin) as one message, persistent, mandatory and confirmed.

    With --resume, a second call goes on at the first row that was not confirmed and routed.
    """
    from rabbit_chx.cli.row_files import Picker, format_of, read_batches
    from rabbit_chx.publishing import Publisher

    if url is None:
        raise InvalidValue("command", "no broker", "--url, or AMQP_URL or RABBITMQ_URL")
    log_to_stderr()
    picker = Picker(
        body_column, key_column, _mapping(headers, "--header"), _mapping(properties, "--property")
    )
    name = "standard input" if file == "-" else file
    kind = format_of(file, kind)
    position = Position.of(position_file, file)
    publisher = Publisher(
        url, exchange, name=f"rabbit-chx publish {name}", credentials=password_file, tls=tls
    )
    with _open(file) as rows, publisher:
        try:
            batches = picker.batches(read_batches(rows, kind, name), name)
            done = _publish_all(_shown(batches, publisher, name), publisher, position, _Pace(rate))
            totals = publisher.flush()
        except PublishFailed as failed:
            position.save_before(failed)
            _print_failures(failed, position.start)
            _print(failed.totals, output)
            return Exit.FAILED
        position.save(done)
    _print(totals, output)
    return Exit.FINE


def _mapping(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    mapped = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if not name or (equals and not column) or (option == "--property" and not equals):
            raise InvalidValue(option, pair, "NAME=COLUMN")
        mapped[name] = column or name
    return mapped


def _open(path: str) -> IO[bytes]:
    from rabbit_chx.cli.key_file import open_keys

    return open_keys(path)


def _publish_all(batches: Iterator[Batch], publisher: Publisher, position: Position, pace: _Pace) -> int:
    """Publish what was not confirmed by an earlier call, and return the number of the last row."""
    done = 0
    for batch in batches:
        done += len(batch.bodies)
        _publish(publisher, position.skip(batch), pace)
        if position.is_due:
            publisher.flush()
            position.save(done)
    return done


def _publish(publisher: Publisher, batch: Batch, pace: _Pace) -> None:
    for part in pace.parts(len(batch.bodies)):
        properties: dict[str, Any] = {name: values[part] for name, values in batch.properties.items()}
        publisher.publish_many(
            batch.bodies[part],
            batch.keys if isinstance(batch.keys, str) else batch.keys[part],
            headers=None if batch.headers is None else batch.headers[part],
            **properties,
        )


class _Pace:
    """Spreads messages over time where a rate is given."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def parts(self, count: int) -> Iterator[slice]:
        """Slices of a batch, each as late as it must be."""
        if self._rate is None:
            yield slice(None)
            return
        step = max(self._rate // 20, 1)
        for start in range(0, count, step):
            time.sleep(max(self._due - time.monotonic(), 0.0))
            end = min(start + step, count)
            self._due = max(self._due, time.monotonic() - 1.0) + (end - start) / self._rate
            yield slice(start, end)


def _shown(batches: Iterator[Any], publisher: Publisher, name: str) -> Iterator[Any]:
    """The batches, with a line of progress on a terminal while they are published."""
    if not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()

    def line() -> Text:
        totals = publisher.totals
        rate = totals.confirmed / max(time.monotonic() - began, 0.001)
        text = f"{name}: {totals.confirmed:,} confirmed, {totals.pending:,} in flight, {rate:,.0f}/s"
        return Text(text + (f", {totals.resent:,} resent" if totals.resent else ""))

    with Live(get_renderable=line, console=Console(stderr=True), refresh_per_second=4, transient=True):
        yield from batches


def _print_failures(failed: PublishFailed, skipped: int) -> None:
    totals = failed.totals
    notice("Error", f"{totals.failed:,} of {totals.published:,} rows were not confirmed; the first:")
    said = ""
    for failure in failed.failures[:_FAILURES_SHOWN]:
        row = skipped + failure.row + 1
        reply, said = "as above" if failure.reply == said else failure.reply, failure.reply
        echo(
            f"  row {row}: {failure.outcome.value}, exchange {failure.exchange!r}, key {failure.routing_key!r}: {reply}",
            err=True,
        )


def _print(totals: Totals, output: str) -> None:
    if output == "json":
        print_json("totals", **asdict(totals))
        return
    echo(
        f"{totals.published:,} published, {totals.confirmed:,} confirmed, {totals.failed:,} failed "
        f"({totals.returned:,} returned, {totals.rejected:,} rejected, {totals.unknown:,} unknown, "
        f"{totals.unsent:,} unsent); {totals.resent:,} resent, {totals.bytes:,} bytes"
    )
