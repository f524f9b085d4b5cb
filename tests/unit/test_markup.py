"""What values show of themselves in a notebook: their numbers, and any name as it is."""

from __future__ import annotations

import re
from xml.etree.ElementTree import fromstring

import pytest

from rabbit_chx import ConsistentHashExchange, Ring, ToExchange, moved, spread


def shown(value) -> tuple[str, list[list[str]]]:
    """The sentence and the rows of all tables; what is shown has to be well formed."""
    root = fromstring(f"<all>{value._repr_html_()}</all>")
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return " ".join("".join(one.itertext()) for one in root.iter("p")), rows


def test_a_ring_shows_the_buckets_of_each_queue_in_their_order() -> None:
    text, rows = shown(Ring.of({"z": 2, ToExchange("b"): 1}))
    assert text == "3 buckets"
    assert rows[1:] == [["z", "2"], ["exchange b", "1"]]


def test_a_ring_of_unknown_order_says_why() -> None:
    text, rows = shown(Ring.of(["a", "b"], release="4.0").after_restart())
    assert "on Mnesia rebuilds a ring concurrently" in text
    assert rows == []


def test_a_movement_shows_what_moves_the_largest_flow_first() -> None:
    text, (_, *rows) = shown(moved(Ring.of(["a", "b"]), Ring.of({"a": 1, "c": 3})))
    shares = [float(share.rstrip("%")) for *_, share in rows]
    assert text == f"{sum(shares):.2f}% of the keys move."
    assert shares == sorted(shares, reverse=True)
    assert all(source != target for source, target, _ in rows)
    assert shown(moved(Ring.of(["a"]), Ring.of([])))[1][1] == ["a", "nowhere", "100.000%"]


def test_a_spread_shows_in_a_notebook_what_it_prints() -> None:
    found = spread(ConsistentHashExchange(["q0", "q1"]), ["red", "green", "green", "blue"], hot=1)
    text, rows = shown(found)
    cells = [cell for row in rows for cell in row]
    assert f"{text} {' '.join(cells)}".split() == str(found).split()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b", '"quoted"', "größe", "]]>"])
def test_a_name_is_a_name(name) -> None:
    ring = Ring.of([name, "other"])
    found = spread(ConsistentHashExchange(ring), [name, name])
    for value in (ring, moved(ring, ring.bind(f"{name}2")), found):
        assert not re.search("<script", value._repr_html_())
        assert name in " ".join(cell for row in shown(value)[1] for cell in row)


def test_of_very_many_rows_some_are_shown_and_the_others_counted() -> None:
    text, rows = shown(Ring.of([f"q{number}" for number in range(1_000)]))
    assert len(rows) == 61
    assert text.endswith("and 940 more")
