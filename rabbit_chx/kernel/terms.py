"""Erlang terms as Python values.

Only the terms that a message can bring to a hash exchange (or that the exchange builds from them)
are here. This file knows nothing of AMQP and computes nothing.

    Erlang              Python
    ----------------    -------------------------
    atom                Atom("undefined")
    binary              bytes
    integer, any size   int
    float               float
    tuple               tuple
    proper list         list
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["FALSE", "TRUE", "UNDEFINED", "Atom", "Term", "boolean", "format_term"]


@dataclass(frozen=True, slots=True)
class Atom:
    """An Erlang atom; a class of its own because an Erlang string or binary never equals an atom."""

    name: str


Term: TypeAlias = "Atom | bytes | int | float | tuple[Term, ...] | list[Term]"

UNDEFINED = Atom("undefined")
TRUE = Atom("true")
FALSE = Atom("false")


def boolean(value: bool) -> Atom:  # noqa: FBT001 - it converts exactly this
    """Erlang has no booleans, only the atoms ``true`` and ``false``."""
    return TRUE if value else FALSE


def format_term(term: Term) -> str:
    """The term as the Erlang shell would print it, so that it can be pasted into ``rabbitmqctl eval``."""
    match term:
        case Atom(name):
            plain = name[:1].islower() and name.isascii() and name.replace("_", "a").isalnum()
            return name if plain else "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return _format_binary(term)
        case tuple():
            return "{" + ",".join(map(format_term, term)) + "}"
        case list():
            return "[" + ",".join(map(format_term, term)) + "]"
        case _:
            return repr(term)


def _format_binary(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "<<" + ",".join(map(str, value)) + ">>"
    if not text.isprintable():
        return "<<" + ",".join(map(str, value)) + ">>"
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{quoted}">>' if text.isascii() else f'<<"{quoted}"/utf8>>'
