"""Laws of shares and movement, exact over all 2^21 keys that a ring can tell apart."""

from __future__ import annotations

import math

from hypothesis import given, settings

from rabbit_chx import Ring, moved, shares
from tests.property.strategies import small_rings

# Each example counts two million keys a few times.
few = settings(max_examples=12)


@few
@given(small_rings(), small_rings())
def test_flows_account_for_every_key_and_the_way_back_moves_as_much(old: Ring, new: Ring) -> None:
    movement = moved(old, new)
    assert math.fsum(movement.flows.values()) == sum(movement.flows.values()) == 1
    assert all(part > 0 for part in movement.flows.values())
    stays = sum(part for (source, target), part in movement.flows.items() if source == target)
    assert movement.share == 1 - stays
    for ring, side in ((old, 0), (new, 1)):
        parts = shares(ring)
        assert sum(parts.values()) == math.fsum(parts.values()) == 1
        assert list(parts) == list(ring.destinations)
        for destination, share in parts.items():
            assert share == sum(part for way, part in movement.flows.items() if way[side] == destination)
            assert abs(share - ring.bucket_map.count(destination) / len(ring)) < 0.005
    back = moved(new, old)
    assert back.share == movement.share
    assert {(target, source): part for (source, target), part in movement.flows.items()} == back.flows
