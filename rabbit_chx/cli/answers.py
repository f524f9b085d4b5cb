"""The answers of ``rabbit-chx route``: where a key lands, as a line of text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rabbit_chx.cli.output import echo, print_json
from rabbit_chx.cli.tables import print_shares
from rabbit_chx.exchange import ConsistentHashExchange, Explanation
from rabbit_chx.kernel.terms import format_term
from rabbit_chx.text import counted


def value_of(exchange: ConsistentHashExchange, key: str) -> Any:
    """What the exchange hashes of a key from the command line; bytes that are not UTF-8 keep their value."""
    part = exchange.hash_on.part
    if part == "headers":
        return {exchange.hash_header: key}
    if part == "timestamp":
        return int(key) if key.isascii() and key.isdigit() else key
    return key.encode("utf-8", "surrogateescape")


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

    @property
    def json(self) -> dict[str, Any]:
        """The JSON fields with --explain."""
        found = self.explanation
        if found is None:
            return self.fields
        return self.fields | {
            "bucket": found.bucket,
            "what": found.what,
            "hashed": format_term(found.term),
            "hash": found.hash,
            "seed": found.seed,
            "buckets": found.buckets,
        }

    @property
    def text(self) -> str:
        """The key and the destinations."""
        return f"{self._key}\t{self.end}" if self.width is None else f"{self._key:<{self.width}}  {self.end}"

    @property
    def explained(self) -> str:
        """The lines of text with --explain."""
        lines = f"key:         {self._key}\n{self.explanation or 'no bucket'}"
        return lines if self.type == "route" else f"{lines}\nends in:     {self.end}"

    @property
    def _key(self) -> str:
        return self.key.decode("utf-8", "replace") if isinstance(self.key, bytes) else self.key


def print_routes(routes: Iterable[PredictedRoute], output: str, *, explain: bool) -> None:
    """Print the route of each message."""
    for number, route in enumerate(routes):
        if output == "json":
            print_json(route.type, **key_field(route.key), **(route.json if explain else route.fields))
        elif explain:
            echo(f"\n{route.explained}" if number else route.explained)
        else:
            echo(route.text)


def print_counts(counts: Mapping[str, int], output: str, *, named: str) -> None:
    """Print the number of keys of each destination; ``named`` is the JSON key of the destination."""
    total = sum(counts.values())
    if output == "json":
        for end, keys in counts.items():
            share = keys / total if total else 0.0
            print_json("count", **{named: end}, keys=keys, share=share)
        return
    print_shares(counts, title=counted(total, "key"))
