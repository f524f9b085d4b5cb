"""Publishing ids: by them, a stream drops the rows that it already has.

A stream remembers the last publishing id of each producer name, and drops messages whose id is not higher. Here, the id of a
row also has a checksum of all rows before it. So a task that runs again can see whether its rows are the same as before and
in the same order: with other rows, the stream would drop some that it does not have.

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
"""Rows of one partition of a micro-batch, for one stream."""


class NotRepeatable(Exception):
    """The rows differ from those of an earlier attempt; the message continues "the rows of partition 3 ..."."""


class PublishingIds:
    """The ids of the rows that one partition of a write sends to one stream."""

    def __init__(self, micro_batch: int | None, known: int) -> None:
        """Begin a partition.

        Args:
            micro_batch: its number; None for a batch.
            known: the last id that the stream remembers for the producer name; 0 if there is none.

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
        """How many rows of this batch the stream has already."""
        if self.stored > self._limit:
            number = known >> _ROW + _MICRO_BATCH_CHECKSUM
            raise NotRepeatable(
                f"are of micro-batch {micro_batch}, but the stream has rows of micro-batch {number}"
            )

    def of(self, messages: Iterable[bytes]) -> list[tuple[int, bytes]]:
        """The ids of the next rows, without the rows that the stream already has.

        Raises:
            NotRepeatable: the stream has other rows, or the rows are too many.
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
            raise NotRepeatable(f"are more than {self._limit} in one micro-batch")
        self.rows, self._checksum = row, checksum
        if found:
            self.last = found[-1][0]
        return found

    def end(self) -> None:
        """End the partition.

        Raises:
            NotRepeatable: the stream has more rows than the partition.
        """
        if self.rows < self.stored:
            raise NotRepeatable(f"are {self.rows}, but the stream has {self.stored}")
