"""Laws of inference: whatever ring the pairs come from, it is among those that are found."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings, strategies as st

from rabbit_chx import ConsistentHashExchange, Inference, InvalidValue, RabbitChxError, Ring, infer
from rabbit_chx.errors import Contradiction
from tests.property.strategies import ANYTHING, lived_in_rings


def seen(ring: Ring, keys: list[str]) -> list[tuple[str, object]]:
    exchange = ConsistentHashExchange(ring)
    return [(key, exchange.destinations[i]) for key, i in zip(keys, exchange.route_many(keys), strict=True)]


def assert_true(found: Inference, ring: Ring, pairs: list[tuple[str, object]]) -> None:
    """Nothing that was found is wrong, and if all was found, the truth is among it."""
    for other in found.rings:
        assert seen(other, [key for key, _ in pairs]) == pairs
        assert set(other.bindings) == set(ring.bindings)
    if found.complete:
        assert ring.runs in [other.runs for other in found.rings]
    if found.ring is not None:
        assert found.ring.bucket_map == ring.bucket_map
        assert set(found.ring.dead) == set(ring.dead)
    if found.buckets and found.complete:
        assert len(found.buckets) == len(ring)
        for known, owner in zip(found.buckets, ring.bucket_map, strict=True):
            assert known in {None, owner}
    assert str(found)


@settings(max_examples=70)
@given(lived_in_rings(), st.integers(1, 30) | st.integers(200, 400), st.randoms(use_true_random=False))
def test_what_is_inferred_from_few_pairs_or_many_is_never_wrong(ring: Ring, count: int, random) -> None:
    assume(len(ring))
    pairs = seen(ring, [f"key-{random.getrandbits(64)}" for _ in range(count)])
    try:
        found = infer(pairs, random.sample(ring.bindings, len(ring.bindings)))
    except InvalidValue:  # too few to search, which no Contradiction would be
        assert count <= 30
        return
    assert_true(found, ring, pairs)


@settings(max_examples=30)
@given(lived_in_rings(), st.randoms(use_true_random=False))
def test_one_pair_that_is_wrong_among_300_contradicts(ring: Ring, random) -> None:
    assume(len(ring.destinations) >= 2)
    keys = [f"key-{random.getrandbits(64)}" for _ in range(300)]
    pairs = seen(ring, keys)
    assume({queue for _, queue in pairs} == set(ring.destinations))
    key, right = pairs[0]
    wrong = random.choice([queue for queue in ring.destinations if queue != right])
    with pytest.raises(Contradiction):
        infer([*pairs, (key, wrong)], ring.bindings)


@given(
    ANYTHING | st.lists(st.tuples(ANYTHING, ANYTHING), max_size=3), ANYTHING | st.lists(ANYTHING, max_size=3)
)
def test_anything_as_pairs_and_bindings_gets_an_answer_or_an_error_of_this_toolkit(pairs, bindings) -> None:
    for given_pairs, given_bindings in ((pairs, bindings), ([("a", "q0")], bindings), (pairs, ["q0", "q1"])):
        try:
            found = infer(given_pairs, given_bindings)
        except RabbitChxError:
            continue
        assert found.rings
