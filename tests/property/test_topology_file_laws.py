"""Properties of topology files: what is written loads as it was, and every live state can be exported."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict, replace
from operator import attrgetter

from hypothesis import given, strategies as st

from rabbit_chx import Ring, ToExchange
from rabbit_chx.base.names import name_flaw
from rabbit_chx.broker.reading.ring_order import in_ring_order
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.exportable import exportable
from rabbit_chx.topology.file.load import loads, parse
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology
from tests.property.strategies import NAMES as ANY_NAMES, lived_in_rings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORDS = "010 1_000 12:30 no null ~ << = 1e3 {0..3} # ' \" \\ q1 q2 q3 q08 q09 q10"
TRAPS = st.sampled_from(["a: b", "- a", " a ", "", "\x1b[2J", "\u202e\u2066q", *WORDS.split()])
NAMES = st.one_of(TRAPS, TEXT).filter(lambda name: not name_flaw(name) and not name.startswith("amq."))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), FLOATS, TEXT, TRAPS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT | st.sampled_from(["x-max-length", "a.b"]), VALUES, max_size=3)
TYPES = ["x-consistent-hash", "x-modulus-hash", "topic", "direct"]


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Exchange, ...]:
    found = []
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    for name in names:
        kind = draw(st.sampled_from(TYPES))
        arguments = draw(ARGUMENTS)
        if kind == "x-consistent-hash" and draw(st.booleans()):
            arguments["hash-header"] = draw(st.one_of(TEXT, st.integers(0, 9)))
        elif kind == "x-consistent-hash" and draw(st.booleans()):
            arguments["hash-property"] = draw(st.sampled_from(["message_id", "timestamp"]))
        if draw(st.booleans()):
            arguments["alternate-exchange"] = draw(st.sampled_from([*names, "amq.fanout"]))
        flags = [draw(st.booleans()) for _ in range(3)]
        found.append(Exchange(name, kind, *flags, arguments=arguments))
    return tuple(found)


@st.composite
def queues(draw: st.DrawFn) -> tuple[Queue, ...]:
    found = []
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        kind = draw(st.sampled_from(["classic", "quorum", "stream"]))
        flags = [draw(st.booleans()), draw(st.booleans())] if kind == "classic" else [True, False]
        arguments = draw(ARGUMENTS)
        if kind != "stream" and draw(st.booleans()):
            arguments["x-single-active-consumer"] = draw(st.booleans())
        found.append(Queue(name, kind, *flags, arguments=arguments))
    return tuple(found)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    some_exchanges, some_queues = draw(exchanges()), draw(queues())
    names = [queue.name for queue in some_queues]
    bindings: list[Binding] = []
    slots: list[Slots] = []
    exchanges_to = [ToExchange(each.name) for each in some_exchanges]
    for exchange in some_exchanges:
        is_hash = exchange.type.startswith("x-")
        if is_hash and names and draw(st.booleans()):
            shared = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
            weights = {name: draw(st.integers(1, 10_000)) for name in shared}
            alternate = draw(st.sampled_from([None, "amq.fanout"]))
            slots.append(Slots(exchange.name, draw(st.integers(4, 256)), weights, alternate))
        else:
            is_ring = exchange.type.startswith("x-c")
            keys = st.sampled_from(["1", "2", "10000", "007", "+5"]) if is_ring else TEXT | st.just("")
            to = st.sampled_from([*names, *exchanges_to])
            found = st.builds(Binding, st.just(exchange.name), to, keys, st.just({}) | ARGUMENTS)
            unique = st.lists(found, max_size=4, unique_by=lambda bound: (str(bound.destination), bound.key))
            bindings += draw(unique)
    policies = st.builds(
        Policy, NAMES, TEXT, st.sampled_from(["all", "queues"]), st.dictionaries(TEXT, VALUES, min_size=1, max_size=2),
        st.integers(-5, 5),
    )  # fmt: skip
    hashing = [each for each in some_exchanges if each.type.startswith("x-")]
    pairs = [
        (one.name, two.name) for one in hashing for two in hashing if one != two and one.type == two.type
    ]
    chosen = set(draw(st.lists(st.sampled_from(pairs), max_size=3))) if pairs else set()
    return Topology(
        vhost=draw(NAMES),
        exchanges=some_exchanges,
        queues=some_queues,
        bindings=tuple(bindings),
        policies=tuple(draw(st.lists(policies, max_size=2, unique_by=lambda each: each.name))),
        slots=tuple(slots),
        co_partitioned=tuple(pair for pair in pairs if pair in chosen),
    )


def controls_a_terminal(character: str) -> bool:
    is_control = unicodedata.category(character) in {"Cc", "Zl", "Zp"}
    return is_control or unicodedata.bidirectional(character) in [
        "LRE",
        "RLE",
        "LRO",
        "RLO",
        "LRI",
        "RLI",
        "FSI",
    ]


def spelt(topology: Topology) -> str:
    return json.dumps(asdict(topology), sort_keys=True, default=sorted)  # a set as a list


@given(topologies(), st.sampled_from(["yaml", "json"]))
def test_a_written_topology_loads_as_it_was_and_each_key_and_value_has_a_position(topology, format_):
    text = dumps(topology, format_)
    assert not [each for each in set(text) - {"\n"} if controls_a_terminal(each)]
    again = loads(text, format=format_)
    assert again == topology
    assert spelt(again) == spelt(topology)  # 1, 1.0 and true are equal to Python, and not to a broker
    assert dumps(again, format_) == text
    document = parse(text, format_, "t")
    values, keys = paths_of((), document.value)
    positions = document.find_positions(values | keys)
    assert set(positions.values) == values
    assert set(positions.keys) == keys


def paths_of(loc, value, *, is_under_key=False):
    keys = set()
    paths = set() if is_under_key and isinstance(value, dict | list) else {loc}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        inner_values, inner_keys = paths_of((*loc, key), item, is_under_key=isinstance(value, dict))
        paths |= inner_values
        keys |= inner_keys | ({(*loc, key)} if isinstance(value, dict) else set())
    return paths, keys


SOURCE = attrgetter("source")
CYCLE = (
    Binding("t", ToExchange("x"), "k"),
    Binding("t", ToExchange("t"), "#"),
    Binding("amq.topic", ToExchange("t"), "#"),
    Binding("t", ToExchange("amq.topic"), "#"),
    Binding("t", ToExchange("rabbit-chx.handover"), "#"),
)


@st.composite
def live_states(draw: st.DrawFn) -> tuple[Topology, Ring]:
    """A virtual host with a ring that was bound and unbound, twins and dead bindings included."""
    ring = draw(lived_in_rings())
    destinations = {each.destination for each in ring.bindings}
    exchanges = {each.name for each in destinations if isinstance(each, ToExchange)} - {"x", "t"}
    names = sorted({each for each in destinations if isinstance(each, str)} | set(draw(st.lists(ANY_NAMES))))
    numbers = st.sets(st.integers(0, 1))
    topics = [Binding("t", name, "k", {"n": n}) for name in names for n in draw(numbers)]
    alternate = draw(st.sampled_from(["amq.fanout", "nowhere", "t"]))
    return Topology(
        exchanges=(
            Exchange("x", "x-consistent-hash", arguments={"alternate-exchange": alternate}),
            Exchange("t", "topic"),
            *(Exchange(name, "fanout") for name in exchanges),
        ),
        queues=tuple(Queue(name, exclusive=draw(st.booleans())) for name in names),
        bindings=(
            *(Binding("x", each.destination, each.key, dict(each.arguments)) for each in ring.bindings),
            *topics,
            *draw(st.lists(st.sampled_from(CYCLE), max_size=5, unique_by=repr)),
        ),
        policies=tuple(
            Policy(name, "^a", definition={"max-length": 5}) for name in draw(st.sets(ANY_NAMES, max_size=2))
        ),
    ), ring


@given(live_states(), st.sampled_from(["yaml", "json"]), st.booleans())
def test_an_export_of_any_live_state_loads_and_has_no_lint_error(state, format_, is_known):
    live, ring = state
    rings = {"x": ring} if is_known else {}
    made, _ = exportable(in_ring_order(live, rings), rings)
    topology = loads(dumps(made, format_), format=format_)
    assert topology == replace(made, bindings=topology.bindings)
    assert sorted(topology.bindings, key=SOURCE) == sorted(made.bindings, key=SOURCE)
    assert [finding for finding in lint(topology) if finding.severity == "error"] == []
    kept = {queue.name for queue in topology.queues}
    whole = all(isinstance(each, ToExchange) or each in kept for each in ring.destinations)
    if is_known and whole and not any(name_flaw(str(each)) for each in ring.destinations):
        assert topology.ring("x").bucket_map == ring.bucket_map
