"""RabbitMQ's own definitions: exports of three releases read, and topologies written as such."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.topology.file.definitions import to_definitions
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.file.problems import InvalidTopology
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology

POLICY = {
    "vhost": "/",
    "name": "shards",
    "pattern": "^logs$",
    "apply-to": "exchanges",
    "definition": {"routing-key": "1234", "shards-per-node": 2},
    "priority": 3,
}


def binding(source: str, kind: str, destination: str, key: str, **arguments: int) -> dict:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": {name.replace("_", "-"): value for name, value in arguments.items()},
    }


BINDINGS = [
    binding("orders", "queue", "q1", "3"),
    binding("hub", "exchange", "orders", "order.#"),
    binding("orders", "queue", "q0", "1"),
]

# As they leave the brokers; users and permissions, which hold nothing of a topology, are cut short.
EXPORT_3_10 = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [{"name": "other"}, {"name": "/"}],
    "permissions": [{"user": "guest", "vhost": "other", "configure": ".*", "write": ".*", "read": ".*"}],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-0"}],
    "policies": [POLICY],
    "queues": [
        {"name": "q9", "vhost": "other", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "stream"}},
        {"name": "q1", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 10}},
        {"name": "q0", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}},
    ],
    "exchanges": [
        {"name": "orders", "vhost": "/", "type": "x-consistent-hash", "durable": True, "auto_delete": False,
         "internal": True, "arguments": {"hash-header": "tenant"}},
        {"name": "hub", "vhost": "/", "type": "topic", "durable": False, "auto_delete": False, "internal": False,
         "arguments": {}},
    ],
    "bindings": BINDINGS,
}  # fmt: skip
# 4.3 writes the type of a queue twice, as a key and as an argument, and exports the exchange of its log.
EXPORT_4_3 = {
    **EXPORT_3_10,
    "rabbit_version": "4.3.6",
    "rabbitmq_definition_format": "cluster",
    "vhosts": [
        {"name": name, "limits": {}, "metadata": {"default_queue_type": "classic"}} for name in ("other", "/")
    ],
    "queues": [
        {**queue, "type": kind, "arguments": {**queue["arguments"], "x-queue-type": kind}}
        for queue, kind in zip(EXPORT_3_10["queues"], ("stream", "classic", "quorum"), strict=True)
    ],
    "exchanges": [
        {"name": "amq.rabbitmq.log", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False,
         "arguments": {}},
        *EXPORT_3_10["exchanges"],
    ],
}  # fmt: skip

SHOP = Topology(
    exchanges=(
        Exchange("hub", "topic", durable=False),
        Exchange("orders", "x-consistent-hash", internal=True, arguments={"hash-header": "tenant"}),
    ),
    queues=(Queue("q0", "quorum"), Queue("q1", "classic", arguments={"x-max-length": 10})),
    bindings=(
        Binding("hub", ToExchange("orders"), "order.#"),
        Binding("orders", "q1", "3"),
        Binding("orders", "q0", "1"),
    ),
    policies=(Policy("shards", "^logs$", "exchanges", {"routing-key": "1234", "shards-per-node": 2}, 3),),
    unordered=frozenset({"orders"}),
)


def of_one_vhost(export: dict) -> dict:
    """The export of one virtual host, which nothing in it names."""
    return {"rabbit_version": export["rabbit_version"]} | {
        section: [
            {name: value for name, value in item.items() if name != "vhost"}
            for item in export[section]
            if item["vhost"] == "/"
        ]
        for section in ("policies", "queues", "exchanges", "bindings")
    }


def from_definitions(export, vhost: str | None = None) -> Topology:
    return loads(json.dumps(export), format="json", vhost=vhost)


@pytest.mark.parametrize("export", [EXPORT_3_10, EXPORT_4_3])
def test_an_export_of_a_broker_is_read_by_virtual_host_and_binds_keep_their_order(export):
    assert from_definitions(export, "/") == SHOP
    assert from_definitions(export, vhost="other") == Topology("other", queues=(Queue("q9", "stream"),))
    assert not from_definitions(export | {"bindings": BINDINGS[:2]}, "/").unordered  # a single queue


def test_an_export_of_one_virtual_host_needs_no_name():
    export = of_one_vhost(EXPORT_4_3)
    assert from_definitions(export) == SHOP
    assert from_definitions(export | {"original_vhost_name": "shop"}).vhost == "shop"
    assert from_definitions(export | {"original_vhost_name": "shop"}, "elsewhere").vhost == "elsewhere"


@pytest.mark.parametrize(
    ("vhost", "complaint"),
    [
        (None, "got virtual hosts '/', 'other', expected one virtual host"),
        ("nowhere", "got 'nowhere', expected '/' or 'other'"),
    ],
)
def test_several_virtual_hosts_are_listed_where_none_of_them_is_named(vhost, complaint):
    with pytest.raises(InvalidTopology, match=complaint):
        from_definitions(EXPORT_3_10, vhost)


@pytest.mark.parametrize(
    "passed_over",
    [
        binding("hub", "queue", "amq.gen-1", "#"),
        binding("", "queue", "q0", "q0"),
        # RabbitMQ 4 does not export the exchange of the record, because it is internal.
        binding("rabbit-chx.order", "queue", "q0", "orders"),
    ],
)
def test_bindings_of_connections_the_default_exchange_and_the_record_are_passed_over(passed_over):
    assert from_definitions(EXPORT_3_10 | {"bindings": [*BINDINGS, passed_over]}, "/") == SHOP


def test_queues_of_groups_and_of_unfinished_changes_are_no_part_of_a_topology():
    queues = [
        *EXPORT_4_3["queues"],
        *({**EXPORT_4_3["queues"][0], "name": f"rabbit-chx.{name}"} for name in ("seat.g.0", "hold.q")),
    ]
    assert from_definitions(EXPORT_4_3 | {"queues": queues}, "/") == SHOP


def test_an_export_that_lacks_an_internal_exchange_is_refused():
    # As 4.3 writes it: the bindings of orders are there, the internal exchange itself is not.
    exchanges = [each for each in EXPORT_4_3["exchanges"] if each["name"] != "orders"]
    with pytest.raises(InvalidTopology, match=r"exchange 'orders'.* lack internal exchanges") as caught:
        from_definitions(EXPORT_4_3 | {"exchanges": exchanges}, "/")
    assert len(caught.value.problems) == 1


def test_malformed_definitions_are_reported_with_their_positions():
    text = '{"rabbit_version": "4.3.6",\n "exchanges": [{"name": 5, "type": "topic"}],\n "queues": [{"nam": "q"}],\n "bindings": 1}'
    with pytest.raises(InvalidTopology) as caught:
        loads(text, format="json", name="d")
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("d:2:25: invalid exchanges[0].name: got 5")
    assert second.startswith("d:3:13: invalid queues[0].name: got nothing")
    assert third.startswith("d:4:14: invalid bindings")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"queues": {}}, "invalid queues"),
        ({"exchanges": [5]}, "invalid exchanges"),
        ({"queues": [{"name": "q", "type": "mqtt"}]}, "got 'mqtt', expected classic or quorum or stream"),
    ],
)
def test_what_is_no_export_is_refused(value, part):
    with pytest.raises(InvalidTopology, match=part):
        from_definitions({"rabbit_version": "4.3.6"} | value)


def test_what_is_written_reads_back_and_does_not_depend_on_the_order_of_the_topology():
    assert from_definitions(to_definitions(SHOP)) == SHOP
    bindings = (*SHOP.bindings[1:], SHOP.bindings[0])
    turned = replace(SHOP, exchanges=SHOP.exchanges[::-1], queues=SHOP.queues[::-1], bindings=bindings)
    assert json.dumps(to_definitions(turned)) == json.dumps(to_definitions(SHOP))


def test_definitions_are_written_as_the_broker_writes_them():
    written = to_definitions(SHOP)
    assert written["vhosts"] == [{"name": "/"}]
    assert written["exchanges"][1] == EXPORT_3_10["exchanges"][0]
    assert written["queues"] == EXPORT_3_10["queues"][:0:-1]
    assert written["policies"] == [POLICY]
    assert written["bindings"] == [BINDINGS[1], BINDINGS[0], BINDINGS[2]]


def test_slots_are_written_out_each_with_one_queue():
    topology = Topology(
        exchanges=(Exchange("top", "x-modulus-hash"),),
        queues=(Queue("a", "quorum"), Queue("b", "quorum")),
        slots=(Slots("top", 16, {"a": 1, "b": 3}, "rest"),),
    )
    written = to_definitions(topology)
    slots = [each for each in written["exchanges"] if each["name"] != "top"]
    assert [each["name"] for each in slots] == [f"top.slot.{number:02}" for number in range(16)]
    assert all(each["internal"] and each["arguments"] == {"alternate-exchange": "rest"} for each in slots)
    behind = [each["destination"] for each in written["bindings"] if each["source"] != "top"]
    assert (behind.count("a"), behind.count("b")) == (4, 12)
    assert [each["destination"] for each in written["bindings"] if each["source"] == "top"] == [
        each["name"] for each in slots
    ]
