"""``rabbit-chx publish``: the rows of a file, each confirmed."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.options import output_option, url_option
from rabbit_chx.errors import InvalidValue, PublishFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.broker.publishing.account import Totals
    from rabbit_chx.broker.publishing.publisher import Publisher
    from rabbit_chx.cli.sources import Batch

_CHECKPOINT_SECONDS: Final = 5.0
_FAILURES_SHOWN: Final = 5


@click.command(
    epilog="""\b
Examples:
  rabbit-chx publish orders.csv --exchange orders --key-column customer
  rabbit-chx publish events.parquet -x events -k user --property message_id=id
  zcat log.jsonl.gz | rabbit-chx publish - --format jsonl -x logs --rate 5000
  rabbit-chx publish big.csv -x orders -k customer --resume big.position
"""
)
@click.argument("file")
@url_option
@click.option("-x", "--exchange", required=True, metavar="X", help="Where the messages go.")
@click.option(
    "-k", "--key-column", metavar="C", help="The column with the routing key; empty keys without it."
)
@click.option(
    "--body-column", metavar="C", help="The column with the body; the whole row as JSON without it."
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME[=C]", help="A header, from the column C or NAME."
)
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=C", help="A property, such as message_id=C."
)
@click.option(
    "--format", "kind", type=click.Choice(["csv", "jsonl", "parquet", "arrow"]), help="By the name else."
)
@click.option("--rate", type=click.IntRange(min=1), metavar="N", help="At most N messages a second.")
@click.option(
    "--resume", "position_file", metavar="FILE", help="Keep the position in FILE, and start from there."
)
@output_option
def publish(
    *,
    file: str,
    url: str | None,
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

    Exit code 0 means that every row was confirmed and routed. With --resume, a second call goes on at the first
    row that was not.
    """
    from rabbit_chx.broker.publishing.publisher import Publisher
    from rabbit_chx.cli.sources import Picker, format_of, read_batches

    if url is None:
        raise InvalidValue("the command", got="no broker", allowed="--url, or AMQP_URL or RABBITMQ_URL")
    _log_to_stderr()
    picker = Picker(
        body_column, key_column, _mapping(headers, "--header"), _mapping(properties, "--property")
    )
    name = "standard input" if file == "-" else file
    kind = format_of(file, kind)
    position = Position.of(position_file, file)
    pace = _Pace(rate)
    with _open(file) as rows, Publisher(url, exchange, name=f"rabbit-chx publish {name}") as publisher:
        try:
            row = 1
            for columns in _shown(read_batches(rows, kind, name), publisher, name):
                batch = picker.batch(columns, row, name)
                row += len(batch.bodies)
                _publish(publisher, position.skip(batch), pace)
                position.maybe_save(publisher, row - 1)
            if row == 1:
                raise InvalidValue(f"the rows of {name}", got="no row", allowed="at least one")
            totals = publisher.flush()
        except PublishFailed as failed:
            position.save_before(failed)
            _print_failures(failed, position.start)
            _print(failed.totals, output)
            return 1
        position.save(row - 1)
    _print(totals, output)
    return 0


def _log_to_stderr() -> None:
    """Lost connections and alarms, which the publisher logs as warnings, are what somebody who waits wants to see."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.getLogger("rabbit_chx").addHandler(handler)


def _mapping(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    mapped = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        if not name or (equals and not column) or (option == "--property" and not equals):
            raise InvalidValue(option, got=pair, allowed="NAME=COLUMN")
        mapped[name] = column or name
    return mapped


def _open(path: str) -> IO[bytes]:
    from rabbit_chx.cli.keys import open_keys

    return open_keys(path)


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


@dataclass
class Position:
    """How far a file was published, kept in a file of its own."""

    path: Path | None
    source: dict[str, Any]
    start: int = 0
    _saved_at: float = 0.0

    @classmethod
    def of(cls, path: str | None, file: str) -> Position:
        """The position that was kept, or the beginning; a source that changed meanwhile is an error."""
        if path is None:
            return cls(None, {})
        if file == "-":
            raise InvalidValue("--resume", got="standard input", allowed="a file, which can be read again")
        source = _identity(file)
        kept = Path(path)
        if not kept.exists():
            return cls(kept, source)
        try:
            saved = json.loads(kept.read_text())
            start, saved_source = int(saved["rows"]), saved["source"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidValue(
                "--resume",
                got=path,
                allowed="a file that an earlier --resume wrote",
                way_out="remove it to begin anew",
            ) from None
        if saved_source != source:
            raise InvalidValue(
                "--resume",
                got=f"{file}, which is not the file it was (name, size or time differ)",
                allowed="the same file",
                way_out=f"remove {path} to begin anew",
            )
        return cls(kept, source, start)

    def skip(self, batch: Batch) -> Batch:
        """The batch without rows that were confirmed earlier."""
        gone = min(max(self.start - (batch.first_row - 1), 0), len(batch.bodies))
        if not gone:
            return batch
        from rabbit_chx.cli.sources import Batch

        return Batch(
            batch.bodies[gone:],
            batch.keys if isinstance(batch.keys, str) else batch.keys[gone:],
            None if batch.headers is None else batch.headers[gone:],
            {name: values[gone:] for name, values in batch.properties.items()},
            batch.first_row + gone,
        )

    def maybe_save(self, publisher: Publisher, rows: int) -> None:
        """Every few seconds, wait for the confirms of what has left and keep the position."""
        if self.path is not None and time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS:
            publisher.flush()
            self.save(rows)
            self._saved_at = time.monotonic()

    def save_before(self, failed: PublishFailed) -> None:
        """Keep the position before the first row that was not confirmed."""
        if failed.failures:
            self.save(self.start + failed.failures[0].row)

    def save(self, rows: int) -> None:
        """Keep the position behind so many rows, in one step that a crash cannot split."""
        if self.path is None:
            return
        if _identity(self.source["file"]) != self.source:
            raise InvalidValue(
                "--resume",
                got=f"{self.source['file']}, which changed while it was read",
                allowed="a file at rest",
            )
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({"rows": rows, "source": self.source}))
        new.replace(self.path)


def _identity(file: str) -> dict[str, Any]:
    """By what a file is known again."""
    try:
        state = Path(file).stat()
    except OSError as error:
        raise InvalidValue(
            "the file", got=file, allowed="a readable file", way_out=str(error.strerror)
        ) from None
    return {"file": str(Path(file).resolve()), "size": state.st_size, "modified_ns": state.st_mtime_ns}


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
    click.echo(
        f"Error: {totals.failed:,} of {totals.published:,} rows were not confirmed; the first:", err=True
    )
    for failure in failed.failures[:_FAILURES_SHOWN]:
        row = skipped + failure.row + 1
        click.echo(
            f"  row {row}: {failure.outcome.value}, exchange {failure.exchange!r}, key {failure.routing_key!r}: "
            f"{failure.reply}",
            err=True,
        )


def _print(totals: Totals, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(asdict(totals)))
        return
    click.echo(
        f"{totals.published:,} published, {totals.confirmed:,} confirmed, {totals.failed:,} failed "
        f"({totals.returned:,} returned, {totals.rejected:,} rejected, {totals.unknown:,} unknown, "
        f"{totals.unsent:,} unsent); {totals.resent:,} resent, {totals.bytes:,} bytes"
    )
