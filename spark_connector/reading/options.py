"""The options of a read with ``format("rabbitmq")``: the fields of `ReadOptions` are their table.

The options of the connection are those of a write. This module imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rabbit_chx import InvalidValue
from spark_connector.connection_options import TARGETS, StreamOptions, check_one_target, targets_in
from spark_connector.option_table import (
    check_short_text,
    choice,
    flag,
    integer,
    option,
    option_name,
    options_of,
    text,
)
from spark_connector.reading.offsets import RowLimit
from spark_connector.reading.positions import LATEST, Positions, parse_positions, parse_times
from spark_connector.reading.stream_keys import no_keys
from spark_connector.writing.options import OPTIONS

MOST_ROWS: Final = 2**63 - 1
_SOURCE, _ROWS = "Source", "Rows"
_SUMMARY: Final = (
    'Add option("stream", "orders.0"), option("superStream", "orders") or option("exchange", "orders"). Spark passes no '
    "options of CREATE TABLE: SELECT ... FROM t WITH (url = '...', stream = '...')"
)

_KAFKAS_TOPICS: Final = "Use stream or superStream"
INCLUDE_HEADERS: Final = (
    "Leave it out: a read returns the column headers, also as an array of structs: "
    '.schema("value binary, headers array<struct<key: string, value: binary>>")'
)
_NO_LEAST: Final = "Use trigger(processingTime=...): a micro-batch cannot wait for a number of rows"


def _names(given: str) -> tuple[str, ...] | None:
    """Names separated by commas, or a JSON list of names that contain commas; None for other text."""
    try:
        found = json.loads(given) if given.lstrip().startswith("[") else given.split(",")
    except ValueError:
        return None
    if not found or not all(isinstance(one, str) for one in found):
        return None
    names = tuple(one.strip() for one in found) if "[" not in given[:1] else tuple(found)
    return names if all(names) and len(set(names)) == len(names) else None


def listed(group: str, doc: str) -> Any:
    """A field for distinct names."""
    expected = 'distinct names separated by commas, or a JSON list such as ["a,b", "c"]'
    return option(group, None, expected, doc, _names)


def row_limit(given: str) -> RowLimit | None:
    """Parse a number of rows, or numbers by stream; return None for other text."""
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        return None
    numbers = list(found.values()) if isinstance(found, dict) else [found]
    valid = numbers and all(type(one) is int and 0 < one <= MOST_ROWS for one in numbers)
    return found if valid else None


def _positions(doc: str, key: str, *, of_end: bool) -> Any:
    expected = (
        "earliest, latest, a time, or JSON by stream" if not of_end else "latest, a time, or JSON by stream"
    )
    return option(_ROWS, None, expected, doc, parse_positions(option_name(key), of_end=of_end))


def _times(doc: str, key: str) -> Any:
    expected = 'milliseconds since 1970, or JSON by stream such as {"s0": 1769860800000}'
    return option(_ROWS, None, expected, doc, parse_times(option_name(key)))


@dataclass(frozen=True, kw_only=True)
class ReadOptions(StreamOptions):
    """The options of one read, checked."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **StreamOptions.INSTEAD,
        "path": "Call load() without a path; the source is the option stream, superStream or exchange",
        "subscribe": _KAFKAS_TOPICS,
        "topic": _KAFKAS_TOPICS,
        "assign": _KAFKAS_TOPICS,
        "subscribepattern": "Use superStream or exchange, which also find new streams",
        "includeheaders": INCLUDE_HEADERS,
        "streams": "Use stream, with names separated by commas",
        "maxoffsetspertrigger": "Use maxRowsPerTrigger",
        "startingoffsetsbytimestamp": "Use startingTimestamp, which also takes JSON by stream",
        "endingoffsetsbytimestamp": "Use endingTimestamp, which also takes JSON by stream",
        "minoffsetspertrigger": _NO_LEAST,
        "maxtriggerdelay": _NO_LEAST,
    }

    ALTERNATIVES: ClassVar[tuple[frozenset[str], ...]] = (
        *StreamOptions.ALTERNATIVES,
        frozenset({"starting_offsets", "starting_timestamp"}),
        frozenset({"ending_offsets", "ending_timestamp"}),
    )

    stream: tuple[str, ...] | None = listed(_SOURCE, "The stream to read, or several separated by commas.")
    super_stream: str | None = text(
        _SOURCE, "The super stream to read: all its partitions, including those added while a query runs."
    )
    exchange: str | None = text(
        _SOURCE, "Read all streams bound to this exchange, directly or through other exchanges."
    )
    management_url: str | None = text(
        _SOURCE,
        "The management API that lists the streams of exchange. Default: port 15672 of the broker, or 15671 with TLS.",
        secret=True,
    )
    columns: tuple[str, ...] | None = listed(
        _ROWS, "The columns to return, separated by commas. Default: all. Others are not decoded."
    )
    keys: tuple[str, ...] | None = listed(
        _ROWS,
        "Return only rows with these routing keys, separated by commas, and read only the streams of superStream or "
        "exchange that can hold them.",
    )
    starting_offsets: Positions | None = _positions(  # noqa: RUF009 - a field
        "Where a read starts. Default: earliest in a batch, latest in a new query; a restarted query continues from its "
        "checkpoint.",
        "starting_offsets",
        of_end=False,
    )
    ending_offsets: Positions | None = _positions(  # noqa: RUF009 - a field
        "Where a batch ends: before this offset. Default: latest.", "ending_offsets", of_end=True
    )
    starting_timestamp: Positions | None = _times(  # noqa: RUF009 - a field
        "Where a read starts, in milliseconds since 1970, instead of startingOffsets.", "starting_timestamp"
    )
    ending_timestamp: Positions | None = _times(  # noqa: RUF009 - a field
        "Where a batch ends, in milliseconds since 1970, instead of endingOffsets.", "ending_timestamp"
    )
    max_rows_per_trigger: RowLimit | None = option(  # noqa: RUF009 - a field
        _ROWS,
        None,
        'an integer from 1 to 9223372036854775807, or JSON by stream such as {"s0": 1000}',
        "Maximum number of rows of a micro-batch: over all streams, or of each stream that the JSON names. Needs PySpark 4.2.",
        row_limit,
    )
    min_partitions: int | None = integer(
        _ROWS, None, "Divide the rows among at least this many tasks. Default: one task for each stream."
    )
    fail_on_data_loss: bool = flag(
        _ROWS,
        "Fail if retention has deleted rows before they were read, or if a stream was created again; false continues and logs it.",
        default=True,
    )
    invalid_rows: str = choice(
        _ROWS,
        "drop leaves out messages that are not valid AMQP 1.0, or have more than 150,000 items in their headers, lists and maps, and logs their offsets.",
        "fail",
        "drop",
    )

    def start(self, default: str) -> Positions:
        """Where the read starts, unless a checkpoint says so."""
        return self.starting_offsets or self.starting_timestamp or Positions(default)

    @property
    def start_option(self) -> str:
        """The option that says where the read starts."""
        return "startingOffsets" if self.starting_timestamp is None else "startingTimestamp"

    @property
    def end_option(self) -> str:
        """The option that says where a batch ends."""
        return "endingOffsets" if self.ending_timestamp is None else "endingTimestamp"

    @property
    def end(self) -> Positions:
        """Where a batch ends."""
        return self.ending_offsets or self.ending_timestamp or Positions(LATEST)

    @property
    def source(self) -> str:
        """What is read, as shown to people."""
        if self.stream is not None:
            return "the option stream"
        return (
            f"super stream {self.super_stream!r}"
            if self.super_stream is not None
            else f"exchange {self.exchange!r}"
        )

    @classmethod
    def applicable_defaults(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """Also leave out the defaults that have no effect on the source of the read."""
        found = super().applicable_defaults(given, defaults)
        sources = targets_in((*given, *found))
        other = {
            option_name(key).lower() for key, needed in _NEEDED_SOURCES.items() if not needed & {*sources}
        }
        return {name: value for name, value in found.items() if name.lower() not in other}

    @classmethod
    def _unknown(cls, name: str) -> str:
        if name.lower() in ONLY_OF_WRITES:
            hint = "Remove it: only writes have this option"
            raise InvalidValue("option for a read", name, "an option of a read", hint)
        return super()._unknown(name)

    def _check(self, found: set[str]) -> None:
        if not found & set(TARGETS):
            expected = f"one of the options {', '.join(map(option_name, TARGETS))}"
            raise InvalidValue("source of a read", None, expected, _SUMMARY)
        check_one_target("source of a read", map(option_name, found))
        for which, noun in (("starting", "start"), ("ending", "end")):
            if found >= {f"{which}_offsets", f"{which}_timestamp"}:
                raise InvalidValue(
                    f"{noun} of a read", f"options {which}Offsets and {which}Timestamp", "one of them"
                )
        for key in ("super_stream", "exchange"):
            if (name := getattr(self, key)) is not None:
                check_short_text(name, f"option {option_name(key)}")
        super()._check(found)
        if self.management_url is not None and self.exchange is None:
            raise InvalidValue(
                "option managementUrl", f"a read of {self.source}", "the option exchange as well"
            )
        if self.keys is not None and self.stream is not None:
            raise no_keys(self.keys, self.source)

    @staticmethod
    def check_batch(given: Iterable[str]) -> None:
        """Raise if a given option is for streaming reads. The same setting of a session has no effect on a batch."""
        if "maxrowspertrigger" in map(str.lower, given):
            raise InvalidValue(
                "option maxRowsPerTrigger", "a batch read", "a streaming read", "Use endingOffsets in a batch"
            )

    @staticmethod
    def check_stream(given: Iterable[str]) -> None:
        """Raise if a given option is for batch reads. The same setting of a session has no effect on a query."""
        for name in ("endingOffsets", "endingTimestamp"):
            if name.lower() in map(str.lower, given):
                hint = "With trigger(availableNow=True) a query ends where the streams ended when it started"
                raise InvalidValue(f"option {name}", "a streaming read", "a batch read", hint)


_NEEDED_SOURCES: Final = {"management_url": {"exchange"}, "keys": {"super_stream", "exchange"}}
"""The sources of the options that not every source has."""
READ_OPTIONS: Final = options_of(ReadOptions)
"""All options of a read, for documentation."""
ONLY_OF_WRITES: Final = {one.name.lower() for one in OPTIONS} - {one.name.lower() for one in READ_OPTIONS}
"""The options that a write has and a read does not."""
