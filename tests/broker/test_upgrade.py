"""An upgrade as an operator does it: three virtual hosts move from RabbitMQ 3.10 to 4.3 with no drift and the same rings.

The old broker is filled by an application that declares and binds for itself, with none of our code. Its
definitions.json is linted for 4.3, imported with the order of the rings read from the old node, and applied to the new
broker. The application then starts there, and a check must find nothing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit

import pika
import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.testing import Broker
from tests.broker.erlang import node_command
from tests.programs import ran

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.proof]

VHOSTS = ("shop", "billing", "logs/ü")
RINGS = ("orders", "tenants", "top")
QUEUES = 20
POLICIES = {
    "mirrored": {"pattern": "^q", "apply-to": "queues", "definition": {"ha-mode": "all"}},
    "limit": {"pattern": "^lost$", "apply-to": "queues", "definition": {"max-length": 1000}},
}


@pytest.fixture(scope="module")
def brokers():
    both = [Broker("3.10"), Broker("4.3")]
    try:
        for broker in both:
            broker.start()
        yield both
    finally:
        for broker in both:
            broker.stop()


def server(broker: Broker) -> str:
    """The broker's URL without a virtual host."""
    return f"amqp://{urlsplit(broker.url).netloc}"


def management(broker: Broker) -> Management:
    return Management(broker.management_url, credentials=lambda: (broker.username, broker.password))


def create_vhosts(broker: Broker, policies: dict[str, dict] | None = None) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    for vhost in VHOSTS:
        management(broker)._request("PUT", ["vhosts", vhost], body={})
        management(broker)._request("PUT", ["permissions", vhost, broker.username], body=everything)
        for name, policy in (policies or {}).items():
            management(broker)._request("PUT", ["policies", vhost, name], body=policy)


def application(broker: Broker, vhost: str) -> None:
    """Declare and bind everything, as services do when they start: 20 queues, three rings, slots among them."""
    url = f"{server(broker)}/{quote(vhost, safe='')}"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for name in ["lost", *(f"q{i:02}" for i in range(QUEUES - 1))]:
            channel.queue_declare(name, durable=True)
        channel.exchange_declare("lost", "fanout", durable=True)
        channel.queue_bind("lost", "lost")
        hashing = {
            "orders": {"alternate-exchange": "lost"},
            "tenants": {"hash-header": "tenant", "alternate-exchange": "lost"},
            "top": {},
        }
        for exchange, arguments in hashing.items():
            channel.exchange_declare(exchange, "x-consistent-hash", durable=True, arguments=arguments)
        for i in reversed(range(8)):  # not in sorted order, and with weights
            channel.queue_bind(f"q{i:02}", "orders", str(1 + i % 3))
        for i in (11, 9, 10, 8):
            channel.queue_bind(f"q{i:02}", "tenants", "10")
        for i in range(16):
            slot = f"top.slot.{i:02}"
            channel.exchange_declare(slot, "x-consistent-hash", durable=True, internal=True)
            channel.queue_bind(f"q{12 + i % 7:02}", slot, "1")
            channel.exchange_bind(slot, "top", "1")
        channel.exchange_declare("events", "topic", durable=True)
        channel.exchange_bind("orders", "events", "order.#")
        channel.exchange_bind("tenants", "events", "tenant.#")


def run(broker: Broker | None, *arguments: str, expected: int = 0) -> str:
    environment = {}
    if broker is not None:
        environment = {
            "AMQP_URL": server(broker),
            "RABBITMQ_MANAGEMENT_URL": broker.management_url,
            "RABBIT_CHX_NODE": node_command(broker),
        }
    command = [sys.executable, "-m", "rabbit_chx", *arguments]
    done = ran(command, env={**os.environ, **environment})
    assert done.returncode == expected, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_three_virtual_hosts_move_from_3_10_to_4_3_without_drift(
    brokers: list[Broker], tmp_path: Path
) -> None:
    old, new = brokers
    create_vhosts(old, POLICIES)
    for vhost in VHOSTS:
        application(old, vhost)
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps(management(old)._request("GET", ["definitions"])))
    rings = {(vhost, name): old.ring(name, vhost) for vhost in VHOSTS for name in RINGS}

    only = [option for vhost in VHOSTS for option in ("--vhost", vhost)]
    assert "ha-mode" in run(None, "lint", str(definitions), "--release", "4.3", *only, expected=1)
    folder = tmp_path / "files"
    run(old, "export", str(definitions), *only, "--url", server(old), "--out", str(folder))
    files = sorted(folder.iterdir())
    assert len(files) == len(VHOSTS)

    create_vhosts(new)
    for file in files:
        # Refused before the first step, and the error names what to remove.
        assert "ha-mode" in run(new, "apply", str(file), "--yes", expected=1)
    for vhost in VHOSTS:
        assert management(new)._request("GET", ["queues", vhost]) == []
    for file in files:
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if "ha-mode" not in line))
        run(None, "lint", str(file), "--release", "4.3")
        run(new, "apply", str(file), "--yes")
    for vhost in VHOSTS:
        application(new, vhost)
    for file in files:
        run(new, "check", str(file))
    assert {(vhost, name): new.ring(name, vhost) for vhost in VHOSTS for name in RINGS} == rings
