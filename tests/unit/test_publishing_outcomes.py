"""When a publisher reports the messages that were not confirmed: to each call, to `flush`, and to the hook for failures."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pika import BasicProperties, frame, spec

from rabbit_chx.broker.properties import decoded
from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing import Failure, Outcome, Publisher, Timeouts, Totals
from rabbit_chx.publishing.properties import DEFAULT_FRAME_MAX, encode_properties
from tests.amqp_server import AmqpServer, confirm, received
from tests.patience import wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from rabbit_chx.publishing import Bulk

TIMEOUTS = Timeouts(connect=60, reconnect=60, retry=0.001, confirm=60)


def test_a_message_that_one_queue_rejected_may_be_in_another_although_it_was_returned_later() -> None:
    def behave(client: socket.socket) -> None:
        client.sendall(confirm(1, ack=False))
        for number, _ in enumerate(received(client), start=2):
            returned = frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "x", "k")).marshal()
            header = frame.Header(1, 1, BasicProperties(delivery_mode=2)).marshal()
            client.sendall(returned + header + frame.Body(1, b"m").marshal() + confirm(number, ack=True))

    timeouts = replace(TIMEOUTS, retry=0.1)
    with AmqpServer(behave) as server, Publisher(server.url, "x", timeouts=timeouts) as publisher:
        with pytest.raises(PublishFailed, match=r"returned .*NO_ROUTE") as caught:
            publisher.publish(b"m", "k")
        assert caught.value.may_have_arrived


def returning(headers: dict[str, Any]) -> Callable[[socket.socket], None]:
    """Make a server that returns each message of ``later``, with these headers."""
    returned = frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "later", "k")).marshal()
    properties = decoded(encode_properties({"headers": headers}, frame_max=DEFAULT_FRAME_MAX))
    returned += frame.Header(1, 1, properties).marshal() + frame.Body(1, b"m").marshal()

    def behave(client: socket.socket) -> None:
        client.sendall(returned + confirm(1, ack=True))
        for number, _ in enumerate(received(client), start=2):
            client.sendall(returned + confirm(number, ack=True))

    return behave


def end_of(headers: dict[str, Any], retry: float) -> tuple[Failure, int]:
    """Publish a message that its exchange returns each time; return its failure, and how often it was sent again."""
    timeouts = replace(TIMEOUTS, retry=retry)
    with (
        AmqpServer(returning(headers)) as server,
        Publisher(server.url, "later", timeouts=timeouts) as publisher,
    ):
        with pytest.raises(PublishFailed) as caught:
            publisher.publish(b"m", "k", headers=headers)
        assert caught.value.failure is not None
        return caught.value.failure, publisher.totals.resent


@pytest.mark.parametrize("delay", [1, 60_000, 2**32 - 1, 60_000.0, "60000", b"60000", Decimal(60_000)])
def test_a_delayed_message_that_its_exchange_returned_is_not_sent_again(delay: object) -> None:
    reply = (
        "312 NO_ROUTE; not sent again: an x-delayed-message exchange keeps delayed messages that it returns"
    )
    failure = Failure(0, Outcome.UNKNOWN, "later", "k", reply, may_have_arrived=True)
    assert end_of({"x-delay": delay}, retry=60) == (failure, 0)


@pytest.mark.parametrize("delay", [-60_000, 0, 2**32, 0.5, True, "-60000", "soon", None, [1]])
def test_a_returned_message_whose_header_is_no_delay_is_sent_again(delay: object) -> None:
    """An x-delayed-message exchange delivers a message with the negative of its delay, and a service may forward it."""
    failure, resent = end_of({"x-delay": delay}, retry=0.1)
    assert failure == Failure(0, Outcome.RETURNED, "later", "k", "312 NO_ROUTE", may_have_arrived=False)
    assert resent > 0


def test_an_error_in_the_block_of_a_bulk_says_how_many_messages_have_no_outcome() -> None:
    def work() -> None:
        with publisher.bulk() as bulk:
            bulk.add(b"opening")
            # What was not written would be withdrawn.
            wait_until(lambda: publisher.totals.bytes, "the message is written")
            raise KeyboardInterrupt

    timeouts = replace(TIMEOUTS, close=0.5)
    with (
        AmqpServer(lambda client: list(received(client))) as server,
        Publisher(server.url, "x", timeouts=timeouts) as publisher,
    ):
        with pytest.raises(KeyboardInterrupt) as caught:
            work()
        assert caught.value.__notes__ == ["unconfirmed after 0.5 seconds: 1 message"]


def test_one_of_many_failures_that_may_have_arrived_is_enough() -> None:
    listed = [
        Failure(row, Outcome.RETURNED, "x", "k", "312 NO_ROUTE", may_have_arrived=row == 50)
        for row in range(100)
    ]
    assert PublishFailed("", Totals(published=100, returned=100), listed).may_have_arrived


# -- the hook for failures -----------------------------------------------------------------------------------


def reject(client: socket.socket) -> None:
    """Reject whatever the client sends, one message at a time."""
    client.sendall(confirm(1, ack=False))
    for number, _ in enumerate(received(client), start=2):
        client.sendall(confirm(number, ack=False))


@pytest.mark.parametrize(
    "call",
    [
        lambda publisher, _: publisher.publish(b""),
        lambda publisher, _: publisher.publish_many([b""]),
        lambda publisher, _: publisher.submit(b""),
        lambda _, bulk: bulk.add(b""),
        lambda _, bulk: bulk.add_many([b""]),
        lambda _, bulk: bulk.flush(),
        lambda publisher, _: publisher.close(),
    ],
    ids=["publish", "publish_many", "submit", "add", "add_many", "flush", "close"],
)
def test_a_hook_that_would_wait_for_its_own_thread_gets_an_error(
    call: Callable[[Publisher, Bulk], object], caplog: pytest.LogCaptureFixture
) -> None:
    def on_failure(_: Failure) -> None:
        call(publisher, bulk)

    with (
        AmqpServer(reject) as server,
        Publisher(server.url, "x", timeouts=TIMEOUTS, max_in_flight=1) as publisher,
        publisher.bulk(on_failure=on_failure) as bulk,
    ):
        for _ in range(2):  # the second waits for space
            bulk.add(b"")
    assert publisher.totals.rejected == publisher.totals.published == 2
    assert caplog.text.count("RabbitChxError: a hook of the publisher must not") == 2


def test_a_thread_with_the_number_of_the_publishers_ended_thread_is_no_hook() -> None:
    with AmqpServer(reject) as server, Publisher(server.url, "x", timeouts=TIMEOUTS) as publisher:
        bulk = publisher.bulk()
    count = 20
    together = threading.Barrier(count)  # so that no two have the same number

    def flush(_: int) -> Totals:
        together.wait(60)
        return bulk.flush()

    with ThreadPoolExecutor(count) as threads:
        assert list(threads.map(flush, range(count))) == [bulk.totals] * count


def test_flush_returns_after_the_hooks() -> None:
    rows: list[int] = []

    def on_failure(failure: Failure) -> None:
        time.sleep(0.1)
        rows.append(failure.row)

    with AmqpServer(reject) as server, Publisher(server.url, "x", timeouts=TIMEOUTS) as publisher:
        bulk = publisher.bulk(on_failure=on_failure)
        bulk.add(b"")
        bulk.flush()
        assert rows == [0]


@pytest.mark.parametrize("error", [SystemExit, ZeroDivisionError])
def test_a_hook_that_exits_or_fails_does_not_affect_the_messages(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def on_failure(_: Failure) -> None:
        raise error

    with AmqpServer(reject) as server, Publisher(server.url, "x", timeouts=TIMEOUTS) as publisher:
        bulk = publisher.bulk(on_failure=on_failure)
        for row in range(2):
            bulk.add(b"")
            assert bulk.flush(30).rejected == row + 1
    assert caplog.text.count("the publisher's hook on_failure failed") == 2
