"""The reader returns exactly the messages that several clients wrote: each offset once, in order, with its value.

rstream reads the same stream and provides the expected offsets.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import pairwise

import pytest

from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.streams.ends import bounds
from tests.broker.stream_scene import streams_at
from tests.broker.stream_writers import NAME, WRITERS, over_amqp, over_stream_protocol, read_with_rstream
from tests.patience import wait_until
from tests.proof import LONG, Check, dice, record_result

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.one_release]

ROWS = 1_000_000 if LONG else 100_000
PARTS = 20
"""One client writes each part of the rows. A stored offset after each part is a hole."""
RANGES = 40
SEGMENTS = {"stream-max-segment-size-bytes": "500000"}
LARGE = 1_000_000
"""Size in bytes of one message of each part, close to the maximum frame size."""
LESS = 50_000
"""The same size for the parts that rstream writes."""
OURS = (over_amqp, over_stream_protocol)


def parts(random, writers):
    """Yield the values of each part, of different lengths, with an empty and a large one."""
    for part, writer in enumerate(writers):
        numbers = range(part * ROWS // PARTS, (part + 1) * ROWS // PARTS)
        values = [b"%d " % number + b"x" * random.choice((0, 0, 0, 3, 60, 300)) for number in numbers]
        values[random.randrange(len(values))] = b""
        values[random.randrange(len(values))] = (b"%d " % part).ljust(LARGE if writer in OURS else LESS, b"y")
        yield values


def written(broker, stream, random) -> list[bytes]:
    """Write all parts, and return their values in the order of the stream."""
    writers = [*WRITERS.values()] * (PARTS // len(WRITERS))
    random.shuffle(writers)
    everything = []
    for number, (write, values) in enumerate(zip(writers, parts(random, writers), strict=True)):
        write(broker, stream, values)
        everything += values
        name = f"reader-{number}"
        with connect(broker.stream_url) as connection:
            connection.store_offset(name, stream, number)
            wait_until(lambda: connection.query_offset(name, stream) is not None, "a stored offset")  # noqa: B023
    return everything


def read(broker, stream, ranges):
    """Read ranges in order with two readers of different credits in turn, and return offsets and values."""
    readers = [StreamReader(broker.stream_url, stream, credit=credit) for credit in (2, 50)]
    found = []
    for reader in readers:
        reader.open()
    try:
        for number, (start, end) in enumerate(ranges):
            for batch in readers[number % 2].read(start, end, columns=["offset", "body"]):
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    finally:
        for reader in readers:
            reader.close()
    return found


def test_messages_of_five_clients_are_read_once_in_order(broker):
    started, random = time.monotonic(), dice("five writers", broker.version)
    with streams_at(broker.stream_url, NAME, arguments=SEGMENTS) as (stream,):
        values = written(broker, stream, random)
        oracle = read_with_rstream(broker, stream, len(values))
        assert all(raw.endswith(value) for (_, raw), value in zip(oracle, values, strict=True))
        rows = [(offset, value) for (offset, _), value in zip(oracle, values, strict=True)]
        offsets = [offset for offset, _ in rows]
        with connect(broker.stream_url) as connection:
            ends = bounds(connection, stream)
        assert ends.first == 0
        assert ends.end > len(rows), "the stream has no holes"

        cuts = [0, *sorted(random.sample(range(1, ends.end), RANGES)), ends.end]
        found = read(broker, stream, pairwise(cuts))
        inside = [sorted(random.choices(range(ends.end + 1), k=2)) for _ in range(RANGES // 4)]
        wrong = sum(
            read(broker, stream, [(start, end)])
            != rows[bisect_left(offsets, start) : bisect_left(offsets, end)]
            for start, end in inside
        )
        what = f"five clients write to one stream; {len(cuts) - 1} adjacent and {len(inside)} other ranges are read"
        control = f"rstream reads the same offsets, with {ends.end - len(rows):,} holes"
        missed = 0 if found == rows else len(set(rows) ^ set(found)) or 1
        seconds = time.monotonic() - started
        record_result(
            Check("Streams", what, broker.version, len(rows) + len(inside), missed + wrong, seconds, control)
        )
    assert not wrong
    assert [offset for offset, _ in found] == offsets
    assert found == rows
