"""The README's block with a throw-away broker, run as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rabbit_chx.testing import available
from rabbit_chx.testing.node import CannotSupply
from tests.broker.erlang import container_of
from tests.unit.test_docs import BLOCKS, README, dedent, fenced

pytestmark = pytest.mark.broker


def test_the_throw_away_broker_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [dedent(*found) for found in BLOCKS if "Broker(" in found[1]]
    try:
        available("4.3")
    except CannotSupply as reason:
        pytest.skip(str(reason))
    exec(block, {})
    assert capsys.readouterr().out.strip() == "[]"


def test_the_readme_leads_to_a_page_of_ones_own_exchange(broker, tmp_path) -> None:
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "x-consistent-hash", durable=True)
        for queue, weight in {"orders.a": "1", "orders.b": "3"}.items():
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "orders", weight)
    (block,) = [text for _, text in fenced(README, "sh") if "report.html" in text]
    _, _, _, export, report = block.strip().splitlines()
    mine = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AMQP_URL": broker.url,
        "RABBITMQ_MANAGEMENT_URL": broker.management_url,
        "RABBIT_CHX_NODE": f"docker exec -u rabbitmq {container_of(broker)} rabbitmqctl eval",
    }
    subprocess.run(["sh", "-ec", f"{export}\n{report}"], cwd=tmp_path, check=True, env={**os.environ, **mine})
    page = (tmp_path / "report.html").read_text()
    assert f"RabbitMQ {broker.release}" in page
    assert "the order of the ring is from a broker" in " ".join(page.split())
    assert page.index("orders.a") < page.index("orders.b")
