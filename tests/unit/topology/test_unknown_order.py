"""A file that does not know the bind order of a ring: what is still answered, and what is refused."""

from __future__ import annotations

import json

import pytest

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology import Observed, drift, lint, loads, plan

UNKNOWN = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, order: unknown, queues: {a: 1, b: 2, c: 1}}
  one: {type: x-consistent-hash, order: unknown, queues: {a: 5}}
  sharded: {type: x-modulus-hash, queues: [a, b]}
  tenants: {type: x-modulus-hash, slots: 4, queues: {a: 1, b: 1}}
queues: {a: {}, b: {}, c: {}}
"""
WANTED = loads(UNKNOWN, format="yaml")
ORDERS = Ring.of({"c": 1, "a": 1, "b": 2})


def observed(ring: Ring) -> Observed:
    """A broker that matches the file, with this ring of ``orders``."""
    whole = WANTED.expanded({name: "ab"[number % 2] for number, name in enumerate(WANTED.slots[0].names)})
    rings = {each.name: whole.ring(each.name) for each in whole.hash_exchanges} | {"orders": ring}
    return Observed(whole, rings=rings)


def unknown() -> Ring:
    return Ring(ORDERS.bindings, None, why_unknown="it has not been read")


@pytest.mark.parametrize(
    "verb",
    [("route", "key"), ("ring",), ("simulate",), ("report", "-o", "page.html"), ("plan", "--add", "1")],
)
def test_each_verb_refuses_to_predict_and_names_the_options_that_help(run, write, verb) -> None:
    file = [write(UNKNOWN)] if verb[0] == "plan" else ["-f", write(UNKNOWN)]
    found = run(*verb, *file, "-x", "orders")
    assert (found.code, found.out) == (1, "")
    for part in ("exchange 'orders'", "--node", "--pairs", "--probe", "ring --infer"):
        assert part in found.err
    assert "()" not in found.err


@pytest.mark.parametrize(
    ("exchange", "queues"), [("one", {"a"}), ("sharded", {"a", "b"}), ("tenants", {"a", "b"})]
)
def test_where_the_order_does_not_matter_routes_are_predicted(run, write, exchange, queues) -> None:
    found = run("route", "key", "-f", write(UNKNOWN), "-x", exchange)
    assert found.code == 0, found.err
    assert found.out.split()[-1] in queues


def test_observed_pairs_still_tell_the_ring(run, write) -> None:
    keys = [f"key-{number}" for number in range(200)]
    mirror = ConsistentHashExchange(ORDERS)
    pairs = write("".join(f"{key},{mirror.route(key)}\n" for key in keys), "pairs.csv")
    found = run("ring", "-f", write(UNKNOWN), "-x", "orders", "--infer", pairs, "--output", "json")
    assert found.code == 0, found.err
    assert [json.loads(line)["queue"] for line in found.out.splitlines()] == ["c", "a", "b"]


def test_only_a_consistent_hash_exchange_has_an_order(run, write) -> None:
    text = UNKNOWN.replace("x-modulus-hash, queues", "x-modulus-hash, order: unknown, queues")
    assert "order" in run.refused("lint", write(text), code=1)
    assert "'sorted'" in run.refused("lint", write(UNKNOWN.replace("unknown", "sorted")), code=1)


@pytest.mark.parametrize("ring", [ORDERS, Ring.of({"a": 1, "b": 2, "c": 1}), unknown()])
def test_every_order_matches_a_file_that_does_not_know_it(ring) -> None:
    found = plan(WANTED, observed(ring))
    assert not found.differs
    assert not found.refusals
    assert not drift(WANTED, observed(ring))


def test_a_change_keeps_the_order_of_the_broker() -> None:
    queues = UNKNOWN.replace("c: 1}}", "c: 1, d: 1}}").replace("c: {}}", "c: {}, d: {}}")
    found = plan(loads(queues, format="yaml"), observed(ORDERS))
    (change,) = found.changes
    assert change.after.destinations == ("c", "a", "b", "d")
    assert change.moved is not None


def test_lint_says_that_nothing_is_predicted() -> None:
    assert [each.where for each in lint(WANTED) if each.code == "unknown-order"] == ["exchange 'orders'"]


@pytest.mark.parametrize("ring", [unknown(), ORDERS])
def test_plan_and_drift_agree_that_an_order_may_differ(ring) -> None:
    wanted = loads(UNKNOWN.replace("order: unknown, ", ""), format="yaml")
    assert plan(wanted, observed(ring)).left_alone
    assert {each.kind for each in drift(wanted, observed(ring))} <= {"ring-unknown", "ring-order"}
    assert drift(wanted, observed(ring))
