"""What a reader of a queue does when the broker ends its consumer."""

from __future__ import annotations

from rabbit_chx.consuming import QueueReader
from rabbit_chx.consuming.queue_reader import _TakenBack


def reader() -> QueueReader:
    return QueueReader("amqp://127.0.0.1:1", "orders.0")


def test_the_broker_may_end_the_consumer_of_an_idle_reader_any_number_of_times() -> None:
    idle = reader()
    for _ in range(3):
        error = idle._why(_TakenBack())
        assert str(error) == "the broker ended the consumer of queue 'orders.0'"
        assert not error.permanent


def test_only_messages_that_were_taken_back_twice_in_a_row_are_permanent() -> None:
    busy = reader()
    for permanent in (False, True):
        busy._delivered = 3
        error = busy._why(_TakenBack())
        assert "increase consumer_timeout" in str(error)
        assert error.permanent is permanent
        busy._forget()
        assert not busy._why(_TakenBack()).permanent  # which leaves the count as it is
