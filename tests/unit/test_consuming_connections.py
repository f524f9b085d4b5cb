"""How the connection of a member ends: with a message that the broker cannot deliver, silently, or while a channel is closed."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from pika.exceptions import AMQPError, ConnectionClosedByBroker, StreamLostError

from rabbit_chx.broker.amqp import connect, server_version
from rabbit_chx.broker.commands import Lost, exists
from rabbit_chx.broker.driver import PikaDriver, _deadline
from rabbit_chx.consuming.member.channels import close_in_one_step
from rabbit_chx.consuming.member.member import Member
from tests.amqp_server import AmqpServer
from tests.patience import PATIENCE
from tests.unit.test_consuming_members import Broker, member

# ---- messages that the broker cannot deliver


def ended_with(joined: Member, code: int, queue: str = "") -> str:
    """The reason that a member shows after the broker has closed its connection, just after it began to consume a queue."""

    def close(_: float) -> bool:
        raise ConnectionClosedByBroker(code, "INTERNAL_ERROR")

    with suppress(ConnectionClosedByBroker), joined._undeliverable.consuming(queue, close):
        pass
    joined._on_lost(ConnectionClosedByBroker(code, "INTERNAL_ERROR"))
    return joined.status.reason


def test_the_third_541_in_a_row_from_the_same_queue_names_it(caplog) -> None:
    joined = member(Broker())
    reasons = [ended_with(joined, 541, "a") for _ in range(4)]
    # The first may come from any queue.
    assert ["'a'" in each for each in reasons] == [False, False, False, True]
    assert "(541 INTERNAL_ERROR) 3 times in a row when it delivered from queue 'a'" in caplog.messages[-1]
    assert "uuid or char" in reasons[-1]


@pytest.mark.parametrize("between", [(541, "b"), (320, "a")])
def test_other_ends_of_the_connection_begin_the_count_again(between) -> None:
    joined = member(Broker())
    reasons = [ended_with(joined, *each) for each in [(541, "a")] * 3 + [between] + [(541, "a")] * 2]
    assert not any("delivered from" in each for each in reasons)


def test_queues_are_consumed_at_once_unless_the_last_connection_ended_with_541() -> None:
    joined = member(Broker())
    ended_with(joined, 320, "a")
    with joined._undeliverable.consuming("a", lambda _: pytest.fail("it waits")):
        pass


def test_a_frame_that_is_larger_than_agreed_names_the_queue_that_is_being_consumed() -> None:
    """The delivery may come in the data that also answers the consume command."""
    joined, lost = (
        member(Broker()),
        StreamLostError("Stream connection lost: InvalidFrameError: a frame of 200087 bytes"),
    )
    for _ in range(4):
        with (
            suppress(StreamLostError),
            joined._undeliverable.consuming("a", lambda _: pytest.fail("it waits")),
        ):
            raise lost
        joined._on_lost(lost)
    assert (
        "larger frame than agreed 3 times in a row when it delivered from queue 'a'" in joined.status.reason
    )


# ---- connections that end silently


def test_a_command_on_a_connection_that_has_ended_is_lost_and_not_refused() -> None:
    """pika raises a ValueError then, as for what it cannot send. The end of the connection while a channel was closed raised nothing."""
    with AmqpServer(print) as server, connect(server.url) as connection:
        driver = PikaDriver(connection)
        connection._impl._terminate_stream(StreamLostError("it is over"))
        with pytest.raises(AMQPError):
            connection.process_data_events(0)
        with pytest.raises(Lost, match="has ended"):
            driver.run(exists("a"))


def test_a_command_leaves_the_connection_as_patient_as_it_was() -> None:
    with AmqpServer(print) as server, connect(server.url) as connection:
        before = connection.patience
        with _deadline(connection, before + 100):
            assert connection.patience > before + 100, "the deadline comes first"
        assert connection.patience == before


@pytest.mark.timeout(60)  # without a deadline, it would wait for ever
def test_a_connection_ends_if_the_broker_does_not_close_a_channel(monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.consuming.member.channels._PATIENCE", 0.1)
    done = threading.Event()
    with AmqpServer(lambda _: done.wait(PATIENCE)) as server, connect(server.url) as connection:
        with pytest.raises(StreamLostError, match=r"did not close a channel within 0\.1 seconds"):
            close_in_one_step({connection.channel(): ""}, 1)
        assert not connection.is_open
        done.set()


def test_a_connection_that_is_lost_as_soon_as_it_is_open_ends_no_member() -> None:
    """pika then has no properties of the server: an error of the connection, after which the member tries again."""
    lost = SimpleNamespace(_impl=SimpleNamespace(server_properties=None))
    with pytest.raises(AMQPError):
        server_version(lost)
