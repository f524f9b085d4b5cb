"""Laws of shares and movement, exact over all 2^21 keys that a ring can tell apart."""

from __future__ import annotations

import math

from hypothesis import assume, given, settings

from rabbit_chx import Ring, moved, shares
from tests.property.strategies import DESTINATIONS, small_rings

# Each example counts two million keys a few times.
few = settings(max_examples=12)


@few
@given(small_rings(), DESTINATIONS)
def test_appending_a_binding_moves_keys_to_the_new_destination_only(ring: Ring, destination) -> None:
    assume(destination not in ring.destinations)
    more = ring.bind(destination)
    movement = moved(ring, more)
    assert {target for (source, target) in movement.flows if source != target} == {destination}
    assert movement.share == shares(more)[destination]


@few
@given(small_rings(least=2))
def test_unbinding_the_last_bound_moves_its_keys_only(ring: Ring) -> None:
    last = ring.destinations[-1]
    movement = moved(ring, ring.unbind(last))
    assert {source for (source, target) in movement.flows if source != target} == {last}
    assert movement.share == shares(ring)[last]


@few
@given(small_rings(), small_rings())
def test_flows_account_for_every_key(old: Ring, new: Ring) -> None:
    movement = moved(old, new)
    assert math.fsum(movement.flows.values()) == sum(movement.flows.values()) == 1
    for ring, side in ((old, 0), (new, 1)):
        for destination, share in shares(ring).items():
            assert share == sum(part for way, part in movement.flows.items() if way[side] == destination)
    assert movement.share == 1 - sum(
        part for (source, target), part in movement.flows.items() if source == target
    )
    assert all(part > 0 for part in movement.flows.values())


@few
@given(small_rings(), small_rings())
def test_the_way_back_moves_as_much(old: Ring, new: Ring) -> None:
    there, back = moved(old, new), moved(new, old)
    assert there.share == back.share
    assert {(target, source): part for (source, target), part in there.flows.items()} == back.flows


@few
@given(small_rings())
def test_shares_sum_to_exactly_one_and_are_near_the_weights(ring: Ring) -> None:
    parts = shares(ring)
    assert sum(parts.values()) == math.fsum(parts.values()) == 1
    assert list(parts) == list(ring.destinations)
    for destination, share in parts.items():
        assert abs(share - ring.bucket_map.count(destination) / len(ring)) < 0.005


