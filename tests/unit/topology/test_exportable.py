"""What an export keeps of a live virtual host: the file always loads, lints, and has the same rings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rabbit_chx import Ring, ToExchange
from rabbit_chx.names import name_flaw
from rabbit_chx.topology.checks.lint import lint
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.exportable import exportable
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue, Topology
from tests.property.strategies import NAMES, lived_in_rings

X = Exchange("x", "x-consistent-hash")


def test_an_export_holds_what_was_declared_in_the_order_of_names():
    live = Topology(
        exchanges=(X, Exchange("amq.topic", "topic"), Exchange("", "direct")),
        queues=(Queue("q10"), Queue("q9"), Queue("mine", exclusive=True), Queue("amq.gen-1")),
        bindings=(
            Binding("", "q9", "q9"),
            Binding("x", "q10", "1", {"x-bind-seq": 1}),
            Binding("x", "q9", "1", {"x-bind-seq": 2}),
            Binding("amq.topic", "mine", "#"),
            Binding("amq.topic", ToExchange("x"), "#"),
        ),
    )
    made = exportable(live)
    assert made.notes == ()
    assert made.topology == Topology(
        exchanges=(X,),
        queues=(Queue("q9"), Queue("q10")),
        bindings=(
            Binding("amq.topic", ToExchange("x"), "#"),
            Binding("x", "q10", "1"),
            Binding("x", "q9", "1"),
        ),
    )


def test_a_twin_and_a_dead_binding_are_left_out_with_a_note():
    ring = (
        Ring().bind("a", "2").bind("a", "1", {"x-bind-seq": 3}).bind("b", "1").bind("b", "5").unbind("b", "1")
    )
    live = Topology(
        exchanges=(X,),
        queues=(Queue("a"), Queue("b")),
        bindings=(Binding("x", "a", "1", {"x-bind-seq": 3}), Binding("x", "a", "2"), Binding("x", "b", "5")),
    )
    made = exportable(live, {"x": ring})
    assert made.topology.bindings == (Binding("x", "a", "2"),)
    assert len(made.notes) == 2
    assert "'a'" in made.notes[0]
    assert "'b' has no buckets" in made.notes[1]


def test_a_weight_that_no_file_holds_is_lowered_with_a_note():
    live = Topology(exchanges=(X,), queues=(Queue("a"),), bindings=(Binding("x", "a", "20000"),))
    made = exportable(live)
    assert made.topology.bindings == (Binding("x", "a", "10000"),)
    assert "20000" in made.notes[0]


@st.composite
def live_states(draw: st.DrawFn) -> tuple[Topology, Ring]:
    """A virtual host with a ring that was bound and unbound, twins and dead bindings included."""
    ring = draw(lived_in_rings())
    destinations = {each.destination for each in ring.bindings}
    queues = {str(each) for each in destinations if not isinstance(each, ToExchange)} | set(
        draw(st.lists(NAMES))
    )
    exchanges = {each.name for each in destinations if isinstance(each, ToExchange)} - {"x"}
    names = sorted(queues)
    topics = [
        Binding("t", name, "k", {"n": n})
        for name in names
        for n in draw(st.lists(st.integers(0, 1), max_size=2))
    ]
    alternate = draw(st.sampled_from(["amq.fanout", "nowhere", "t"]))
    return Topology(
        exchanges=(
            Exchange("x", "x-consistent-hash", arguments={"alternate-exchange": alternate}),
            Exchange("t", "topic"),
            *(Exchange(name, "fanout") for name in exchanges - {"t"}),
        ),
        queues=tuple(Queue(name, exclusive=draw(st.booleans())) for name in names),
        bindings=(
            *(Binding("x", each.destination, each.key, dict(each.arguments)) for each in ring.bindings),
            *topics,
        ),
        policies=tuple(
            Policy(name, "^a", definition={"max-length": 5}) for name in draw(st.sets(NAMES, max_size=2))
        ),
    ), ring


@given(live_states(), st.sampled_from(["yaml", "json"]), st.booleans())
def test_an_export_of_any_live_state_loads_and_has_no_lint_error(state, format_, is_known):
    live, ring = state
    made = exportable(live, {"x": ring} if is_known else {})
    topology = loads(dumps(made.topology, format_), format=format_)
    assert topology == made.topology
    assert [finding for finding in lint(topology) if finding.severity == "error"] == []
    kept = {queue.name for queue in topology.queues}
    whole = all(isinstance(each, ToExchange) or each in kept for each in ring.destinations)
    if is_known and whole and not any(name_flaw(str(each)) for each in ring.destinations):
        assert topology.ring("x").bucket_map == ring.bucket_map
