"""Topologies written as files: what the text looks like, what cannot be written, and what an export keeps of a live broker."""

from __future__ import annotations

import pytest

from rabbit_chx import Ring, ToExchange
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.exportable import by_name, exportable
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Slots, Topology
from tests.unit.complaints import complaint

SHOP = Topology(
    vhost="shop",
    exchanges=(
        Exchange(
            "orders", "x-consistent-hash", arguments={"hash-header": "tenant", "alternate-exchange": "rest"}
        ),
        Exchange("pay", "x-modulus-hash"),
        Exchange("rest", "fanout", durable=False, auto_delete=True, internal=True),
    ),
    queues=(
        Queue("q{0}", "quorum", arguments={"x-single-active-consumer": True}),
        Queue("no", "classic", arguments={"x-max-length": 10, "note": "010"}),
    ),
    bindings=(Binding("orders", "no", "1"), Binding("orders", "q{0}", "3"), Binding("rest", "no", "a b")),
    policies=(Policy("p", "^logs$", "exchanges", {"shards-per-node": 2}, 5),),
    slots=(Slots("pay", 64, {"q{0}": 2}, "rest"),),
    co_partitioned=(("orders", "pay"),),
)


def test_yaml_is_short_and_quotes_what_needs_quotes():
    assert dumps(SHOP, "yaml") == (
        "schema: 1\n"
        "vhost: shop\n"
        "exchanges:\n"
        "  orders:\n"
        "    type: x-consistent-hash\n"
        "    hash-header: tenant\n"
        "    alternate-exchange: rest\n"
        "    co-partitioned-with: pay\n"
        '    queues: {"no": 1, "q{{0}}": 3}\n'
        '  pay: {type: x-modulus-hash, alternate-exchange: rest, slots: 64, queues: {"q{{0}}": 2}}\n'
        "  rest:\n"
        "    type: fanout\n"
        "    durable: false\n"
        "    auto-delete: true\n"
        "    internal: true\n"
        '    bindings: [{queue: "no", key: "a b"}]\n'
        "queues:\n"
        '  "q{{0}}": {type: quorum, single-active-consumer: true}\n'
        '  "no": {type: classic, arguments: {x-max-length: 10, note: "010"}}\n'
        "policies:\n"
        '  p: {pattern: "^logs$", apply-to: exchanges, priority: 5, definition: {shards-per-node: 2}}\n'
    )


@pytest.mark.parametrize(("limit", "key"), [(-1, "preset: ordered"), (5, "type: quorum")])
def test_a_queue_that_is_as_the_preset_declares_it_is_written_with_the_preset(limit, key):
    arguments = {"x-single-active-consumer": True, "x-delivery-limit": limit, "x-max-length": 10}
    topology = Topology(queues=(Queue("q", "quorum", arguments=arguments),))
    written = dumps(topology, "yaml")
    assert key in written
    assert ("x-delivery-limit" in written) == (limit != -1)
    assert loads(written, format="yaml") == topology


@pytest.mark.parametrize("format_", ["yaml", "json"])
def test_a_hundred_queues_are_not_one_line(format_):
    names = [f"orders.{number:03}" for number in range(100)]
    topology = Topology(
        exchanges=(Exchange("x", "x-consistent-hash"), Exchange("t", "topic")),
        queues=tuple(Queue(name, "quorum") for name in names),
        bindings=(
            *(Binding("x", name, "1") for name in names),
            *(Binding("t", name, f"k.{name}") for name in names),
        ),
    )
    text = dumps(topology, format_)
    assert max(map(len, text.splitlines())) <= 120
    assert loads(text, format=format_) == topology


@pytest.mark.parametrize(
    ("kind", "queues", "unordered", "effect"),
    [
        ("x-consistent-hash", "ab", {"x"}, "so the order is written as unknown"),
        ("x-consistent-hash", "a", set(), "so predictions from the file are wrong while it is bound"),
        ("x-modulus-hash", "ab", set(), "so predictions from the file are wrong while it is bound"),
    ],
)
def test_an_exclusive_queue_that_takes_keys_is_left_out_with_a_note(kind, queues, unordered, effect):
    names = (*queues, "tap")
    live = Topology(
        exchanges=(Exchange("x", kind),),
        queues=(*map(Queue, queues), Queue("tap", exclusive=True)),
        bindings=tuple(Binding("x", name, "1") for name in names),
    )
    made, (note,) = exportable(live, {"x": Ring.of(names)})
    assert made.unordered == unordered
    assert note == f"exchange 'x': 'tap' takes keys, but a file cannot declare it, {effect}"


def test_an_exclusive_queue_and_an_unknown_format_are_refused():
    complaint_of = complaint(lambda: dumps(Topology(queues=(Queue("q", exclusive=True),)), "yaml"))
    assert "Leave exclusive queues out" in complaint_of.hint
    with pytest.raises(ValueError, match="yaml or json"):
        dumps(Topology(), "ini")


# -- of a live virtual host: the file always loads, lints, and has the same rings

X = Exchange("x", "x-consistent-hash")


def test_an_export_holds_what_was_declared_in_the_order_of_names():
    live = Topology(
        exchanges=(X, Exchange("amq.topic", "topic"), Exchange("", "direct")),
        queues=(Queue("q10"), Queue("q9"), Queue("mine", exclusive=True), Queue("amq.gen-1")),
        bindings=(
            Binding("", "q9", "q9"),
            Binding("x", "q10", "1"),
            Binding("x", "q9", "1"),
            Binding("amq.topic", "mine", "#"),
            Binding("amq.topic", ToExchange("x"), "#"),
        ),
    )
    made, notes = exportable(live)
    assert notes == ()
    assert made == Topology(
        exchanges=(X,),
        queues=(Queue("q9"), Queue("q10")),
        bindings=(
            Binding("amq.topic", ToExchange("x"), "#"),
            Binding("x", "q10", "1"),
            Binding("x", "q9", "1"),
        ),
    )


def test_numbers_within_names_are_ordered_by_value_whatever_their_length():
    names = ["q1", "q01", "q2", "q2a1", "q2a10", "q09", "q10", "q" + "9" * 5_000, "r"]
    ordered = [each.name for each in by_name(map(Queue, reversed(names)))]
    assert ordered == ["q01", *names[:1], *names[2:]]


@pytest.mark.parametrize("exclusive", [False, True])  # a file cannot declare an exclusive queue
def test_a_twin_and_a_dead_binding_are_left_out_with_a_note(exclusive):
    ring = Ring().bind("a", "2").bind("a", "1", {"note": 3})
    ring = ring.bind("b", "1").bind("b", "5").unbind("b", "1")
    live = Topology(
        exchanges=(X,),
        queues=(Queue("a"), Queue("b", exclusive=exclusive), Queue("c")),
        bindings=(
            Binding("x", "a", "1", {"note": 3}),
            Binding("x", "a", "2"),
            Binding("x", "b", "5"),
            Binding("x", "c", "1"),
        ),
    )
    made, notes = exportable(live, {"x": ring.bind("c", "1")})
    assert made.bindings == (Binding("x", "a", "2"), Binding("x", "c", "1"))
    assert not made.unordered
    assert len(notes) == 2
    assert "'b' has no buckets" in notes[0]
    assert "'a'" in notes[1]


def test_of_two_bindings_of_one_weight_the_plain_one_is_kept():
    other = Binding("x", "a", "1", {"note": "2"})
    live = Topology(exchanges=(X,), queues=(Queue("a"),), bindings=(other, Binding("x", "a", "1")))
    for ring in (None, Ring.of({"a": 1}).bind("a", 1, {"note": "2"})):
        made, notes = exportable(live, {} if ring is None else {"x": ring})
        assert made.bindings == (Binding("x", "a", "1"),)
        assert notes == ("exchange 'x': a second binding of 'a' is left out",)


def test_a_weight_that_no_file_holds_is_lowered_with_a_note():
    live = Topology(exchanges=(X,), queues=(Queue("a"),), bindings=(Binding("x", "a", "20000"),))
    made, notes = exportable(live)
    assert made.bindings == (Binding("x", "a", "10000"),)
    assert "20000" in notes[0]
