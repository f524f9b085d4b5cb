"""How far queries are behind the ends of their streams."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_connector.reading.offsets import is_of_streams
from spark_connector.worker import log_line


class LagListener(StreamingQueryListener):
    """Counts the offsets that queries have not read yet, by stream.

        lag = LagListener()
        spark.streams.addListener(lag)
        lag.now  # {"0d7a...": {"events-0": 120, "events-1": 0}}, by the id of each query

    The counts change after each micro-batch, and are logged as a line of JSON. Offsets have gaps, so fewer rows may be left. Before
    PySpark 4.2, Spark does not report where streams end, and there are no counts.
    """

    def __init__(self) -> None:
        self.now: dict[str, dict[str, int]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is known before the first micro-batch."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Count the offsets after a micro-batch."""
        progress = event.progress
        behind: dict[str, int] = {}
        for source in progress.sources:
            behind |= offsets_behind(source.latestOffset, source.endOffset)
        if behind:
            self.now[str(progress.id)] = behind
            line = {
                "event": "lag",
                "query": str(progress.id),
                "name": progress.name,
                "offsets_behind": behind,
            }
            log_line(logging.INFO, json.dumps(line))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget a query that has ended."""
        self.now.pop(str(event.id), None)


def offsets_behind(latest: str | None, end: str | None) -> dict[str, int]:
    """The offsets between two offsets of a query's progress, by stream; nothing for sources that are not streams."""
    ends, reached = _parsed(latest), _parsed(end)
    if not reached or not is_of_streams(reached):
        return {}
    return {
        stream: max(ends[stream] - saved["offset"], 0)
        for stream, saved in reached.items()
        if type(ends.get(stream)) is int
    }


def _parsed(offset: str | None) -> Mapping[str, Any]:
    """An offset of Spark's progress, which is JSON for most sources."""
    try:
        found = json.loads(offset or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
