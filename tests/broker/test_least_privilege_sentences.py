"""What docs/permissions.md says between its commands."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from rabbit_chx.broker import connect, drain, pass_marker
from rabbit_chx.consuming import Group
from tests.broker.privileges import OPERATIONS, Grant, Shop, complaint_of, release_of, run_cli, sections
from tests.broker.topology_site import Site
from tests.members import in_background, running
from tests.patience import PATIENCE, wait_until
from tests.users import a_user

pytestmark = [pytest.mark.one_release, pytest.mark.long, pytest.mark.broker, pytest.mark.since_4_0]

TOPOLOGY = """
exchanges:
  orders: {type: x-consistent-hash, queues: [a, b]}
  tenants: {type: x-modulus-hash, slots: 4, queues: {a: 3, b: 1}}
queues: {a: {preset: ordered}, b: {preset: ordered}}
"""
NOTHING = Grant("^$", "^$", "^$")
SEES = Grant("^$", "^$", "^$", "management")


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    with Shop(broker, tmp_path_factory.mktemp("shop")) as shop:
        shop.be(shop.write("topology.yaml", TOPOLOGY))
        (shop.folder / "keys.txt").write_text("\n".join(f"tenant-{number}" for number in range(1000)))
        yield shop


@pytest.fixture
def run(shop, capsys, monkeypatch):
    """Run a command as the user of few rights, who is granted these."""

    def run(command: str, grant: Grant, url: str | None = None) -> tuple[int, str]:
        shop.allow(grant)
        with shop.environment(monkeypatch):
            if url is not None:
                monkeypatch.setenv("AMQP_URL", url)
            return run_cli(command, capsys)

    return run


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_the_management_api_any_permission_on_each_name_will_do(run, operation) -> None:
    only = {each: "^(a|b|orders|tenants.*)$" if each == operation else "^$" for each in OPERATIONS}
    code, text = run("rabbit-chx check topology.yaml --amqp-only", Grant(**only))
    assert code in {0, 2}, text


def test_doctor_needs_the_tag_only_for_the_management_api(run) -> None:
    found = {}
    for grant in (SEES, NOTHING):
        _, text = run("rabbit-chx doctor", grant)
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        found[grant] = {row["name"]: row["state"] for row in rows if row["name"] != "cluster"}
    assert {name for name, state in found[SEES].items() if found[NOTHING][name] != state} == {
        "management API"
    }


def test_list_reads_the_virtual_hosts_that_the_user_may_see(run, shop) -> None:
    with Site(shop.broker) as other:
        code, text = run(
            "rabbit-chx list --output json", SEES, shop.own_url.removesuffix(shop.own_url.rpartition("/")[2])
        )
        assert code in {0, 2}, text
        seen = {json.loads(line)["vhost"] for line in text.splitlines() if line.startswith("{")}
        assert shop.vhost in seen
        assert other.vhost not in seen


def definitions(vhost: str) -> dict[str, Any]:
    """As a broker exports them: a hash exchange, whose order only the broker has."""
    bound = {"vhost": vhost, "source": "orders", "destination_type": "queue", "routing_key": "1"}
    return {
        "rabbitmq_version": "4.3.6",
        "vhosts": [{"name": vhost}],
        "exchanges": [{"name": "orders", "vhost": vhost, "type": "x-consistent-hash", "durable": True}],
        "queues": [{"name": name, "vhost": vhost, "durable": True} for name in "ab"],
        "bindings": [{**bound, "destination": name} for name in "ab"],
    }


@pytest.mark.parametrize(
    "command",
    [
        "rabbit-chx export definitions.json --vhost '{vhost}' --url {url}",
        "rabbit-chx rebalance topology.yaml -x tenants --dry-run --keys keys.txt",
    ],
)
def test_commands_that_only_look_need_what_a_check_needs(run, shop, command) -> None:
    (shop.folder / "definitions.json").write_text(json.dumps(definitions(shop.vhost)))
    command = command.format(url=shop.own_url, vhost=shop.vhost)
    code, text = run(command, SEES)
    assert code in {0, 2}, text
    code, text = run(command, NOTHING)
    assert code == 1
    assert "it needs the tag management" in text


def member(shop, **settings) -> Group:
    return Group(shop.own_url, exchange="orders", name="billing", queues=["a", "b"], **settings)


MEMBER = sections()['Group(url, exchange="orders", name="billing", queues=["a", "b"])']


@pytest.mark.since_4_3
def test_a_parking_queue_needs_the_write_permission(shop) -> None:
    with shop.connection() as connection:
        connection.channel().queue_declare("lot", durable=True)
    shop.allow(MEMBER)
    group = member(shop, on_failure="park", parking_queue="lot")
    text = complaint_of(lambda: group.run(print))
    assert f"user '{shop.user}' has no write permission on queue 'lot'" in text
    shop.allow(replace(MEMBER, write=MEMBER.write.replace("^(", "^(lot$|")))
    with running(group, print) as thread:
        wait_until(lambda: thread.error or group.status.connected, "the member consumes")


@pytest.mark.parametrize("operation", [*OPERATIONS, None])
def test_group_needs_any_permission_on_each_queue_to_count_its_messages(run, shop, operation) -> None:
    """From 4.3.1 on."""
    grant = {"configure": "^$", "write": "^amq\\.default$", "read": "^$"}
    if operation is not None:
        grant[operation] = "^(amq\\.default|a|b)$"
    shop.allow(MEMBER)
    group = member(shop)
    with running(group, print) as thread, a_user(shop.broker, **grant, vhost=shop.vhost) as asker:
        wait_until(lambda: thread.error or group.status.connected, "the member consumes")
        code, text = run("rabbit-chx group billing", MEMBER, asker.url)
    if operation is None and release_of(shop.broker) >= (4, 3, 1):
        assert code == 1
        assert f"user '{asker.name}' has no write permission on queue 'a'" in text
    else:
        assert code == 0, text


def test_a_consumer_that_answers_a_drain_needs_the_write_permission_on_the_default_exchange(shop) -> None:
    shop.allow(Grant("^$", "^$", "^a$"))

    def answer(ended: threading.Event) -> None:
        with connect(shop.own_url) as connection:
            channel = connection.channel()
            for method, properties, _ in channel.consume("a", inactivity_timeout=0.05):
                if method is not None:
                    assert pass_marker(channel, method, properties)
                if ended.is_set():
                    break
            channel.cancel()

    with shop.connection() as connection:
        draining = threading.Thread(target=drain, args=(shop.url(), ["a"]), kwargs={"settle": 0.1})
        draining.start()
        with pytest.raises(ChannelClosedByBroker, match=r"exchange 'amq\.default'"):
            answer(threading.Event())
        assert draining.is_alive()
        shop.allow(Grant("^$", "^amq\\.default$", "^a$"))
        with in_background(answer):
            draining.join(PATIENCE)
        assert not draining.is_alive()
        connection.channel().queue_purge("a")
