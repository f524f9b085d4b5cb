"""The answers of ``rabbit-chx route``: where a key lands, as a line of text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rabbit_chx.base.text import counted
from rabbit_chx.cli.show.output import echo, print_json
from rabbit_chx.cli.show.tables import print_shares
from rabbit_chx.mirror.exchange import Explanation
from rabbit_chx.mirror.kernel.terms import format_term


def key_field(key: str | bytes) -> dict[str, str]:
    """The key as a JSON field; bytes that are not UTF-8 as Base64."""
    data = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    try:
        return {"key": data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"key_base64": b64encode(data).decode()}


@dataclass(frozen=True)
class PredictedRoute:
    """The route of one message."""

    type: Literal["route", "file_route"]
    key: str | bytes
    end: str
    """The destinations as text."""
    fields: dict[str, Any]
    """The destinations as JSON fields."""
    explanation: Explanation | None
    """How the exchange's ring routes the message, if it has a ring."""
    width: int | None = None
    """The width of the column of keys; None separates it by a tab."""
    unsure: bool = False
    """Whether only the broker knows the destination."""
    why_none: str = "no bucket"
    """What --explain says instead of an explanation."""


def print_routes(routes: Iterable[PredictedRoute], output: str, *, explain: bool) -> None:
    """Print the route of each message."""
    for number, route in enumerate(routes):
        key, found = route.key, route.explanation
        if output == "json":
            fields = route.fields | (_fields_of(found) if explain and found else {})
            print_json(route.type, **key_field(key), **fields)
            continue
        shown = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        if explain:
            blank = "\n" if number else ""
            ends = f"\nends in:     {route.end}" if route.type == "file_route" else ""
            echo(f"{blank}key:         {shown}\n{found or route.why_none}{ends}")
        elif route.width is None:
            echo(f"{shown}\t{route.end}")
        else:
            echo(f"{shown:<{route.width}}  {route.end}")


def _fields_of(found: Explanation) -> dict[str, Any]:
    return {
        "bucket": found.bucket,
        "what": found.what,
        "hashed": format_term(found.term),
        "hash": found.hash,
        "seed": found.seed,
        "buckets": found.buckets,
    }


def print_counts(counts: Mapping[str, int], output: str, *, named: str) -> None:
    """Print the number of keys of each destination; ``named`` is the JSON key of the destination."""
    total = sum(counts.values())
    if output == "json":
        for end, keys in counts.items():
            share = keys / total if total else 0.0
            print_json("count", **{named: end}, keys=keys, share=share)
        return
    print_shares(counts, title=counted(total, "key"))
