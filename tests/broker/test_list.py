"""`list`: the hash exchanges of a broker, what is wrong with them, and the next command."""

from __future__ import annotations

import pytest

from tests.patience import wait_until
from tests.queues import bind_ring
from tests.verbs import Result

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


def rows(found: Result) -> dict[str, dict]:
    return {each["exchange"]: each for each in found.rows}


def kinds(row: dict) -> set[str]:
    return {each["kind"] for each in row["troubles"]} - {"no-consumer"}


def test_an_unknown_order_is_a_difference_until_it_is_adopted_as_the_next_command_says(
    site, channel, run, node, tmp_path
):
    bind_ring(channel, "orders", ["a", "b"], hash_header="tenant")
    channel.exchange_declare("by key", "direct", durable=True, arguments={"x-super-stream": True})
    channel.exchange_declare("other", "topic")
    blind = run("list", "--url", site.url(), "--output", "json")
    assert blind.code == 2, blind.err
    assert rows(blind).keys() == {"orders", "by key"}
    row = rows(blind)["orders"]
    assert (row["vhost"], row["kind"], row["destinations"]) == (site.vhost, "x-consistent-hash", 2)
    assert (row["hashes"], row["order"], kinds(row)) == ("the header 'tenant'", "unknown", {"ring-unknown"})
    assert rows(blind)["by key"] == rows(blind)["by key"] | {"kind": "super stream", "order": None}
    (trouble,) = (each for each in row["troubles"] if each["kind"] == "ring-unknown")
    assert trouble["next"].startswith("rabbit-chx export -V 'v/")
    assert not trouble["warning"]

    seen = run("list", "--url", site.url(), *node, "--output", "json")
    assert (seen.code, rows(seen)["orders"]["order"]) == (0, "known")
    file = tmp_path / "topology.yaml"
    assert run("export", "--url", site.url(), *node, "-o", file).code == 0
    assert run("apply", file, "-x", "orders", "--url", site.url(), *node, "--yes").code == 0
    adopted = run("list", "--url", site.url())
    assert adopted.code == 0
    assert "recorded" in adopted.out


def test_bindings_without_buckets_and_second_bindings_are_listed(site, channel, run, node):
    bind_ring(channel, "orders", ["a", "b"])
    channel.queue_bind("a", "orders", "3")
    twice = run("list", "--url", site.url(), *node, "--output", "json")
    assert twice.code == 0, twice.err
    assert kinds(rows(twice)["orders"]) == {"second-binding"}
    bind_ring(channel, "single", ["c"])
    channel.queue_bind("c", "single", "3")
    channel.queue_unbind("c", "single", "1")
    dead = run("list", "--url", site.url(), *node, "--output", "json")
    assert dead.code == 2
    assert kinds(rows(dead)["single"]) == {"dead-binding"}
    guessed = run("list", "--url", site.url(), "--output", "json")
    assert rows(guessed)["single"]["order"] == "assumed"
    assert "'single'" in guessed.err


def test_messages_that_wait_and_queues_without_consumers_are_listed_for_all_virtual_hosts(
    site, channel, run, node
):
    bind_ring(channel, "orders", ["a", "b"])
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("orders", str(number), b"")
    channel.basic_consume("a", lambda *_: None, auto_ack=True)
    server = site.url().rpartition("/")[0]

    def row() -> dict:
        found = run("list", "--url", server, *node, "--output", "json")
        (one,) = (each for each in found.rows if each["vhost"] == site.vhost)
        return one

    wait_until(
        lambda: (
            [each["where"] for each in row()["troubles"]] == ["queue 'b' behind exchange 'orders'"]
            and row()["waiting"] > 0
        ),
        "only b is without a consumer, and its messages wait",
    )
