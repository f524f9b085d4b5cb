"""Bindings and buckets: what bind, unbind, a restart and a reading of the ring do beyond the laws of tests/property."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from types import MappingProxyType

import pytest

from rabbit_chx import (
    ConsistentHashExchange,
    Release,
    Ring,
    RingBinding,
    ToExchange,
    Unpredictable,
    infer,
    moved,
    shares,
)
from rabbit_chx.errors import RingUnknown
from tests.unit.complaints import complaint

OLD = ["3.8.35", "3.9.20", "3.10.0", "3.10.5"]  # the releases on which a second binding adds buckets


# ---- bind


@pytest.mark.parametrize(
    "bindings",
    [
        {"q0": 1, "q1": 2},
        OrderedDict(q0="1", q1="2"),
        MappingProxyType({"q0": 1, "q1": 2}),
        ["q0", ("q1", 2)],
        (("q0", 1), ("q1", "2")),
        (item for item in ["q0", RingBinding("q1", "2")]),
        [RingBinding.of("q0"), RingBinding.of("q1", 2)],
        {"q0": 1, "q1": 2}.items(),
    ],
    ids=lambda bindings: type(bindings).__name__,
)
def test_a_list_of_bindings_may_have_many_forms(bindings: object) -> None:
    assert Ring.of(bindings) == Ring.of([("q0", 1), ("q1", 2)])  # type: ignore[arg-type]


# ---- unbind and delete


def test_an_unbind_must_repeat_the_arguments() -> None:
    ring = Ring.of(["q1"]).bind("q0", 1, {"note": 3})
    assert ring.unbind("q0", 1) == ring
    assert ring.unbind("q0", 1, {"note": 3}).bucket_map == ("q1",)
    assert ring.unbind("q0").bucket_map == ("q1",)  # its only binding
    assert "arguments" in str(complaint(lambda: ring.unbind("q0", arguments={"note": 3})).got)


def test_unbinding_one_of_two_bindings_must_name_it() -> None:
    error = complaint(lambda: Ring.of({"q0": 1}).bind("q0", 5).unbind("q0"))
    assert "'1', '5'" in error.expected
    assert "delete()" in error.hint


# ---- restarts


@pytest.mark.parametrize("release", ["3.10.8", "3.12", "4.0.5", "4.1"])
def test_mnesia_with_one_worker_sorts_the_ring(release: str) -> None:
    # Weight strings first, so 1 < 10 < 2; then exchanges before queues; then the bytes of the name.
    ring = Ring.of([("q10", 2), ("q9", 10), ("B", 1), ("a", 2), (ToExchange("z"), 2)], release=release)
    sorted_ring = ring.after_restart(worker_pool_size=1)
    assert sorted_ring.runs == (("B", 1), ("q9", 10), (ToExchange("z"), 2), ("a", 2), ("q10", 2))
    assert sorted_ring.bindings == ring.bindings
    assert sorted_ring.after_restart(worker_pool_size=1) == sorted_ring


def test_mnesia_with_one_worker_revives_a_dead_binding_where_it_sorts() -> None:
    ring = Ring.of(["qa", "qb"], release="3.10.8").bind("qa", "5").unbind("qa", "1")
    assert ring.after_restart(worker_pool_size=1).bucket_map == ("qb", *["qa"] * 5)
    both = Ring.of({"qa": 5, "qb": 2}, release="3.10.8").bind("qa", 1)
    assert both.after_restart(worker_pool_size=1).bucket_map == ("qa", "qb", "qb")  # "1" sorts first and wins


@pytest.mark.parametrize("workers", [None, 2, 4, 16])
def test_mnesia_with_more_workers_loses_the_order(workers: int | None) -> None:
    lost = Ring.of({"q0": 1, "q1": 1}, release="4.0.5").after_restart(worker_pool_size=workers)
    assert not lost.known
    assert "4.0.5" in lost.why_unknown
    assert "concurrently" in lost.why_unknown


@pytest.mark.parametrize("bindings", [{}, {"q0": 1}, {"q0": 7}])
def test_there_is_no_order_to_lose_with_one_binding_or_none(bindings: dict[str, int]) -> None:
    ring = Ring.of(bindings, release="3.10.8")
    assert ring.after_restart() == ring


UNKNOWN = Ring.of({"q0": 1, "q1": 1, "q2": 1}, release="3.10.8").after_restart()


@pytest.mark.parametrize(
    "question",
    [
        lambda: UNKNOWN.bucket_map,
        lambda: UNKNOWN.destinations,
        lambda: UNKNOWN.dead,
        lambda: len(UNKNOWN),
        lambda: shares(UNKNOWN),
        lambda: moved(UNKNOWN, Ring.of(["q0"])),
        lambda: moved(Ring.of(["q0"]), UNKNOWN),
        lambda: ConsistentHashExchange(UNKNOWN).route("a"),
        lambda: ConsistentHashExchange(UNKNOWN).route("a", explain=True),
        lambda: ConsistentHashExchange(UNKNOWN).route_many(["a"]),
        lambda: ConsistentHashExchange(UNKNOWN).bucket_many([]),
        lambda: ConsistentHashExchange(UNKNOWN).destinations,
        lambda: ConsistentHashExchange(UNKNOWN)._owners,
        lambda: ConsistentHashExchange(UNKNOWN, hash_header="h").route(headers={}),
    ],
)
def test_an_unknown_ring_has_no_answer_but_says_why_and_what_to_do(question) -> None:
    with pytest.raises(RingUnknown) as caught:
        question()
    for part in ("3.10.8 on Mnesia", "when it boots", "ring_state/2", "Ring.read()", "infer()"):
        assert part in str(caught.value)


def test_an_unknown_ring_can_still_be_shown_and_changed() -> None:
    assert "order unknown" in repr(ConsistentHashExchange(UNKNOWN))
    changed = UNKNOWN.bind("q3").unbind("q0")
    assert not changed.known
    assert [binding.destination for binding in changed.bindings] == ["q1", "q2", "q3"]


def test_the_order_is_known_again_when_nothing_is_left_or_one_worker_sorts_it() -> None:
    empty = UNKNOWN.unbind("q0").unbind("q1").delete("q2")
    assert empty == Ring.of([], release="3.10.8")
    assert empty.bind("q5").bucket_map == ("q5",)
    straight = Ring.of(["q0", "q1", "q2"], release="3.10.8").after_restart(worker_pool_size=1)
    assert UNKNOWN.after_restart(worker_pool_size=1) == straight


# ---- the ring as read from a broker


def test_a_ring_that_was_read_is_the_ring_of_its_buckets() -> None:
    assert Ring.read(["q1", "q0", "q0"]) == Ring.of([("q1", 1), ("q0", 2)])
    assert Ring.read([]) == Ring()
    assert Ring.read(["q0", ToExchange("q0")]).runs == (("q0", 1), (ToExchange("q0"), 1))
    assert str(Ring.read(["q0"], release="4.0.5", store="khepri").release) == "4.0.5"


def test_a_destination_in_two_places_has_one_binding_where_none_are_given() -> None:
    ring = Ring.read(["q0", "q1", "q0", "q0"], release="3.10.5")
    assert ring.bucket_map == ("q0", "q1", "q0", "q0")
    assert ring.destinations == ("q0", "q1")
    assert ring.bindings == (RingBinding("q0", "3"), RingBinding("q1", "1"))


@pytest.mark.parametrize("release", OLD)
def test_old_releases_are_not_predicted_once_a_destination_is_bound_twice(release: str) -> None:
    ring = Ring.of({"q0": 1, "q1": 1}, release=release)
    twice = Ring.read(["q0", "q1", "q0"], bindings=[*ring.bindings, ("q0", "01")], release=release)
    torn = Ring.read(["q0", "q1", "q0"], release=release)
    assert ConsistentHashExchange(twice).route("a") in {"q0", "q1"}  # as read it is known
    for change in (
        lambda: ring.bind("q0", 5),
        lambda: twice.bind("q2"),
        lambda: twice.unbind("q1"),
        lambda: twice.delete("q0"),
        lambda: twice.after_restart(worker_pool_size=1),
        lambda: torn.unbind("q1"),
        lambda: infer([("a", "q0")], twice.bindings, release=release),
    ):
        with pytest.raises(Unpredictable, match=r"queue 'q0' is bound twice.*3\.9\.21 and 3\.10\.6"):
            change()
    assert ring.bind("q2").unbind("q0").bucket_map == ("q1", "q2")


def test_rings_are_values() -> None:
    ring = Ring.of({"q0": 1, ToExchange("x"): 2}, release="4.0.5")
    assert {ring: 1}[Ring.of({"q0": 1, ToExchange("x"): 2}, release="4.0.5")] == 1
    assert pickle.loads(pickle.dumps(ring)) == ring
    assert ring != Ring.of({"q0": 1, ToExchange("x"): 2}, release="4.0.6")
    before = pickle.loads(pickle.dumps(ring))
    ring.bind("q2").unbind("q0").delete(ToExchange("x")).after_restart()
    assert ring == before
    with pytest.raises(AttributeError):
        ring.runs = ()  # type: ignore[misc]


def test_a_binding_whose_twin_is_listed_keeps_the_buckets_from_4_3_on() -> None:
    for release, left in (("4.2.9", ("b",)), ("4.3.6", ("a", "a", "b"))):
        ring = (
            Ring(release=Release.parse(release)).bind("a", 2, {"note": 1}).bind("b").bind("a", 2, {"note": 3})
        )
        one_less = ring.unbind("a", 2, {"note": 1})
        assert one_less.bucket_map == left
        assert one_less.unbind("a", 2, {"note": 3}).bucket_map == ("b",)


def test_the_ring_of_early_4_3_stays_unknown_after_the_deletion_of_a_destination_exchange() -> None:
    for release, known in (("4.2.9", True), ("4.3.4", False), ("4.3.6", True)):
        ring = Ring.of(["a", ToExchange("e")], release=release)
        assert ring.delete(ToExchange("e")).known is known
        assert ring.delete("a").known
        assert ring.delete(ToExchange("other")) == ring
        emptied = ring.delete(ToExchange("e")).unbind("a")
        assert emptied.known is known
        assert emptied.bind("b").known is known
    left = Ring.read([ToExchange("e"), "a"], bindings=["a"], release="4.3.4").unbind("a").bind("b")
    assert left.bucket_map == (ToExchange("e"), "b")
