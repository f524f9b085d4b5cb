"""What an export keeps of a live virtual host: the file always loads, lints, and has the same rings."""

from __future__ import annotations

from rabbit_chx import Ring, ToExchange
from rabbit_chx.topology.file.exportable import by_name, exportable
from rabbit_chx.topology.model import Binding, Exchange, Queue, Topology

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


def test_a_twin_and_a_dead_binding_are_left_out_with_a_note():
    ring = Ring().bind("a", "2").bind("a", "1", {"note": 3})
    ring = ring.bind("b", "1").bind("b", "5").unbind("b", "1")
    live = Topology(
        exchanges=(X,),
        queues=(Queue("a"), Queue("b")),
        bindings=(Binding("x", "a", "1", {"note": 3}), Binding("x", "a", "2"), Binding("x", "b", "5")),
    )
    made, notes = exportable(live, {"x": ring})
    assert made.bindings == (Binding("x", "a", "2"),)
    assert len(notes) == 2
    assert "'a'" in notes[0]
    assert "'b' has no buckets" in notes[1]


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
