"""Publishing ids, which let a stream drop the rows that it already has.

A stream remembers the last publishing id of each producer name and drops messages whose id is not higher. The id of a row
includes a checksum of the rows up to it. When a task runs again, the checksum shows whether it sends the same rows in the same
order. Without this check, the stream could drop rows that it does not have.

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
SORT_ROWS: Final = (
    "Sort the rows of each partition before the write, so that each attempt sends the same rows in the same order: "
    'df.sortWithinPartitions("id"). exactlyOnce=false writes them at least once'
)
"""Ends each error about rows that differ from those of an earlier attempt."""


class NotRepeatable(Exception):
    """The rows differ from those of an earlier attempt. The message continues a sentence about the rows of a partition."""


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

    def of(self, messages: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """Number the next rows. Return the rows that the stream does not have, with their ids.

        Raises:
            NotRepeatable: the stream has other rows, or there are too many rows.
        """
        base, bits, row, checksum = self._base, self._checksum_bits, self.rows, self._checksum
        mask, stored, found = (1 << bits) - 1, self.stored, []
        for message in messages:
            row += 1
            checksum = crc32(message, checksum)
            if row > stored:
                found.append((base + (row << bits) + (checksum & mask), message))
            elif row == stored and (checksum & mask) != self.last & mask:
                raise NotRepeatable(
                    f"differ from the first {stored} rows that the stream has, or come in another order"
                )
        if row > self._limit:
            raise NotRepeatable(f"exceed the maximum of {self._limit} in one micro-batch")
        self.rows, self._checksum = row, checksum
        if found:
            self.last = found[-1][0]
        return found

    def end(self) -> None:
        """Check the number of rows after the last one.

        Raises:
            NotRepeatable: the stream has more rows than the partition.
        """
        if self.rows < self.stored:
            raise NotRepeatable(f"number {self.rows}, but the stream has {self.stored}")
