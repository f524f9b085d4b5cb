"""Rings worked out from observed pairs. The buckets of the keys used here are known from Erlang."""

from __future__ import annotations

import pytest

from rabbit_chx import ConsistentHashExchange, RingBinding, ToExchange, infer
from rabbit_chx.errors import AmbiguousHeader, Contradiction
from tests.unit.complaints import complaint

# A key for each bucket of seven (tests/unit/erlang.py).
KEY_OF = ["customer-42", "é", "é" * 127, "0", "x" * 255, "1700000000", "a"]
NAMES = ["d", "a", "g", "c", "f", "b", "e"]


def pairs_of(buckets: list, but: tuple[int, ...] = ()) -> list[tuple[str, object]]:
    return [(KEY_OF[i], queue) for i, queue in enumerate(buckets) if i not in but]


def test_a_pair_for_each_bucket_determines_the_order() -> None:
    found = infer(pairs_of(NAMES), sorted(NAMES))
    assert found.ring is not None
    assert found.ring.bucket_map == tuple(NAMES)
    assert found.buckets == tuple(NAMES)
    assert found.sizes == (7,)
    assert found.complete
    assert str(found) == "the ring is known: 7 buckets"


def test_weights_fill_in_what_was_not_seen() -> None:
    found = infer([(KEY_OF[1], "x"), (KEY_OF[3], "y"), (KEY_OF[5], "z")], {"z": 3, "y": 1, "x": 3})
    assert found.ring is not None
    assert found.ring.runs == (("x", 3), ("y", 1), ("z", 3))


def test_what_is_still_unknown_is_stated() -> None:
    found = infer(pairs_of(NAMES, but=(2, 5)), sorted(NAMES))
    assert found.ring is None
    assert {ring.bucket_map for ring in found.rings} >= {tuple(NAMES), ("d", "a", "b", "c", "f", "g", "e")}
    assert "; 2 buckets are unknown (2, 5); more pairs are needed" in str(found)


def test_a_queue_that_was_not_seen_may_be_dead_so_that_sizes_differ() -> None:
    found = infer([("a", "x")], {"x": 3, "y": 4})
    assert found.sizes == (3, 7)  # seven, since "a" falls into the last bucket of it
    assert {ring.runs for ring in found.rings} == {(("x", 3),), (("y", 4), ("x", 3))}
    assert found.buckets == ()
    assert str(found) == "2 rings of 3 or 7 buckets explain the pairs; more pairs are needed"


def test_the_ring_found_can_be_used_and_belongs_to_the_release() -> None:
    found = infer(pairs_of(NAMES), sorted(NAMES), release="4.0.5", store="mnesia")
    assert found.ring is not None
    assert str(found.ring.release) == "4.0.5"
    assert found.ring.known
    assert set(found.ring.bindings) == {RingBinding(name) for name in NAMES}


@pytest.mark.parametrize(
    "form", [list, tuple, iter, lambda pairs: [list(pair) for pair in pairs]], ids=range(4)
)
def test_pairs_may_come_in_any_kind_of_list(form) -> None:
    found = infer(form(pairs_of(NAMES)), iter(NAMES))
    assert found.buckets == tuple(NAMES)


def test_headers_and_properties_are_evidence_as_well() -> None:
    by_header = infer(pairs_of(NAMES), NAMES, hash_header="h")  # text hashes like the same routing key
    assert by_header.buckets == tuple(NAMES)
    by_id = infer(pairs_of(NAMES), NAMES, hash_property="message_id")
    assert by_id.buckets == tuple(NAMES)
    integers = {3: 1, 6: -1, 4: 5, 5: 1_700_000_000_000}  # bucket of seven: key
    found = infer([(key, NAMES[bucket]) for bucket, key in integers.items()], NAMES, hash_header="h")
    assert tuple(NAMES) in {ring.bucket_map for ring in found.rings}
    undefined = infer([(None, "x")], {"x": 2, "y": 5}, hash_property="correlation_id")  # bucket 1 of 7
    assert (("x", 2), ("y", 5)) in {ring.runs for ring in undefined.rings}
    with pytest.raises(AmbiguousHeader):
        infer([(1, "x")], ["x", "y"], hash_header="h", release="3.10.8")
    assert infer([(1, "x")], ["x", "y"], hash_header="h", release="3.10.8", client="pika").rings


# ---- contradictions


def test_one_bucket_cannot_belong_to_two_queues() -> None:
    # "" and "a" both fall into the last of seven
    pairs = [*pairs_of(NAMES), ("", "d")]
    with pytest.raises(Contradiction) as caught:
        infer(pairs, NAMES)
    assert "'a' (seen at 'e') and '' (seen at 'd') share bucket 6" in str(caught.value)
    assert "the ring changed during the observation" in str(caught.value)


def test_the_buckets_of_a_queue_lie_side_by_side() -> None:
    with pytest.raises(Contradiction, match="not adjacent"):
        infer(pairs_of(["x", "y", "x", "y", "y", "y", "x"]), {"x": 3, "y": 4})


@pytest.mark.parametrize("queue", ["q9", ToExchange("x"), "X"])
def test_a_queue_that_is_not_bound_contradicts_the_bindings(queue) -> None:
    with pytest.raises(Contradiction, match=r"not among the bindings.*pass all bindings") as caught:
        infer([("a", "x"), ("b", queue)], ["x", "y"])
    assert repr(str(queue)) in str(caught.value)


# ---- too little


def test_with_very_few_pairs_it_says_that_there_are_too_many_rings() -> None:
    names = [f"q{i}" for i in range(12)]
    found = infer([("a", "q3")], names)
    assert not found.complete
    assert found.ring is None
    assert found.buckets == ()
    assert len(found.rings) > 100
    assert str(found).startswith("more than")
    assert all("q3" in ring.destinations for ring in found.rings)


def test_far_too_many_destinations_for_the_pairs_are_refused() -> None:
    error = complaint(lambda: infer([("a", "q0")], {f"q{i}": 2**i % 9_973 for i in range(24)}))
    assert "too few" in str(error.got)


def test_the_search_ends_after_the_same_number_of_steps_however_many_sizes_there_are(monkeypatch) -> None:
    """A search takes few steps, but thousands of sizes are possible."""
    bound = {"q0": 100, "q1": 100}
    exchange = ConsistentHashExchange(bound)
    pairs = [(key, exchange.route(key)) for key in map(str, range(60))]
    bindings = {**bound, **{f"dead-{weight}": weight for weight in (1, 2, 4, 8, 16)}}
    assert len(infer(pairs, bindings).sizes) > 5
    monkeypatch.setattr("rabbit_chx.mirror.inference._MOST_STEPS", 20)  # enough for each size
    assert complaint(lambda: infer(pairs, bindings)).hint == "Observe longer"


PAIRS = [("a", "q0")]
REFUSED = [
    *((none, ["q0"], "list of pairs", "none") for none in ([], (), iter([]), {}.items())),
    *((PAIRS, none, "bindings", "none") for none in ([], {}, iter([]))),
    *((wrong, ["q0"], "list of pairs", wrong) for wrong in (None, "ab", b"ab", 5, {"a": "q0"})),
    *(([*PAIRS, wrong], ["q0"], "pair in row 1", wrong) for wrong in ("ab", 5, None, ("a",), ("a", "q0", 1), {"a": "q0"})),
    *(([("a", wrong)], ["q0"], "destination", wrong) for wrong in (None, 5, b"q0", "", ["q0"])),
    ([*PAIRS, (None, "q0")], ["q0"], "routing key in row 1", None),
]  # fmt: skip


@pytest.mark.parametrize(("pairs", "bindings", "what", "got"), REFUSED)
def test_what_is_no_evidence_is_refused_and_named(pairs, bindings, what: str, got: object) -> None:
    error = complaint(lambda: infer(pairs, bindings))
    assert (error.what, error.got) == (what, got)
