"""Which queue tells which destination of a ring."""

from __future__ import annotations

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.broker.reading.probe import destinations_by_queue, probe
from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Topology

HASH = Exchange("x", "x-consistent-hash")


def topology(*bindings: tuple[str, str], exchanges=(), policies=(), queues=()) -> Topology:
    """Bindings as (source, destination); destinations in upper case are exchanges."""
    bound = [Binding(source, ToExchange(to) if to.isupper() else to, "1") for source, to in bindings]
    return Topology(
        exchanges=(HASH, *exchanges), bindings=tuple(bound), policies=tuple(policies), queues=tuple(queues)
    )


def test_a_queue_identifies_the_only_destination_that_leads_to_it() -> None:
    there = topology(("x", "a"), ("x", "S"), ("S", "T"), ("T", "b"), ("T", "c"), ("y", "d"))
    assert destinations_by_queue(there, "x") == {"a": "a", "b": ToExchange("S"), "c": ToExchange("S")}


def test_a_queue_behind_two_destinations_identifies_neither() -> None:
    there = topology(("x", "a"), ("x", "S"), ("S", "a"), ("S", "b"))
    assert destinations_by_queue(there, "x") == {"b": ToExchange("S")}


def test_circles_end() -> None:
    assert destinations_by_queue(topology(("x", "S"), ("S", "T"), ("T", "S"), ("T", "a")), "x") == {
        "a": ToExchange("S")
    }


@pytest.mark.parametrize(
    "slot",
    [Exchange("S", "topic", arguments={"alternate-exchange": "ALT"}), Exchange("S", "topic", policy="p")],
)
def test_what_an_alternate_exchange_leads_to_counts(slot) -> None:
    policy = Policy("p", "S", definition={"alternate-exchange": "ALT"})
    there = topology(("x", "S"), ("x", "a"), ("ALT", "a"), exchanges=[slot], policies=[policy])
    assert destinations_by_queue(there, "x") == {}


def test_the_alternate_exchange_of_the_top_is_no_destination() -> None:
    top = Exchange("x", "x-consistent-hash", arguments={"alternate-exchange": "ALT"})
    there = Topology(
        exchanges=(top,), bindings=(Binding("x", "a", "1"), Binding("ALT", "b"), Binding("ALT", "a"))
    )
    assert destinations_by_queue(there, "x") == {}


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        (topology(("x", "S"), ("x", "T"), ("S", "a"), ("T", "a")), "behind no other destination"),
        (topology(("x", "S"), ("S", "a"), ("S", "b")), "got '2 queues behind it'"),
        (topology(("x", "S")), "got '0 queues behind it'"),
        (topology(("x", "a"), queues=[Queue("a", "stream")]), "a stream among them"),
        (topology(), "with queues behind it"),
    ],
)
def test_probes_go_only_to_queues_where_they_can_be_identified_and_removed(there, complaint) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        probe(None, Observed(there), "x")
