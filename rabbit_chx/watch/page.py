"""The page of a watch: one file that shows the events of the server, with the pictures of `rabbit_chx.report`.

The page itself contains no data. Its script builds elements and never parses markup (the policy forbids it), so a queue
named ``<script>`` stays text.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from xml.etree.ElementTree import Element

from rabbit_chx import __version__
from rabbit_chx.mirror.movement import moved
from rabbit_chx.mirror.ring import Destination, Ring
from rabbit_chx.report import flow_picture, ring_picture
from rabbit_chx.report.drawing import colours_of, style_sheet

_FLOW: Final = "Left: where keys should go. Right: where they go. Pale: keys that go where they should."


def page() -> tuple[bytes, str]:
    """The page and its Content-Security-Policy, which allows only its own style, script and events."""
    style, script = f"{style_sheet()}{_file('page.css')}", _file("page.js")
    parts = {"{style}": style, "{script}": script, "{version}": __version__}
    html = _file("page.html")
    for placeholder, part in parts.items():
        html = html.replace(placeholder, part)
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
    return html.encode(), policy


def pictures(live: Ring | None, wanted: Ring | None) -> dict[str, Any]:
    """Draw the ring; if it is not the wanted ring, also draw the wanted ring and the keys that go elsewhere.

    Each picture is an SVG element as JSON, ``[tag, attributes, *children]``, from which the script builds the element. The
    result also has the number of each queue's colour.
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
    title = f"{movement.share:.2%} of the keys go to the wrong queue"
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
