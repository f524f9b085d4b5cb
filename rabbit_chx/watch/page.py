"""The page of a watch: one file that shows the events of its server, with the pictures of `rabbit_chx.report`.

The page itself holds no data. Its script builds elements and never parses markup (the policy forbids it), so that a queue
named ``<script>`` stays text.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from xml.etree.ElementTree import Element

from rabbit_chx import __version__
from rabbit_chx.movement import moved
from rabbit_chx.report import colours_of, flow_picture, ring_picture, style_sheet
from rabbit_chx.ring import Destination, Ring

_FLOW: Final = "Left: where keys should go. Right: where they go. Pale: keys that go where they should."


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and the Content-Security-Policy with which it is served."""

    html: bytes
    policy: str


def page() -> Page:
    """Put the page together. Its policy allows its own style and script, its own events, and nothing else."""
    style, script = f"{style_sheet()}{_file('page.css')}", _file("page.js")
    parts = {"{style}": style, "{script}": script, "{version}": __version__}
    html = _file("page.html")
    for mark, part in parts.items():
        html = html.replace(mark, part)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_source(script)}",
            f"style-src {_source(style)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    return Page(html.encode(), policy)


def pictures(live: Ring | None, wanted: Ring | None) -> dict[str, Any]:
    """Draw the ring, and if it is not the wanted one, also that one and the keys that go elsewhere.

    Each picture is an element as JSON, from which the script builds an element: ``[tag, attributes, *children]``. The number
    of each queue's colour comes with them.
    """
    if live is None or not live.known:
        return {"pictures": [], "colours": {}}
    compared = wanted if wanted is not None and wanted.known else live
    colours = colours_of(compared, *live.destinations)
    return {
        "pictures": list(_pictures(live, compared, colours)),
        "colours": {str(destination): number for destination, number in colours.items()},
    }


def _pictures(live: Ring, wanted: Ring, colours: dict[Destination, int]) -> Iterator[dict[str, Any]]:
    yield _picture("The ring now", ring_picture(live, colours, "The ring now"))
    if wanted.runs == live.runs:
        return
    movement = moved(wanted, live)
    title = f"{movement.share:.2%} of the keys go to another queue than they should"
    yield _picture("The ring as it should be", ring_picture(wanted, colours, "The ring as it should be"))
    yield _picture(f"{title}. {_FLOW}", flow_picture(movement, wanted, live, colours, title), wide=True)


def _picture(caption: str, drawn: Element, *, wide: bool = False) -> dict[str, Any]:
    return {"caption": caption, "svg": _as_json(drawn), "wide": wide}


def _as_json(drawn: Element) -> list[Any]:
    text = [drawn.text] if drawn.text else []
    return [drawn.tag, drawn.attrib, *text, *map(_as_json, drawn)]


def _file(name: str) -> str:
    return files("rabbit_chx.watch").joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
