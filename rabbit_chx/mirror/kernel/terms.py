"""Erlang terms as Python values.

Only the terms that a message can carry to a hash exchange, or that the exchange builds from them, are
supported. This module does not depend on AMQP.

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


@dataclass(frozen=True, slots=True)
class Atom:
    """An Erlang atom; a separate class because an atom never equals a string or binary in Erlang."""

    name: str


Term: TypeAlias = "Atom | bytes | int | float | tuple[Term, ...] | list[Term]"

UNDEFINED = Atom("undefined")
TRUE = Atom("true")
FALSE = Atom("false")


def boolean(value: bool) -> Atom:  # noqa: FBT001 - it converts exactly this
    """Return the atom ``true`` or ``false``, which Erlang uses as booleans."""
    return TRUE if value else FALSE


def format_term(term: Term) -> str:
    """Format a term as the Erlang shell prints it, ready to paste into ``rabbitmqctl eval``."""
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
