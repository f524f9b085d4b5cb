"""The programs of docs/stream-groups.md, run against a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid

import pytest

from rabbit_chx.publishing import Publisher
from tests.patience import PATIENCE
from tests.queues import STREAM, a_channel, bind_ring, delete_exchange
from tests.unit.test_docs import marked

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.since_4_0]


def printed(broker, program: str, lines: int) -> list[str]:
    """What a program of the guide prints of ten messages."""
    exchange = f"guide.{uuid.uuid4().hex[:8]}"
    with a_channel(broker) as channel:
        bind_ring(channel, exchange, [f"{exchange}-0"], STREAM)
        with Publisher(broker.url, exchange) as publisher:
            publisher.publish_many([b"%d" % row for row in range(10)], ["key"] * 10)
        code = program.replace("rabbitmq-stream://user:password@host", broker.stream_url)
        code = code.replace('exchange="orders"', f"exchange={exchange!r}")
        with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as worker:
            found = [worker.stdout.readline().strip() for _ in range(lines)]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        delete_exchange(channel, exchange, [f"{exchange}-0"])
    return [line.replace(exchange, "X") for line in found]


def test_the_worker_of_the_guide_handles_messages(broker):
    program = marked("stream-groups.md", "test_the_worker_of_the_guide_handles_messages")
    assert printed(broker, program, 10) == [f"X-0 {row} key {f'{row}'.encode()}" for row in range(10)]


def test_the_batches_of_the_guide_are_handled(broker):
    pytest.importorskip("pyarrow")
    program = marked("stream-groups.md", "test_the_batches_of_the_guide_are_handled")
    found = printed(broker, program, 11)
    assert "0 b'0'" in found
