"""Publishing ids: a stream stores each row once, and different rows of another attempt are detected."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spark_connector.writing.publishing_ids import MAX_ROWS, NotRepeatable, PublishingIds


class Stream:
    """A stream, as a publisher with one producer name sees it."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.last = 0

    def publish(self, numbers, messages) -> None:
        for number, message in zip(numbers, messages[len(messages) - len(numbers) :], strict=True):
            if number > self.last:
                self.last = number
                self.stored.append(message)


@given(
    micro_batches=st.lists(st.lists(st.binary(max_size=3), max_size=30), max_size=5),
    attempts=st.lists(st.integers(0, 40), max_size=4),
    batch=st.booleans(),
)
def test_rows_of_attempts_that_end_anywhere_are_stored_once_and_in_order(
    micro_batches, attempts, batch
) -> None:
    stream = Stream()
    numbers = [None] if batch else range(7, 7 + len(micro_batches))
    for number, rows in zip(numbers, micro_batches, strict=False):
        for rows_sent in (*attempts, len(rows)):
            ids = PublishingIds(number, stream.last)
            for some in (rows[: rows_sent // 2], rows[rows_sent // 2 : rows_sent]):
                stream.publish(ids.of(some), some)
            if rows_sent >= len(rows):
                ids.end()
        assert ids.last == stream.last
    assert stream.stored == [row for rows in micro_batches[: len(numbers)] for row in rows]


def test_ids_fit_into_63_bits_and_their_rows_are_limited() -> None:
    ids = PublishingIds(2**27 - 1, 0)
    ids.rows = MAX_ROWS - 1
    assert ids.of([b""])[0] < 2**63
    with pytest.raises(NotRepeatable, match=f"exceed the maximum of {MAX_ROWS} in one micro-batch"):
        ids.of([b""])
