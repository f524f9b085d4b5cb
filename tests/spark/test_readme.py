"""Run the README's block about Spark as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.programs import ran

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ROOT = Path(__file__).parents[2]
(BLOCK,) = re.findall(
    r"^```python\n([^`]*\.write\.[^`]*)^```", (ROOT / "README.md").read_text(), re.MULTILINE
)


@pytest.fixture
def broker(rabbitmq_broker):
    yield rabbitmq_broker
    with rabbitmq_broker.connection() as connection:
        channel = connection.channel()
        for kind in ("queue", "exchange"):
            for name in rabbitmq_broker.ctl(f"list_{kind}s", "name").splitlines():
                if name.startswith(("orders", "payments")):
                    getattr(channel, f"{kind}_delete")(name)


def test_the_lines_write_to_the_exchange(spark, broker, monkeypatch):
    monkeypatch.setenv("AMQP_URL", broker.url)
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", broker.management_url)
    done = ran(
        [Path(sys.executable).with_name("rabbit-chx"), "apply", "examples/topology.yaml", "--yes"],
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    names: dict[str, object] = {}
    exec(BLOCK, names)
    with broker.connection() as connection:
        channel = connection.channel()
        queues = [channel.queue_declare(f"orders.{number}", passive=True) for number in range(4)]
    assert sum(queue.method.message_count for queue in queues) == names["df"].count() > 0
