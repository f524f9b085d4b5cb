"""Messages that a read of a queue has handed out and not acknowledged, without a broker and without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rabbit_chx import InvalidValue, RabbitChxError
from rabbit_chx.consuming import Batch
from rabbit_chx.working.messages import Delivery
from spark_connector.queues.options import QueueOptions
from spark_connector.queues.source import HandedOut, QueueStreamReader

EARLIER = {"queue": "q", "session": "earlier", "rows": 70}


def batch(first: int, count: int, connection: int = 0) -> Batch:
    messages = [Delivery(b"%d" % tag, "key", queue="q", tag=tag) for tag in range(first, first + count)]
    return Batch(tuple(messages), connection)


def at(rows: int) -> dict[str, object]:
    return {"queue": "q", "session": "this", "rows": rows}


def tags(messages: list[Delivery]) -> list[int]:
    return [message.tag for message in messages]


def last(done: Batch | None) -> tuple[int, int] | None:
    """The connection and the tag that are acknowledged."""
    return None if done is None else (done._connection, done.messages[-1].tag)


@pytest.fixture
def handed_out() -> HandedOut:
    """Rows 0 to 3, and 3 to 5 from a new connection, whose delivery tags start at 1 again."""
    found = HandedOut("q", "this")
    assert found.add(batch(1, 3)) == at(3)
    assert found.add(batch(1, 2, connection=1)) == at(5)
    assert found.add(Batch((), 1)) == found.offset == at(5)
    return found


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (at(0), at(3), [1, 2, 3]),
        (at(3), at(5), [1, 2]),
        (at(0), at(5), [1, 2, 3, 1, 2]),
        (at(5), at(5), []),
        (EARLIER, at(3), [1, 2, 3]),
        (EARLIER, {**EARLIER, "rows": 90}, []),
        ({**EARLIER, "session": "before that"}, EARLIER, []),
    ],
)
def test_a_range_has_the_rows_of_this_session(handed_out, start, end, expected) -> None:
    for _ in range(2):  # Spark may plan a micro-batch again
        assert tags(handed_out.between(start, end)) == expected


def test_a_range_with_acknowledged_rows_is_an_error(handed_out) -> None:
    assert last(handed_out.finished(at(3))) == (0, 3)
    assert tags(handed_out.between(at(3), at(5))) == [1, 2]
    for start, end in ((at(0), at(5)), (at(3), at(6)), (at(2), at(5))):
        with pytest.raises(RabbitChxError, match="Restart the query"):
            handed_out.between(start, end)


@pytest.mark.parametrize(
    ("ends", "acknowledged"),
    [
        ([at(0), at(2)], [None, None]),
        ([at(3), at(3), at(5)], [(0, 3), None, (1, 2)]),
        ([at(5), at(3)], [(1, 2), None]),
        ([None, EARLIER, {**EARLIER, "rows": 3}], [None, None, None]),
    ],
)
def test_finished_batches_of_this_session_are_acknowledged_once(handed_out, ends, acknowledged) -> None:
    assert [last(handed_out.finished(end)) for end in ends] == acknowledged


@pytest.mark.parametrize(
    ("saved", "owner"),
    [
        ({"s1": {"offset": 5}, "s0": {"offset": 2, "seen": [1, 1_000]}}, r"streams \['s0', 's1'\]"),
        ({**EARLIER, "queue": "other"}, "queue 'other'"),
        ({"logOffset": 3}, "another format: {'logOffset': 3}"),
        (0, "another format: 0"),
    ],
)
def test_a_micro_batch_is_not_planned_from_the_checkpoint_of_another_source(saved, owner) -> None:
    options = QueueOptions.of({"url": "amqp://127.0.0.1:1", "queue": "q"})
    made = QueueStreamReader(options, pa.schema({"value": pa.binary()}))
    for plan in (made.latestOffset, lambda end: made.partitions(end, end), made.commit):
        with pytest.raises(InvalidValue, match=f"got offsets of {owner}, expected offsets of queue 'q'"):
            plan(saved)
