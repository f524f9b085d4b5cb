"""Every rule of lint: where it speaks, what its message tells, and where it is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import Release, Ring, ToExchange
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan
from tests.unit.topology import broker_model


def hashing(*destinations, name="orders", **arguments) -> Topology:
    """An x-consistent-hash exchange over queues, each given by its name or as (name, weight)."""
    pairs = [item if isinstance(item, tuple) else (item, "1") for item in destinations]
    return Topology(
        exchanges=(Exchange(name, "x-consistent-hash", arguments=arguments),),
        queues=tuple(Queue(queue, "quorum") for queue in dict.fromkeys(queue for queue, _ in pairs)),
        bindings=tuple(Binding(name, queue, weight) for queue, weight in pairs),
    )


def streams(*names) -> Topology:
    return over(hashing(*names), *(Queue(name, "stream") for name in names))


def slotted(count=64, queues=4, type_="x-modulus-hash", **arguments) -> Topology:
    names = [f"t.{number}" for number in range(queues)]
    return broker_model.slotted("tenants", names, count=count, top=type_, **arguments)


def over(topology: Topology, *queues: Queue, policies: tuple[Policy, ...] = ()) -> Topology:
    return replace(topology, queues=queues, policies=policies)


def behind_headers(**arguments) -> Topology:
    """A headers exchange that leads, through another exchange and a circle, to a hash on the header tenant."""
    down = hashing("a", "b", **{"hash-header": "tenant"})
    return replace(
        down,
        exchanges=(*down.exchanges, Exchange("in", "headers"), Exchange("mid", "fanout")),
        bindings=(
            *down.bindings,
            Binding("in", ToExchange("mid"), "", {"x-match": "all", **arguments}),
            Binding("mid", ToExchange("orders")),
            Binding("mid", ToExchange("mid")),
        ),
    )


def co_partitioned(first: Topology, second: Topology) -> Topology:
    return Topology(
        exchanges=first.exchanges + second.exchanges,
        bindings=first.bindings + second.bindings,
        co_partitioned=(("orders", "payments"),),
    )


def codes(topology, observed=None) -> list[str]:
    return [finding.code for finding in lint(topology, observed)]


def only(topology, observed=None):
    (finding,) = lint(topology, observed)
    return finding


ORDERS = "exchange 'orders'"
BINDING = f"binding of queue 'a' to {ORDERS}"
REJECTING = {"x-max-length": 10, "x-overflow": "reject-publish"}


def overflowing(strategy: str) -> Policy:
    return Policy("full", ".*", "queues", {"overflow": strategy})


LIMITED = Policy("small", "^orders", "queues", {"max-length": 10})
BETTER = Policy("better", "orders", "quorum_queues", {"overflow": "reject-publish", "max-length": 9}, 1)
PAIR = "exchanges 'orders' and 'payments'"
TWO = hashing(("a", "1"), ("b", "2"))
MISSPELT = {
    **dict.fromkeys(("hash_header", "hash-headers", "Hash-Header", "x-hash-header"), "hash-header"),
    **dict.fromkeys(("hash-on", "x-hash-on"), "hash-header"),
    "hash-propery": "hash-property",
    **dict.fromkeys(("alternate_exchange", "alternative-exchange"), "alternate-exchange"),
}
ERRORS = [
    *(
        (hashing(("a", key)), "binding-key", BINDING, repr(key))
        for key in ("", "#", "1.5", " 2", "0", "-1", "1_0", "٣")
    ),
    *(
        (hashing(("a", key)), "weight-too-large", BINDING, "at most 10,000")
        for key in ("10001", "+99999999", "0010001")
    ),
    (hashing("a", "b", ("a", "5")), "double-binding", ORDERS, "queue 'a' is bound 2 times"),
    *(
        (hashing("a", **{name: "tenant"}), "misspelt-argument", ORDERS, f"{name!r}. Did you mean {meant!r}")
        for name, meant in MISSPELT.items()
    ),
    *((hashing("a", **{"hash-header": x}), "hash-header-type", ORDERS, "541") for x in (5, True, [""], 1.5)),
    (hashing("a", **{"hash-header": "t", "hash-property": "x"}), "both-hash-arguments", ORDERS, "Keep one"),
    *(
        (hashing("a", **{"hash-property": x}), "hash-argument-value", ORDERS, "correlation_id")
        for x in ("app_id", "message-id", 5, "")
    ),
    (slotted(type_="topic"), "slots-top", "exchange 'tenants'", "x-modulus-hash"),
    (
        replace(hashing("a"), co_partitioned=(("orders", "payments"),)),
        "co-partitioned",
        PAIR,
        "'payments' is",
    ),
    *(
        (co_partitioned(TWO, hashing(*other, name="payments")), "co-partitioned", PAIR, "differ")
        for other in ([("y", "2"), ("x", "1")], [("x", "1")])
    ),
]
WARNINGS = [
    *(
        (hashing(*zip("ab", weights, strict=True)), "many-buckets", ORDERS, f"about {cost} us")
        for weights, cost in ((("400", "400"), 31), (("4000", "4000"), 291), (("250", "251"), 22))
    ),
    (hashing(("a", "10000")), "many-buckets", ORDERS, "Divide all weights by 10000"),
    (hashing(("a", "300"), ("b", "600")), "many-buckets", ORDERS, "Divide all weights by 300"),
    (
        Topology(exchanges=(Exchange("orders", "x-modulus-hash", arguments={"hash-header": "t"}),)),
        *("ignored-hash-argument", ORDERS, "x-modulus-hash ignore hash-header"),
    ),
    (behind_headers(tenant=5), "hash-header-value", ORDERS, "exchange 'in'"),
    (slotted(63, 4), "few-slots", "exchange 'tenants'", "Use 64"),
    (slotted(64, 5), "few-slots", "exchange 'tenants'", "Use 128"),
    (slotted(257, 4), "many-slots", "exchange 'tenants'", "at most 256"),
    (slotted(**{"alternate-exchange": "lost"}), "slots-alternate", "exchange 'tenants'", "receives nothing"),
    *(
        (
            over(topology, Queue("t.0", kind, arguments=settings)),
            "drop-head",
            "queue 't.0'",
            next(iter(settings)),
        )
        for topology in (hashing("t.0"), slotted(16, 1))
        for kind, settings in (
            ("quorum", {"x-max-length": 10}),
            ("quorum", {"x-max-length-bytes": 10}),
            ("classic", {"x-max-length": 10, "x-overflow": "drop-head"}),
        )
    ),
    (replace(hashing("orders.0"), policies=(LIMITED,)), "drop-head", "queue 'orders.0'", "policy 'small'"),
    (  # of equal priorities, the broker may apply either
        replace(hashing("orders.0"), policies=(replace(BETTER, priority=0), LIMITED)),
        *("drop-head", "queue 'orders.0'", "policy 'small'"),
    ),
    *(  # of a quorum queue, the policy wins, and a strategy that it does not know is drop-head
        (
            over(hashing("a"), Queue("a", "quorum", arguments=own), policies=ruled),
            "drop-head",
            "queue 'a'",
            "x-max",
        )
        for own, ruled in (
            ({**REJECTING, "x-overflow": "reject-publish-dlx"}, ()),
            (REJECTING, (overflowing("drop-head"),)),
            (REJECTING, (overflowing("reject-publish-dlx"),)),
        )
    ),
    (streams("a.0", "a.1", "a-2"), "stream-order", ORDERS, "all of queues 'a.0', 'a.1', because"),
    (streams("a-x", "b-1-", "c-1.5"), "stream-order", ORDERS, "name the streams orders-0, orders-1"),
    (over(hashing("a"), Queue("a", durable=False)), "transient", "queue 'a'", "restart"),
    (over(hashing("a"), Queue("a", auto_delete=True)), "short-lived", "queue 'a'", "auto-delete"),
    (over(hashing("a"), Queue("a", exclusive=True)), "short-lived", "queue 'a'", "exclusive"),
    (
        replace(hashing("a"), exchanges=(Exchange("orders", "x-consistent-hash", auto_delete=True),)),
        *("short-lived", ORDERS, "Remove auto-delete"),
    ),
    (
        replace(hashing("a"), policies=(Policy("p", "^[[:lower:]]$", "queues", {"max-age": "1D"}),)),
        *("policy-pattern", "policy 'p'", "its pattern '^[[:lower:]]$' matches 'a'"),
    ),
]
SILENT = {
    "numbered streams": streams("a-0", "b--1", "c-10-2", "d-007"),
    "one stream": streams("a"),
    "streams with an order": replace(
        streams("a", "b"),
        bindings=tuple(
            Binding("orders", name, "1", {"x-stream-partition-order": number})
            for number, name in enumerate("ab")
        ),
    ),
    "plain": hashing("a", "b", ("c", "3")),
    "an exchange of a queue's name": replace(
        hashing("a"), bindings=(Binding("orders", "a", "1"), Binding("orders", ToExchange("a"), "1"))
    ),
    "500 buckets": hashing(("a", "250"), ("b", "250")),
    **{
        name: hashing("a", **{name: "tenant"})
        for name in ("hash-header", "alternate-exchange", "x-recent-history-length", "team")
    },
    "text in the hash header": behind_headers(tenant="acme"),
    "slots": slotted(),
    "rejecting": over(hashing("a"), Queue("a", arguments=REJECTING)),
    "rejecting to a dead-letter exchange": over(
        slotted(16, 1), Queue("t.0", arguments={**REJECTING, "x-overflow": "reject-publish-dlx"})
    ),
    "a policy that makes a quorum queue reject": over(
        hashing("a"),
        Queue("a", "quorum", arguments={**REJECTING, "x-overflow": "drop-head"}),
        policies=(overflowing("reject-publish"),),
    ),
    "a policy that does not count for a classic queue": over(
        hashing("a"), Queue("a", arguments=REJECTING), policies=(overflowing("drop-head"),)
    ),
    "a better policy": replace(hashing("orders.0"), policies=(LIMITED, BETTER)),
    "a policy for what the file does not have": replace(
        hashing("a"), policies=(Policy("p", "[[:lower:]]", "streams", {"max-age": "1D"}),)
    ),
    "a policy of exchanges": replace(hashing("orders.0"), policies=(replace(LIMITED, apply_to="exchanges"),)),
    "the retention of a stream, and the limit of a queue aside": over(
        hashing("a"),
        Queue("a", "stream", arguments={"x-max-length-bytes": 10}),
        Queue("audit", arguments={"x-max-length": 10}),
        Queue("tap", auto_delete=True),
    ),
    "transient throughout": replace(
        hashing("a"),
        exchanges=(Exchange("orders", "x-consistent-hash", durable=False),),
        queues=(Queue("a", durable=False),),
    ),
    "equal rings": co_partitioned(TWO, hashing(("x", "01"), ("y", "2"), name="payments")),
    "an order that a restart would change on some broker": hashing("b", "a"),
}


@pytest.mark.parametrize(
    ("severity", "topology", "code", "where", "part"),
    [("error", *case) for case in ERRORS] + [("warning", *case) for case in WARNINGS],
)
def test_a_mistake_is_found_where_it_is(severity, topology, code, where, part):
    finding = only(topology)
    assert (finding.severity, finding.code, finding.where) == (severity, code, where)
    assert part in finding.message


@pytest.mark.parametrize("topology", SILENT.values(), ids=SILENT)
def test_what_is_no_mistake_is_no_finding(topology):
    assert lint(topology) == ()


def test_errors_come_first():
    assert [finding.severity for finding in lint(hashing(("a", "600"), ("b", "x")))] == ["error", "warning"]


# -- on a broker


def test_a_missing_exchange_type_names_its_plugin():
    observed = Observed(exchange_types=frozenset({"direct"}))
    finding = only(hashing("a"), observed)
    assert (finding.severity, finding.code) == ("error", "missing-type")
    assert "rabbitmq-plugins enable rabbitmq_consistent_hash_exchange" in finding.message
    assert codes(slotted(), observed) == ["missing-type", "missing-type"]
    assert codes(slotted(), Observed(exchange_types=None)) == []


DEAD = Ring.of(["b", "a"]).bind("b", 5).unbind("b", 1)
UNKNOWN = Ring.of(["b", "a"], release="4.0").after_restart()
MNESIA = {"release": Release.parse("4.0")}


# Of two equal queues that change places every key moves.
@pytest.mark.parametrize(
    ("queues", "observed", "parts"),
    [
        ("ba", Observed(**MNESIA), ("unpredictable order, unless its default_worker_pool_size is 1,",)),
        ("ab", Observed(**MNESIA, worker_pool_size=2), ("in an unpredictable order. Set",)),
        ("ba", Observed(**MNESIA, worker_pool_size=1), ("moves 100.0% of the keys",)),
        ("ab", Observed(**MNESIA, worker_pool_size=1), None),
        ("ba", Observed(**MNESIA, rings={"orders": UNKNOWN}), None),
        ("ba", Observed(), None),
        ("ba", Observed(rings={"orders": DEAD}), ("dead",)),
    ],
)
def test_a_restart_that_will_move_keys_is_announced(queues, observed, parts):
    found = lint(hashing(*queues), observed)
    assert [finding.code for finding in found] == ["restart-moves-keys"] * (parts is not None)
    assert all(part in found[0].message for part in parts or ())


def test_a_restart_is_announced_once_for_all_exchanges():
    first, second, alone = hashing("b", "a"), hashing("a", "b", name="payments"), hashing("a", name="alone")
    topology = replace(
        first,
        exchanges=(*first.exchanges, *second.exchanges, *alone.exchanges),
        bindings=(*first.bindings, *second.bindings, *alone.bindings),
    )
    finding = only(topology, Observed(**MNESIA))
    assert finding.where == "exchanges 'orders', 'payments'"


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


# -- policies and arguments that a target release refuses or ignores

MIRRORED = Topology(policies=(Policy("ha", "^orders", "queues", {"ha-mode": "all", "max-length": 9}),))


def severities(topology: Topology, release: str | None) -> list[str]:
    return [each.severity for each in lint(topology, release=release)]


def queue(kind: str, *, durable: bool = True, **arguments: object) -> Topology:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Topology(queues=(Queue("q", kind, durable, arguments=named),))


def policy(apply_to: str = "queues", **definition: object) -> Topology:
    named = {name.replace("_", "-"): value for name, value in definition.items()}
    return Topology(policies=(Policy("p", ".*", apply_to, named),))


# What 3.10.8, 4.0.5 and 4.3.6 answered: tests/broker/test_release_settings.py asks them again.
@pytest.mark.parametrize(
    ("topology", "old", "middle", "new"),
    [
        (MIRRORED, [], ["error"], ["error"]),
        (queue("classic", queue_version=1), [], [], ["error"]),
        (queue("classic", queue_version=2), [], [], []),
        (queue("classic", consumer_timeout=60_000), [], [], ["error"]),
        (queue("quorum", consumer_timeout=60_000), [], [], []),
        (queue("classic", queue_leader_locator="balanced"), ["error"], [], []),
        (policy("quorum_queues", max_length=9), ["error"], [], []),
        (policy(delivery_limit=-1), ["error"], [], []),
        (policy(delivery_limit=5), [], [], []),
        (queue("classic", queue_mode="lazy"), [], ["warning"], ["warning"]),
        (policy(queue_mode="lazy"), [], ["warning"], ["warning"]),
        (queue("quorum", max_in_memory_length=9), ["warning"], ["warning"], ["warning"]),
        (queue("classic", durable=False), [], [], ["warning"]),
    ],
)
def test_a_setting_is_judged_for_the_release(topology, old, middle, new):
    assert [severities(topology, release) for release in ("3.10", "4.0", "4.3")] == [old, middle, new]


def test_without_a_release_a_refused_setting_is_a_warning_that_says_what_to_write():
    (finding,) = lint(MIRRORED)
    assert (finding.severity, finding.code, finding.where) == ("warning", "refused-setting", "policy 'ha'")
    assert finding.message.startswith("RabbitMQ 4.0 and later refuse ha-mode. ")
    assert "quorum queues" in finding.message


def test_a_plan_refuses_what_the_broker_would_refuse_and_keeps_what_it_has_already():
    new = Release.parse("4.3")
    (refusal,) = plan(MIRRORED, Observed(release=new)).refusals
    assert "ha-mode" in refusal
    assert plan(MIRRORED, Observed(release=Release.parse("3.10"))).refusals == ()
    assert plan(MIRRORED, Observed(MIRRORED, release=new)).refusals == ()
