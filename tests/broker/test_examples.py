"""The examples that need a broker, each run as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from tests.unit.test_examples import EXAMPLES, ONLINE

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("name", ONLINE)
def test_example_confirms_what_arrives(broker, name) -> None:
    exchange = f"example.{uuid.uuid4().hex[:8]}"
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
        queues = [f"{exchange}.{number}" for number in range(3)]
        for queue in queues:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, exchange, "1")
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / name],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"AMQP_URL": broker.url, "EXCHANGE": exchange},
        )
        arrived = sum(channel.queue_delete(queue).method.message_count for queue in queues)
        channel.exchange_delete(exchange)
    assert done.returncode == 0, done.stderr
    assert f"{arrived:,} confirmed" in done.stdout
    assert arrived >= 5_000
