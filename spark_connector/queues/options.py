"""The options of a read of a queue: the fields of `QueueOptions` are their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from rabbit_chx import InvalidValue
from spark_connector.connection_options import AmqpOptions, ConnectionOptions, check_one_target
from spark_connector.option_table import check_short_text, integer, keys_of, options_of, text
from spark_connector.reading.options import OF_KAFKA, ReadOptions, listed
from spark_connector.writing.options import WriteOptions

_SOURCE, _ROWS = "Source", "Rows"
_MOST_ROWS: Final = 32_767


@dataclass(frozen=True, kw_only=True)
class QueueOptions(AmqpOptions):
    """The options of a streaming read of a queue, checked."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ConnectionOptions.INSTEAD,
        **OF_KAFKA,
        "path": "Call load() without a path; the option queue names the queue",
        **dict.fromkeys(("subscribe", "topic", "assign"), "The option queue names the queue"),
        "subscribepattern": "A query reads one queue: the option queue names it",
        "prefetch": "Use maxRowsPerTrigger",
        **dict.fromkeys(
            (
                "startingtimestamp",
                "endingtimestamp",
                "startingoffsetsbytimestamp",
                "endingoffsetsbytimestamp",
            ),
            "Leave it out: a queue has no offsets. To read from a position, read a stream",
        ),
    }

    queue: str = text(_SOURCE, "The classic or quorum queue to read, in a streaming read.", "")
    columns: tuple[str, ...] | None = listed(
        _ROWS, "The columns to return, separated by commas. Default: all."
    )
    max_rows_per_trigger: int = integer(
        _ROWS,
        10_000,
        "Maximum number of rows of a micro-batch. The driver prefetches up to twice as many messages.",
        most=_MOST_ROWS,
    )
    min_partitions: int = integer(
        _ROWS,
        1,
        "Divide the rows of a micro-batch among this many tasks; only a single task keeps the order of the queue.",
    )

    @classmethod
    def applicable_defaults(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """Also leave out a default limit of rows that is too high for a queue."""
        found = super().applicable_defaults(given, defaults)
        return {
            name: value
            for name, value in found.items()
            if name.lower() != "maxrowspertrigger" or not value.isdecimal() or int(value[:20]) <= _MOST_ROWS
        }

    @classmethod
    def _unknown(cls, name: str) -> str:
        check_one_target("source of a read", [name, "queue"])
        if name.lower() in {**keys_of(ReadOptions), **keys_of(WriteOptions)}:
            raise InvalidValue(
                "option for a read of a queue",
                name,
                "an option of a read of a queue",
                "Remove it: only writes or reads of streams have this option",
            )
        return super()._unknown(name)

    def _check(self, found: set[str]) -> None:
        super()._check(found)
        if not self.queue:
            raise InvalidValue("option queue", self.queue, "the name of a queue")
        check_short_text(self.queue, "option queue")


QUEUE_OPTIONS: Final = options_of(QueueOptions)
"""All options of a read of a queue, for documentation."""
