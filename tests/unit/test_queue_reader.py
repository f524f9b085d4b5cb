"""What a reader of a queue does when the broker does not answer, or ends its consumer."""

from __future__ import annotations

from typing import Any

import pytest

from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.consuming import QueueReader, queue_reader
from rabbit_chx.consuming.queue_reader import _TakenBack
from rabbit_chx.errors import BrokerUnavailable
from tests.patience import PATIENCE


def reader() -> QueueReader:
    return QueueReader("amqp://127.0.0.1:1", "orders.0")


def test_only_messages_that_were_taken_back_twice_in_a_row_are_permanent() -> None:
    busy = reader()
    for permanent in (False, True):
        busy._delivered = 3
        error = busy._why(_TakenBack())
        assert "increase consumer_timeout" in str(error)
        assert error.permanent is permanent
        busy._forget()
        assert not busy._why(_TakenBack()).permanent  # which leaves the count as it is


def test_the_addresses_share_what_is_left_of_the_time_for_the_first_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, taken = 0.0, []

    def answer_nothing(addresses: Any, *, timeout: float, **_: Any) -> None:
        nonlocal now
        taken.append(timeout * len(addresses))
        now += 3.0
        raise BrokerUnavailable("silent", permanent=len(taken) == 2)

    monkeypatch.setattr(queue_reader, "connect", answer_nothing)
    monkeypatch.setattr(queue_reader, "monotonic", lambda: now)
    urls = [f"amqp://127.0.0.{number}:1" for number in (1, 2, 3)]
    with (
        QueueReader(urls, "orders.0", timeouts=Timeouts(connect=9)) as reader,
        pytest.raises(BrokerUnavailable, match="silent"),
    ):
        reader.take(1, timeout=PATIENCE)
    assert taken == pytest.approx([9.0, 6.0])
