"""A streaming source of Spark that returns the same rows in every micro-batch: what Spark itself takes for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rabbit_chx.consuming import Message
from spark_connector.columns import QUEUE_COLUMNS
from spark_connector.queues.rows import RowsPartition, partitions, rows
from spark_connector.reading.schema import arrow_schema, spark_schema


class RepeatedRows(DataSource):  # type: ignore[misc] # PySpark has no types here
    """The rows of a queue whose messages all have the option ``body``, as many as ``rows`` says in a micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "repeated_rows"

    def schema(self) -> StructType:
        return spark_schema(None, QUEUE_COLUMNS)

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: N802, ARG002 - Spark's name
        return _Reader(int(self.options["rows"]), self.options["body"].encode())


class _Reader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, most: int, body: bytes) -> None:
        self._most, self._body = most, body
        self._rows = 0
        self._packed: list[RowsPartition] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most, self._body)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        self._rows += self._most
        return {"rows": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[RowsPartition]:  # noqa: ARG002
        if not self._packed:
            schema = arrow_schema(spark_schema(None, QUEUE_COLUMNS), None, QUEUE_COLUMNS)
            self._packed = partitions([Message(self._body, "measured")] * self._most, schema, 1)
        return self._packed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(partition)
