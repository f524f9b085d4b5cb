"""Files between real brokers: what a broker exports is imported in ring order, and what is exported from it lints."""

from __future__ import annotations

import json
from functools import partial
from urllib.parse import urlsplit

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.topology.file.load import load
from tests.queues import a_channel, bind_ring
from tests.verbs import run_verb

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

ORDER = ("q.3", "q.0", "q.1", "q.2", "q.4")


@pytest.fixture
def run(site, capsys, monkeypatch):
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)
    return partial(run_verb, capsys)


@pytest.fixture
def channel(site):
    with a_channel(site) as channel:
        bind_ring(channel, "orders", ORDER)
        yield channel


def exported(site) -> str:
    return json.dumps(site.management._request("GET", ["definitions"]))


def test_an_export_of_a_file_reads_the_order_of_a_ring_from_the_broker_that_exported_the_file(
    site, channel, run, node, tmp_path
):
    file, made = tmp_path / "definitions.json", tmp_path / "topology.yaml"
    file.write_text(exported(site))
    guessed = run("export", file, "--vhost", site.vhost)
    assert "does not contain the bind order of 'orders'" in guessed.err
    assert "users: " in guessed.err
    server = f"amqp://{urlsplit(site.broker.url).netloc}"
    asked = run("export", file, "--vhost", site.vhost, "--url", server, *node, "-o", made)
    assert asked.code == 0, asked.err
    assert "Warning: the file" not in asked.err
    assert load(made).ring("orders").bucket_map == ORDER == tuple(site.broker.ring("orders", site.vhost))


def test_an_export_with_twins_and_a_cycle_has_the_same_ring_and_no_lint_error(
    site, channel, run, node, tmp_path
):
    channel.exchange_bind("orders", "amq.topic", "#")
    channel.exchange_bind("amq.topic", "orders", "3")
    for number, name in enumerate(ORDER):
        channel.queue_bind(name, "orders", "1", {"note": number + 1})
    file = tmp_path / "topology.yaml"
    found = run("export", "--url", site.url(), *node, "-o", file)
    assert found.code == 0, found.err
    assert found.err.count("a second binding") == len(ORDER)
    assert {bound.destination for bound in load(file).bindings} >= {
        ToExchange("orders"),
        ToExchange("amq.topic"),
    }
    assert run("lint", file).code == 0
    assert load(file).ring("orders").bucket_map == tuple(site.broker.ring("orders", site.vhost))


def test_a_mirroring_policy_from_3_10_is_a_lint_error_for_4_3(site, channel, run, tmp_path):
    release = site.management.overview().release
    definition = {"pattern": "^q", "apply-to": "queues", "definition": {"ha-mode": "all"}, "priority": 0}
    file = tmp_path / "definitions.json"
    if release.startswith("3."):
        site.management._request("PUT", ["policies", site.vhost, "ha"], body=definition)
        file.write_text(exported(site))
    else:
        document = json.loads(exported(site))
        document["policies"].append({"vhost": site.vhost, "name": "ha", **definition})
        file.write_text(json.dumps(document))
    linted = run("lint", file, "--release", "4.3", "--vhost", site.vhost)
    assert linted.code == 1
    assert "refuse ha-mode" in linted.err
