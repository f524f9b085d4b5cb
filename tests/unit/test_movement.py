"""Exact shares and movement, against counts that were made on the BEAM with the plugin's own function."""

from __future__ import annotations

import pytest

from rabbit_chx import Movement, Ring, ToExchange, moved, shares
from tests.unit.erlang import COUNTS, MOVED_WITHOUT

SEEDS = 2**21
TEN = Ring.of([f"q{i}" for i in range(10)])


@pytest.mark.parametrize("size", COUNTS)
def test_the_shares_of_equal_queues_are_what_erlang_counts(size: int) -> None:
    ring = Ring.of([f"q{i}" for i in range(size)])
    assert shares(ring) == {f"q{i}": count / SEEDS for i, count in enumerate(COUNTS[size])}


def test_the_share_of_a_weighted_queue_is_the_sum_of_its_buckets() -> None:
    a, b, c, d = COUNTS[4]
    assert shares(Ring.of({"q0": 1, ToExchange("x"): 3})) == {
        "q0": a / SEEDS,
        ToExchange("x"): (b + c + d) / SEEDS,
    }
    assert shares(Ring.of({"q0": 2, "q1": 2})) == {"q0": (a + b) / SEEDS, "q1": (c + d) / SEEDS}


def test_a_queue_in_two_places_has_the_share_of_both() -> None:
    a, b, c, d = COUNTS[4]
    torn = Ring.read(["q0", "q1", "q0", "q2"], release="3.10.5")
    assert shares(torn) == {"q0": (a + c) / SEEDS, "q1": b / SEEDS, "q2": d / SEEDS}


def test_one_queue_has_all_and_no_queue_nothing() -> None:
    assert shares(Ring.of({"q0": 7})) == {"q0": 1.0}
    assert shares(Ring()) == {}


@pytest.mark.parametrize("place", range(10))
def test_removing_an_early_queue_moves_nearly_all_keys_and_the_last_one_only_its_own(place: int) -> None:
    movement = moved(TEN, TEN.unbind(f"q{place}"))
    assert movement.share == MOVED_WITHOUT[place] / SEEDS
    # What real brokers showed for 3,000 keys: 98.9 % for the first, 48 % for the sixth, a tenth for the last.
    expected = {0: 0.989, 5: 0.48, 9: 0.1}
    assert movement.share == pytest.approx(expected.get(place, movement.share), abs=0.02)


def test_a_queue_appended_takes_its_share_from_all_others_and_nothing_else_moves() -> None:
    three = Ring.of(["q0", "q1", "q2"])
    movement = moved(three, three.bind("q3"))
    assert movement.share == COUNTS[4][3] / SEEDS
    for i in range(3):
        assert movement.between(f"q{i}", f"q{i}") == COUNTS[4][i] / SEEDS
        assert movement.between(f"q{i}", "q3") == (COUNTS[3][i] - COUNTS[4][i]) / SEEDS
    assert len(movement.flows) == 6
    assert movement.between("q3", "q0") == movement.between("q0", "unheard-of") == 0.0


def test_the_order_alone_can_move_every_key() -> None:
    backwards = Ring.of([f"q{i}" for i in reversed(range(10))])
    assert moved(TEN, backwards).share == 1.0
    rebound = TEN.unbind("q0").bind("q0")
    assert moved(TEN, rebound).share == 1.0
    assert (
        moved(Ring.of({"q0": 1, "q1": 3}), Ring.of({"q1": 3, "q0": 1})).share == 1048362 / SEEDS
    )  # by Erlang


def test_nowhere_is_a_place_too() -> None:
    one, none = Ring.of(["q0"]), Ring()
    assert moved(none, one) == Movement(1.0, {(None, "q0"): 1.0})
    assert moved(one, none) == Movement(1.0, {("q0", None): 1.0})
    assert moved(none, none) == Movement(0.0, {(None, None): 1.0})


def test_rings_of_two_releases_can_be_compared() -> None:
    assert moved(Ring.of(["q0", "q1"], release="3.10"), Ring.of(["q0", "q1"], release="4.3")).share == 0.0


def test_the_flows_between_very_many_queues_add_up_to_their_shares() -> None:
    old, new = Ring.of([f"a{number}" for number in range(1_500)]), Ring.of([f"b{n}" for n in range(1_500)])
    flows = moved(old, new).flows
    for end, ring in enumerate((old, new)):
        sums = dict.fromkeys(ring.destinations, 0.0)
        for ends, share in flows.items():
            sums[ends[end]] += share
        assert sums == shares(ring)
