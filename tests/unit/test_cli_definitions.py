"""Files that RabbitMQ exported, on the command line: what import warns about, and several virtual hosts."""

from __future__ import annotations

import json

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import Binding, Exchange, Observed, Queue, Topology
from tests.unit.test_hostile_http import HEAD, answering


def of_vhost(vhost: str) -> dict[str, list[dict]]:
    queues = [f"orders.{number}" for number in range(16)]
    bound = {"source": "orders", "vhost": vhost, "destination_type": "queue", "routing_key": "1"}
    return {
        "exchanges": [{"name": "orders", "vhost": vhost, "type": "x-consistent-hash", "arguments": {}}],
        "queues": [{"name": name, "vhost": vhost, "type": "quorum"} for name in queues],
        "bindings": [bound | {"destination": name} for name in reversed(queues)],
    }


SHOP, OTHER = of_vhost("shop"), of_vhost("other/one")
LIMITS = {"max-queues": 5, "max-connections": 9}
DEFINITIONS = {
    "rabbit_version": "3.10.8",
    "vhosts": [
        {"name": "shop", "metadata": {"tags": ["a", "b"]}, "limits": LIMITS},
        {"name": "other/one", "limits": []},
    ],
    "users": [{"name": "guest"}, {"name": "app"}],
    "permissions": [{"user": "app", "vhost": "shop"}, {"user": "app", "vhost": "other/one"}],
    "topic_permissions": [{"user": "app", "vhost": "shop"}],
    "parameters": [
        {"component": "operator_policy", "vhost": "shop", "name": "limit", "value": {}},
        {"component": "vhost-limits", "vhost": "shop", "name": "limits", "value": LIMITS},
        {"component": "shovel", "vhost": "other/one", "name": "s", "value": {}},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "c"}],
    **{section: SHOP[section] + OTHER[section] for section in SHOP},
}


@pytest.fixture
def file(write):
    return write(json.dumps(DEFINITIONS), "definitions.json")


def test_an_export_of_a_file_warns_about_the_order_and_counts_what_it_leaves_out(run, file):
    found = run("export", file, "--vhost", "shop")
    assert found.code == 0
    warning = "Warning: the file does not contain the bind order of 'orders' in virtual host 'shop'"
    assert warning in found.err
    assert "--node" in found.err
    (note,) = [line for line in found.err.splitlines() if line.startswith("Note: left out")]
    assert set(note.partition("hold them: ")[2].split(", ")) == {
        "users: 2",
        "permissions: 1",
        "topic permissions: 1",
        "operator policies: 1",
        "virtual host limits: 2",
        "global parameters: 1",
        "virtual host tags: 2",
    }


@pytest.mark.parametrize("value", [[], [[]], {"a": {}}, 7, None])
def test_an_export_of_a_file_counts_what_is_no_export_of_rabbitmq_as_far_as_it_can(run, write, value):
    rows = [{"vhost": value, "limits": value, "component": value, "value": value}]
    sections = dict.fromkeys(("users", "permissions", "parameters", "global_parameters"), rows)
    vhosts = [{"name": "/", "limits": value, "metadata": value, "tags": value}]
    file = write(json.dumps({"rabbit_version": "3.10.8", "vhosts": vhosts, **sections}), "definitions.json")
    assert run("export", file).code == 0


def test_an_export_of_a_file_writes_several_virtual_hosts_to_a_folder(run, file, tmp_path):
    text = run.refused("export", file)
    assert "missing --out" in text
    assert "'other/one', 'shop'" in text
    assert run("export", file, "-o", file).code == 64  # not a folder
    assert run("export", file, "-o", tmp_path / "made").code == 0
    found = {load(path).vhost: path.name for path in (tmp_path / "made").iterdir()}
    assert found == {"shop": "shop.yaml", "other/one": "other%2Fone.yaml"}


def test_lint_checks_all_virtual_hosts_or_those_that_are_named(run, file):
    assert [line.partition(": ")[0] for line in run("lint", file).out.splitlines()] == [
        f"{file}, virtual host 'other/one'",
        f"{file}, virtual host 'shop'",
    ]
    assert run("lint", file, "-V", "shop").out.count("16 queues") == 1
    unknown = run.refused("lint", file, "--vhost", "nowhere", code=1)
    assert "got 'nowhere', expected 'other/one' or 'shop'" in unknown


@pytest.mark.usefixtures("empty_broker")
@pytest.mark.parametrize(("url", "count"), [("amqp://host", 2), ("amqp://host/shop", 1)])
def test_plan_and_export_are_about_the_virtual_host_of_the_url_or_about_all(run, file, tmp_path, url, count):
    planned = run("plan", file, "--url", url, "--output", "json")
    assert planned.code == 2
    steps = [row.get("do") for row in planned.rows]
    assert steps.count("declare exchange 'orders' of type x-consistent-hash") == count
    made = tmp_path / "made"
    assert run("export", file, "--url", url, "-o", made).code == 0
    assert len([*made.iterdir()] if made.is_dir() else [made]) == count


@pytest.mark.parametrize(("weight", "order"), [("1", "{orders.3: 1, orders.2: 1,"), ("3", "order: unknown")])
def test_an_export_of_a_file_takes_only_the_order_from_the_broker(run, file, live, weight, order):
    """Once, the weights of the broker as well."""
    queues = {f"orders.{number}": weight if number == 5 else "1" for number in (3, 2, *range(4, 16), 0, 1)}
    bindings = tuple(Binding("orders", queue, key) for queue, key in queues.items())
    exchanges = (Exchange("orders", "x-consistent-hash"),)
    live(Topology("shop", exchanges, tuple(map(Queue, queues)), bindings))
    found = run("export", file, "--vhost", "shop", "--url", "amqp://host/shop")
    assert found.code == 0
    assert order in found.out
    assert ("order: unknown" in found.out) == ("the broker has other bindings" in found.err)


def test_a_topology_file_for_another_virtual_host_is_refused(run, write):
    text = run.refused("lint", write("schema: 1\nvhost: shop"), "--vhost", "other", code=1)
    assert "got 'shop', expected 'other'" in text


def test_definitions_are_written_with_a_warning_where_a_ring_would_differ(run, write, tmp_path):
    ring = "schema: 1\nexchanges: {x: {type: x-consistent-hash, queues: [a, b]}}\nqueues: {a: {}, b: {}}"
    two = run("export", write(ring), "--format", "definitions").err
    assert "binds in random order, so its rings of 'x'" in two
    one = ring.replace("[a, b]", "[a]")
    assert "Warning" not in run("export", write(one), "--format", "definitions").err


def test_export_says_what_it_leaves_out_when_the_definitions_are_too_large_to_count(run, monkeypatch):
    monkeypatch.setattr(BrokerAccess, "read", lambda _self, wanted: Observed(wanted))
    monkeypatch.setattr(Management, "_check_answers", lambda *_: None)
    endless = [HEAD, b'{"users": [', *[b"0," * 50_000] * 20]
    with answering(lambda: endless) as (url, requests):
        found = run("export", "--url", "amqp://host/shop", "--management-url", url)
    assert requests[0].startswith(b"GET /api/definitions ")
    assert found.code == 0
    assert "vhost: shop" in found.out
    (note,) = [line for line in found.err.splitlines() if line.startswith("Note: not exported")]
    assert "users, permissions, topic permissions" in note
    assert "could not be counted: the management API" in note
    assert "sent more data about definitions" in note
