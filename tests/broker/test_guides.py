"""Run the blocks of docs/ and the README that need a broker; only the broker's address is replaced."""

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
from tests.broker.erlang import node_command
from tests.broker.worker_programs import ordered_exchange, started
from tests.patience import wait_until
from tests.programs import ran
from tests.unit.test_docs import README, ROOT, fenced, marked

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


def at(broker, block: str) -> str:
    """Replace the URLs in a block with those of the broker."""
    assert "user:password@host" in block
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


def answered(lines: list[str], broker) -> subprocess.CompletedProcess[str]:
    """Run the lines at a terminal, and answer yes to every question."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"y\n" * len(lines))
        done = ran(["sh", "-c", "\n".join(lines)], stdin=theirs, env=environment(broker))
    finally:
        os.close(ours)
        os.close(theirs)
    return done


@pytest.fixture
def here(broker, tmp_path, monkeypatch):
    """Work in a temporary folder, and delete what examples/topology.yaml declares at the end."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    with broker.connection() as connection:
        channel = connection.channel()
        for kind in ("queue", "exchange"):
            for name in broker.ctl(f"list_{kind}s", "name").splitlines():
                if name.startswith(("orders", "payments", "rabbit-chx")):
                    getattr(channel, f"{kind}_delete")(name)


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


def test_the_readmes_publisher_publishes_what_it_is_given(broker, orders, capsys) -> None:
    (block,) = [block for _, block in fenced(README, "python") if "with Publisher(" in block]
    exec(at(broker, block), {})
    assert "confirmed=2" in capsys.readouterr().out.replace(" ", "")
    assert orders() == 2


@pytest.mark.since_4_0
def test_the_readmes_worker_handles_messages(broker) -> None:
    (block,) = [block for _, block in fenced(README, "python") if "import Group" in block]
    assert handled_by(broker, block) == HANDLED


def test_the_readmes_route_reads_the_exchange_and_the_node(broker, orders) -> None:
    (block,) = [block for _, block in fenced(README, "sh") if "--node" in block]
    (docker, kubectl) = commands(block)
    assert kubectl.replace("kubectl exec POD --", "docker exec NAME") == docker
    done = answered([docker.replace("docker exec NAME rabbitmqctl eval", node_command(broker))], broker)
    assert done.returncode == 0, done.stderr
    with broker.connection() as connection:
        channel = connection.channel()
        channel.basic_publish("orders", "customer-42", b"")
        key, queue = done.stdout.split()
        wait_until(
            lambda: channel.queue_declare(queue, passive=True).method.message_count == 1, "it is there"
        )
    assert key == "customer-42"


def test_the_python_of_the_topology_guide_applies_a_file(broker, here, capsys) -> None:
    (here / "topology.yaml").write_text((ROOT / "examples/topology.yaml").read_text())
    exec(at(broker, marked("topology.md", "test_the_python_of_the_topology_guide_applies_a_file")), {})
    assert "bind queue 'orders.3' to exchange 'orders'" in capsys.readouterr().out
    assert broker.ring("orders") == [f"orders.{number}" for number in range(4)]


def test_the_commands_of_the_topology_guide_apply_a_file(broker, here) -> None:
    (here / "examples").symlink_to(ROOT / "examples")
    block = marked("topology.md", "test_the_commands_of_the_topology_guide_apply_a_file")
    done = answered(commands(block), broker)
    assert done.returncode == 0, done.stdout + done.stderr  # that of the last one: no drift
    assert broker.ring("orders") == [f"orders.{number}" for number in range(4)]


def test_the_commands_of_the_readme_declare_check_publish_compare_and_draw(broker, here) -> None:
    (topology,) = [block for _, block in fenced(README, "yaml")]
    (here / "topology.yaml").write_text(topology)
    (block,) = [block for _, block in fenced(README, "sh") if "rabbit-chx check" in block]
    lines = [line for line in block.splitlines() if not line.startswith(("docker ", "export "))]
    done = answered(["set -e", *lines], broker)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(broker.ring("orders")) == 4
    with broker.connection() as connection:
        channel = connection.channel()
        queues = [channel.queue_declare(f"orders.{number}", passive=True) for number in range(4)]
    assert sum(queue.method.message_count for queue in queues) == 2
    assert "orders.3" in (here / "report.html").read_text()


def test_the_broker_of_the_testing_guide_starts(capsys) -> None:
    try:
        available("4.3")
    except CannotSupply as reason:
        pytest.skip(str(reason))
    exec(marked("testing.md", "test_the_broker_of_the_testing_guide_starts"), {})
    assert capsys.readouterr().out.strip() == "[]"
