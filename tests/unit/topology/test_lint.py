"""Every rule of lint: that it speaks where it should, names the way out, and is silent where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import Release, Ring, ToExchange
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Slots, Topology


def hashing(*destinations, name="orders", **arguments) -> Topology:
    """An x-consistent-hash exchange over queues, each given by its name or as (name, weight)."""
    pairs = [item if isinstance(item, tuple) else (item, "1") for item in destinations]
    return Topology(
        exchanges=(Exchange(name, "x-consistent-hash", arguments=arguments),),
        queues=tuple(Queue(queue, "quorum") for queue in dict.fromkeys(queue for queue, _ in pairs)),
        bindings=tuple(Binding(name, queue, weight) for queue, weight in pairs),
    )


def codes(topology, observed=None) -> list[str]:
    return [finding.code for finding in lint(topology, observed)]


def only(topology, observed=None):
    (finding,) = lint(topology, observed)
    return finding


def test_a_plain_topology_has_no_finding():
    assert lint(hashing("a", "b", ("c", "3"))) == ()


def test_errors_come_first():
    topology = hashing(("a", "600"), ("b", "x"))
    assert [finding.severity for finding in lint(topology)] == ["error", "warning"]


# -- bindings


@pytest.mark.parametrize("key", ["", "#", "1.5", " 2", "0", "-1", "1_0", "٣"])
def test_a_key_that_is_no_weight(key):
    finding = only(hashing(("a", key)))
    assert (finding.severity, finding.code) == ("error", "binding-key")
    assert "queue 'a'" in finding.where
    assert repr(key) in finding.message


@pytest.mark.parametrize("key", ["10001", "+99999999", "0010001"])
def test_a_weight_over_ten_thousand(key):
    finding = only(hashing(("a", key)))
    assert (finding.severity, finding.code) == ("error", "weight-too-large")
    assert "at most 10,000" in finding.message


def test_ten_thousand_itself_is_only_dear():
    assert codes(hashing(("a", "10000"))) == ["many-buckets"]


def test_two_bindings_of_one_queue():
    finding = only(hashing("a", "b", ("a", "5")))
    assert (finding.severity, finding.code, finding.where) == ("error", "double-binding", "exchange 'orders'")
    assert "queue 'a' is bound 2 times" in finding.message


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations():
    topology = hashing("a")
    topology = replace(topology, bindings=(*topology.bindings, Binding("orders", ToExchange("a"), "1")))
    assert codes(topology) == []


@pytest.mark.parametrize(
    ("weights", "cost"), [(("400", "400"), "31 us"), (("4000", "4000"), "291 us"), (("250", "251"), "22 us")]
)
def test_many_buckets_have_a_price(weights, cost):
    finding = only(hashing(*zip("ab", weights, strict=True)))
    assert (finding.severity, finding.code) == ("warning", "many-buckets")
    assert f"about {cost}" in finding.message


def test_many_buckets_name_the_common_divisor():
    assert "Divide all weights by 300" in only(hashing(("a", "300"), ("b", "600"))).message


def test_five_hundred_buckets_are_no_finding():
    assert codes(hashing(("a", "250"), ("b", "250"))) == []


# -- arguments


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("hash_header", "hash-header"),
        ("hash-headers", "hash-header"),
        ("Hash-Header", "hash-header"),
        ("x-hash-header", "hash-header"),
        ("hash-on", "hash-header"),
        ("x-hash-on", "hash-header"),
        ("hash-propery", "hash-property"),
        ("alternate_exchange", "alternate-exchange"),
        ("alternative-exchange", "alternate-exchange"),
    ],
)
def test_a_misspelt_argument(name, meant):
    finding = only(hashing("a", **{name: "tenant"}))
    assert (finding.severity, finding.code) == ("error", "misspelt-argument")
    assert repr(name) in finding.message
    assert repr(meant) in finding.message


@pytest.mark.parametrize("name", ["hash-header", "alternate-exchange", "x-recent-history-length", "team"])
def test_an_argument_that_is_spelt_right_or_means_something_else(name):
    assert codes(hashing("a", **{name: "tenant"})) == []


def test_a_hash_argument_where_nobody_looks_at_it():
    topology = Topology(exchanges=(Exchange("m", "x-modulus-hash", arguments={"hash-header": "tenant"}),))
    assert codes(topology) == ["ignored-hash-argument"]


@pytest.mark.parametrize("header", [5, True, ["tenant"], 1.5])
def test_a_hash_header_whose_name_is_no_text(header):
    finding = only(hashing("a", **{"hash-header": header}))
    assert (finding.severity, finding.code) == ("error", "hash-header-type")
    assert "541" in finding.message


def test_both_hash_arguments():
    arguments = {"hash-header": "tenant", "hash-property": "message_id"}
    assert codes(hashing("a", **arguments)) == ["both-hash-arguments"]


@pytest.mark.parametrize("property_", ["app_id", "message-id", 5, ""])
def test_a_property_that_cannot_be_hashed(property_):
    finding = only(hashing("a", **{"hash-property": property_}))
    assert (finding.severity, finding.code) == ("error", "hash-argument-value")
    assert "correlation_id" in finding.message


def test_a_headers_exchange_upstream_that_asks_for_a_number_in_the_hash_header():
    down = hashing("a", "b", **{"hash-header": "tenant"})
    topology = replace(
        down,
        exchanges=(*down.exchanges, Exchange("in", "headers"), Exchange("mid", "fanout")),
        bindings=(
            *down.bindings,
            Binding("in", ToExchange("mid"), "", {"x-match": "all", "tenant": 5}),
            Binding("mid", ToExchange("orders")),
            Binding("mid", ToExchange("mid")),
        ),
    )
    finding = only(topology)
    assert (finding.code, finding.where) == ("hash-header-value", "exchange 'orders'")
    assert "'in'" in finding.message
    text = [
        replace(each, arguments={"tenant": "acme"}) if each.arguments else each for each in topology.bindings
    ]
    assert codes(replace(topology, bindings=tuple(text))) == []


# -- slots


def slotted(count=64, queues=4, type_="x-modulus-hash", **arguments) -> Topology:
    names = [f"t.{number}" for number in range(queues)]
    return Topology(
        exchanges=(Exchange("tenants", type_, arguments=arguments),),
        queues=tuple(Queue(name, "quorum") for name in names),
        slots=(Slots("tenants", count, dict.fromkeys(names, 1)),),
    )


def test_slots_as_recommended():
    assert codes(slotted()) == []


@pytest.mark.parametrize(
    ("count", "queues", "found", "advice"),
    [
        (63, 4, "few-slots", "Use 64"),
        (64, 5, "few-slots", "Use 128"),
        (257, 4, "many-slots", "at most 256"),
    ],
)
def test_too_few_slots_or_too_many(count, queues, found, advice):
    finding = only(slotted(count, queues))
    assert (finding.code, finding.severity) == (found, "warning")
    assert advice in finding.message


def test_an_alternate_exchange_on_the_top():
    assert codes(slotted(**{"alternate-exchange": "lost"})) == ["slots-alternate"]


def test_slots_under_an_exchange_that_does_not_hash():
    assert codes(slotted(type_="topic")) == ["slots-top"]


# -- queues, and what lasts


@pytest.mark.parametrize("limit", ["x-max-length", "x-max-length-bytes"])
@pytest.mark.parametrize("topology", [hashing("t.0"), slotted(16, 1)], ids=["ring", "slots"])
def test_a_target_queue_that_drops_its_head(topology, limit):
    dropping = replace(topology, queues=(Queue("t.0", "quorum", arguments={limit: 10}),))
    finding = only(dropping)
    assert (finding.code, finding.where) == ("drop-head", "queue 't.0'")
    for overflow, found in (("drop-head", 1), ("reject-publish", 0), ("reject-publish-dlx", 0)):
        queue = Queue("t.0", "classic", arguments={limit: 10, "x-overflow": overflow})
        assert len(lint(replace(topology, queues=(queue,)))) == found


def test_a_policy_makes_a_queue_drop_its_head_and_another_of_higher_priority_does_not():
    policy = Policy("small", "^orders", "queues", {"max-length": 10})
    topology = replace(hashing("orders.0"), policies=(policy,))
    finding = only(topology)
    assert finding.code == "drop-head"
    assert "policy 'small'" in finding.message
    better = Policy("better", "orders", "quorum_queues", {"overflow": "reject-publish", "max-length": 9}, 1)
    assert codes(replace(topology, policies=(policy, better))) == []
    assert codes(replace(topology, policies=(replace(policy, apply_to="exchanges"),))) == []


def test_the_retention_of_a_stream_is_no_drop_head_nor_is_the_limit_of_a_queue_that_follows_no_hash():
    stream = Queue("a", "stream", arguments={"x-max-length-bytes": 10})
    aside = Queue("audit", arguments={"x-max-length": 10})
    assert codes(replace(hashing("a"), queues=(stream, aside))) == []


def test_transient_parts_among_durable_ones():
    topology = replace(hashing("a"), queues=(Queue("a", durable=False),))
    assert [(finding.code, finding.where) for finding in lint(topology)] == [("transient", "queue 'a'")]


def test_a_topology_that_is_transient_throughout_is_as_meant():
    topology = hashing("a")
    exchange = replace(topology.exchanges[0], durable=False)
    assert codes(replace(topology, exchanges=(exchange,), queues=(Queue("a", durable=False),))) == []


def test_what_goes_with_its_last_consumer_or_binding():
    topology = hashing("a", "b")
    exchange = replace(topology.exchanges[0], auto_delete=True)
    queues = (Queue("a", auto_delete=True), Queue("b", exclusive=True), Queue("c", auto_delete=True))
    found = lint(replace(topology, exchanges=(exchange,), queues=queues))
    assert [finding.code for finding in found] == ["short-lived"] * 3
    assert [finding.where for finding in found] == ["exchange 'orders'", "queue 'a'", "queue 'b'"]


# -- co-partitioning


@pytest.mark.parametrize(
    ("second", "equal"),
    [
        ([("x", "1"), ("y", "2")], True),
        ([("x", "01"), ("y", "2")], True),
        ([("y", "2"), ("x", "1")], False),
        ([("x", "1")], False),
    ],
)
def test_exchanges_meant_to_be_co_partitioned(second, equal):
    first, other = hashing(("a", "1"), ("b", "2")), hashing(*second, name="payments")
    topology = Topology(
        exchanges=first.exchanges + other.exchanges,
        bindings=first.bindings + other.bindings,
        co_partitioned=(("orders", "payments"),),
    )
    assert codes(topology) == ([] if equal else ["co-partitioned"])


def test_live_rings_of_a_pair_are_compared_by_the_numbers_of_their_destinations():
    first, other = hashing("o.0", "o.1"), hashing("p.0", "p.1", name="payments")
    topology = Topology(
        exchanges=first.exchanges + other.exchanges,
        bindings=first.bindings + other.bindings,
        co_partitioned=(("orders", "payments"),),
    )

    def rings(*payments):
        return Observed(rings={"orders": Ring.of(["o.0", "o.1"]), "payments": Ring.of(payments)})

    assert codes(topology, rings("p.0", "p.1")) == []
    assert codes(topology, rings("p.1", "p.0")) == ["co-partitioned"]
    assert codes(topology, rings("p.0")) == ["co-partitioned"]
    assert codes(topology, Observed()) == []


def test_live_slots_of_a_pair_have_to_lead_to_queues_of_the_same_numbers():
    orders, payments = Slots("o", 32, {"o.0": 1, "o.1": 1}), Slots("p", 32, {"p.0": 1, "p.1": 1})
    top = (Exchange("o", "x-modulus-hash"), Exchange("p", "x-modulus-hash"))
    topology = Topology(exchanges=top, slots=(orders, payments), co_partitioned=(("o", "p"),))

    def leading(payment_queues):
        queues = [f"o.{number % 2}" for number in range(32)] + [f"p.{number}" for number in payment_queues]
        names = (*orders.names, *payments.names)
        bindings = [Binding(name, queue, "1") for name, queue in zip(names, queues, strict=True)]
        exchanges = (*top, *orders.exchanges, *payments.exchanges)
        return Observed(topology=Topology(exchanges=exchanges, bindings=tuple(bindings)))

    assert codes(topology, leading([0, 1] * 16)) == []
    assert codes(topology, leading([1, 0] * 16)) == ["co-partitioned"]


def test_a_partner_that_is_not_there():
    topology = replace(hashing("a"), co_partitioned=(("orders", "payments"),))
    assert "'payments' is not a hash exchange" in only(topology).message


# -- on a broker


def test_without_a_broker_nothing_is_said_of_brokers():
    assert codes(hashing("b", "a")) == []


def test_a_missing_exchange_type_names_its_plugin():
    observed = Observed(exchange_types=frozenset({"direct"}))
    finding = only(hashing("a"), observed)
    assert (finding.severity, finding.code) == ("error", "missing-type")
    assert "rabbitmq-plugins enable rabbitmq_consistent_hash_exchange" in finding.message
    assert codes(slotted(), observed) == ["missing-type", "missing-type"]
    assert codes(slotted(), Observed(exchange_types=None)) == []


def test_another_server_under_the_same_type_name():
    finding = only(hashing("b", "a"), Observed(product="LavinMQ", release=Release.parse("3.10")))
    assert (finding.severity, finding.code) == ("error", "other-product")
    assert "LavinMQ" in finding.message


def test_a_mnesia_broker_will_reorder_a_flat_ring():
    finding = only(hashing("b", "a"), Observed(release=Release.parse("4.0")))
    assert finding.code == "restart-moves-keys"
    # Of two equal queues that change places every key moves.
    assert "100.0%" in finding.message
    assert "default_worker_pool_size" in finding.message


def test_with_one_worker_the_share_is_exact_and_a_sorted_ring_is_safe():
    observed = Observed(release=Release.parse("4.0"), worker_pool_size=1)
    assert codes(hashing("a", "b"), observed) == []
    assert "moves 100.0% of the keys" in only(hashing("b", "a"), observed).message


def test_on_khepri_only_dead_bindings_move_keys():
    assert codes(hashing("b", "a"), Observed()) == []
    ring = Ring.of(["b", "a"]).bind("b", 5).unbind("b", 1)
    assert ring.bucket_map == ("a",)
    finding = only(hashing("b", "a"), Observed(rings={"orders": ring}))
    assert finding.code == "restart-moves-keys"
    assert "dead" in finding.message


def test_a_ring_of_which_nothing_is_known_is_not_guessed_at():
    ring = Ring.of(["b", "a"], release="4.0").after_restart()
    assert codes(hashing("b", "a"), Observed(release=ring.release, rings={"orders": ring})) == []


def test_the_modulus_hash_on_khepri_before_4_3():
    topology = Topology(exchanges=(Exchange("m", "x-modulus-hash"),))
    assert codes(topology, Observed(release=Release.parse("4.2"))) == ["modulus-order"]
    assert codes(topology, Observed(release=Release.parse("4.0"))) == []
    assert codes(topology, Observed(release=Release.parse("4.3"))) == []


def test_slots_in_the_middle_of_a_change():
    topology = slotted(16, 1)
    slots = topology.slots[0]
    bindings = [Binding(name, "t.0", "1") for name in slots.names[:-1]]
    live = Topology(exchanges=slots.exchanges, bindings=(*bindings, Binding(slots.names[3], "t.new", "1")))
    found = {finding.code: finding for finding in lint(topology, Observed(topology=live))}
    assert found["unfinished-slot"].where == "exchange 'tenants.slot.03'"
    assert found["empty-slot"].where == "exchange 'tenants.slot.15'"
    assert found["empty-slot"].severity == "error"
    assert len(found) == 2
    assert codes(topology, Observed(topology=live, bindings_seen=False)) == []
