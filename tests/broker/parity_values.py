"""Header values of every type that a client can send: the borders by hand, the rest by chance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rabbit_chx import InvalidValue
from rabbit_chx.mirror.fields import encode

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from rabbit_chx.mirror.fields import Client

MOMENT = datetime(2024, 2, 29, 12, 30, 45, 999_999, tzinfo=UTC)

# The integers on both sides of every border between two types of any client.
BORDERS = [
    sign * 2**bits + off for bits in (0, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1) for off in (-1, 0, 1)
]

VALUES = [
    None, True, False, "", "text", "é🐇", "x" * 3_000, b"", b"bytes", b"\xff\x00", bytearray(b"array"),
    *BORDERS, 2**63 - 1, -(2**63), 2**21, 2**27, 2**28, 2**59,
    0.0, -0.0, 0.5, 0.1, -1.5, 1.0, 1e-45, 3.4e38, 1e308, 5e-324, 16777217.0,
    Decimal(0), Decimal("-0"), Decimal("1.5"), Decimal("1.50"), Decimal("-12.345"), Decimal("1E+3"), Decimal("1E-9"),
    MOMENT, MOMENT.replace(tzinfo=None), MOMENT.astimezone(timezone(timedelta(hours=-7))), datetime(1970, 1, 1, tzinfo=UTC),
    ["a"], ["a", "b"], [1], [300, "a"], [2**40], [None], [True, 1], [b"raw"], [0.5], [[1, 2], "a"], [{"k": "v"}, 1],
    [MOMENT], [Decimal("2.5")], [[]], [{}], ("a", 1),
    {"k": "v"}, {"k": 1}, {"b": "x", "a": "y"}, {"k": None}, {"k": [1, "a"]}, {"k": {"n": {"m": 300}}}, {"": ""},
    {"k" * 128: "v"}, {"k" * 130: "v"}, {"é" * 65: "v"}, {"k": MOMENT}, {"k": {}}, {"k": []}, {"k": 0.25, "a": b"raw"},
]  # fmt: skip


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """Any value, nested at times; not every client can send it."""
    kinds = ["text", "int", "int", "float", "decimal", "time", "bytes", "bool", "none"]
    if depth < 3:
        kinds += ["list", "dict", "list", "dict"]
    match rng.choice(kinds):
        case "text":
            return "".join(rng.choices("abcdé🐇 ", k=rng.randint(0, 40)))
        case "int":
            return rng.choice((1, -1)) * rng.getrandbits(rng.randint(1, 63))
        case "float":
            return rng.choice((rng.gauss(0, 1e6), rng.random(), float(rng.randint(-1000, 1000)) / 8))
        case "decimal":
            return Decimal(rng.randint(-(2**31), 2**31 - 1)).scaleb(-rng.randint(0, 12))
        case "time":
            return datetime.fromtimestamp(rng.randint(0, 2**33) + rng.random(), UTC)
        case "bytes":
            return rng.choice((bytes, bytearray))(rng.randbytes(rng.randint(0, 40)))
        case "bool":
            return rng.random() < 0.5
        case "none":
            return None
        case "list":
            return [random_value(rng, depth + 1) for _ in range(rng.randint(1, 4))]
        case "dict":
            names = ("a", "b", "c", "é", "name", "n" * 140)
            return {rng.choice(names): random_value(rng, depth + 1) for _ in range(rng.randint(1, 4))}


def sendable(values: Iterable[Any], client: Client) -> Iterator[Any]:
    """Those of the values that the client encodes: for the others it raises, and so does the mirror."""
    for value in values:
        try:
            encode(value, client)
        except InvalidValue:
            continue
        yield value
