"""What `list` prints for people: each trouble with the command that comes next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rabbit_chx import Ring
from rabbit_chx.topology.model import Binding, Exchange, Observed, Queue, Topology

THERE = Topology(
    exchanges=(Exchange("orders", "x-consistent-hash"),),
    queues=(Queue("a"), Queue("b")),
    bindings=(Binding("orders", "a", "1"), Binding("orders", "b", "1"), Binding("orders", "a", "2")),
)


@pytest.fixture
def broker(live):
    def broker(ring: Ring, **more) -> None:
        observed = Observed(
            THERE,
            rings={"orders": ring},
            ring_sources={"orders": "node"},
            unconsumed=frozenset({"a"}),
            **more,
        )
        live(observed, SimpleNamespace(vhosts=lambda: ["/", "the shop"]))

    return broker


def test_each_trouble_has_its_next_command_and_all_virtual_hosts_are_listed(run, broker) -> None:
    broker(Ring.of({"a": 1}), unrecorded=frozenset({"orders"}), without_majority=("b",))
    found = run("list", "--url", "amqp://host")
    assert found.code == 2
    for kind in ("second-binding", "dead-binding", "no-majority", "no-consumer"):
        assert found.out.count(f"[{kind}]") == 2
    assert "Next: rabbit-chx watch -V 'the shop' -x orders" in found.out
    assert (
        "Next: rabbit-chx export -V 'the shop' --node COMMAND -o FILE && rabbit-chx apply FILE" in found.out
    )
    assert found.out.endswith("2 hash exchanges.\n")


def test_warnings_alone_exit_with_0_and_a_url_names_the_virtual_host(run, broker) -> None:
    broker(Ring.of({"a": 1, "b": 1}))
    found = run("list", "--url", "amqp://host/shop")
    assert found.code == 0
    assert "[second-binding]" in found.out
    assert found.out.endswith("1 hash exchange.\n")
