"""The reader against an API that changes between two questions, and which queue tells which destination of a ring."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rabbit_chx import ConsistentHashExchange, ToExchange
from rabbit_chx.broker.management_rows import ListedQueue, Overview
from rabbit_chx.broker.reading.probe import destinations_by_queue, probe
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.releases import Store
from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Topology
from tests.unit.erlang import ring_text

HASH = Exchange("x", "x-consistent-hash")
A, B = Binding("x", "a", "1"), Binding("x", "b", "1")


class Api:
    """What the reader asks, of a broker with one ring; its bindings were ``bindings`` and are ``now``."""

    flags: ClassVar = {"tie_binding_to_dest_with_keep_while_cond": True}

    def __init__(self, bindings, now=None, store=Store.KHEPRI, release="4.3.6") -> None:
        self.listed, self.now, self._store, self._release = bindings, now or bindings, store, release

    def overview(self) -> Overview:
        return Overview("RabbitMQ", self._release, frozenset({"direct"}), "here")

    def store(self, release: str) -> Store | None:
        return self._store

    def feature_flags(self) -> dict[str, bool]:
        return self.flags

    def bindings(self, vhost: str) -> list[Binding]:
        return [Binding("", "a", "a"), *self.listed]

    def bindings_from(self, vhost: str, source: str) -> list[Binding]:
        return self.now

    def exchanges(self, vhost: str) -> list[Exchange]:
        return [Exchange("", "direct"), HASH, Exchange("amq.topic", "topic")]

    def queues(self, vhost: str, *, consumers: bool = False):
        counted = (Queue("b"), 2), (Queue("a", "stream"), None), (Queue("rabbit-chx.lock", exclusive=True), 0)
        return [ListedQueue(*each, consumers=0 if consumers else None) for each in counted]

    def policies(self, vhost: str):
        return []

    def nodes(self):
        raise BrokerUnavailable("not for you", permanent=True)


class Node:
    """Says which queues have a bucket of the ring ``x``."""

    def __init__(self, *queues: str, name: str = "x") -> None:
        self.rings = ring_text(*(("queue", queue) for queue in queues), name=name)

    def eval(self, expression: str) -> str:
        return self.rings if "ring_state" in expression else "4"


def test_queues_without_consumers_are_listed_if_asked_for_and_streams_are_not_among_them() -> None:
    assert read(Api([A, B]), "v").unconsumed == frozenset()
    assert read(Api([A, B]), "v", consumers=True).unconsumed == {"b", "rabbit-chx.lock"}


def test_a_dead_binding_is_distinguished_from_one_deleted_during_the_read() -> None:
    dead = read(Api([A, B]), "v", node=Node("b"))
    assert [binding.destination for binding in dead.rings["x"].dead] == ["a"]
    gone = read(Api([A, B], now=[B]), "v", node=Node("b"))
    assert gone.ring_sources == {"x": "unknown"}
    assert gone.rings["x"].why_unknown == "it changed while it was read"


def test_an_exchange_that_the_node_does_not_know_has_no_ring() -> None:
    assert read(Api([A, B]), "v", node=Node(name="y")).ring_sources == {"x": "unknown"}


def test_a_weight_that_is_refused_here_is_named() -> None:
    observed = read(Api([A, Binding("x", "b", "99999")]), "v")
    assert observed.rings == {}
    assert "the ring of exchange 'x'" in observed.unseen[0]
    assert "'99999'" in observed.unseen[0]


def test_a_release_that_is_not_mirrored_is_refused_before_anything_is_listed(monkeypatch) -> None:
    """`watch` repeats a read that failed at every interval."""
    monkeypatch.setattr(Api, "bindings", lambda *_: pytest.fail("listed"))
    with pytest.raises(BrokerUnavailable, match=r"got '9\.0\.0'"):
        read(Api([A], release="9.0.0"), "v")


def test_until_its_feature_flag_is_enabled_unbinding_a_duplicate_on_4_3_takes_all_buckets() -> None:
    api = Api([A, B])
    for enabled, left in ((True, ("a", "b")), (False, ("b",))):
        api.flags = {"tie_binding_to_dest_with_keep_while_cond": enabled}
        ring = read(api, "v", node=Node("a", "b")).rings["x"]
        assert ring.bind("a", 1, {"note": "second"}).unbind("a", 1).bucket_map == left


@pytest.mark.parametrize(("store", "unseen"), [(None, ["whether"]), (Store.KHEPRI, [])])
def test_unseen_parts_are_reported(store, unseen) -> None:
    found = read(Api([A], store=store, release="4.0.5"), "v").unseen
    assert [line.startswith(begin) for line, begin in zip(found, unseen, strict=True)] == [True] * len(unseen)


def test_observed_messages_can_be_given_at_once() -> None:
    mirror = ConsistentHashExchange(["b", "a"], release="4.3.6")
    pairs = [(f"k{number}", mirror.route(f"k{number}")) for number in range(20)]
    observed = read(Api([A, B]), "v", pairs={"x": pairs})
    assert observed.ring_sources["x"] == "inference"
    assert observed.topology.bindings == (B, A)


# ---- what a probe finds out


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
