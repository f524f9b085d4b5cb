"""Ranges of names."""

from __future__ import annotations

import pytest

from rabbit_chx.topology.file.names import expand, with_ranges
from tests.unit.complaints import complaint


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("orders", ("orders",)),
        ("orders.{00..03}", ("orders.00", "orders.01", "orders.02", "orders.03")),
        ("{8..10}", ("8", "9", "10")),
        ("a{08..10}b", ("a08b", "a09b", "a10b")),
        ("a{7..7}", ("a7",)),
        ("a{000..001}", ("a000", "a001")),
        ("{{id}}", ("{id}",)),
        ("{{{1..2}}}", ("{1}", "{2}")),
        ("{{1..2}}", ("{1..2}",)),
        ("", ("",)),
    ],
)
def test_a_range_expands_in_numeric_order(name, members):
    assert expand(name) == members


@pytest.mark.parametrize("width", [1, 2, 3])
def test_numbers_that_outgrow_their_zeros_are_written_so_that_they_expand_to_themselves(width):
    names = [f"orders.{number:0{width}}" for number in range(1_101)]
    written = [name for name, _ in with_ranges((name, 1) for name in names)]
    assert [name for each in written for name in expand(each)] == names
    assert len(written) < 5


MALFORMED = [
    "a{0..3",
    "a}",
    "{}",
    "{0..}",
    "{a..b}",
    "{0...3}",
    "{0..1}{0..1}",
    "{-1..2}",
    "{0..1_0}",
    "{ 0..3}",
]


@pytest.mark.parametrize("name", [*MALFORMED, "{\u0660..\u0663}"])
def test_a_malformed_range_is_refused(name):
    assert "{{" in complaint(lambda: expand(name)).hint


@pytest.mark.parametrize("name", ["a{3..1}", "a{00..5}", "a{0..05}", "a{000..10}"])
def test_a_range_has_its_lower_number_first_and_one_width(name):
    assert "range" in complaint(lambda: expand(name)).what


def test_a_range_has_at_most_ten_thousand_names():
    assert len(expand("a{0..9999}")) == 10_000
    assert "10001 names" in str(complaint(lambda: expand("a{0..10000}")))
    complaint(lambda: expand("a{0..99999999999999999999999999999999}"))


def test_a_number_that_no_name_can_hold_is_not_converted():
    refused = complaint(lambda: expand(f"a{{0..{'9' * 5_000}}}"))
    assert (refused.what, refused.expected) == ("range of names", "numbers of at most 255 digits")
    assert len(str(refused)) < 200
