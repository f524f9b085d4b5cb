"""Topologies written as files: what the text looks like, and what cannot be written."""

from __future__ import annotations

import pytest

from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology
from tests.unit.complaints import complaint

SHOP = Topology(
    vhost="shop",
    exchanges=(
        Exchange(
            "orders", "x-consistent-hash", arguments={"hash-header": "tenant", "alternate-exchange": "rest"}
        ),
        Exchange("pay", "x-modulus-hash"),
        Exchange("rest", "fanout", durable=False, auto_delete=True, internal=True),
    ),
    queues=(
        Queue("q{0}", "quorum", arguments={"x-single-active-consumer": True}),
        Queue("no", "classic", arguments={"x-max-length": 10, "note": "010"}),
    ),
    bindings=(Binding("orders", "no", "1"), Binding("orders", "q{0}", "3"), Binding("rest", "no", "a b")),
    policies=(Policy("p", "^logs$", "exchanges", {"shards-per-node": 2}, 5),),
    slots=(Slots("pay", 64, {"q{0}": 2}, "rest"),),
    co_partitioned=(("orders", "pay"),),
)


def test_yaml_is_short_and_quotes_what_needs_quotes():
    assert dumps(SHOP, "yaml") == (
        "schema: 1\n"
        "vhost: shop\n"
        "exchanges:\n"
        "  orders:\n"
        "    type: x-consistent-hash\n"
        "    hash-header: tenant\n"
        "    alternate-exchange: rest\n"
        "    co-partitioned-with: pay\n"
        '    queues: {"no": 1, "q{{0}}": 3}\n'
        '  pay: {type: x-modulus-hash, alternate-exchange: rest, slots: 64, queues: {"q{{0}}": 2}}\n'
        "  rest:\n"
        "    type: fanout\n"
        "    durable: false\n"
        "    auto-delete: true\n"
        "    internal: true\n"
        '    bindings: [{queue: "no", key: "a b"}]\n'
        "queues:\n"
        '  "q{{0}}": {type: quorum, single-active-consumer: true}\n'
        '  "no": {type: classic, arguments: {x-max-length: 10, note: "010"}}\n'
        "policies:\n"
        '  p: {pattern: "^logs$", apply-to: exchanges, priority: 5, definition: {shards-per-node: 2}}\n'
    )


@pytest.mark.parametrize(("limit", "key"), [(-1, "preset: ordered"), (5, "type: quorum")])
def test_a_queue_that_is_as_the_preset_declares_it_is_written_with_the_preset(limit, key):
    arguments = {"x-single-active-consumer": True, "x-delivery-limit": limit, "x-max-length": 10}
    topology = Topology(queues=(Queue("q", "quorum", arguments=arguments),))
    written = dumps(topology, "yaml")
    assert key in written
    assert ("x-delivery-limit" in written) == (limit != -1)
    assert loads(written, format="yaml") == topology


@pytest.mark.parametrize("format_", ["yaml", "json"])
def test_a_hundred_queues_are_not_one_line(format_):
    names = [f"orders.{number:03}" for number in range(100)]
    topology = Topology(
        exchanges=(Exchange("x", "x-consistent-hash"), Exchange("t", "topic")),
        queues=tuple(Queue(name, "quorum") for name in names),
        bindings=(
            *(Binding("x", name, "1") for name in names),
            *(Binding("t", name, f"k.{name}") for name in names),
        ),
    )
    text = dumps(topology, format_)
    assert max(map(len, text.splitlines())) <= 120
    assert loads(text, format=format_) == topology


def test_an_exclusive_queue_and_an_unknown_format_are_refused():
    complaint_of = complaint(lambda: dumps(Topology(queues=(Queue("q", exclusive=True),)), "yaml"))
    assert "Leave exclusive queues out" in complaint_of.hint
    with pytest.raises(ValueError, match="yaml or json"):
        dumps(Topology(), "ini")
