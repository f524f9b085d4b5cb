"""The report of a live ring: what it says is about the broker's ring, not about the file's."""

from __future__ import annotations

import re

import pytest

from rabbit_chx import ConsistentHashExchange, Ring

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

# Its queues are in another order than the fixture binds them.
FILE = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, queues: {orders.b: 3, orders.a: 1}}
queues: {"orders.a": {}, "orders.b": {}}
"""
KEYS = [f"customer-{number}" for number in range(500)]


def test_shares_and_the_sample_are_those_of_the_brokers_ring(broker, orders, run, node, tmp_path) -> None:
    (tmp_path / "topology.yaml").write_text(FILE)
    (tmp_path / "keys.txt").write_text("\n".join(KEYS))
    out = tmp_path / "report.html"
    given = ["--file", tmp_path / "topology.yaml", "--keys", tmp_path / "keys.txt", "--live", "--out", out]
    found = run("report", *given, "--url", broker.url, *node)
    assert found.code == 0, found.err

    page = re.sub(r"<[^>]*>", " ", out.read_text())
    assert f"RabbitMQ {broker.release}" in page
    assert "the order of the ring is from a broker" in " ".join(page.split())
    exchange = ConsistentHashExchange(Ring.read(broker.ring("orders")))
    landed = [exchange.route(key) for key in KEYS]
    for queue in ("orders.a", "orders.b"):
        assert re.search(rf"{queue}\s+{landed.count(queue)}\s", page)
    assert page.index("orders.a") < page.index("orders.b")
    assert "which differs from the broker's" in page
