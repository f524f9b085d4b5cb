"""Plans, carried out on a small model of a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx import ConsistentHashExchange, InvalidValue, Ring, ToExchange, moved, shares
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.model import (
    CONSISTENT_HASH,
    MODULUS_HASH,
    Binding,
    Exchange,
    Observed,
    Policy,
    Queue,
    Topology,
    as_ring_bindings,
)
from rabbit_chx.topology.planning.plan import plan
from rabbit_chx.topology.planning.steps import Bind, Unbind
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.unit.topology.broker_model import Broker, hashed, made, slotted

FOUR = hashed("x", ["a", "b", "c", "d"])


# ---- order and idempotence


def test_a_fresh_topology_is_built_from_the_far_end() -> None:
    wanted = Topology(
        exchanges=(
            Exchange("in", "topic"),
            Exchange("x", CONSISTENT_HASH, arguments={"alternate-exchange": "lost"}),
            Exchange("lost", "fanout"),
        ),
        queues=(Queue("a", "quorum"), Queue("b", "quorum"), Queue("l")),
        bindings=(
            Binding("in", ToExchange("x"), "#"),
            Binding("x", "a", "1"),
            Binding("x", "b", "2"),
            Binding("lost", "l"),
        ),
        policies=(Policy("p", "^x$"), Policy("dead", "^l$", definition={"dead-letter-exchange": "x"})),
    )
    found = plan(wanted, Observed())
    assert [str(step) for step in found.steps] == [
        "set policy 'p' on '^x$'",  # may be refused, and then nothing has been declared
        "declare exchange 'in' of type topic",
        "declare exchange 'lost' of type fanout",
        "declare exchange 'x' of type x-consistent-hash",
        "declare quorum queue 'a'",
        "declare quorum queue 'b'",
        "declare classic queue 'l'",
        "bind queue 'a' to exchange 'x' with key '1'",
        "bind queue 'b' to exchange 'x' with key '2'",
        "bind queue 'l' to exchange 'lost' with key ''",
        "set policy 'dead' on '^l$'",  # needs all that its messages can reach
        "bind exchange 'x' to exchange 'in' with key '#'",
    ]
    assert not found.refusals


def test_exchanges_that_lead_to_each_other_in_a_circle_are_planned_all_the_same() -> None:
    wanted = Topology(
        exchanges=(Exchange("a", "fanout"), Exchange("b", "fanout")),
        bindings=(Binding("a", ToExchange("b")), Binding("b", ToExchange("a"))),
    )
    assert not plan(wanted, made(wanted).seen())


# ---- rings


def test_a_change_in_place_over_the_limit_is_refused_and_the_other_ways_are_named() -> None:
    wanted = hashed("x", "bcd")
    found = plan(wanted, made(FOUR).seen())
    (refusal,) = found.refusals
    between = moved(Ring.of(list("abcd")), Ring.of(list("bcd"))).share
    assert f"{between:.2%}" in refusal
    assert all(name in refusal for name in ("swap", "remove-last", "blue/green", "slots"))
    assert not plan(wanted, made(FOUR).seen(), force=True).refusals
    assert not plan(wanted, made(FOUR).seen(), max_moved=1).refusals


def behind_another(exchange: str, queues: str) -> Topology:
    """A ring behind another exchange that hashes."""
    ring = hashed(exchange, queues)
    exchanges = (*ring.exchanges, Exchange("in", CONSISTENT_HASH))
    return replace(
        ring, exchanges=exchanges, bindings=(*ring.bindings, Binding("in", ToExchange(exchange), "1"))
    )


def test_blue_and_green_leaves_the_old_ring_alone_until_the_switch() -> None:
    broker = made(behind_another("x", "abcd"))
    found = plan(behind_another("x", "bcd"), broker.seen(), strategy="blue/green")
    assert not found.refusals
    broker.carry_out(found.steps)
    assert {name for name, ring in broker.rings_seen if ring.bindings} == {"x.v2", "in"}
    assert all(ring.bindings for name, ring in broker.rings_seen if name == "in")
    assert broker.rings["in"].destinations == (ToExchange("x.v2"),)
    assert broker.rings["x.v2"].destinations == tuple("bcd")
    assert not plan(behind_another("x.v2", "bcd"), broker.seen())
    (way,) = [way for way in found.changes[0].strategies if way.chosen]
    assert "no message is lost or duplicated" in way.summary


@pytest.mark.parametrize("count", range(5))
def test_blue_and_green_finishes_the_exchange_that_an_interrupted_plan_began(count) -> None:
    wanted = hashed("x", "bcd")
    steps = plan(wanted, made(FOUR).seen(), strategy="blue/green").steps
    assert len(steps) == 4
    broker = made(FOUR).carry_out(steps[:count])
    broker.carry_out(plan(wanted, broker.seen(), strategy="blue/green").steps)
    assert broker.rings["x.v2"].destinations == tuple("bcd")
    assert ("x.v3" in broker.rings) == (count == 4)  # the first one was complete


def test_the_effect_of_a_switch_depends_on_the_source() -> None:
    def summary(*upstream) -> str:
        broker = made(replace(FOUR, exchanges=(*FOUR.exchanges, *(e for e, _ in upstream))))
        for _, bound in upstream:
            broker.bind(bound)
        ways = plan(hashed("x", "abcde"), broker.seen()).changes[0].strategies
        return next(way.summary for way in ways if way.name == "blue/green")

    assert "let publishers publish to 'x.v2'" in summary()
    assert "messages go to both" in summary((Exchange("in", "topic"), Binding("in", ToExchange("x"), "#")))
    for type_ in (CONSISTENT_HASH, MODULUS_HASH):
        assert "no message is lost" in summary((Exchange("in", type_), Binding("in", ToExchange("x"), "1")))


def test_each_step_of_the_switch_says_what_it_moves() -> None:
    def steps(type_: str, *keys: str, arguments=None):
        front = Exchange("in", type_, arguments=arguments or {})
        broker = made(replace(FOUR, exchanges=(*FOUR.exchanges, front)))
        for key in keys:
            broker.bind(Binding("in", ToExchange("x"), key))
        found = plan(hashed("x", "abcde"), broker.seen(), strategy="blue/green")
        return found.changes[0].moved, [step.moved for step in found.steps[-2 * len(keys) :]]

    # Two buckets share the keys for a moment, and a half of those that move goes over at once.
    moved, (first, second) = steps(CONSISTENT_HASH, "1", arguments={"hash-header": "other"})
    assert first == pytest.approx(moved / 2, rel=0.01)
    assert first + second == pytest.approx(moved)
    moved, (first, second) = steps(MODULUS_HASH, "")
    assert first == second == moved / 2
    # Where both hash the same, they know of one another, and the halves are not alike.
    moved, (first, second) = steps(CONSISTENT_HASH, "1")
    keys = [f"key {number}" for number in range(20_000)]
    old, new, both = (
        ConsistentHashExchange(list(names)).route_many(keys) for names in ("abcd", "abcde", "xy")
    )
    early = ((old != new) & (both == 1)).sum()
    assert first == pytest.approx(early / len(keys), abs=0.01)
    assert first + second == pytest.approx(moved)

    moved, each = steps("direct", "k")
    assert each == [0.0, moved]  # a copy moves no key
    assert steps("direct", "k", "l")[1] == [None] * 4  # nobody knows which keys come by which


def test_a_way_that_does_not_apply_is_refused() -> None:
    (refusal,) = plan(hashed("x", "abcde"), made(FOUR).seen(), strategy="remove-last").refusals
    assert "invalid strategy 'remove-last': expected one of 'append', 'blue/green'" in refusal
    with pytest.raises(InvalidValue, match="blue/green"):
        plan(FOUR, Observed(), strategy="sideways")
    with pytest.raises(InvalidValue, match="max_moved"):
        plan(FOUR, Observed(), max_moved=50)


def test_another_order_alone_is_a_note_unless_the_caller_asks() -> None:
    broker, wanted = made(FOUR), hashed("x", "abdc")
    found = plan(wanted, broker.seen())
    assert not found
    share = moved(Ring.of(list("abcd")), Ring.of(list("abdc"))).share
    assert any(f"{share:.2%}" in note for note in found.left_alone)
    asked = plan(wanted, broker.seen(), strategy="in place", force=True)
    assert broker.carry_out(asked.steps).rings["x"].destinations == tuple("abdc")


def test_a_ring_of_unknown_order_is_not_guessed() -> None:
    broker = made(FOUR, release="3.10.8")
    unknown = broker.seen(rings={"x": broker.rings["x"].after_restart()})
    assert not plan(FOUR, unknown)
    assert any("order of its ring is unknown" in note for note in plan(FOUR, unknown).left_alone)
    more = plan(hashed("x", "abcde"), unknown)
    assert more.changes[0].moved is None
    assert not more.refusals
    (refusal,) = plan(hashed("x", "abc"), unknown).refusals
    assert "unknown" in refusal
    assert "choose the strategy 'blue/green' (strategy=)" in refusal
    assert "in place" not in refusal  # which is refused, too
    instead = plan(hashed("x", "abc"), unknown, strategy="blue/green")
    assert not instead.refusals
    assert any(" and you delete it. Build 'x.v2' with" in note for note in instead.notes)
    assert plan(hashed("x", "abc"), unknown, strategy="in place").refusals


@pytest.mark.parametrize("known", [True, False])
def test_twins_cost_one_unbind_each_and_move_nothing_on_4_3(known: bool) -> None:
    wanted, broker = hashed("x", [f"q{number}" for number in range(16)]), Broker()
    broker.carry_out(plan(wanted, broker.seen()).steps)
    ring = broker.rings["x"]
    for binding in wanted.bindings:
        broker.bind(replace(binding, arguments={"note": "x"}))
    observed = (
        broker.seen() if known else broker.seen(rings={"x": Ring((), None, broker.release, "not read")})
    )
    left = plan(wanted, observed)
    assert (left.steps, left.refusals) == ((), ())
    assert any("'q3' is bound 2 times" in note for note in left.notes)
    found = plan(wanted, observed, prune=True)
    assert [type(step) for step in found.steps] == [Unbind] * 16
    assert all(step.moved == 0.0 for step in found.steps)
    assert all("and arguments {" in str(step) for step in found.steps)
    assert not found.refusals
    assert broker.carry_out(found.steps).rings["x"].runs == ring.runs
    assert broker.bindings == list(wanted.bindings)


def test_a_release_that_tears_rings_with_double_bindings_is_not_planned_on() -> None:
    broker = made(FOUR, release="3.10.5")
    double = Binding("x", "d", "7")
    topology = replace(broker.seen().topology, bindings=(*broker.bindings, double))
    torn = Ring(as_ring_bindings(topology.bindings_from("x")), None, broker.release, "a queue is bound twice")
    (refusal,) = plan(FOUR, broker.seen(topology=topology, rings={"x": torn}, worker_pool_size=1)).refusals
    assert "'d' is bound twice" in refusal
    assert "blue/green" in refusal


def test_a_second_binding_without_effect_stays_unless_its_destination_is_bound_again() -> None:
    broker = made(FOUR)
    broker.carry_out([Bind(Binding("x", "c", "5"))])
    grown = hashed("x", "abcde")
    assert not plan(FOUR, broker.seen()).steps
    assert [str(step) for step in plan(grown, broker.seen()).steps] == [
        "declare quorum queue 'e'",
        "bind queue 'e' to exchange 'x' with key '1'",
    ]
    assert any("'c' is bound 2 times" in note for note in plan(grown, broker.seen()).notes)
    weighted = hashed("x", {"a": 1, "b": 2, "c": 1, "d": 1})
    after = broker.carry_out(plan(weighted, broker.seen(), force=True).steps)
    assert after.rings["x"].runs == Ring.of({"a": 1, "b": 2, "c": 1, "d": 1}).runs
    assert [each.key for each in broker.bindings if each.destination == "c"] == ["1"]


def test_only_its_connection_can_unbind_an_exclusive_queue() -> None:
    for wanted in (FOUR, replace(FOUR, exchanges=(Exchange("x", MODULUS_HASH),))):
        broker = made(wanted)
        broker.queues["tap"] = Queue("tap", exclusive=True)
        broker.carry_out([Bind(Binding("x", "tap", "1"))])
        (refusal,) = plan(wanted, broker.seen(), force=True).refusals
        assert "'tap' is bound to exchange 'x' and is exclusive" in refusal


def test_a_file_that_binds_a_queue_twice_is_refused() -> None:
    wanted = replace(FOUR, bindings=(*FOUR.bindings, Binding("x", "a", "2")))
    assert any("'a' twice" in refusal for refusal in plan(wanted, Observed()).refusals)


def test_backlog_at_risk_is_that_of_the_queues_that_lose_keys() -> None:
    broker = made(FOUR)
    broker.backlog = {"a": 1, "b": 20, "c": 300, "d": 4000}
    (step,) = plan(hashed("x", "abc"), broker.seen()).steps
    assert (step.at_risk, step.moved) == (4000, shares(Ring.of(list("abcd")))["d"])
    appended = plan(hashed("x", "abcde"), broker.seen()).steps[-1]
    assert appended.at_risk == 4321
    assert plan(hashed("x", "abc"), broker.seen(backlog={})).steps[0].at_risk is None


def test_an_exchange_behind_a_ring_puts_its_queues_at_risk() -> None:
    wanted = Topology(
        exchanges=(Exchange("x", CONSISTENT_HASH), Exchange("f", "fanout")),
        queues=(Queue("a"), Queue("b")),
        bindings=(Binding("x", "a", "1"), Binding("x", ToExchange("f"), "1"), Binding("f", "b")),
    )
    broker = made(wanted)
    broker.backlog = {"a": 5, "b": 70}
    (step,) = plan(replace(wanted, bindings=(wanted.bindings[0], wanted.bindings[2])), broker.seen()).steps
    assert step.at_risk == 70


def test_a_restart_is_described_for_each_store() -> None:
    assert any("Khepri keeps" in note for note in plan(FOUR, Observed()).notes)
    old = Broker("3.10.8")
    assert not [note for note in plan(FOUR, old.seen()).notes if "Mnesia" in note], "lint says it once"
    assert any("unpredictable order" in finding.message for finding in lint(FOUR, old.seen()))
    assert any("exactly this ring" in note for note in plan(FOUR, old.seen(worker_pool_size=1)).notes)
    unsorted = hashed("x", "dabc")
    share = moved(Ring.of(list("dabc")), Ring.of(list("abcd"))).share
    notes = plan(unsorted, old.seen(worker_pool_size=1)).notes
    assert any(f"{share:.2%}" in note for note in notes)


def test_a_plan_says_that_a_restart_before_it_revives_dead_bindings() -> None:
    found = assume_applied(FOUR)
    (ring,) = found.rings.values()
    dead = replace(ring, runs=tuple(run for run in ring.runs if run[0] != "d"))
    (note,) = plan(FOUR, replace(found, rings={"x": dead})).notes
    assert note.endswith(
        "over a restart, but one before these steps revives the dead bindings of exchange 'x'"
    )
    assert dead.after_restart().destinations == ring.destinations
    (note,) = plan(FOUR, found).notes
    assert note.endswith("over a restart")


# ---- what cannot be changed in place


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (Exchange("x", "topic"), 'type is "topic"'),
        (Exchange("x", CONSISTENT_HASH, durable=False), "durable is false"),
        (Exchange("x", CONSISTENT_HASH, arguments={"hash-header": "h"}), "hash-header"),
        (Queue("a", "classic", arguments={"x-max-length": 5}), "x-max-length"),
    ],
)
def test_what_has_other_properties_is_refused_with_a_new_name_and_never_deleted(standing, said) -> None:
    broker = Broker()
    things = broker.queues if isinstance(standing, Queue) else broker.exchanges
    things[standing.name] = standing
    found = plan(FOUR, broker.seen(), prune=True, force=True)
    (refusal,) = found.refusals
    assert said in refusal
    assert f"'{standing.name}.v2'" in refusal
    assert not found.destructive


# ---- policies, slots and shards


def test_slots_that_exist_are_not_bound_blindly() -> None:
    wanted = slotted("x", "ab", count=4)
    broker = made(wanted)
    blind = broker.seen(bindings_seen=False)
    blind = replace(blind, topology=replace(blind.topology, bindings=()))
    (refusal,) = plan(wanted, blind).refusals
    assert "AMQP alone does not show to which queues they lead" in refusal


def test_shards_belong_to_their_plugin() -> None:
    wanted = Topology(exchanges=(Exchange("s", MODULUS_HASH),))
    broker = made(wanted)
    shard = "sharding: s - rabbit@a - 0"
    broker.queues[shard] = Queue(shard)
    broker.bind(Binding("s", shard))
    assert not plan(wanted, broker.seen(), prune=True)


# ---- modulus


def test_a_modulus_exchange_says_what_another_number_of_queues_moves() -> None:
    def over(names) -> Topology:
        return Topology(
            exchanges=(Exchange("m", MODULUS_HASH),),
            queues=tuple(map(Queue, names)),
            bindings=tuple(Binding("m", name) for name in names),
        )

    broker = made(over("abc"))
    (declared, step) = plan(over("abcd"), broker.seen()).steps
    hashes = range(1 << 27)
    period = [(h % 3, h % 4) for h in range(12)]
    differs = [a != b for a, b in period]
    rest = len(hashes) % 12
    assert step.moved == (len(hashes) // 12 * sum(differs) + sum(differs[:rest])) / len(hashes)
    (refusal,) = plan(over("ab"), broker.seen()).refusals
    assert "slots" in refusal
    assert str(declared) == "declare classic queue 'd'"


def test_bindings_of_a_modulus_exchange_that_differ_only_in_arguments_count_each() -> None:
    one, two = (Binding("m", "a", "k", {"number": number}) for number in (1, 2))
    wanted = Topology(
        exchanges=(Exchange("m", MODULUS_HASH),),
        queues=(Queue("a"), Queue("b")),
        bindings=(one, Binding("m", "b", "k")),
    )
    broker = made(wanted)
    broker.bind(two)
    (step,) = plan(wanted, broker.seen()).steps
    assert step == Unbind(two, exchange_moved="m", moved=step.moved, at_risk=step.at_risk)
    # Of six hashes, the queues a a b a a b become a b a b a b.
    assert step.moved == pytest.approx(3 / 6)
