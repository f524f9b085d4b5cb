"""The report's pictures on matplotlib axes: they show what the numbers say, in the page's colours."""

from __future__ import annotations

import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle, Wedge

from rabbit_chx import ConsistentHashExchange, Ring, ToExchange, spread
from rabbit_chx.errors import MissingDependency, RingUnknown
from rabbit_chx.report import draw_movement, draw_ring, draw_shares, draw_spread, report
from rabbit_chx.topology.file.load import loads

KEYS = ["acme"] * 300 + [f"customer-{number}" for number in range(2_000)]
DRAWN = {
    "ring": draw_ring,
    "shares": draw_shares,
    "spread": lambda ring, ax=None: draw_spread(spread(ConsistentHashExchange(ring), KEYS), ax),
    "movement": lambda ring, ax=None: draw_movement(ring, ring.bind("one more"), ax),
}


@pytest.fixture(autouse=True)
def without_a_window():
    mpl.use("agg")
    yield
    plt.close("all")


def of(count: int) -> Ring:
    return Ring.of([f"orders.{number}" for number in range(count)])


def patches(ax, kind) -> list:
    return [patch for patch in ax.patches if isinstance(patch, kind)]


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_it_draws_on_the_axes_given_or_else_where_pyplot_would(draw) -> None:
    _, (given, current) = plt.subplots(1, 2)
    assert draw(of(3), given) is given
    assert given.patches
    assert not current.patches
    assert draw(of(3)) is current


def test_buckets_go_clockwise_from_the_top() -> None:
    small, large = patches(draw_ring(Ring.of({"small": 1, "large": 3})), Wedge)
    assert (small.theta2, large.theta2) == (90, 0)
    assert small.theta1 == pytest.approx(0, abs=2)
    assert large.theta1 == pytest.approx(-270, abs=2)


def test_one_queue_is_a_whole_circle_and_exchanges_are_named() -> None:
    ax = draw_ring(Ring.of({ToExchange("dlx"): 2}))
    (whole,) = patches(ax, Wedge)
    assert whole.theta2 - whole.theta1 == 360
    assert texts(ax) == ["exchange dlx", "2", "buckets"]


def test_a_queue_has_the_colour_that_it_has_on_the_page() -> None:
    text = """
        {"schema": 1, "queues": {"orders.{0..13}": {}},
         "exchanges": {"orders": {"type": "x-consistent-hash", "queues": {"orders.{0..13}": 1}}}}"""
    page = report(loads(text, format="json"), "orders").to_html()
    drawn = [to_hex(wedge.get_facecolor()) for wedge in patches(draw_ring(of(14)), Wedge)]
    assert all(f"--c{number % 12}: {colour};" in page for number, colour in enumerate(drawn))
    plt.figure()
    assert drawn == [to_hex(bar.get_facecolor()) for bar in patches(draw_shares(of(14)), Rectangle)]


def test_bars_are_as_long_as_the_shares() -> None:
    ax = draw_shares(Ring.of({"q0": 1, "q1": 3}))
    assert [bar.get_width() for bar in ax.patches] == [0.25033092498779297, 0.749669075012207]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["q0 25.0%", "q1 75.0%"]
    assert ax.yaxis_inverted()


def test_a_sample_is_drawn_next_to_the_exact_shares() -> None:
    ring = Ring.of({"q0": 1, "q1": 3})
    owners = [ConsistentHashExchange(ring).route(key) for key in KEYS]
    ax = draw_spread(spread(ConsistentHashExchange(ring), KEYS))
    assert [bar.get_width() * len(KEYS) for bar in ax.patches] == pytest.approx(
        [owners.count("q0"), owners.count("q1")]
    )
    (marks,) = ax.collections
    assert [line[0][0] for line in marks.get_segments()] == [0.25033092498779297, 0.749669075012207]
    assert ax.get_title().startswith("2,300 rows; max/mean ")
    plt.figure()
    assert draw_spread(spread(ConsistentHashExchange(ring), [])).get_title() == "0 rows; max/mean 1.00"


def test_moving_keys_are_highlighted_and_both_sides_show_all_keys() -> None:
    before = Ring.of(["q0", "q1", "q2"])
    ax = draw_movement(before, before.bind("q3"))
    assert ax.get_title() == "24.96% of the keys move"
    columns = patches(ax, Rectangle)
    assert len(columns) == 3 + 4
    assert sum(column.get_height() for column in columns) == pytest.approx(2)
    strong = [band for band in patches(ax, PathPatch) if band.get_alpha() > 0.5]
    heights = [band.get_path().vertices[7][1] - band.get_path().vertices[0][1] for band in strong]
    assert sum(heights) == pytest.approx(0.24956703186035156)
    assert "q3 25.0%" in texts(ax)


def test_many_queues_that_come_at_once_are_drawn_as_one() -> None:
    ax = draw_movement(of(8), of(100))
    assert len(patches(ax, Rectangle)) <= 2 * 12
    assert "all others" in " ".join(texts(ax))


@pytest.mark.parametrize("size", [(11, 8), (3, 2)])
@pytest.mark.parametrize("count", [2, 8, 100])
@pytest.mark.parametrize("draw", [DRAWN["shares"], DRAWN["spread"], DRAWN["movement"]])
def test_names_do_not_lie_upon_each_other(draw, count, size) -> None:
    figure = plt.figure(figsize=size, layout="constrained")
    ax = draw(of(count))
    figure.canvas.draw()
    names = [*ax.texts, *(label for label in ax.get_yticklabels() if not ax.texts)]
    boxes = [text.get_window_extent().shrunk(1, 0.8) for text in names if text.get_text()]
    assert len(boxes) >= 2
    assert not [1 for place, box in enumerate(boxes) for other in boxes[:place] if box.overlaps(other)]


def test_a_dollar_in_a_name_begins_no_formula() -> None:
    figure, axes = plt.subplots(1, len(DRAWN))
    for draw, ax in zip(DRAWN.values(), axes, strict=True):
        draw(Ring.of(["a$_{$", "b"]), ax)
    figure.canvas.draw()


def test_a_ring_whose_order_is_unknown_cannot_be_drawn() -> None:
    unknown = Ring.of(["q0", "q1"], release="4.0").after_restart()
    with pytest.raises(RingUnknown):
        draw_ring(unknown)


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_without_matplotlib_it_says_how_to_get_it(draw, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rabbit-chx\[plot\]'"):
        draw(of(2))
