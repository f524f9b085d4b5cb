"""Every kind of drift between a file and a broker, the exact shares among them, what is no drift, and the metrics of a check."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rabbit_chx import Ring, ToExchange, moved
from rabbit_chx.topology.checks.drift import KINDS, Drift, drift, prometheus_metrics
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Slots, Topology
from rabbit_chx.topology.planning.steps import Bind
from rabbit_chx.topology.planning.what_if import assume_applied
from tests import verbs
from tests.unit.topology.broker_model import hashed

WANTED = Topology(
    exchanges=(
        Exchange("orders", "x-consistent-hash", arguments={"hash-header": "tenant"}),
        Exchange("events", "topic"),
    ),
    queues=(Queue("a", "quorum"), Queue("b", "quorum"), Queue("c", "quorum", arguments={"x-max-length": 10})),
    bindings=(
        Binding("orders", "a", "1"),
        Binding("orders", "b", "1"),
        Binding("orders", "c", "2"),
        Binding("events", ToExchange("orders"), "order.#"),
    ),
    policies=(Policy("shards", "^logs$", "exchanges", {"shards-per-node": 2}),),
)
RING = Ring.of({"a": 1, "b": 1, "c": 2})


def live(topology=WANTED, ring=RING, **more) -> Observed:
    return Observed(topology=topology, rings={} if ring is None else {"orders": ring}, **more)


def kinds(observed, wanted=WANTED, **options) -> list[str]:
    found = [one.kind for one in drift(wanted, observed, **options)]
    assert found == sorted(found, key=KINDS.index)
    return found


def only(observed, wanted=WANTED, **options):
    (one,) = drift(wanted, observed, **options)
    assert one.kind in KINDS
    return one


def with_bindings(*bindings) -> Topology:
    return replace(WANTED, bindings=bindings)


def test_a_broker_as_its_file_has_not_drifted():
    assert drift(WANTED, live(), strict=True) == ()


# -- things


def test_all_that_is_missing_from_an_empty_broker():
    found = drift(WANTED, Observed(exchange_types=frozenset({"topic"})))
    assert [(one.kind, one.where) for one in found] == [
        ("missing-type", "exchange type x-consistent-hash"),
        ("missing-exchange", "exchange 'orders'"),
        ("missing-exchange", "exchange 'events'"),
        ("missing-queue", "queue 'a'"),
        ("missing-queue", "queue 'b'"),
        ("missing-queue", "queue 'c'"),
        ("missing-policy", "policy 'shards'"),
    ]  # in the order of KINDS


def test_what_the_file_does_not_name_is_drift_only_when_asked_for():
    extra = replace(
        WANTED,
        exchanges=(
            *WANTED.exchanges,
            Exchange("", "direct"),
            Exchange("amq.topic", "topic"),
            Exchange("x", "topic"),
        ),
        queues=(*WANTED.queues, Queue("q"), Queue("amq.gen-1"), Queue("mine", exclusive=True)),
        policies=(*WANTED.policies, Policy("p", ".*")),
    )
    assert kinds(live(extra)) == []
    found = drift(WANTED, live(extra), strict=True)
    assert [(one.kind, one.where) for one in found] == [
        ("extra-exchange", "exchange 'x'"),
        ("extra-queue", "queue 'q'"),
        ("extra-policy", "policy 'p'"),
    ]


ORDERS, _ = WANTED.exchanges
QUEUE_A, _, QUEUE_C = WANTED.queues
SHARDS = WANTED.policies[0]


@pytest.mark.parametrize(
    ("thing", "change", "kind", "part"),
    [
        (ORDERS, {"arguments": {"hash-header": "x"}}, "arguments", 'hash-header is "x", expected "tenant"'),
        *(
            (QUEUE_C, {"arguments": arguments}, "arguments", "x-max-length")
            for arguments in ({}, {"x-max-length": 11}, {"x-max-length": "10"}, {"x-max-length": 10.0})
        ),
        (ORDERS, {"type": "x-modulus-hash"}, "attributes", 'type is "x-modulus-hash"'),
        *((ORDERS, {name: True}, "attributes", "is true") for name in ("auto_delete", "internal")),
        *((thing, {"durable": False}, "attributes", "durable is false") for thing in (ORDERS, QUEUE_A)),
        (QUEUE_A, {"type": "classic"}, "attributes", 'type is "classic", expected "quorum"'),
        (QUEUE_A, {"exclusive": True}, "attributes", "exclusive is true"),
        (SHARDS, {"pattern": "logs"}, "policy", 'pattern is "logs"'),
        (SHARDS, {"apply_to": "all"}, "policy", 'apply-to is "all"'),
        (SHARDS, {"priority": 1}, "policy", "priority is 1"),
        (SHARDS, {"definition": {"shards-per-node": 3}}, "policy", "definition is"),
    ],
)
def test_a_property_that_is_another_on_the_broker(thing, change, kind, part):
    field = {Exchange: "exchanges", Queue: "queues", Policy: "policies"}[type(thing)]
    others = tuple(each for each in getattr(WANTED, field) if each is not thing)
    one = only(live(replace(WANTED, **{field: (replace(thing, **change), *others)})))
    assert (one.kind, one.where) == (kind, f"{type(thing).__name__.lower()} {thing.name!r}")
    assert part in one.message


# -- bindings


FIRST, SECOND, THIRD, TOPIC = WANTED.bindings
HEAVIER = Ring.of({"a": 1, "b": 1, "c": 3})
BLACK_HOLE = RING.bind("c", 5).unbind("c", 2)
BLACK_HOLE_D = RING.bind("d").bind("d", 5).unbind("d", 1)


@pytest.mark.parametrize(
    ("bindings", "ring", "found", "queue", "part"),
    [
        ((FIRST, THIRD), RING.unbind("b"), ["missing-binding", "ring"], "b", "expected weight 1"),
        ((FIRST, SECOND, replace(THIRD, key="3")), HEAVIER, ["weight", "ring"], "c", "is 3, expected 2"),
        ((FIRST, SECOND, replace(THIRD, key="+02")), RING, [], "c", ""),
        (
            (FIRST, SECOND, THIRD, Binding("orders", "d", "1")),
            *(RING.bind("d"), ["extra-binding", "ring"], "d", "not in the file, and it takes keys"),
        ),
        (
            (FIRST, SECOND, THIRD, Binding("orders", "d", "5")),
            *(BLACK_HOLE_D, ["extra-binding"], "d", "weight 5: not in the file, and it has no bucket"),
        ),
        ((FIRST, SECOND, replace(THIRD, key="5")), BLACK_HOLE, ["dead-binding", "ring"], "c", "dead"),
        (
            (FIRST, SECOND, THIRD, replace(THIRD, key="7")),
            *(RING.bind("c", 7), ["second-binding"], "c", "bound 2 times (weights 2, 7)"),
        ),
        (
            (FIRST, SECOND, THIRD, replace(THIRD, key="3")),
            *(HEAVIER.bind("c", 2), ["extra-binding", "ring"], "c", "bound 2 times (weights 2, 3)"),
        ),
    ],
)
def test_bindings_of_a_ring_that_were_changed_on_the_broker(bindings, ring, found, queue, part):
    drifts = drift(WANTED, live(with_bindings(*bindings, TOPIC), ring))
    assert [one.kind for one in drifts] == found
    for one in drifts[:1]:
        assert one.where == f"binding of queue '{queue}' to exchange 'orders'"
        assert part in one.message
    for one in drifts[1:]:
        assert 0.1 < one.misrouted == moved(RING, ring).share < 1


def test_plain_bindings_by_key_and_arguments():
    other = with_bindings(*WANTED.bindings[:3], Binding("events", ToExchange("orders"), "order.*", {"n": 1}))
    assert kinds(live(other)) == ["missing-binding"]  # others may bind what they like to a topic exchange
    found = drift(WANTED, live(other), strict=True)
    assert [one.kind for one in found] == ["missing-binding", "extra-binding"]
    assert "'order.*', arguments {\"n\": 1}" in found[1].message


def test_arguments_are_shown_as_the_steps_of_a_plan_show_them():
    other = with_bindings(replace(FIRST, arguments={"n": None, "on": True}), SECOND, THIRD, TOPIC)
    (found,) = (each for each in drift(WANTED, live(other)) if each.kind == "arguments")
    assert found.message == 'arguments are {"n": null, "on": true}, expected {}'
    assert str(Bind(replace(FIRST, arguments={"n": None}))).endswith('arguments {"n": null}')


def test_the_exclusive_queue_of_a_client_is_drift_only_where_it_takes_keys():
    tap = Queue("tap", "classic", exclusive=True)
    listening = replace(
        WANTED, queues=(*WANTED.queues, tap), bindings=(*WANTED.bindings, Binding("events", "tap", "#"))
    )
    assert kinds(live(listening)) == []
    assert kinds(live(listening), strict=True) == []
    hashing = replace(listening, bindings=(*WANTED.bindings, Binding("orders", "tap", "1")))
    assert kinds(live(hashing, RING.bind("tap"))) == ["extra-binding", "ring"]


# -- rings


def test_a_ring_in_another_order_and_the_exact_share_it_misroutes():
    other = Ring.of({"c": 2, "b": 1, "a": 1})
    one = only(live(ring=other))
    assert (one.kind, one.where) == ("ring-order", "exchange 'orders'")
    assert one.misrouted == moved(RING, other).share
    assert f"{one.misrouted:.1%} of the keys" in one.message


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (live(ring=None), "it has not been read"),
        (live(ring=Ring.of({"a": 1, "b": 1, "c": 2}, release="4.0").after_restart()), "when it boots"),
    ],
)
def test_an_unknown_ring_is_reported_as_unknown(observed, reason):
    one = only(observed)
    assert one.kind == "ring-unknown"
    assert reason in one.message
    assert one.misrouted is None


@pytest.mark.parametrize(
    ("possible", "words"),
    [((["a", "b", "c"], ["b", "a", "c"]), "is one of the 2"), ((["c", "b", "a"],), "is none of the 1")],
)
def test_an_unknown_ring_that_messages_have_partly_revealed(possible, words):
    wanted = replace(WANTED, bindings=tuple(Binding("orders", queue, "1") for queue in "abc"))
    unknown = Ring.of(["a", "b", "c"], release="4.0").after_restart()
    rings = {"orders": tuple(Ring.of(order) for order in possible)}
    one = only(live(wanted, unknown, possible_rings=rings), wanted)
    assert one.kind == "ring-unknown"
    assert f"the file's order {words} orders" in one.message


def test_over_amqp_alone_only_what_was_seen_is_compared():
    topology = replace(WANTED, queues=WANTED.queues[1:], bindings=(), policies=())
    unknown = Ring((), None, why_unknown="nobody can see its bindings")
    found = drift(WANTED, live(topology, unknown, bindings_seen=False))
    assert [one.kind for one in found] == ["missing-queue", "ring-unknown"]
    assert "nobody can see its bindings" in found[1].message
    assert kinds(replace(slotted(*"aabbbbbb", top=()), bindings_seen=False), TOP) == []


# -- slots

SLOTS = Slots("tenants", 8, {"a": 1, "b": 2}, alternate="lost")
TOP = Topology(
    exchanges=(Exchange("tenants", "x-modulus-hash"),),
    queues=(Queue("a", "quorum"), Queue("b", "quorum"), Queue("old", "quorum")),
    slots=(SLOTS,),
)


def slotted(*queues, top=SLOTS._top_bindings) -> Observed:
    """A broker whose slots lead to these queues; a tuple stands for several, None for no queue."""
    pairs = zip(SLOTS.names, queues, strict=True)
    lists = [(name, one if isinstance(one, tuple) else (one,)) for name, one in pairs if one is not None]
    leads = tuple(Binding(name, queue, "1") for name, several in lists for queue in several)
    topology = replace(TOP, slots=(), exchanges=(*TOP.exchanges, *SLOTS.exchanges), bindings=(*top, *leads))
    return Observed(topology=topology)


# 8 slots by weights 1 and 2: 2.67 and 5.33, each rounded up or down.
@pytest.mark.parametrize("queues", [("a",) * 3 + ("b",) * 5, ("b",) * 6 + ("a",) * 2, tuple("abbabbab")])
def test_any_division_of_the_slots_by_the_weights_is_as_wanted(queues):
    assert kinds(slotted(*queues), TOP) == []


def test_a_division_beyond_what_rounding_allows():
    found = drift(TOP, slotted(*"aaaabbbb"))
    assert [one.kind for one in found] == ["slot-balance", "slot-balance"]
    assert "queue 'a' has 4 of 8 slots, expected 3 by its weight" in found[0].message


def test_slots_that_are_unfinished_empty_or_lead_elsewhere():
    found = drift(TOP, slotted("a", ("a", "b"), None, "old", *"bbbb"))
    assert [(one.kind, one.where) for one in found] == [
        ("slot", "slot exchange 'tenants.slot.1'"),
        ("slot", "slot exchange 'tenants.slot.2'"),
        ("slot", "slot exchange 'tenants.slot.3'"),
    ]
    assert "queue 'a', queue 'b'" in found[0].message
    assert "are lost" in found[1].message
    assert "queue 'old'" in found[2].message


def test_slot_exchanges_and_the_bindings_to_them_are_part_of_what_is_wanted():
    observed = slotted(*"aabbbbbb", top=SLOTS._top_bindings[1:])
    assert [(one.kind, one.where) for one in drift(TOP, observed)] == [
        ("missing-binding", "binding of exchange 'tenants.slot.0' to exchange 'tenants'")
    ]
    without = replace(
        observed.topology,
        exchanges=tuple(each for each in observed.topology.exchanges if each.name != "tenants.slot.7"),
        bindings=(*SLOTS._top_bindings[:7], *observed.topology.bindings_from("tenants.slot.0")),
    )
    found = drift(TOP, replace(observed, topology=without))
    assert ("missing-exchange", "exchange 'tenants.slot.7'") in {(one.kind, one.where) for one in found}


def test_a_slot_without_its_alternate_exchange():
    observed = slotted(*"aabbbbbb")
    bare = tuple(replace(each, arguments={}) for each in observed.topology.exchanges)
    found = drift(TOP, replace(observed, topology=replace(observed.topology, exchanges=bare)))
    assert [one.kind for one in found] == ["arguments"] * 8


def test_a_slot_whose_only_binding_is_dead():
    observed = slotted(*"aabbbbbb")
    dead = Ring.of(["b"]).bind("b", 2).unbind("b", 1)
    one = only(replace(observed, rings={SLOTS.names[7]: dead}), TOP)
    assert (one.kind, one.where) == ("dead-binding", "binding of queue 'b' to exchange 'tenants.slot.7'")


@pytest.mark.parametrize(
    ("queue", "recorded", "expected"),
    [
        ("orders.5", (), ["stranded"]),
        ("archive", ("archive",), ["stranded"]),
        ("archive", (), []),
        ("orders.named", (), []),
    ],
)
def test_an_unbound_queue_with_messages_that_was_part_of_an_exchange(queue, recorded, expected):
    wanted = hashed("orders", ["orders.0", "orders.1"])
    observed = Observed(
        topology=replace(wanted, queues=(*wanted.queues, Queue(queue))),
        rings={"orders": wanted.ring("orders")},
        backlog={"orders.0": 7, queue: 2_684},
        recorded={"orders": frozenset(recorded)},
    )
    assert kinds(observed, wanted) == expected
    assert kinds(replace(observed, backlog={queue: 0}), wanted) == []
    for one in drift(wanted, observed):
        assert "2,684 messages" in one.message
        assert one.queue == queue


def test_a_plan_leaves_messages_in_an_unbound_queue_only_by_force(run, write, live):
    live(replace(assume_applied(loads(verbs.ORDERS, format="yaml")), backlog={"vip": 7}))
    fewer = write(verbs.ORDERS.replace(", vip: 2", ""))
    broker = ("-U", "amqp://h", "--max-moved", "100")
    announced = "queue 'vip' is unbound with 7 messages in it: `rabbit-chx scale FILE`"
    for verb in (["plan"], ["apply", "--yes"]):
        refused = run(*verb, fewer, *broker)
        assert refused.code == 1
        assert f"Refused: {announced}" in refused.err
    forced = run("plan", fewer, *broker, "--force")
    assert forced.code == 2
    assert f"Warning: {announced}" in forced.err
    live(replace(assume_applied(loads(verbs.ORDERS, format="yaml")), backlog={"vip": 0}))
    assert run("plan", fewer, *broker).code == 2


# Queues that the file binds twice

TWICE = replace(
    WANTED, bindings=(Binding("orders", "a", "1"), Binding("orders", "a", "2"), *WANTED.bindings[1:])
)


def test_a_broker_with_the_first_of_two_bindings_of_the_file_has_not_drifted():
    assert drift(TWICE, live()) == ()
    assert kinds(live(TWICE), TWICE) == ["second-binding"]


def test_the_ring_of_a_file_that_binds_a_queue_twice_is_not_guessed_for_a_release_that_counts_both():
    old = Ring.of({"a": 1, "b": 1, "c": 2}, release="3.9.20")
    assert kinds(live(ring=old, release=old.release), TWICE) == []


# Pairs that are co-partitioned


def test_live_rings_of_a_pair_are_compared_by_the_numbers_of_their_destinations():
    names = ("orders", "payments")
    wanted = Topology(
        exchanges=tuple(Exchange(name, "x-consistent-hash") for name in names),
        bindings=tuple(Binding(name, f"{name[0]}.{number}", "1") for name in names for number in (0, 1)),
        co_partitioned=(names,),
    )

    def pairs(payments: Ring) -> list[str]:
        rings = {"orders": Ring.of(["o.0", "o.1"]), "payments": payments}
        return [kind for kind in kinds(Observed(wanted, rings=rings), wanted) if kind == "co-partitioned"]

    assert pairs(Ring.of(["p.0", "p.1"])) == []
    assert pairs(Ring.of(["p.1", "p.0"])) == ["co-partitioned"]
    assert pairs(Ring.of(["p.0"])) == ["co-partitioned"]
    wanted = replace(wanted, bindings=(Binding("orders", "o.0", "5"), *wanted.bindings))
    assert pairs(Ring.of(["p.0", "p.1"])) == []
    assert "co-partitioned" not in kinds(Observed(), wanted)


def test_live_slots_of_a_pair_must_lead_to_queues_of_the_same_numbers():
    orders, payments = Slots("o", 32, {"o.0": 1, "o.1": 1}), Slots("p", 32, {"p.0": 1, "p.1": 1})
    top = (Exchange("o", "x-modulus-hash"), Exchange("p", "x-modulus-hash"))
    wanted = Topology(exchanges=top, slots=(orders, payments), co_partitioned=(("o", "p"),))

    def leading(payment_queues) -> Observed:
        queues = [f"o.{number % 2}" for number in range(32)] + [f"p.{number}" for number in payment_queues]
        names = (*orders.names, *payments.names)
        bindings = [Binding(name, queue, "1") for name, queue in zip(names, queues, strict=True)]
        exchanges = (*top, *orders.exchanges, *payments.exchanges)
        tops = (*orders._top_bindings, *payments._top_bindings)
        return Observed(topology=Topology(exchanges=exchanges, bindings=(*tops, *bindings)))

    assert kinds(leading([0, 1] * 16), wanted) == []
    assert kinds(leading([1, 0] * 16), wanted) == ["co-partitioned"]


# Metrics


def samples(drifts, **check) -> dict[tuple[str, ...], float]:
    """The samples that Prometheus reads, by name and label values."""
    families = list(text_string_to_metric_families(prometheus_metrics(drifts, **check)))
    assert {each.type for each in families} == {"gauge"}
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_every_kind_has_its_count_and_the_check_its_time():
    drifts = [Drift("weight", "a", "m"), Drift("weight", "b", "m"), Drift("slot", "c", "m")]
    found = samples(drifts, vhost="/", checked_at=1_700_000_000.5)
    assert found.pop(("rabbit_chx_check_timestamp_seconds", "/")) == 1_700_000_000.5
    assert set(found) == {("rabbit_chx_drift", "/", kind) for kind in KINDS}
    assert {key[2]: value for key, value in found.items() if value} == {"weight": 2, "slot": 1}


@pytest.mark.parametrize("share", [0.1234567890123, 0.0])
@pytest.mark.parametrize("name", ["exchange 'x'", 'a"b\\c\nd'])
def test_a_misrouted_share_is_exact_with_any_names(name, share):
    found = samples([Drift("ring", name, "m", share)], vhost=name, checked_at=1.0)
    assert found["rabbit_chx_misrouted_share", name, name] == share
