"""Send the messages of one call to the streams of a publisher, and tell what became of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import count, islice
from typing import Final, TypeAlias

from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.mirror.hashing import shortstr
from rabbit_chx.publishing.failures import Failures
from rabbit_chx.publishing.messages import Outcome, Reason, Totals
from rabbit_chx.streams.outlet import Outlet

Lot: TypeAlias = dict[int, bytes]
"""Messages that are sent together, by their publishing ids."""
LOT: Final = 1_000
"""How many messages make a lot."""
_Errors: TypeAlias = dict[str, StreamUnavailable]


def lots_of(stream: str, messages: Iterable[bytes], first: int) -> Iterator[tuple[str, Lot]]:
    """Divide the messages for one stream; ``first`` is the publishing id of the first."""
    rest = enumerate(messages, first)
    while lot := dict(islice(rest, LOT)):
        yield stream, lot


def lots_by_stream(
    streams: Sequence[str], messages: Sequence[bytes], first: int
) -> Iterator[tuple[str, Lot]]:
    """Divide messages by the stream of each, in order."""
    step = LOT * len(set(streams))
    for start in range(0, len(messages), step or 1):
        part = slice(start, start + step)
        lots: dict[str, Lot] = {}
        for number, stream, message in zip(count(first + start), streams[part], messages[part], strict=False):
            lots.setdefault(stream, {})[number] = message
        yield from lots.items()


def send(outlets: Mapping[str, Outlet], lots: Iterable[tuple[str, Lot]]) -> StreamUnavailable | None:
    """Send messages and wait for their confirms; return the first error.

    Streams that have no connection come last: connecting may take all the time that a call has, and the messages of other streams
    need it.
    """
    errors: _Errors = {}
    last: defaultdict[str, list[Lot]] = defaultdict(list)
    for stream, lot in lots:
        if stream in last or not (outlets[stream].is_ready or len(outlets) == 1):
            last[stream].append(lot)
        else:
            _send(outlets[stream], [lot], errors)
    for outlet in outlets.values():
        with _noting(errors, outlet):
            outlet.settle()
    for stream, left in last.items():
        _send(outlets[stream], left, errors)
        with _noting(errors, outlets[stream]):
            outlets[stream].settle()
    return next(iter(errors.values()), None)


def _send(outlet: Outlet, lots: Iterable[Lot], errors: _Errors) -> None:
    for lot in lots:
        if outlet.stream in errors:
            outlet.leave_out(lot, errors[outlet.stream])
        else:
            with _noting(errors, outlet):
                outlet.send(lot)


@contextmanager
def _noting(errors: _Errors, outlet: Outlet) -> Iterator[None]:
    """Keep the first error of a stream, so that the others go on."""
    try:
        yield
    except StreamUnavailable as error:
        errors.setdefault(outlet.stream, error)


def failures_of(outlets: Mapping[str, Outlet], first: int, keys: Sequence[str | bytes | None]) -> Failures:
    """Return the messages of a call that are not confirmed; ``first`` is the publishing id of the first row."""
    found = Failures()
    for stream, outlet in outlets.items():
        for number, (outcome, why) in outlet.failed.items():
            if 0 <= (row := number - first) < len(keys):  # the others are not of this call
                reason = Reason(outcome, b"", why, outcome is not Outcome.UNSENT, stream)
                found.add_row(row, shortstr(keys[row] or b"", "routing key"), reason)
    return found.by_row()


def totals_of(count: int, failures: Failures, before: Totals, now: Totals) -> Totals:
    """Return the counters of a call; messages of `add_encoded`, which it has waited for as well, are not among them."""
    outcomes = Counter(each.outcome.value for each in failures)
    return Totals(
        published=count,
        confirmed=count - len(failures),
        **outcomes,
        duplicates=now.duplicates - before.duplicates,
        resent=now.resent - before.resent,
        bytes=now.bytes - before.bytes,
        connections=now.connections - before.connections,
    )


def total(some: Sequence[Totals]) -> Totals:
    """Return the sum of counters."""
    if len(some) == 1:  # those of most publishers
        return some[0]
    return Totals(**{field.name: sum(getattr(one, field.name) for one in some) for field in fields(Totals)})
