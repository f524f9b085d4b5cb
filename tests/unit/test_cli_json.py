"""``--output json`` prints what docs/output.md says, no more and no less.

The verbs that need a broker are held to the same page by tests/broker/test_topology_commands.py, test_publish_command.py,
test_replay.py, test_groups.py and test_watch.py.
"""

from __future__ import annotations

import pytest

from rabbit_chx import Ring
from rabbit_chx.cli.spark import executor_check
from rabbit_chx.topology.model import Binding, Exchange, Observed, Queue, Topology
from tests.json_lines import PAGE, documented, printed
from tests.verbs import EVENTS, ORDERS, SLOTS, commands

ON_A_BROKER = {"group", "parity", "publish", "rebalance", "replay", "scale", "watch"}
SPARK = {"host", "process", "python", "packages", "seconds"}
HASHED = """
schema: 1
exchanges:
  top:
    type: x-consistent-hash
    bindings: [{queue: a, key: "1"}, {exchange: below, key: "2"}]
  below: {type: fanout, bindings: [{queue: b}]}
queues: {a: {}, b: {}}
"""


def verbs_with_json() -> set[str]:
    return {name for name, each in commands().items() if any(one.name == "output" for one in each.params)}


@pytest.fixture
def rows(run):
    def rows(verb: str, *lines: tuple[object, ...]) -> list[dict[str, object]]:
        return [row for line in lines for row in run(verb, *line, "--output", "json").rows]

    return rows


def test_the_page_has_every_verb_with_json_and_no_other() -> None:
    verbs = verbs_with_json()
    assert len(verbs) == 16
    assert {verb for verb in commands() if f"\n## {verb}\n" in PAGE.read_text()} == verbs
    assert all(documented(verb) for verb in verbs)


def test_route(rows, write) -> None:
    keys, events, slots = write(b"\xff\n", "keys"), write(EVENTS, "events.yaml"), write(SLOTS % 1)
    through = ("k", "--file", events, "--exchange")
    found = rows(
        "route",
        ("k", "-q", "a", "--explain"),
        ("k", "-q", "a", "--count"),
        ("--keys", keys, "--raw", "-q", "a"),
        (*through, "events"),
        ("k", "--file", slots),
        ("k", "--file", slots, "--count"),
        ("--keys", keys, "--raw", "--file", events, "--exchange", "events"),
        ("k", "--file", write(HASHED, "top.yaml"), "-x", "top", "--explain"),
    )
    assert printed("route", found) == documented("route")


def test_ring(rows, write) -> None:
    found = rows("ring", ("--file", write(HASHED), "--exchange", "top"))
    assert printed("ring", found) == documented("ring")


def test_simulate(rows, write) -> None:
    found = rows("simulate", ("-q", "a"), ("-q", "a", "-q", "b", "--keys", write(b"x\nx\ny\n", "keys")))
    assert printed("simulate", found) == documented("simulate")


def test_lint(rows, write) -> None:
    bad = write("schema: 1\nexchanges: {x: {type: x-consistent-hash, queues: {a: 600}}}\nqueues: {a: {}}\n")
    assert printed("lint", rows("lint", (bad,))) == documented("lint")


def test_plan(rows, write) -> None:
    old = write(ORDERS, "old.yaml")
    new = write(ORDERS.replace("vip: 2", "vip: 2, new: 1") + "  new: {}\n", "new.yaml")
    turned = write(ORDERS.replace('{"q.{0..2}": 1, vip: 2}', '{vip: 2, "q.{0..2}": 1}'), "turned.yaml")
    slots = [write(SLOTS % count, f"slots.{count}.yaml") for count in (1, 2)]
    found = rows(
        "plan",
        (new, "--against", old),
        (turned, "--against", old),
        (turned, "--against", old, "--strategy", "in place"),
        (slots[1], "--against", slots[0]),
        (old, "--add", "1"),
    )
    assert printed("plan", found) == documented("plan")
    strategies = [each for row in found if row["type"] == "change" for each in row["strategies"]]
    assert set().union(*strategies) == documented("plan")["strategy"] - {"exchange"}


@pytest.mark.usefixtures("empty_broker")
def test_apply(rows, write) -> None:
    found = rows("apply", (write(ORDERS), "--yes"))
    assert printed("apply", found)["done"] == documented("apply")["done"]
    assert {row["type"] for row in found} > {"step", "done"}


@pytest.mark.usefixtures("empty_broker")
def test_check(rows, write) -> None:
    assert printed("check", rows("check", (write(ORDERS),))) == documented("check")


def test_list(rows, live) -> None:
    there = Topology(
        exchanges=(Exchange("orders", "x-consistent-hash"),),
        queues=(Queue("a"),),
        bindings=(Binding("orders", "a", "1"),),
    )
    observed = Observed(there, rings={"orders": Ring.of({"b": 1})}, ring_sources={"orders": "node"})
    live(observed)
    found = rows("list", ("--url", "amqp://host/"))
    assert printed("list", found) == documented("list")
    (trouble,) = found[0]["troubles"]
    assert trouble.keys() == {"kind", "where", "message", "next", "warning"}


def test_doctor(rows) -> None:
    assert printed("doctor", rows("doctor", ())) == {"check": documented("doctor")["check"] - SPARK}
    answer = {"host": "node-8", "process": 4711, "python": "3.11.7", "packages": {}, "seconds": 0.1}
    of_spark = set(executor_check(answer | {"faults": {}, "broker": "rabbit"}, "").details)
    assert of_spark == SPARK
    assert of_spark < documented("doctor")["check"]


def test_no_verb_with_json_is_left_out() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert verbs_with_json() - tested == ON_A_BROKER
