"""The examples that need a broker, each run as a user would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection

import pytest

from rabbit_chx.broker import connect
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.testing.node import free_ports
from tests.broker.worker_programs import ordered_exchange, started
from tests.patience import PATIENCE, wait_until
from tests.programs import ran
from tests.queues import a_channel, bind_ring
from tests.unit.test_examples import DECLARING, EXAMPLES, ONLINE, SERVICE, SHARDING, WEB, WORKERS

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


ENDS = (0, -signal.SIGTERM)
"""How a server ends on SIGTERM: uvicorn shuts down first, and then ends by the signal."""


def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-W", "error", EXAMPLES / name], env=os.environ | environment)


@pytest.mark.parametrize("name", ONLINE)
def test_example_confirms_what_arrives(broker, name) -> None:
    exchange = f"example.{uuid.uuid4().hex[:8]}"
    with a_channel(broker) as channel:
        queues = [f"{exchange}.{number}" for number in range(3)]
        bind_ring(channel, exchange, queues)
        done = run(name, AMQP_URL=broker.url, EXCHANGE=exchange)
        arrived = sum(channel.queue_delete(queue).method.message_count for queue in queues)
        channel.exchange_delete(exchange)
    assert done.returncode == 0, done.stderr
    assert f"{arrived:,} confirmed" in done.stdout
    assert arrived >= 5_000


def served(name: str, port: int) -> list[str]:
    """The arguments of Python that serve a web application."""
    module = name.removesuffix(".py")
    server = ["uvicorn", "--app-dir", EXAMPLES, "--port", port]
    if module.endswith("gunicorn"):
        server = ["gunicorn", "--config", f"python:{module}", "--bind", f"127.0.0.1:{port}"]
    return ["-m", *map(str, server), f"{module}:app"]


def order(port: int, number: int) -> int | None:
    """The status with which the service answers an order, or None if it does not."""
    return answer(port, "POST", f"/orders/customer-{number}", b"order %d" % number)


def answer(port: int, method: str, path: str, body: bytes = b"") -> int | None:
    """The status of an answer, or None without one."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("name", WEB)
def test_what_a_web_service_accepts_arrives(broker, name) -> None:
    exchange = f"example.{uuid.uuid4().hex[:8]}"
    with a_channel(broker) as channel:
        channel.exchange_declare(exchange, "x-consistent-hash")
        queue = channel.queue_declare(f"{exchange}.0", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, "1")
        (port,) = free_ports(1)
        variables = {"AMQP_URL": broker.url, "EXCHANGE": exchange, "PYTHONPATH": str(EXAMPLES)}
        with started(served(name, port), variables, ENDS) as service:
            wait_until(
                lambda: order(port, 0) or service.process.poll() is not None, "the service answers", pause=0.1
            )
            with ThreadPoolExecutor(8) as threads:
                told = list(threads.map(partial(order, port), range(1, 200)))
        assert told == [202] * 199, service.text
        assert channel.queue_delete(queue).method.message_count == 200
        channel.exchange_delete(exchange)


@pytest.mark.parametrize("name", DECLARING)
def test_example_predicts_what_arrives(broker, name) -> None:
    count = 100_000 if broker.version.startswith("4.3") else 20_000
    done = run(name, AMQP_URL=broker.url, COUNT=str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count:,} confirmed" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 4
    assert all(predicted == arrived for _, _, predicted, arrived in rows)
    assert sum(int(row[-1].replace(",", "")) for row in rows) == count


@pytest.mark.since_4_0
@pytest.mark.parametrize("name", WORKERS)
def test_workers_share_the_queues_and_end_on_sigterm(broker, name) -> None:
    exchange = f"example.{uuid.uuid4().hex[:8]}"
    with ordered_exchange(broker, exchange) as publish:
        variables = {
            "AMQP_URL": broker.url,
            "EXCHANGE": exchange,
            "RABBITMQ_MANAGEMENT_URL": broker.management_url,
        }
        program = [EXAMPLES / name]
        with started(program, variables) as first, started(program, variables) as second:
            with connect(broker.url) as connection:
                wait_until(
                    lambda: [each.answered for each in members_over(connection, "billing")] == [True] * 2,
                    "both consume",
                )
            publish()
            both = [first, second]
            message = r"key-\d: body \d"
            wait_until(lambda: sum(len(each.found(message)) for each in both) == 10, "all are handled")
            queues = [set(each.found(rf"{exchange}\.\d")) for each in both]
    assert queues[0].isdisjoint(queues[1])
    handled = sorted(first.found(message) + second.found(message))
    assert handled == [f"key-{number}: body {number}" for number in range(10)]


@pytest.mark.since_4_0
@pytest.mark.parametrize("name", SERVICE)
def test_a_service_whose_worker_has_ended_is_not_healthy(
    broker, name, install, tmp_path, monkeypatch
) -> None:
    """With what the example says to install, and outside the checkout."""
    (packages,) = re.findall("^ *pip install (.*)$", (EXAMPLES / name).read_text(), re.MULTILINE)
    programs = install(*packages.split())
    monkeypatch.chdir(tmp_path)
    exchange, (port,) = f"example.{uuid.uuid4().hex[:8]}", free_ports(1)
    variables = {
        "AMQP_URL": broker.url,
        "EXCHANGE": exchange,
        "RABBITMQ_MANAGEMENT_URL": broker.management_url,
        "PYTHONPATH": str(EXAMPLES),
    }

    def answers(ready: int, healthy: int) -> bool:
        return [answer(port, "GET", path) for path in ("/readyz", "/healthz")] == [ready, healthy]

    program = served(name, port)
    with (
        ordered_exchange(broker, exchange) as publish,
        started(program, variables, ENDS, programs) as service,
    ):
        wait_until(lambda: answers(200, 200), "the service consumes", pause=0.1)
        publish()
        wait_until(lambda: len(service.found(r"key-\d: body \d")) == 10, "all are handled")
        with broker.connection() as connection:
            connection.channel().basic_publish(exchange, "key-0", b"\xff")  # no text
        wait_until(lambda: answers(503, 503), "the worker has ended, and the service has not", pause=0.1)


@pytest.mark.parametrize("name", SHARDING)
def test_example_predicts_and_consumes_shards(broker, name) -> None:
    url = broker.management_url.replace("://", f"://{broker.username}:{broker.password}@")
    done = run(name, AMQP_URL=broker.url, RABBITMQ_MANAGEMENT_URL=url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5,000 confirmed" in done.stdout
    assert "5,000 consumed by 4 consumers" in done.stdout
