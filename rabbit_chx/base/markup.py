"""Build HTML and SVG elements and tables. Serializing them escapes every name, such as one that contains ``<``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, tostring

_MOST_ROWS: Final = 60
"""The most rows of a table in a notebook; a line below it counts the rest."""


def element(tag: str, *children: Element | str | None, **attributes: Any) -> Element:
    """Build an element with children and attributes; ``class_`` means ``class``, and underscores become hyphens.

    >>> written(element("p", "1 < 2, ", element("b", "truly"), class_="x"))
    '<p class="x">1 &lt; 2, <b>truly</b></p>'
    """
    made = Element(
        tag, {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    )
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif child and last is None:
            made.text = (made.text or "") + child
        elif child and last is not None:
            last.tail = (last.tail or "") + child
    return made


def written(made: Element) -> str:
    """Serialize an element as HTML."""
    return tostring(made, "unicode", method="html")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Element | str]],
    *,
    numbers: Iterable[int] = (),
    long: Iterable[int] = (),
) -> Element:
    """Build a table; columns in ``numbers`` are right-aligned, and text in ``long`` ones may break anywhere."""
    kind = {place: {"class_": "n"} for place in numbers} | {place: {"class_": "long"} for place in long}
    titles = (element("th", text, scope="col", **kind.get(place, {})) for place, text in enumerate(head))
    body = (
        element("tr", *(element("td", cell, **kind.get(place, {})) for place, cell in enumerate(row)))
        for row in rows
    )
    return element("table", element("thead", element("tr", *titles)), element("tbody", *body))


def notebook(summary: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a sentence and a table for a notebook, in the notebook's own style.

    >>> notebook("One < two.", ["queue"], [["q0"]]).startswith("<div><p>One &lt; two.</p><table>")
    True
    """
    more = len(rows) - _MOST_ROWS
    return written(
        element(
            "div",
            element("p", summary),
            table(head, rows[:_MOST_ROWS]) if rows else None,
            element("p", f"and {more:,} more") if more > 0 else None,
        )
    )
