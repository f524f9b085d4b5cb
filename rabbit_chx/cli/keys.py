"""A key given as text: what an exchange hashes of it, and how it is written as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rabbit_chx.exchange import ConsistentHashExchange, Explanation

__all__ = ["evidence", "key_field", "value_of"]


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


def evidence(answer: Explanation) -> dict[str, Any]:
    """The JSON fields that --explain adds."""
    from rabbit_chx.kernel.terms import format_term

    return {
        "what": answer.what,
        "hashed": format_term(answer.term),
        "hash": answer.hash,
        "seed": answer.seed,
        "buckets": answer.buckets,
    }
