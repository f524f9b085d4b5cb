"""Header values as clients put them on the wire, and as the broker then sees them.

The same Python value leaves pika, aio-pika (pamqp) and py-amqp with different AMQP type tags, and some
releases hash the type along with the value. This file mirrors each client's encoder as of pika 1.4,
pamqp 4.0 and py-amqp 5.4; it writes no bytes and knows nothing of exchanges.
"""

from __future__ import annotations

import calendar
import math
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from rabbit_chx.errors import BrokerWouldFail, InvalidValue
from rabbit_chx.kernel.terms import UNDEFINED, Atom, Term, boolean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CLIENTS", "Client", "Field", "encode", "seconds"]

Client: TypeAlias = Literal["pika", "aio-pika", "py-amqp"]
CLIENTS: Final[tuple[Client, ...]] = get_args(Client)

# rabbit_binary_parser.erl, parse_table/1: what the broker calls each tag.
_TYPES: Final = {
    "S": "longstr",
    "x": "binary",
    "t": "bool",
    "V": "void",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "T": "timestamp",
    "A": "array",
    "F": "table",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A header value with its AMQP tag, for callers who know exactly what is sent.

    ``Field("S", b"text")``, ``Field("I", 5)``, ``Field("D", (2, 150))`` (scale and digits),
    ``Field("T", 1700000000)`` (seconds), ``Field("A", (Field("I", 1),))``,
    ``Field("F", (("name", Field("t", True)),))``.
    """

    tag: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.tag not in _TYPES:
            raise InvalidValue("tag of an AMQP field", self.tag, " ".join(_TYPES))

    @property
    def type(self) -> Atom:
        """The type as the broker names it."""
        return Atom(_TYPES[self.tag])

    @property
    def term(self) -> Term:
        """The value as the broker holds it."""
        match self.tag:
            case "t":
                return boolean(self.value)
            case "V":
                return UNDEFINED
            case "S" | "x":
                return _utf8(self.value)
            case "D":
                scale, digits = self.value
                return (scale, digits % 2**32)  # the broker reads the digits without a sign
            case "f" | "d" if not math.isfinite(self.value):
                raise BrokerWouldFail(f"RabbitMQ fails on {self.value} in a header: Erlang has no such float")
            case "A":
                return [item.pair for item in self.value]
            case "F":
                return [(_utf8(name), item.type, item.term) for name, item in self.value]
            case _:
                value: Term = self.value
                return value

    @property
    def pair(self) -> tuple[Atom, Term]:
        """Type and value, as in arrays and in all that 3.12 and before hash."""
        return (self.type, self.term)


def encode(value: object, client: Client) -> Field:
    """The field that a client makes of a Python value; an error where that client raises one itself.

    >>> encode(5, "pika"), encode(5, "aio-pika")
    (Field(tag='I', value=5), Field(tag='b', value=5))
    """
    if isinstance(value, Field):
        return value
    if client not in _ENCODERS:
        raise InvalidValue("client", client, ", ".join(CLIENTS))
    try:
        field = _common(value, client) or _ENCODERS[client](value)
    except (struct.error, ArithmeticError, UnicodeEncodeError, AttributeError, TypeError):
        field = None  # just where the client stumbles: too large, or a name that is no text
    if field is None:
        raise InvalidValue(
            "header value",
            value,
            f"what {client} can encode",
            "Send it as text: strings are the one type on which all clients and releases agree",
        )
    return field


def _common(value: object, client: Client) -> Field | None:
    """The types on which all three agree; their order matters, since a bool is an int."""
    match value:
        case None:
            return Field("V")
        case bool():
            return Field("t", value)
        case str():
            return Field("S", _text(value, client))
        case datetime():
            return Field("T", seconds(value, client))
        case list():
            return Field("A", tuple(encode(item, client) for item in value))
        case _:
            return None


def _pika(value: object) -> Field | None:
    match value:
        case bytes():
            return Field("x", value)
        case int():
            return _integer(value, [("I", "i"), ("l", "q")])
        case Decimal():
            return _decimal(value.normalize())
        case dict():
            return _table(value.items(), "pika")
        case _:
            return None


def _pamqp(value: object) -> Field | None:
    match value:
        case int():
            return _integer(value, [("b", "b"), ("s", "h"), ("u", "H"), ("I", "i"), ("i", "I"), ("l", "q")])
        case float():
            # 32 bits: the broker hashes the rounded number.
            return Field("f", struct.unpack(">f", struct.pack(">f", value))[0])
        case Decimal():
            return _decimal(value)
        case bytearray():
            return Field("x", bytes(value))
        case dict():
            # Sorted, and names cut at 128 bytes; a character that the cut splits is dropped.
            cut = [(name.encode()[:128].decode("utf-8", "ignore"), v) for name, v in sorted(value.items())]
            return _table(cut, "aio-pika")
        case _:
            return None


def _pyamqp(value: object) -> Field | None:
    match value:
        case bytes():
            return Field("S", value)
        case float():
            return Field("d", float(value))
        case int():
            # Not -2^31, which would fit.
            return _integer(value, [("I", "i")] if -(2**31) < value < 2**31 else [("L", "q")])
        case Decimal():
            exponent = value.as_tuple().exponent
            # A positive exponent is refused, as struct does; so are NaN and the infinities.
            return _scaled(-exponent, int(value.scaleb(-exponent))) if isinstance(exponent, int) else None
        case dict():
            return _table(value.items(), "py-amqp")
        case tuple():
            return Field("A", tuple(encode(item, "py-amqp") for item in value))
        case _:
            return None


_ENCODERS: Final[dict[str, Callable[[object], Field | None]]] = {
    "pika": _pika,
    "aio-pika": _pamqp,
    "py-amqp": _pyamqp,
}


def _integer(value: int, tags: list[tuple[str, str]]) -> Field:
    """The first tag whose C type holds the value; none at all is an OverflowError."""
    for tag, code in tags:
        try:
            struct.pack(f">{code}", value)
        except struct.error:
            continue
        return Field(tag, int(value))  # a subclass, such as pika's own for what it decodes, is none to Erlang
    raise OverflowError


def _decimal(value: Decimal) -> Field | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):  # NaN and the infinities
        return None
    if exponent > 0:
        return _scaled(0, int(value))
    return _scaled(-exponent, int(value.scaleb(-exponent)))


def _scaled(scale: int, mantissa: int) -> Field:
    struct.pack(">Bi", scale, mantissa)  # the wire's limits
    return Field("D", (scale, mantissa))


def _table(items: Iterable[tuple[Any, object]], client: Client) -> Field:
    fields = []
    for name, item in items:
        struct.pack("B", len(name if isinstance(name, bytes) else _text(name, client)))  # the wire's limit
        fields.append((name, encode(item, client)))
    return Field("F", tuple(fields))


def _text(value: str, client: Client) -> bytes:
    # py-amqp alone lets a lone surrogate through.
    return value.encode("utf-8", "surrogatepass" if client == "py-amqp" else "strict")


def seconds(value: datetime, client: Client | None = None) -> int:
    """Whole seconds since 1970; a datetime without a zone is UTC to all three clients.

    One before 1970 is an OverflowError: the wire has no sign.
    """
    if client == "aio-pika":
        # By way of a float, which from 2514 on rounds the last microsecond of a second up.
        number = int((value if value.utcoffset() is not None else value.replace(tzinfo=UTC)).timestamp())
    else:
        number = calendar.timegm(value.utctimetuple())
    if number < 0:
        raise OverflowError
    return number


def _utf8(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
