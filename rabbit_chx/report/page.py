"""A report about one exchange, and the HTML page it renders to: one file, without scripts or network access.

Elements are built and then serialized, which escapes every name. Every picture has its numbers in a table.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from rabbit_chx import __version__
from rabbit_chx.base.markup import element, table, written
from rabbit_chx.base.text import counted, percent
from rabbit_chx.mirror.movement import Movement, first_buckets, moved
from rabbit_chx.mirror.ring import Destination, Ring, noun_of
from rabbit_chx.mirror.skew import Spread
from rabbit_chx.report.drawing import COLOURS, colours_of, flow_picture, ring_picture, style_sheet
from rabbit_chx.topology.planning.steps import Strategy

_FRAME_HEIGHT: Final = 640
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The page loads nothing and runs nothing."""
_NOT_AS_FILED: Final = "Computed for the ring the file describes, which differs from the broker's: run `rabbit-chx plan FILE` to use the broker's."

_NUMBERED: Final = "Buckets are numbered clockwise from the top, in the order of the bindings. A new binding adds its buckets at the end; removing one from the middle shifts every bucket after it."


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the ring, and the keys it would move."""

    title: str
    movement: Movement
    after: Ring


@dataclass(frozen=True)
class Report:
    """Everything the page shows about one exchange."""

    exchange: str
    hashed: str
    """What the exchange hashes, in words."""
    live: Ring
    recovered: Ring
    """The ring after a restart; it may be unknown."""
    shares: Mapping[Destination, float]
    added: Change | None
    """One more queue; None for an exchange with slots, whose cost is that of ``ways``."""
    removals: tuple[tuple[Destination, float], ...] = ()
    """For each queue, the share of keys that unbinding it moves, largest first; empty where there are very many queues."""
    removed: Change | None = None
    """The removal that moves the most keys."""
    ways: tuple[Strategy, ...] = ()
    """The ways to make the requested change, or to add one queue."""
    asked: str = "one more queue"
    sample: Spread | None = None
    sample_name: str = ""
    as_filed: bool = True
    """Whether the ring is the one the file describes, for which the ways are computed."""
    source: str = "the file alone"
    """The source of the ring's order."""

    def to_html(self) -> str:
        """Render the page."""
        drawn = (draw(self) for draw in (_ring, _shares, _sample, _changes, _ways))
        sections = [section for section in drawn if section is not None]
        return f"<!doctype html>\n{written(element('html', _head(self), _body(self, sections), lang='en'))}\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        Path(path).write_bytes(self.to_html().encode())  # encoded before the file is opened

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame because both have their own style sheet."""
        text = b64encode(self.to_html().encode()).decode()
        frame = element(
            "iframe",
            src=f"data:text/html;base64,{text}",
            title=f"Exchange {self.exchange}",
            style=f"width: 100%; height: {_FRAME_HEIGHT}px; border: 1px solid #8886",
        )
        return written(frame)


def _body(report: Report, sections: Sequence[Element]) -> Element:
    release, held = report.live.release, report.live.destinations
    over = counted(len(held), noun_of(held))
    broker = f"RabbitMQ {release} on {release.store}; the order of the ring is from {report.source}"
    facts = element("p", f"It hashes {report.hashed} over {over}. {broker}.", class_="facts")
    links = (element("a", section[0].text, href=f"#{section.get('id')}") for section in sections)
    return element(
        "body",
        element("a", "Skip to content", href=f"#{sections[0].get('id')}", class_="skip"),
        element("header", element("h1", f"Exchange {report.exchange}"), facts),
        element("nav", *(part for link in links for part in (link, " ")), aria_label="Sections"),
        element("main", *sections),
        element(
            "footer",
            f"rabbit-chx {__version__}. Shares are exact: computed from all 2,097,152 seeds, not from a sample.",
        ),
    )


def _head(report: Report) -> Element:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Exchange {report.exchange}: where keys go"),
        element("style", style_sheet()),
    )


def _ring(report: Report) -> Element:
    colours = colours_of(report.live)
    titles = ["The ring now", "The ring after a restart"]
    pictures: list[Element] = [ring_picture(report.live, colours, titles[0])]
    if report.recovered.known:
        share = moved(report.live, report.recovered).share
        text = (
            f"A restart moves {share:.2%} of the keys." if share else "A restart keeps every key where it is."
        )
        pictures += [ring_picture(report.recovered, colours, titles[1])]
    else:
        share = 1.0
        text = f"After a restart the order is unknown: {report.recovered.why_unknown}."
        pictures += [element("p", "?", class_="big")]
        titles[1] += ": unknown"
    drawn = zip(pictures, titles, strict=True)
    figures = (element("figure", each, element("figcaption", title)) for each, title in drawn)
    return _section(
        "ring",
        "The ring",
        element("p", text, class_="loud" if share else "quiet"),
        element("div", *figures, class_="pair"),
        element("p", _NUMBERED, class_="quiet"),
    )


def _shares(report: Report) -> Element:
    colours = colours_of(report.live)
    weights = dict(report.live.runs or ())
    first = first_buckets(report.live)
    largest = max(report.shares.values(), default=1.0)
    rows = [
        (
            _named(destination, colours),
            f"{weights[destination]:,}",
            f"{first[destination]:,}",
            f"{share:.3%}",
            _meter(share / largest, colours[destination]),
        )
        for destination, share in report.shares.items()
    ]
    fullest = largest * len(report.shares)
    return _section(
        "shares",
        "Exact shares",
        element(
            "p",
            f"The fullest {noun_of(report.shares)} gets {fullest:.3f} times the mean share of all possible keys.",
        ),
        _table(("queue", "weight", "first bucket", "share", ""), rows, numbers={1, 2, 3}),
    )


def _sample(report: Report) -> Element | None:
    found = report.sample
    if found is None:
        return None
    largest = max((queue.share for queue in found.queues), default=1.0) or 1.0
    rows = [
        (
            queue.queue,
            f"{queue.rows:,}",
            f"{queue.share:.2%}",
            f"{queue.exact:.2%}",
            f"{queue.keys:,}",
            _meter(queue.share / largest, number),
        )
        for number, queue in enumerate(found.queues)
    ]
    keys = "keys (about)" if found.about else "keys"
    hot = [(one.key, f"{one.rows:,}", f"{one.share:.2%}", one.queue) for one in found.hot]
    of = f" of {report.sample_name}" if report.sample_name else ""
    fullest = f"The fullest {noun_of(report.shares)} gets {found.skew:.2f} times the mean"
    chi = f"chi-squared {found.chi_squared:,.1f} with {found.degrees_of_freedom} degrees of freedom"
    return _section(
        "sample",
        "A sample of keys",
        element("p", f"{counted(found.rows, 'row')}{of}. {fullest}; {chi}: {found.verdict}"),
        _table(("queue", "rows", "share", "exact share", keys, ""), rows, numbers={1, 2, 3, 4}),
        element("h3", "Hottest keys") if hot else None,
        _table(("key", "rows", "share of all rows", "queue"), hot, numbers={1, 2}) if hot else None,
    )


def _changes(report: Report) -> Element | None:
    if report.added is None:
        return None
    drawn = [_flow(report, change) for change in (report.added, report.removed) if change is not None]
    rows = [(str(destination), f"{share:.2%}") for destination, share in report.removals]
    return _section(
        "changes",
        "What a change moves",
        *drawn,
        element("h3", "Unbinding a single queue") if rows else None,
        _table(("queue", "keys moved"), rows, numbers={1}) if rows else None,
    )


def _flow(report: Report, change: Change) -> Element:
    colours = colours_of(report.live, *change.after.destinations)
    title = f"{change.title}: {change.movement.share:.2%} of the keys move"
    drawn = flow_picture(change.movement, report.live, change.after, colours, title)
    caption = "Left: where keys go now. Right: where they go after the change. Pale: keys that stay."
    picture = _wide(drawn, change.title)
    return element("figure", element("h3", title), picture, element("figcaption", caption))


def _ways(report: Report) -> Element | None:
    if not report.ways:
        return None
    rows = [
        (way.name + " (chosen)" * way.chosen, percent(way.moved), percent(way.moved_between), way.what)
        for way in report.ways
    ]
    return _section(
        "ways",
        f"Ways to change it: {report.asked}",
        None if report.as_filed else element("p", _NOT_AS_FILED, class_="loud"),
        _table(("strategy", "keys moved", "at some moment", "what"), rows, numbers={1, 2}, long={3}),
    )


# -- pieces -----------------------------------------------------------------------------------------------


def _section(name: str, title: str, *children: Element | None) -> Element:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, tabindex="-1", aria_labelledby=f"{name}-title")


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[Element | str]],
    *,
    numbers: set[int],
    long: Iterable[int] = (),
) -> Element:
    return _wide(table(head, rows, numbers=numbers, long=long), f"Table of {head[0]}")


def _wide(content: Element, label: str) -> Element:
    """Let a picture or table scroll where the window is narrow."""
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


def _meter(share: float, colour: int) -> Element:
    return element(
        "div",
        element("i", style=f"width: {share:.1%}"),
        class_=f"meter c{colour % COLOURS}",
        aria_hidden="true",
    )


def _named(destination: Destination, colours: dict[Destination, int]) -> Element:
    dot = element("span", class_=f"dot c{colours[destination] % COLOURS}", aria_hidden="true")
    return element("span", dot, str(destination))
