"""Run the blocks of docs/ that need a broker; only the broker's address is replaced."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rabbit_chx.testing import available
from rabbit_chx.testing.node import CannotSupply
from tests.broker.worker_programs import ordered_exchange, started
from tests.patience import wait_until
from tests.programs import ran
from tests.queues import delete_named
from tests.unit.test_docs import ROOT, marked

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


def at(broker, block: str) -> str:
    """Replace the URLs in a block with those of the broker."""
    scheme, _, place = broker.management_url.partition("://")
    management = f"{scheme}://{broker.username}:{broker.password}@{place}"
    block = block.replace("http://user:password@host:15672", management)
    return block.replace("amqp://user:password@host", broker.url)


def commands(block: str) -> list[str]:
    """Return the lines that call rabbit-chx; the environment says where the broker is."""
    return [line for line in block.splitlines() if line.startswith("rabbit-chx ")]


def environment(broker) -> dict[str, str]:
    """Return the environment of a shell with this virtual environment and the URLs of the broker."""
    mine = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AMQP_URL": broker.url,
        "RABBITMQ_MANAGEMENT_URL": broker.management_url,
    }
    return {**os.environ, **mine}


def answered(lines: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the lines at a terminal, and answer yes to every question."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n" * len(lines))
        done = ran(["sh", "-c", "\n".join(lines)], stdin=theirs, env=env)
    finally:
        os.close(ours)
        os.close(theirs)
    return done


@pytest.fixture
def here(broker, tmp_path, monkeypatch):
    """Work in a temporary folder, and delete what examples/topology.yaml declares at the end."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    delete_named(broker, "orders", "payments", "rabbit-chx")


def test_the_test_of_the_testing_guide_passes(broker) -> None:
    names: dict[str, object] = {}
    exec(marked("testing.md", "test_the_test_of_the_testing_guide_passes"), names)
    names["test_each_message_is_where_it_was_predicted"](broker)


@pytest.mark.since_4_0
def test_the_group_of_the_testing_guide_handles_its_message(broker) -> None:
    names: dict[str, object] = {}
    exec(marked("testing.md", "test_the_group_of_the_testing_guide_handles_its_message"), names)
    names["test_a_group_handles_a_message"](broker)


def test_the_lines_of_the_publisher_guide_publish(broker, orders, capsys) -> None:
    exec(at(broker, marked("publisher.md", "test_the_lines_of_the_publisher_guide_publish")), {})
    # One message, a batch of two, and a bulk of 10,000.
    assert "confirmed=10003" in capsys.readouterr().out.replace(" ", "")
    assert orders() == 10_003


def handled_by(broker, block: str) -> list[str]:
    """What a worker of the guide prints, which gets ten messages."""
    exchange = f"guide.{uuid.uuid4().hex[:8]}"
    block = at(broker, block).replace(
        'exchange="orders"', f"exchange={exchange!r}, management={broker.management_url!r}"
    )
    with ordered_exchange(broker, exchange) as publish, started(["-c", block]) as program:
        publish()
        wait_until(lambda: len(program.found(MESSAGE)) == 10, "all are handled")
    return program.found(MESSAGE)


MESSAGE = r"key-\d b'body \d'"
HANDLED = [f"key-{number} b'body {number}'" for number in range(10)]


@pytest.mark.since_4_0
def test_the_worker_of_the_consuming_guide_handles_messages(broker) -> None:
    block = marked("consuming.md", "test_the_worker_of_the_consuming_guide_handles_messages")
    assert handled_by(broker, block) == HANDLED


@pytest.mark.since_4_0
def test_the_asyncio_worker_of_the_consuming_guide_handles_messages(broker) -> None:
    block = marked("consuming.md", "test_the_asyncio_worker_of_the_consuming_guide_handles_messages")
    assert handled_by(broker, block) == HANDLED


@pytest.mark.since_4_0
def test_the_lifespan_of_the_consuming_guide_handles_messages(broker) -> None:
    block = marked("consuming.md", "test_the_lifespan_of_the_consuming_guide_handles_messages")
    assert handled_by(broker, f"{block}\n{APPLICATION}") == HANDLED


APPLICATION = """
import asyncio, signal

async def serve():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with lifespan(None):
        await ended.wait()

asyncio.run(serve())
"""


def test_the_python_of_the_topology_guide_applies_a_file(broker, here, capsys) -> None:
    (here / "topology.yaml").write_text((ROOT / "examples/topology.yaml").read_text())
    exec(at(broker, marked("topology.md", "test_the_python_of_the_topology_guide_applies_a_file")), {})
    assert "bind queue 'orders.3' to exchange 'orders'" in capsys.readouterr().out
    assert broker.ring("orders") == [f"orders.{number}" for number in range(4)]


def test_the_commands_of_the_topology_guide_apply_a_file(broker, here) -> None:
    (here / "examples").symlink_to(ROOT / "examples")
    block = marked("topology.md", "test_the_commands_of_the_topology_guide_apply_a_file")
    done = answered(commands(block), environment(broker))
    assert done.returncode == 0, done.stdout + done.stderr  # that of the last one: no drift
    assert broker.ring("orders") == [f"orders.{number}" for number in range(4)]


def test_the_broker_of_the_testing_guide_starts(capsys) -> None:
    try:
        available("4.3")
    except CannotSupply as reason:
        pytest.skip(str(reason))
    exec(marked("testing.md", "test_the_broker_of_the_testing_guide_starts"), {})
    assert capsys.readouterr().out.strip() == "[]"
