"""Weights, names and lists of bindings: what is taken, and what is refused before a broker sees it."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from rabbit_chx import ConsistentHashExchange, Ring, RingBinding, ToExchange, infer
from tests.unit.complaints import complaint


class Size(enum.IntEnum):
    LARGE = 3


# ---- weights


@pytest.mark.parametrize(
    ("weight", "key", "buckets"),
    [
        (1, "1", 1),
        (10_000, "10000", 10_000),
        ("+5", "+5", 5),  # list_to_integer/1 takes a sign and leading zeros
        ("007", "007", 7),
        ("+010000", "+010000", 10_000),
        ("0" * 254 + "1", "0" * 254 + "1", 1),
        (np.int64(3), "3", 3),
        (np.uint8(3), "3", 3),
        (Size.LARGE, "3", 3),
        (np.str_("3"), "3", 3),
    ],
)
def test_a_weight_is_an_integer_or_the_text_that_erlang_reads_as_one(weight, key: str, buckets: int) -> None:
    binding = RingBinding.of("q0", weight)
    assert (binding.key, binding.weight) == (key, buckets)
    assert type(binding.weight) is int
    assert len(Ring.of({"q0": weight})) == buckets


WRONG_WEIGHTS = [
    *(0, -1, 1.5, 1.0, 10_001, 10**9, True, False, None, float("nan"), 1 + 0j, b"1", [1], np.float64(1), np.True_),
    *("", " 1", "1 ", "1\n", "9" * 5_000, "\uff11", "\u0661", "\u00b2", "\u2160", "\ud800", "0" * 255 + "1"),
    *["abc", "1_0", "0", "-0", "-1", "+", "++1", "1.0", "1e3", "0x1", "#", "10001"],
]  # fmt: skip


@pytest.mark.parametrize("weight", WRONG_WEIGHTS, ids=lambda weight: ascii(weight)[:20])
def test_any_other_weight_is_refused_on_every_release(weight: object) -> None:
    for release in ("3.10.8", "4.3.6"):
        error = complaint(lambda release=release: Ring.of({"orders": weight}, release=release))  # type: ignore[dict-item]
        assert error.what == "weight for queue 'orders'"
        assert error.got is weight
        assert error.expected == "an integer from 1 to 10000"
    complaint(lambda: Ring().bind("q0", weight))  # type: ignore[arg-type]
    complaint(lambda: Ring.of([("q0", weight)]))  # type: ignore[list-item]


def test_the_weight_of_an_exchange_is_complained_of_as_such() -> None:
    assert complaint(lambda: Ring.of({ToExchange("slot-1"): 0})).what == "weight for exchange 'slot-1'"


@pytest.mark.parametrize("key", ["abc", "", "0", 5, None, b"1"])
def test_a_binding_cannot_be_made_with_a_wrong_key(key: object) -> None:
    assert complaint(lambda: RingBinding("q0", key)).got is key  # type: ignore[arg-type]


# ---- lists and names


@pytest.mark.parametrize(
    "bindings", ["q0", b"q0", "", None, 5, ToExchange("q0"), RingBinding("q0"), object()]
)
def test_one_destination_is_no_list_of_them(bindings: object) -> None:
    # A str would be taken for one queue for each of its characters.
    for call in (
        lambda: Ring.of(bindings),
        lambda: Ring.read(bindings),
        lambda: Ring.read(["q0"], bindings=bindings) if bindings is not None else Ring.of(bindings),
        lambda: ConsistentHashExchange(bindings),
        lambda: infer([("a", "q0")], bindings),
    ):
        error = complaint(call)
        assert error.got is bindings
        assert error.expected.startswith("a list of")


@pytest.mark.parametrize(
    "name",
    ["", None, 5, b"q0", "q\ud800", "x" * 256, "é" * 128, ("q0",), ("q0", 1, {}), ["q0", 1], ToExchange("")],
)
def test_what_cannot_be_the_name_of_a_destination_is_refused(name: object) -> None:
    for call in (
        lambda: Ring.of([name]),
        lambda: Ring.read([name]),
        lambda: Ring.read([name], bindings=["q0"]),
        lambda: Ring().bind(name),
        lambda: RingBinding(name),
    ):
        error = complaint(call)
        assert error.what == "destination"
        assert error.got is name


@pytest.mark.parametrize(
    "bindings", [["q0", "q0"], [("q0", 1), ("q0", 2)], ["q1", "q0", ("q0", "01")], [RingBinding("q0"), "q0"]]
)
def test_a_destination_listed_twice_is_refused(bindings: list) -> None:
    error = complaint(lambda: Ring.of(bindings))
    assert error.got == "queue 'q0' twice"
    assert "Ring.bind()" in error.hint
