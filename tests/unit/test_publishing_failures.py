"""`PublishFailed.failures` names each message that was not confirmed."""

from __future__ import annotations

import asyncio
import pickle
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing import Failure, Outcome
from rabbit_chx.publishing.messages import Failures, OutgoingMessage
from tests.patience import wait_until
from tests.unit.test_docs import marked
from tests.unit.test_publishing_asyncio import opened
from tests.unit.test_publishing_calls import PATIENCE, scene

Call = Callable[..., PublishFailed]


def publish_many(bodies: Sequence[bytes], timeout: float | None = None, **options: Any) -> PublishFailed:
    with scene(**options) as (publisher, _), pytest.raises(PublishFailed) as caught:
        publisher.publish_many(bodies, keys(bodies), timeout=timeout)
    return caught.value


def flush(bodies: Sequence[bytes], timeout: float | None = None, **options: Any) -> PublishFailed:
    with scene(**options) as (publisher, _):
        bulk = publisher.bulk()
        bulk.add_many(bodies, keys(bodies), timeout=timeout)
        with pytest.raises(PublishFailed) as caught:
            bulk.flush(timeout)
    return caught.value


def publish_many_in_loop(
    bodies: Sequence[bytes], timeout: float | None = None, **options: Any
) -> PublishFailed:
    async def work() -> PublishFailed:
        async with opened(**options) as (publisher, _):
            with pytest.raises(PublishFailed) as caught:
                await publisher.publish_many(bodies, keys(bodies), timeout=timeout)
        return caught.value

    return asyncio.run(work())


def keys(bodies: Sequence[bytes]) -> list[str]:
    return [*map(str, range(len(bodies)))]


CALLS = pytest.mark.parametrize("call", [publish_many, flush, publish_many_in_loop])


def outcomes(failed: PublishFailed) -> Counter[Outcome]:
    return Counter(failure.outcome for failure in failed.failures)


@CALLS
def test_each_of_many_rejected_messages_is_named(call: Call) -> None:
    failed = call([b"no", b"yes", b"no"] * 100)
    rows = [row for row in range(300) if row % 3 != 1]
    assert [(failure.row, failure.routing_key) for failure in failed.failures] == [
        (row, str(row)) for row in rows
    ]
    assert outcomes(failed) == {Outcome.REJECTED: 200}


@CALLS
def test_messages_without_an_outcome_are_unknown_and_those_without_room_unsent(call: Call) -> None:
    failed = call([b"late"] * 300, timeout=1, max_in_flight=100)
    assert [failure.row for failure in failed.failures] == [*range(300)]
    assert outcomes(failed) == {Outcome.UNKNOWN: failed.totals.pending, Outcome.UNSENT: failed.totals.unsent}
    for failure in failed.failures:
        assert failure.may_have_arrived == (failure.outcome is Outcome.UNKNOWN)
    assert failed.may_have_arrived


def test_a_failure_is_told_by_one_flush_and_a_message_without_an_outcome_by_each() -> None:
    with scene() as (publisher, script):
        bulk = publisher.bulk()
        bulk.add_many([b"late", b"no", b"late"])
        wait_until(lambda: bulk.totals.rejected, "a message is rejected")
        rows, texts = [], []
        for body in (b"no", b"no"):
            with pytest.raises(PublishFailed) as caught:
                bulk.flush(0.05)
            assert caught.value.may_have_arrived
            texts.append(str(caught.value))
            rows.append([failure.row for failure in caught.value.failures])
            seen = bulk.totals.rejected
            bulk.add(body)
            wait_until(lambda seen=seen: bulk.totals.rejected > seen, "another message is rejected")
        assert rows == [[0, 1, 2], [0, 2, 3]]
        assert re.match(
            "1 of 3 .*; the first: row 1 rejected .*; unconfirmed after 0.05 seconds: 2 messages", texts[0]
        )
        assert [failure.row for failure in bulk.failures] == [1, 3, 4]
        script.confirm_late()
        with pytest.raises(PublishFailed, match="the first: row 4 rejected"):
            bulk.flush(PATIENCE)
        assert bulk.flush(PATIENCE).confirmed == 2


def test_the_lines_of_the_guide_publish_failures_again() -> None:
    with scene() as (publisher, script):
        bodies = [b"yes 0", b"no 1", b"yes 2", b"no 3"]
        names = {"publisher": publisher, "bodies": bodies, "keys": ["k0", "k1", "k2", "k3"]}
        with pytest.raises(PublishFailed) as caught:
            exec(marked("publisher.md", "test_the_lines_of_the_guide_publish_failures_again"), names)
        assert caught.value.totals.published == 2
        assert [failure.routing_key for failure in caught.value.failures] == ["k1", "k3"]
        assert script.bodies.count(b"yes 0") == script.bodies.count(b"yes 2") == 1


def messages(count: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(row, b"x", b"k%d" % row, b"", b"") for row in range(count)]


def test_many_failures_take_little_memory() -> None:
    failed = messages(20_000)
    tracemalloc.start()
    failures = Failures()
    failures.add(reversed(failed), Outcome.RETURNED, "312 NO_ROUTE")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 40 * len(failed)
    assert failures.first_row == 0
    first, *_, last = failures.by_row()
    assert (first, last) == tuple(
        Failure(row, Outcome.RETURNED, "x", f"k{row}", "312 NO_ROUTE", may_have_arrived=False)
        for row in (0, 19_999)
    )


def test_failures_can_be_sliced_and_reach_another_process() -> None:
    failures = Failures()
    failures.add(messages(3), Outcome.UNKNOWN, "lost")
    assert [failure.row for failure in failures[1:]] == [1, 2]
    assert failures[-1].row == 2
    assert repr(failures) == "<3 messages without a confirm>"
    error = pickle.loads(pickle.dumps(PublishFailed("no", None, failures)))
    assert [*error.failures] == [*failures]
