"""Publishing ids, which let a stream drop the rows that it already has.

A stream remembers the last publishing id of each producer name and drops messages whose id is not higher. The id of a row
includes a checksum of the rows up to it. When a task runs again, the checksum shows whether it sends the same rows in the same
order. Without this check, the stream could drop rows that it does not have.

The stream also remembers rows that no majority of its replicas has yet. So a task that runs again also sends the last of these
rows: the broker drops it, but confirms it only when a majority has this row and the rows before it.

=============  ======================  ======================  ========================
write          bits of the batch       bits of the row         bits of the checksum
=============  ======================  ======================  ========================
batch          0                       the rest                28
micro-batch    the rest                24                      12
=============  ======================  ======================  ========================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

_BATCH_CHECKSUM: Final = 28
_ROW: Final = 24
_MICRO_BATCH_CHECKSUM: Final = 12
MAX_ROWS: Final = (1 << _ROW) - 1
"""Maximum number of rows that one partition of a micro-batch sends to one stream."""
HOW_TO_CONTINUE: Final = 'see "A write fails because its rows differ" in docs/spark-guarantees.md'
"""Ends each error of a write that fails again if it runs again unchanged."""
SAME_PARTITIONS: Final = (
    "Divide the rows into the same partitions as before (coalesce, minPartitions and the number of cores change them), or use "
    f"another producerName: {HOW_TO_CONTINUE}"
)
_SAME_ORDER: Final = (
    'Send the same rows in the same order as before (df.sortWithinPartitions("id") makes an order repeatable), or use another '
    f"producerName: {HOW_TO_CONTINUE}"
)
_OWN_NAME: Final = (
    "The checkpoint is older than the stream, or another write used the producer name: use another producerName, "
    f"{HOW_TO_CONTINUE}"
)
_FEWER_ROWS: Final = f"Use more partitions and another producerName, or exactlyOnce=false: {HOW_TO_CONTINUE}"


class NotRepeatable(Exception):
    """The rows differ from those of an earlier attempt. The message continues a sentence about the rows of a partition."""

    def __init__(self, message: str, advice: str = _OWN_NAME) -> None:
        super().__init__(message)
        self.advice = advice


class PublishingIds:
    """Numbers the rows that one partition of a write sends to one stream."""

    def __init__(self, micro_batch: int | None, known: int) -> None:
        """Start with the first row of a partition.

        Args:
            micro_batch: the number of the micro-batch; None in a batch.
            known: the last id that the stream remembers for the producer name; 0 if it remembers none.

        Raises:
            NotRepeatable: the stream has rows of a later micro-batch.
        """
        self.rows = 0
        self.last = known
        self._checksum_bits = _BATCH_CHECKSUM if micro_batch is None else _MICRO_BATCH_CHECKSUM
        self._base = 0 if micro_batch is None else micro_batch << _ROW + _MICRO_BATCH_CHECKSUM
        self._limit = MAX_ROWS if micro_batch is not None else 1 << 62 - _BATCH_CHECKSUM
        self._checksum = 0
        self.stored = max(known - self._base, 0) >> self._checksum_bits
        """Number of rows of this batch that the stream already has."""
        if self.stored > self._limit:
            number = known >> _ROW + _MICRO_BATCH_CHECKSUM
            raise NotRepeatable(
                f"belong to micro-batch {micro_batch}, but the stream has rows of micro-batch {number}"
            )

    def of(self, messages: Iterable[bytes]) -> list[int]:
        """Number the next rows. Return the ids of those to send: the last row that the stream has, and all rows after it.

        Raises:
            NotRepeatable: the stream has other rows, or there are too many rows.
        """
        base, bits, row, checksum = self._base, self._checksum_bits, self.rows, self._checksum
        mask, stored = (1 << bits) - 1, self.stored
        found: list[int] = []
        for message in messages:
            row += 1
            checksum = crc32(message, checksum)
            if row == stored and (checksum & mask) != self.last & mask:
                raise NotRepeatable(
                    f"differ from the first {stored} rows that the stream has, or come in another order",
                    _SAME_ORDER,
                )
            if row >= stored:
                found.append(base + (row << bits) + (checksum & mask))
        if row > self._limit:
            raise NotRepeatable(f"exceed the maximum of {self._limit} in one micro-batch", _FEWER_ROWS)
        self.rows, self._checksum = row, checksum
        if found:
            self.last = found[-1]
        return found

    def end(self) -> None:
        """Check the number of rows after the last one.

        Raises:
            NotRepeatable: the stream has more rows than the partition.
        """
        if self.rows < self.stored:
            raise NotRepeatable(f"number {self.rows}, but the stream has {self.stored}", SAME_PARTITIONS)
