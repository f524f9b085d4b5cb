"""``rabbit-chx publish``: publish the rows of a file, each confirmed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import click

from rabbit_chx.base.text import printable
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.cli.ask.inputs import name_of, open_file
from rabbit_chx.cli.ask.options import (
    FILE,
    Login,
    check_names,
    connection_options,
    count_option,
    output_option,
    pairs,
)
from rabbit_chx.cli.ask.row_files import Picker, RowBatch, format_of, read_batches
from rabbit_chx.cli.publish_resume import MAX_SENT_AGAIN, ResumeFile, open_resume_file
from rabbit_chx.cli.show.output import echo, log_to_stderr, notice, tell
from rabbit_chx.cli.verb import Exit, bundle, option, verb
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.messages.message_fields import PropertyColumns
from rabbit_chx.publishing import Bulk, Publisher

_FAILURES_SHOWN: Final = 5
_ROWS_AT_ONCE: Final = 1_000
_SETTLE_SECONDS: Final = 10.0
"""How long rows in flight may take to be confirmed after a signal."""
_PAUSE: Final = 0.01
_T = TypeVar("_T")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_of_message = partial(option, group="The messages")


def _with_picker(given: dict[str, Any]) -> dict[str, Any]:
    headers = (text if "=" in text else f"{text}={text}" for text in given["headers"])
    given["headers"] = dict(pairs("--header-column", headers, "NAME=COLUMN", empty=False))
    given["properties"] = dict(pairs("--property-column", given["properties"], "NAME=COLUMN", empty=False))
    columns = map(given.pop, ("body_column", "key_column", "headers", "properties"))
    return given | {"picker": Picker(*columns)}


message_options = bundle(
    _of_message(
        "-x",
        "--exchange",
        required=True,
        metavar="X",
        callback=check_names,
        help="The exchange to publish to.",
    ),
    _of_message(
        "-k", "--key-column", metavar="C", help="The column with the routing key. Default: empty keys."
    ),
    _of_message(
        "--body-column", metavar="C", help="The column with the body. Default: the whole row as JSON."
    ),
    _of_message(
        "--header-column",
        "headers",
        multiple=True,
        metavar="NAME[=C]",
        help="A header NAME from column C, by default from column NAME.",
    ),
    _of_message(
        "--property-column",
        "properties",
        multiple=True,
        metavar="NAME=C",
        help="A property from a column, such as message_id=C.",
    ),
    gather=_with_picker,
)
"""What becomes a message; the command gets ``exchange`` and ``picker``."""


@verb(
    examples=[
        "rabbit-chx publish orders.csv --exchange orders --key-column customer",
        "rabbit-chx publish events.parquet -x events -k user \\\n    --property-column message_id=id",
        "zcat log.jsonl.gz | rabbit-chx publish - --format jsonl -x logs --rate 5000",
        "rabbit-chx publish big.csv -x orders -k customer --resume big.position",
    ],
    exit_codes={
        Exit.FINE: "every row was routed and confirmed",
        Exit.FAILED: "some rows were not",
        Exit.INTERRUPTED: f"interrupted by SIGINT ({Exit.TERMINATED}: by SIGTERM), after rows in flight were confirmed",
    },
    epilog=f"""
SIGINT or SIGTERM ends the command when the rows in flight are confirmed, after {_SETTLE_SECONDS:.0f} seconds at most.
With --resume, the next call then starts at the exact row; after SIGKILL or a crash it sends at most
{MAX_SENT_AGAIN:,} rows again. A row that fails also ends a call with --resume. The next call starts at this row, and sends
at most {MAX_SENT_AGAIN:,} later rows again. If the file of --resume is empty or damaged, the command
ends with an error: delete that file, not the data, to start from the first row.
""",
)
@click.argument("file", type=FILE)
@connection_options
@message_options
@option(
    "--format",
    "kind",
    type=click.Choice(["csv", "jsonl", "parquet", "arrow"]),
    help="The format of FILE. Default: by its name.",
)
@count_option("--rate", help="Publish at most N messages per second.")
@option(
    "--resume",
    "resume_path",
    type=FILE,
    metavar="FILE",
    help="Keep the position in FILE, and start from it.",
)
@output_option
def publish(
    *,
    file: str,
    url: BrokerUrl,
    login: Login,
    exchange: str,
    picker: Picker,
    kind: str | None,
    rate: int | None,
    resume_path: str | None,
    output: str,
) -> int:
    """Publish each row of FILE (- is stdin) as one message, persistent, mandatory and confirmed."""
    log_to_stderr()
    name = name_of(file)
    kind = format_of(file, kind)
    publisher = Publisher(url, exchange, connection_name="rabbit-chx publish", **login)
    with open_file(file) as rows, open_resume_file(resume_path, file) as resume:
        publisher.open()
        bulk = publisher.bulk()
        batches = _shown(picker.batches(read_batches(rows, kind, name), name), bulk, name)
        with _GracefulStop(publisher._stop_accepting) as stop:
            try:
                error = _publish_all(batches, bulk, resume, _Pace(rate), stop)
            finally:
                publisher.close(timeout=0)
                try:
                    if resume:
                        resume.save(bulk)
                except (InvalidValue, OSError) as changed:
                    error = changed
        code = _report(bulk, publisher.totals.connections, resume, stop, output)
        if error is not None:
            raise click.ClickException(str(error))
        return code


def _publish_all(
    batches: Iterator[RowBatch],
    bulk: Bulk,
    resume: ResumeFile | None,
    pace: _Pace,
    stop: _GracefulStop,
) -> Exception | None:
    """Publish all batches, and wait for the outcome of each row; return the error that ended it after some rows were published."""
    error: Exception | None = None
    try:
        while (batch := stop.next_of(batches)) is not None:
            for rows in pace.parts(resume.skip(batch) if resume else batch):
                if stop or (resume and not resume.keep_up(bulk, len(rows.bodies), lambda: bool(stop))):
                    return None
                _publish(rows, bulk)
        if resume and not stop:
            resume.check_end()
    except (BrokerUnavailable, InvalidValue, OSError) as found:
        error = found
    except KeyboardInterrupt:
        if not stop:
            raise
    finally:
        _settle(bulk, stop)
    if error is not None and not bulk.totals.published:
        raise error
    reported = isinstance(error, BrokerUnavailable) and bulk.totals.failed  # with the rows
    return None if stop or reported else error


def _publish(rows: RowBatch, bulk: Bulk) -> None:
    """Publish some rows; an error about one of them has its number in the file."""
    try:
        bulk.add_many(
            rows.bodies, rows.keys, headers=rows.headers, **cast("PropertyColumns", rows.properties)
        )
    except InvalidValue as error:
        what, found, row = error.what.rpartition(" in row ")
        if not found:
            raise
        what = f"{what} in row {rows.first_row + int(row)}"
        raise InvalidValue(what, error.got, error.expected, error.hint) from None


def _settle(bulk: Bulk, stop: _GracefulStop) -> None:
    """Wait until every row has its outcome, after a signal for some seconds only."""
    deadline = None
    while bulk.totals.pending:
        if stop and deadline is None:
            deadline = time.monotonic() + _SETTLE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)


def _report(bulk: Bulk, connections: int, resume: ResumeFile | None, stop: _GracefulStop, output: str) -> int:
    totals = bulk.totals
    if totals.failed:
        _print_failures(bulk, resume)
    text = (
        f"{totals.published:,} published, {totals.confirmed:,} confirmed, {totals.failed:,} failed "
        f"({totals.returned:,} returned, {totals.rejected:,} rejected, {totals.unknown:,} unknown, "
        f"{totals.unsent:,} unsent); {totals.resent:,} resent, {totals.bytes:,} bytes"
    )
    fields = asdict(totals) | {"connections": connections}  # the bulk began after the first one
    del fields["duplicates"]  # which only streams tell
    tell(output, text, "totals", **fields)
    if stop.signal is not None:
        echo("Interrupted.", err=True)
        return 128 + stop.signal
    return Exit.FAILED if totals.failed else Exit.FINE


class _GracefulStop:
    """Turns the first SIGINT or SIGTERM into a request to stop; the second one acts as usual.

    An exception at a random moment could leave a message accepted and not counted, so the first signal raises one only
    while `next_of` waits for input.
    """

    def __init__(self, on_signal: Callable[[], object]) -> None:
        self.signal: int | None = None
        """The signal that arrived."""
        self._on_signal = on_signal
        self._reading = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, _frame: object) -> None:
        self.__exit__()
        self.signal = number
        self._on_signal()
        if self._reading:
            raise KeyboardInterrupt

    def next_of(self, iterator: Iterator[_T]) -> _T | None:
        """Return the next item, or None at the end or after a signal."""
        try:
            self._reading = True
            item = None if self else next(iterator, None)
            self._reading = False
        except KeyboardInterrupt:
            if not self:
                raise
            return None
        return item


class _Pace:
    """Divides batches into parts, and spreads them over time if there is a rate."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def parts(self, batch: RowBatch) -> Iterator[RowBatch]:
        """Yield the parts of a batch, each when it is due."""
        step = min(max(self._rate // 20, 1), _ROWS_AT_ONCE) if self._rate else _ROWS_AT_ONCE
        for start in range(0, len(batch.bodies), step):
            part = batch[start : start + step]
            if self._rate:
                time.sleep(max(self._due - time.monotonic(), 0.0))
                self._due = max(self._due, time.monotonic() - 1.0) + len(part.bodies) / self._rate
            yield part


def _shown(batches: Iterator[Any], bulk: Bulk, name: str) -> Iterator[Any]:
    """Yield the batches, and show a line of progress on a terminal while they are published."""
    if not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()

    def line() -> Text:
        totals = bulk.totals
        rate = totals.confirmed / max(time.monotonic() - began, 0.001)
        text = (
            f"{printable(name)}: {totals.confirmed:,} confirmed, {totals.pending:,} in flight, {rate:,.0f}/s"
        )
        return Text(text + (f", {totals.resent:,} resent" if totals.resent else ""))

    with Live(get_renderable=line, console=Console(stderr=True), refresh_per_second=4, transient=True):
        yield from batches


def _print_failures(bulk: Bulk, resume: ResumeFile | None) -> None:
    totals, failures = bulk.totals, bulk.failures
    notice("Error", f"{totals.failed:,} of {totals.published:,} rows were not confirmed; the first:")
    first_row, last = (resume.start if resume else 0) + 1, ""
    for failure in failures[:_FAILURES_SHOWN]:
        row = first_row + failure.row
        reply, last = "as above" if failure.reply == last else failure.reply, failure.reply
        echo(
            f"  row {row}: {failure.outcome.value}, exchange {failure.exchange!r}, key {failure.routing_key!r}: {reply}",
            err=True,
        )
    if resume and resume.saved == resume.start + failures[0].row:
        echo(
            f"The next call starts at row {resume.saved + 1} and sends later rows again, even confirmed ones. Correct the "
            "cause first, for example bind a queue. To leave the row out, publish the rows after it as another file.",
            err=True,
        )
