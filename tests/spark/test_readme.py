"""Runs the README's commands and code for Spark."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ROOT = Path(__file__).parents[2]
SECTION = re.search(r"^## From Spark\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[
    1
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)


@pytest.fixture
def broker(rabbitmq_broker):
    yield rabbitmq_broker
    with rabbitmq_broker.connection() as connection:
        channel = connection.channel()
        for kind in ("queue", "exchange"):
            for name in rabbitmq_broker.ctl(f"list_{kind}s", "name").splitlines():
                if name.startswith(("orders", "payments")):
                    getattr(channel, f"{kind}_delete")(name)


def test_the_lines_declare_the_exchange_and_write_to_it(spark, broker, monkeypatch):
    monkeypatch.setenv("AMQP_URL", broker.url)  # the README's own is that of a broker on the reader's machine
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", broker.management_url)
    (shell,), (python,) = blocks("sh"), blocks("python")
    (apply,) = [line for line in shell.splitlines() if line.startswith("rabbit-chx ")]
    program, *arguments = shlex.split(apply, comments=True)
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names: dict[str, object] = {}
    exec(python, names)
    with broker.connection() as connection:
        channel = connection.channel()
        queues = [channel.queue_declare(f"orders.{number}", passive=True) for number in range(4)]
    assert sum(queue.method.message_count for queue in queues) == names["df"].count() > 0
