"""What the laws are tried on: keys, headers, bindings, rings and the commands that change them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from rabbit_chx import Release, Ring, RingBinding, ToExchange

if TYPE_CHECKING:
    from rabbit_chx.mirror.ring import Destination

# ---- releases

RELEASES = ["3.8.35", "3.9.21", "3.10.8", "3.12.14", "3.13.0", "3.13.7", "4.0.5", "4.2.9", "4.3.4", "4.3.6"]
"""One on each side of everything that changed."""

MODERN = [text for text in RELEASES if Release.parse(text).first_binding_wins]
# ---- messages

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
"""What UTF-8 can express; at most 240 bytes of it."""

KEYS = TEXT | st.binary(max_size=255) | st.sampled_from(["", "x" * 255, "é" * 127, b"\x00" * 12])

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2500, 1, 1), timezones=st.sampled_from([None, UTC]))  # noqa: DTZ001

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | TEXT
    | st.binary(max_size=30)
    | MOMENTS
    | st.decimals(-1000, 1000, places=2)
)
HEADER_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
"""What one client or another can put into a header."""

ANYTHING = st.recursive(
    SCALARS
    | st.text(max_size=20)  # lone surrogates among it
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.decimals()
    | st.builds(object)
    | st.sampled_from([10**4_000, Decimal("NaN"), 2**64, range(3), int, len, Ellipsis, ToExchange("x")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.binary(max_size=3), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=2)
    ),
    max_leaves=6,
)
"""What a caller might hand over by mistake."""

# ---- rings

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
DESTINATIONS = st.one_of(st.sampled_from([f"q{i}" for i in range(12)]), NAMES, NAMES.map(ToExchange))


@st.composite
def weighted(
    draw: st.DrawFn, *, least: int = 1, most: int = 8, weights: int = 4, buckets: int = 10_000
) -> list[tuple[Destination, int]]:
    """Different destinations with weights, of so many buckets together."""
    destinations = draw(st.lists(DESTINATIONS, min_size=least, max_size=most, unique=True))
    chosen: list[tuple[Destination, int]] = []
    for i, destination in enumerate(destinations):
        room = buckets - sum(weight for _, weight in chosen) - (len(destinations) - 1 - i)
        chosen.append((destination, draw(st.integers(1, min(weights, room)))))
    return chosen


def small_rings(*, least: int = 1) -> st.SearchStrategy[Ring]:
    """Of at most seven buckets: exact shares need the whole table of a size, and few tables are kept."""
    return weighted(least=least, most=6, weights=3, buckets=7).map(Ring.of)


POOL: list[Destination] = [*(f"q{i}" for i in range(6)), ToExchange("q0"), ToExchange("e")]
WEIGHT_KEYS = ["1", "2", "5", "10", "01", "+2"]
COMMANDS = st.lists(
    st.tuples(
        st.sampled_from(["bind", "bind", "bind", "unbind", "unbind", "delete", "restart"]),
        st.sampled_from(POOL),
        st.sampled_from(WEIGHT_KEYS),
    ),
    max_size=40,
)
"""What is done to an exchange over time; the weight counts for bind and unbind alone."""


@st.composite
def lived_in_rings(draw: st.DrawFn, release: str = "4.3.6") -> Ring:
    """A ring after some commands: with bindings that are ignored, and dead ones."""
    ring = Ring.of(draw(weighted(least=1, most=6, weights=4)), release=release)
    for command, destination, key in draw(COMMANDS.map(lambda commands: commands[:10])):
        if command == "bind":
            ring = ring.bind(destination, key)
        elif command == "unbind":
            ring = ring.unbind(destination, key)
    # Duplicates of destinations that are there, of which unbinding the first leaves the second dead.
    for binding in draw(st.lists(st.sampled_from(ring.bindings or [RingBinding("q0")]), max_size=2)):
        ring = ring.bind(binding.destination, draw(st.integers(1, 6)))
        if draw(st.booleans()):
            ring = ring.unbind(binding.destination, binding.key)
    return ring
