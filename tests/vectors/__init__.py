"""Reads the golden vectors back into Python values."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from rabbit_chx.mirror.kernel.terms import Atom, Term

HERE = Path(__file__).parent


def rows(name: str) -> list[list]:
    """All vectors of a file, after checking that it holds as many as it says."""
    origin, *vectors = [json.loads(line) for line in (HERE / name).read_text().splitlines()]
    assert len(vectors) == origin["vectors"] > 0
    return vectors


def term(tagged: dict) -> Term:
    """The term behind one tagged JSON value."""
    ((kind, value),) = tagged.items()
    match kind:
        case "atom":
            return Atom("".join(map(chr, value)))
        case "binary":
            return bytes.fromhex(value)
        case "integer":
            return int(value)
        case "float":
            return ieee(value)
        case "tuple":
            return tuple(map(term, value))
        case "list":
            return list(map(term, value))
    raise AssertionError(kind)


def ieee(bits: str) -> float:
    """A float from its 64 bits in hexadecimal."""
    return struct.unpack(">d", bytes.fromhex(bits))[0]
