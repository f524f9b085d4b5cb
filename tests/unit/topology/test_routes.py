"""The walk of a message through a topology; what the broker says to the same is in tests/broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rabbit_chx import AnyOf, ConsistentHashExchange, ModulusHashExchange, Ring, ToExchange, Unpredictable
from rabbit_chx.errors import RingUnknown
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology
from rabbit_chx.topology.routes import Router, headers_match, route, topic_matches
from tests.unit.complaints import complaint


def world(*bindings, **types) -> Topology:
    """Exchanges by name and type, and bindings as (source, destination, key, arguments) with ``>x`` for exchange x."""
    bounds = []
    for source, destination, *rest in bindings:
        target = ToExchange(destination[1:]) if destination.startswith(">") else destination
        bounds.append(Binding(source, target, *rest))
    queues = sorted({bound.destination for bound in bounds if isinstance(bound.destination, str)})
    return Topology(
        exchanges=tuple(Exchange(name, type_.replace("_", "-")) for name, type_ in types.items()),
        queues=tuple(Queue(name) for name in queues),
        bindings=tuple(bounds),
    )


def behind(exchange: str, topology: Topology) -> set:
    return reachable(topology, [ToExchange(exchange)], alternates=True)


# -- topics: the rules of AMQP 0-9-1, section 3.1.3.3


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [""], ["a", "."]),
        ("a", ["a"], ["", "a.", "a.a", "b"]),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("#", ["", "a", "a.b", "..."], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "ab"]),
        ("#.a", ["a", "b.a", "c.b.a"], ["", "a.b"]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z", "a.z.z"], ["a", "z", "a.b"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c"], ["", "a", "ab"]),
        ("*.*.*", ["a.b.c", ".."], ["a.b", "a.b.c.d"]),
        ("a*", ["a*"], ["ab"]),
        ("é.#", ["é.x"], ["e.x"]),
    ],
)
def test_topics(pattern, yes, no):
    assert [key for key in yes if not topic_matches(pattern, key)] == []
    assert [key for key in no if topic_matches(pattern, key)] == []


def test_a_topic_of_many_wildcards_takes_no_time():
    assert not topic_matches("#.a" * 20 + ".b", "a." * 60 + "c")


# -- headers


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2, "x-match": "any"}, {"b": 2}, True),
        ({"a": 1, "b": 2, "x-match": "any"}, {"a": 2, "b": 1}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": "t"}, {"a": b"t"}, True),
        ({"x-a": 1}, {}, True),
        ({"x-a": 1, "x-match": "any"}, {"x-a": 1}, False),
        ({"x-a": 1, "x-match": "all-with-x"}, {}, False),
        ({"x-a": 1, "x-match": "all-with-x"}, {"x-a": 1}, True),
        ({"x-a": 1, "b": 1, "x-match": "any-with-x"}, {"x-a": 1}, True),
    ],
)
@pytest.mark.parametrize("release", ["3.10", "4.3"])
def test_headers(arguments, headers, matches, release):
    assert headers_match(arguments, headers, release) is matches


def test_numbers_of_two_types_are_equal_up_to_3_12():
    assert headers_match({"a": 1}, {"a": 1.0}, "3.12")
    assert not headers_match({"a": 1}, {"a": 1.0}, "3.13")


def test_a_time_never_matches_a_time_from_3_13_on():
    then = datetime(2026, 1, 1, tzinfo=UTC)
    assert headers_match({"a": then}, {"a": then}, "3.12")
    assert not headers_match({"a": then}, {"a": then}, "3.13")


# -- the walk


def test_each_plain_type():
    topology = world(
        ("d", "one", "k"), ("d", "two", "k"), ("d", "three", "l"),
        ("f", "one", "ignored"), ("f", "two"),
        ("t", "one", "k.#"), ("t", "two", "*"),
        ("h", "one", "", {"type": "a"}), ("h", "two", "", {"type": "b"}),
        ("r", "one"), ("r", "two"),
        d="direct", f="fanout", t="topic", h="headers", r="x_recent_history",
    )  # fmt: skip
    assert route(topology, "d", routing_key="k") == ("one", "two")
    assert route(topology, "d", routing_key="m") == ()
    assert route(topology, "f", routing_key="k") == ("one", "two")
    assert route(topology, "t", routing_key="k.l") == ("one",)
    assert route(topology, "h", headers={"type": "b"}) == ("two",)
    assert route(topology, "r") == ("one", "two")


@pytest.mark.parametrize(
    ("argument", "name", "message"),
    [
        ("hash-header", "tenant", {"headers": {"tenant": "acme"}}),
        ("hash-property", "message_id", {"properties": {"message_id": "m-1"}}),
        ("hash-property", "timestamp", {"properties": {"timestamp": 1_700_000_000}}),
    ],
)
def test_what_is_hashed_is_the_part_that_the_arguments_name(argument, name, message):
    topology = world(*(("c", queue, "1") for queue in "abcdefgh"), c="x_consistent_hash")
    exchange = replace(topology.exchanges[0], arguments={argument: name})
    topology = replace(topology, exchanges=(exchange,))
    mirror = ConsistentHashExchange(list("abcdefgh"), **{argument.replace("-", "_"): name})
    ((part, values),) = message.items()
    given = {"headers": values} if part == "headers" else values
    assert route(topology, "c", routing_key="k", **message) == (mirror.route("k", **given),)
    absent = {"headers": {}} if part == "headers" else {name: None}
    assert route(topology, "c", routing_key="k") == (mirror.route("k", **absent),)


def test_the_keys_of_copies_are_a_list():
    assert complaint(lambda: route(world(d="direct"), "d", headers={"CC": "l"})).got == "l"


def test_an_alternate_exchange_takes_what_matched_nothing():
    topology = world(("d", "one", "k"), ("alt", "lost"), d="direct", alt="fanout", e="x_consistent_hash")
    named = [replace(each, arguments={"alternate-exchange": "alt"}) for each in topology.exchanges]
    topology = replace(topology, exchanges=(named[0], topology.exchanges[1], named[2]))
    assert route(topology, "d", routing_key="k") == ("one",)
    assert route(topology, "d", routing_key="other") == ("lost",)
    assert route(topology, "e", routing_key="any") == ("lost",)


def test_an_alternate_exchange_by_policy_gives_way_to_one_by_argument():
    topology = world(("alt", "policy"), ("own", "argument"), alt="fanout", own="fanout", d="direct")
    policy = Policy("lost", "^d$", "exchanges", {"alternate-exchange": "alt"})
    topology = replace(
        topology, policies=(policy, Policy("low", "d", "all", {"alternate-exchange": "own"}, -1))
    )
    assert route(topology, "d") == ("policy",)
    assert "policy" in behind("d", topology)
    argued = replace(topology.exchanges[2], arguments={"alternate-exchange": "own"})
    topology = replace(topology, exchanges=(*topology.exchanges[:2], argued))
    assert route(topology, "d") == ("argument",)
    assert behind("d", topology) == {ToExchange("d"), ToExchange("own"), "argument"}


def test_of_two_equal_policies_the_one_that_the_broker_applies_counts():
    topology = world(("alt", "first"), ("own", "second"), alt="fanout", own="fanout", d="direct")
    policies = [
        Policy(name, "d", "all", {"alternate-exchange": to}) for name, to in (("p", "alt"), ("q", "own"))
    ]
    applied = replace(topology.exchanges[2], policy="q")
    live = replace(topology, policies=tuple(policies), exchanges=(*topology.exchanges[:2], applied))
    assert route(live, "d") == ("second",)


@pytest.mark.parametrize(
    "policies",
    [
        (("p", "^d$", 0, "alt"), ("q", "^d$", 0, "own")),
        (("p", "^[[:lower:]]$", 0, "alt"),),
        (("p", "^[[:lower:]]$", 1, "alt"), ("q", "^d$", 0, "own")),
    ],
    ids=["equal priorities", "unknown pattern", "unknown pattern of higher priority"],
)
def test_an_alternate_exchange_by_a_policy_that_may_not_apply_is_not_guessed(policies):
    topology = world(("alt", "first"), ("own", "second"), alt="fanout", own="fanout", d="direct")
    made = tuple(
        Policy(name, pattern, "all", {"alternate-exchange": to}, rank) for name, pattern, rank, to in policies
    )
    with pytest.raises(Unpredictable, match=r"exchange 'd'.*any of 'p', "):
        route(replace(topology, policies=made), "d")
    assert "first" in behind("d", replace(topology, policies=made))
    # The broker names the policy that applies, or none.
    unruled = replace(topology.exchanges[2], policy="")
    live = replace(topology, policies=made, exchanges=(*topology.exchanges[:2], unruled))
    assert route(live, "d") == ()
    assert behind("d", live) == {ToExchange("d")}


def test_policies_that_may_apply_but_do_not_decide_do_not_matter():
    topology = world(("alt", "first"), ("own", "second"), alt="fanout", own="fanout", d="direct")
    to = {"alternate-exchange": "alt"}
    policies = (
        Policy("p", "^d$", "all", to),
        Policy("same", "[[:lower:]]", "all", to, 1),
        Policy("lower", "[[:lower:]]", "all", {"alternate-exchange": "own"}, -1),
        Policy("of queues", "[[:lower:]]", "queues", {"alternate-exchange": "own"}, 1),
    )
    assert route(replace(topology, policies=policies), "d") == ("first",)
    assert route(replace(world(("d", "q", "k"), d="direct"), policies=policies), "d", routing_key="k") == (
        "q",
    )


def test_a_live_ring_goes_before_the_order_of_the_bindings():
    topology = world(("c", "a", "1"), ("c", "b", "1"), c="x_consistent_hash")
    live = Ring.of(["b", "a"])
    assert route(topology, "c", routing_key="k") != Router(topology, rings={"c": live}).route("c", "k")
    unknown = Ring.of(["b", "a"], release="4.0").after_restart()
    with pytest.raises(RingUnknown):
        Router(topology, release="4.0", rings={"c": unknown}).route("c", "k")
    assert Router(topology, rings={"c": Ring()}).route("c", "k") == ()


# -- what only chance or a broker knows


def test_an_exchange_that_throws_dice():
    topology = world(
        ("r", "a", "x"), ("r", ">f"), ("f", "b"), ("l", "a"), ("l", "b"), ("l", "c", "never"), ("one", "a"),
        r="x_random", f="fanout", l="x_local_random", one="x_random",
    )  # fmt: skip
    assert route(topology, "r") == (AnyOf(frozenset({"a", "b"})),)
    assert route(topology, "l") == (AnyOf(frozenset({"a", "b"})),)
    assert route(topology, "one") == ("a",)


def test_two_exchanges_that_choose_among_the_same_queues_choose_twice():
    topology = world(
        ("f", ">r"), ("f", ">s"), ("r", "a"), ("r", "b"), ("s", "a"), ("s", "b"), f="fanout", r="x_random", s="x_random"
    )  # fmt: skip
    assert route(topology, "f") == (AnyOf(frozenset({"a", "b"})),) * 2


@pytest.mark.parametrize("behind", [(), (("f", "b"), ("f", "c"))], ids=["nothing", "two queues"])
def test_dice_that_lead_to_none_or_several(behind):
    topology = world(("r", "a"), ("r", ">f"), *behind, r="x_random", f="fanout")
    with pytest.raises(Unpredictable, match=r"at random to exchange f, which routes it to [02] queues"):
        route(topology, "r")


def test_which_queue_a_slot_leads_to_is_not_written_in_the_file():
    slots = Slots("top", 16, {"a": 1, "b": 1}, alternate="lost")
    topology = Topology(exchanges=(Exchange("top", "x-modulus-hash"),), slots=(slots,))
    assert route(topology, "top", routing_key="k") == (AnyOf(frozenset({"a", "b"})),)
    owners = dict(zip(slots.names, ["a", "b"] * 8, strict=True))
    mirror = ModulusHashExchange([ToExchange(name) for name in slots.names])
    for key in "abcdefghij":
        slot = mirror.route(key).name
        assert route(topology.expanded(owners), "top", routing_key=key) == (owners[slot],)


# -- what a part of the message that is not known decides


def test_an_exchange_that_hashes_an_unknown_part_may_choose_any_of_its_queues():
    topology = world(
        ("f", ">c"), ("f", ">m"), ("f", ">one"), ("c", "a", "1"), ("c", "b", "1"), ("m", "c"), ("m", "d"), ("one", "e", "1"),
        f="fanout", c="x_consistent_hash", m="x_modulus_hash", one="x_consistent_hash",
    )  # fmt: skip
    walk = Router(topology).route
    either = (AnyOf(frozenset({"a", "b"})), AnyOf(frozenset({"c", "d"})), "e")
    assert walk("f", known=["headers", "message_id"]) == either
    assert walk("f", "k", known=["routing_key"]) == route(topology, "f", routing_key="k")


def test_a_header_may_be_known_without_the_others():
    topology = world(("c", "a", "1"), ("c", "b", "1"), c="x_consistent_hash")
    exchange = replace(topology.exchanges[0], arguments={"hash-header": "tenant"})
    topology = replace(topology, exchanges=(exchange,))
    given = {"tenant": "acme"}
    walk = Router(topology).route
    assert walk("c", headers=given, known=[]) == route(topology, "c", headers=given)
    assert walk("c", headers={"other": "x"}, known=[]) == (AnyOf(frozenset({"a", "b"})),)
    assert walk("c", headers={"other": "x"}, known=["headers"]) == route(topology, "c")


@pytest.mark.parametrize(
    ("known", "reason"), [("routing_key", "the headers of"), ("headers", "the routing key of")]
)
def test_a_binding_that_matches_by_an_unknown_part_is_refused(known, reason):
    topology = world(
        ("d", "a", "k"), ("t", "a", "k.*"), ("h", "a", "", {"x-match": "any", "type": "a"}), ("all", "a", "#"),
        d="direct", t="topic", h="headers", all="topic",
    )  # fmt: skip
    walk = Router(topology).route
    assert walk("all", known=[]) == ("a",)
    assert walk("h", headers={"type": "a"}, known=[]) == ("a",)
    for name in ("d", "t") if known == "headers" else ("h",):
        with pytest.raises(Unpredictable, match=f"'{name}' .* routes by {reason} the message"):
            walk(name, known=[known])


def test_an_unknown_exchange_type():
    with pytest.raises(Unpredictable, match="x-delayed-message"):
        route(world(("x", "a"), x="x_delayed_message"), "x")


def test_where_a_message_cannot_be_published():
    topology = replace(world(d="direct"), exchanges=(Exchange("d", "direct", internal=True),))
    assert "internal" in complaint(lambda: route(topology, "d")).got
    assert complaint(lambda: route(topology, "nope")).got == "nope"
    assert "only if it has bindings" in complaint(lambda: route(topology, "amq.direct")).hint


def test_a_missing_exchange_is_an_error_with_the_exchanges_that_there_are():
    topology = world(orders="x_consistent_hash", tenants="x_modulus_hash")
    topology = replace(
        topology,
        exchanges=(*topology.exchanges, Exchange("hidden", "fanout", internal=True)),
        slots=(Slots("tenants", count=300, queues={"a": 1}),),
    )
    text = "invalid exchange to publish to: got {!r}, expected an exchange of the topology. {}"
    for name, hint in (("nope", "It has exchanges 'orders', 'tenants'"), ("order", "Did you mean 'orders'?")):
        assert str(complaint(lambda name=name: route(topology, name))) == text.format(name, hint)
    assert complaint(lambda: route(Topology(), "nope")).hint == "It has none"
