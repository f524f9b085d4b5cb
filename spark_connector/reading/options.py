"""The options of a read with ``format("rabbitmq")``: the fields of `ReadOptions` are their table.

The options of the connection are those of a write. This module imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from rabbit_chx import InvalidValue
from spark_connector.connection_options import TARGETS, StreamOptions, check_one_target, targets_in
from spark_connector.option_table import (
    check_short_text,
    choice,
    flag,
    integer,
    keys_of,
    option,
    option_name,
    options_of,
    text,
)
from spark_connector.reading.positions import LATEST, Positions, parse_positions
from spark_connector.writing.options import WriteOptions

_SOURCE, _ROWS = "Source", "Rows"
_SUMMARY: Final = (
    'Add option("stream", "orders.0"), option("superStream", "orders") or option("exchange", "orders"). Spark passes no '
    "options of CREATE TABLE: SELECT ... FROM t WITH (url = '...', stream = '...')"
)
_TIMES: Final = "which also takes times such as 2026-01-31T12:00:00Z, for all streams or as JSON by stream"

OF_KAFKA: Final = {
    "includeheaders": "Leave it out: a read returns the column headers, also as an array of structs: "
    '.schema("value binary, headers array<struct<key: string, value: binary>>")',
    "maxoffsetspertrigger": "Use maxRowsPerTrigger",
    **dict.fromkeys(
        ("minoffsetspertrigger", "maxtriggerdelay"),
        "Use trigger(processingTime=...): a micro-batch cannot wait for a number of rows",
    ),
}
"""Options of Spark's source of Kafka, and what to use instead in any read."""


def _names(given: str) -> tuple[str, ...] | None:
    """Names separated by commas, or a JSON list of names that contain commas; None for other text."""
    if given.lstrip().startswith("["):
        try:
            names = json.loads(given)
        except (ValueError, RecursionError):
            return None
    else:
        names = [one.strip() for one in given.split(",")]
    valid = names and all(isinstance(one, str) and one for one in names) and len(set(names)) == len(names)
    return tuple(names) if valid else None


def listed(group: str, doc: str) -> Any:
    """A field for distinct names."""
    expected = 'distinct names separated by commas, or a JSON list such as ["a,b", "c"]'
    return option(group, None, expected, doc, _names)


def _positions(doc: str, key: str, *, of_end: bool) -> Any:
    expected = f"{'' if of_end else 'earliest, '}latest, a time, or JSON by stream"
    return option(
        _ROWS, None, expected, doc, partial(parse_positions, option=option_name(key), of_end=of_end)
    )


@dataclass(frozen=True, kw_only=True)
class ReadOptions(StreamOptions):
    """The options of one read, checked."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **StreamOptions.INSTEAD,
        **OF_KAFKA,
        "path": "Call load() without a path; the source is the option stream, superStream or exchange",
        **dict.fromkeys(("subscribe", "topic", "assign"), "Use stream or superStream"),
        "subscribepattern": "Use superStream or exchange, which also find new streams",
        "streams": "Use stream, with names separated by commas",
        **dict.fromkeys(
            ("startingtimestamp", "startingoffsetsbytimestamp"), f"Use startingOffsets, {_TIMES}"
        ),
        **dict.fromkeys(("endingtimestamp", "endingoffsetsbytimestamp"), f"Use endingOffsets, {_TIMES}"),
        **dict.fromkeys(
            ("kafkagroupid", "groupidprefix"), "Leave it out: each query keeps its offsets in its checkpoint"
        ),
    }

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
    max_rows_per_trigger: int | None = integer(
        _ROWS,
        None,
        "Maximum number of rows of a micro-batch, over all streams. Needs PySpark 4.2.",
        most=2**63 - 1,
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
        return self.starting_offsets or Positions(default)

    @property
    def end(self) -> Positions:
        """Where a batch ends."""
        return self.ending_offsets or Positions(LATEST)

    @property
    def source(self) -> str:
        """What is read, as shown to people."""
        if self.stream is not None:
            return "the option stream"
        if self.super_stream is not None:
            return f"super stream {self.super_stream!r}"
        return f"exchange {self.exchange!r}"

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
            hint = "Remove it: reads of streams do not have this option"
            raise InvalidValue("option for a read", name, "an option of a read", hint)
        return super()._unknown(name)

    def _check(self, found: set[str]) -> None:
        if not found & set(TARGETS):
            expected = f"one of the options {', '.join(map(option_name, TARGETS))}"
            raise InvalidValue("source of a read", None, expected, _SUMMARY)
        check_one_target("source of a read", map(option_name, found))
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
        if "endingoffsets" in map(str.lower, given):
            hint = "With trigger(availableNow=True) a query ends where the streams ended when it started"
            raise InvalidValue("option endingOffsets", "a streaming read", "a batch read", hint)


def no_keys(keys: Iterable[str], source: str, reason: str = "") -> InvalidValue:
    """The error for a source whose streams cannot be chosen by key."""
    names = ", ".join(f"'{key}'" for key in keys)
    where = f'Leave keys out and filter the rows: where("routing_key in ({names})")'
    return InvalidValue(
        "option keys",
        f"a read of {source}",
        "the option superStream, or an exchange whose routes are known",
        f"{reason[:1].upper()}{reason[1:]}. {where}" if reason else where,
    )


_NEEDED_SOURCES: Final = {"management_url": {"exchange"}, "keys": {"super_stream", "exchange"}}
"""The sources of the options that not every source has."""
READ_OPTIONS: Final = options_of(ReadOptions)
"""All options of a read, for documentation."""
ONLY_OF_WRITES: Final = keys_of(WriteOptions).keys() - keys_of(ReadOptions)
"""The options that a write has and a read does not, in lower case."""
ONLY_OF_READS: Final = keys_of(ReadOptions).keys() - keys_of(WriteOptions)
"""The options that a read has and a write does not, in lower case."""
