"""When a publisher reports the messages that were not confirmed: to `flush`, and to the hook for failures."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from pika import frame, spec

from rabbit_chx.errors import PublishFailed
from rabbit_chx.publishing import Publisher, Timeouts
from tests.amqp_server import AmqpServer, received

if TYPE_CHECKING:
    import socket

TIMEOUTS = Timeouts(connect=5, reconnect=1, retry=0.001, confirm=5)


def confirm(number: int, *, ack: bool) -> bytes:
    method = spec.Basic.Ack(number) if ack else spec.Basic.Nack(number, requeue=False)
    return frame.Method(1, method).marshal()


def test_a_failure_is_reported_by_the_flush_that_times_out() -> None:
    resume = threading.Event()

    def behave(client: socket.socket) -> None:
        sending = received(client)
        client.sendall(confirm(1, ack=False))
        next(sending)  # message 1 again, as number 3
        client.sendall(confirm(3, ack=False))
        resume.wait(10)
        client.sendall(confirm(2, ack=True))
        list(sending)

    with AmqpServer(behave) as server, Publisher(server.url, "x", timeouts=TIMEOUTS) as publisher:
        publisher.publish_many([b"", b""], "k")
        while not publisher.totals.rejected:
            time.sleep(0.001)
        with pytest.raises(
            PublishFailed,
            match=r"1 of 2 .*; the first: row 0 rejected .*; 1 messages are unconfirmed after 0",
        ) as late:
            publisher.flush(0)
        assert [failure.row for failure in late.value.failures] == [0]
        resume.set()
        assert publisher.flush().confirmed == 1  # nothing new
