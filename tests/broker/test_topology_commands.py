"""The verbs for topologies on a real broker: what they do, what they say when it goes wrong, and their exit codes."""

from __future__ import annotations

import json
import os
import socket
import uuid
from urllib.parse import urlsplit

import pytest
from pika import BasicProperties

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.mirror.releases import Release
from tests.json_lines import documented, printed
from tests.queues import a_channel, bind_ring

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

QUEUES = "\n".join(f"  {name}: {{type: classic}}" for name in ("a", "b", "c", "lost"))
ORDERS = f"""
schema: 1
vhost: "VHOST"
exchanges:
  events:
    type: topic
    bindings: [{{exchange: orders, key: "order.#"}}]
  orders:
    type: x-consistent-hash
    hash-header: tenant
    queues: {{a: 1, b: 1, c: 2}}
    alternate-exchange: lost
  lost:
    type: fanout
    bindings: [{{queue: lost}}]
queues:
{QUEUES}
policies:
  limit: {{pattern: "^lost$", apply-to: queues, definition: {{max-length: 1000, overflow: reject-publish}}}}
"""


@pytest.fixture
def write(tmp_path, site):
    def write(text: str = ORDERS, vhost: str | None = None) -> str:
        path = tmp_path / f"{uuid.uuid4().hex}.yaml"
        path.write_text(text.replace("VHOST", site.vhost if vhost is None else vhost))
        return str(path)

    return write


# ---- the way of a topology


def test_from_nothing_to_applied_and_what_is_changed_behind_its_back_is_named(run, site, write) -> None:
    file = write()
    planned = run("plan", file, "--output", "json")
    assert planned.code == 2
    steps = [row for row in planned.rows if "do" in row]
    assert run("check", file).code == 2
    assert not site.queue_names(".*")

    applied = run("apply", file, "--yes")
    assert applied.code == 0, applied.err
    assert f"Done: {len(steps)} steps." in applied.out
    again = run("apply", file, "--yes")
    assert (again.code, "no changes needed" in again.out) == (0, True)
    assert run("plan", file).code == 0
    checked = run("check", file, "--verbose")
    assert checked.code == 0, checked.out
    assert "0 drift" in checked.out
    assert "recorded when it was applied" in checked.err

    (bound,) = (b for b in site.management.bindings_from(site.vhost, "orders") if b.destination == "b")
    with site.connection() as connection:
        connection.channel().queue_unbind("b", "orders", bound.key, dict(bound.arguments))
    drifted = run("check", file, "--output", "json")
    assert drifted.code == 2
    (missing,) = (row for row in drifted.rows if row["kind"] == "missing-binding")
    assert "'b'" in f"{missing['where']} {missing['message']}"
    assert "'orders'" in f"{missing['where']} {missing['message']}"


def test_a_quiet_exchange_is_probed_for_the_order_of_its_ring(run, site, write) -> None:
    with a_channel(site) as channel:  # bound by another program, so that no number tells the order
        bind_ring(channel, "orders", {"c": "2", "a": "1", "b": "1"}, hash_header="tenant")
    file = write(
        'schema: 1\nvhost: "VHOST"\nexchanges:\n  orders:\n    type: x-consistent-hash\n    hash-header: tenant\n'
        "    queues: {c: 2, a: 1, b: 1}\nqueues: {a: {type: classic}, b: {type: classic}, c: {type: classic}}\n"
    )
    unknown = run("check", file)
    assert unknown.code == 2
    assert "the order of its buckets is unknown" in unknown.out
    known = run("check", file, "--probe", "orders")
    assert (known.code, known.out.strip()[-8:]) == (0, "0 drift.")


def test_the_numbers_of_a_check_are_written_for_prometheus(run, write, tmp_path) -> None:
    metrics = tmp_path / "rabbit_chx.prom"
    assert run("check", write(), "--metrics", metrics).code == 2
    lines = metrics.read_text().splitlines()
    assert any('kind="missing-queue"' in line and line.endswith(" 4") for line in lines)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert run("check", write(), "--metrics", tmp_path / "nowhere" / "x.prom").code == 64


def test_a_dry_run_and_amqp_alone_change_and_show_only_what_they_can(run, site, write) -> None:
    file = write()
    assert run("apply", file, "--dry-run").code == 2
    blind = run("apply", file, "--yes", "--amqp-only")
    assert blind.code == 1
    assert not site.queue_names(".*")
    assert run("apply", file, "--yes").code == 0
    seen = run("check", file, "--amqp-only")
    assert seen.code == 2  # nobody can say that a ring is right which nobody saw
    assert "Not seen: bindings" in seen.err
    assert "missing" not in seen.out
    assert run("export", "--amqp-only").code == 64


def test_messages_count_as_waiting_as_soon_as_they_are_published(run, site, write) -> None:
    """The management API counts those of a quorum queue up to five seconds later."""
    quorum = ORDERS.replace("type: classic", "type: quorum")
    assert run("apply", write(quorum), "--yes").code == 0
    with a_channel(site, confirms=True) as channel:
        for number in range(40):
            channel.basic_publish("orders", "", b"", BasicProperties(headers={"tenant": str(number)}))
        grown = write(quorum.replace("c: 2}", "c: 2, lost: 1}"))
        planned = run("plan", grown, "--output", "json")
    (moving,) = [row for row in planned.rows if row["type"] == "step" and row["moved"]]
    assert moving["waiting"] == 40


# ---- applies that end on the way


def test_an_apply_to_two_virtual_hosts_whose_second_fails_is_partly_done(run, site, tmp_path) -> None:
    hosts = [{"name": site.vhost}, {"name": "zz no such"}]
    exchanges = [{"name": "x", "vhost": host["name"], "type": "fanout"} for host in hosts]
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"rabbit_version": "4.0.5", "vhosts": hosts, "exchanges": exchanges}))
    first = run("apply", file, "--yes")
    assert (first.code, "Done: 1 step." in first.out) == (3, True), first.err
    assert "'zz no such'" in first.err
    assert run("apply", file, "--yes").code == 1  # nothing is left to do in the first


# ---- what is refused


def test_a_virtual_host_that_is_missing_or_contradicted_is_named(run, site, write) -> None:
    for verb in ("plan", "check", "apply"):
        missing = run(verb, write(vhost="no such"), *(["--yes"] if verb == "apply" else []))
        assert missing.code == 1
        assert "'no such'" in missing.err
        assert "--amqp-only" not in missing.err
    assert run("check", write(), "--url", f"{os.environ['AMQP_URL']}/other").code == 64


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_ports_that_speak_something_else_are_told_apart(run, site, write, scheme) -> None:
    file = write()
    amqp, http = urlsplit(site.broker.url), urlsplit(site.broker.management_url)
    crossed = run("plan", file, "--management-url", f"http://{amqp.hostname}:{amqp.port}")
    assert crossed.code == 1
    assert f"{amqp.hostname}:{amqp.port}" in crossed.err
    assert "--management-url" in crossed.err or "the AMQP port" in crossed.err  # it may also just hang up
    own = f"{amqp.username}:{amqp.password}"
    port = http.port if scheme == "amqp" else amqp.port
    url = f"{scheme}://{own}@{amqp.hostname}:{port}"
    other = run("apply", file, "--yes", "--insecure-management", "--url", url)
    assert other.code == 1
    assert f"{amqp.hostname}:{port}" in other.err
    assert scheme == "amqp" or "port without TLS" in other.err
    assert not site.queue_names(".*")


def test_doctor_looks_at_the_management_api(run, site) -> None:
    found = run("doctor", "--output", "json").rows
    assert printed("doctor", found)
    rows = {str(row["name"]): row for row in found}
    assert rows["management API"]["state"] == "ok"
    assert "administrator" in str(rows["management API"]["found"])
    assert rows["pydantic"]["state"] == rows["PyYAML"]["state"] == "ok"
    old, middle = (site.management.overview().release.startswith(each) for each in ("3.", "4.0."))
    expected = "4.0 or later" if old else "#14141" if middle else "no known fault"
    assert expected in "".join(str(rows["consumer groups"][each]) for each in ("found", "hint"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert run("doctor", "--management-url", f"http://127.0.0.1:{free}").code == 1


@pytest.mark.long
def test_parity_names_what_differs_under_the_rules_of_another_release(run, broker) -> None:
    with broker.connection() as connection:
        running = Release.parse(server_version(connection))
    other = "4.3" if running.typed_headers else "3.10"
    found = run("parity", "--messages", "100", "--release", other, "--output", "json")
    assert found.code == 2
    assert printed("parity", found.rows) == documented("parity")
    differing = {row["hashed"]: row["differences"] for row in found.rows}
    assert differing.pop("header 'tenant'")  # its type is hashed up to 3.12 only
    assert list(differing.values()) == [[], []]
    assert run("parity", "--messages", "100").code == 0
