"""Header values as clients encode them, and as the broker then holds them.

Clients send the same value with different AMQP type tags, and some releases hash the type along with the value. This
file mirrors the encoders of pika 1.4, pamqp 4.0 (aio-pika and amqpstorm), py-amqp 5.4, and of amqplib 2.3 and
rabbitmq-client 5.0 for Node, and what a publisher of another protocol makes the broker hold. It writes no bytes.
"""

from __future__ import annotations

import calendar
import math
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

from rabbit_chx.errors import AmbiguousHeader, BrokerWouldFail, InvalidValue
from rabbit_chx.mirror.kernel.terms import UNDEFINED, Atom, Term, boolean

Client: TypeAlias = Literal[
    "pika", "aio-pika", "py-amqp", "amqpstorm", "amqplib", "rabbitmq-client", "amqp10", "mqtt", "stomp"
]
"""What sends a message: a client for AMQP 0-9-1, or any client of another protocol."""
PROTOCOLS: Final[tuple[Client, ...]] = ("amqp10", "mqtt", "stomp")
CLIENTS: Final[tuple[Client, ...]] = tuple(each for each in get_args(Client) if each not in PROTOCOLS)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

# rabbit_binary_parser.erl, parse_table/1: the broker's name for each tag.
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


# The formats of struct for the numbers of each tag.
_NUMBERS: Final = dict(zip("bBsuIilLTfd", "bBhHiIqqQfd", strict=True))


@dataclass(frozen=True, slots=True)
class Field:
    """A header value with its AMQP tag, for callers who know what is sent.

    ``Field("S", b"text")``, ``Field("I", 5)``, ``Field("D", (2, 150))`` (scale and digits),
    ``Field("T", 1700000000)`` (seconds), ``Field("A", (Field("I", 1),))``,
    ``Field("F", (("name", Field("t", True)),))``.
    """

    tag: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.tag not in _TYPES:
            raise InvalidValue("tag of an AMQP field", self.tag, " ".join(_TYPES))
        if not _can_hold(self.tag, self.value):
            expected = f"a value that its type, {_TYPES[self.tag]}, can hold"
            raise InvalidValue(f"value of an AMQP field {self.tag!r}", self.value, expected)

    @property
    def _type(self) -> Atom:
        """The broker's name for the type."""
        return Atom(_TYPES[self.tag])

    @property
    def _term(self) -> Term:
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
                return (scale, digits % 2**32)  # the broker reads the digits as unsigned
            case "f" | "d" if not math.isfinite(self.value):
                raise BrokerWouldFail(
                    f"RabbitMQ fails on {self.value} in a header; Erlang has no infinity or NaN"
                )
            case "A":
                return [item._pair for item in self.value]
            case "F":
                return [(_utf8(name), item._type, item._term) for name, item in self.value]
            case _:
                return _as_sent(self.tag, self.value)

    @property
    def _pair(self) -> tuple[Atom, Term]:
        """Type and value: the form of array items, and of the headers that releases up to 3.12 hash."""
        return (self._type, self._term)


def _can_hold(tag: str, value: Any) -> bool:
    """Whether a field can have a value; its items were checked when they were made."""
    try:
        match tag:
            case "t":
                return isinstance(value, bool)
            case "V":
                return value is None
            case "S" | "x":
                return isinstance(value, (str, bytes, bytearray))
            case "D":
                scale, digits = value
                struct.pack(">BI", scale, digits % 2**32)
                return bool(-(2**31) <= digits < 2**32)
            case "A":
                return isinstance(value, (tuple, list)) and all(isinstance(item, Field) for item in value)
            case "F":
                items = value if isinstance(value, (tuple, list)) else [(None, None)]
                return all(isinstance(name, (str, bytes)) and isinstance(item, Field) for name, item in items)
            case _:
                _as_sent(tag, value)
                return True
    except (struct.error, OverflowError, TypeError, ValueError):
        return False


def _as_sent(tag: str, value: Term) -> Term:
    """A number as the bytes of its type hold it; other values unchanged."""
    if tag not in _NUMBERS:
        return value
    sent: Term = struct.unpack(form := f">{_NUMBERS[tag]}", struct.pack(form, value))[0]
    return sent


def encode(value: object, client: Client) -> Field:
    """Encode a value as the client does; InvalidValue if the client cannot send it.

    >>> encode(5, "pika"), encode(5, "aio-pika")
    (Field(tag='I', value=5), Field(tag='b', value=5))
    """
    if isinstance(value, Field):
        return value
    check_client(client)
    try:
        field = (None if client in PROTOCOLS else _common(value, client)) or _ENCODERS[client](value)
    except (struct.error, ArithmeticError, UnicodeEncodeError, AttributeError, TypeError):
        field = None  # the value is too large for the client, or a name is not text
    if field is None:
        raise InvalidValue(
            "header value",
            value,
            f"a value that {client} can encode",
            "Send it as text, which all clients encode alike",
        )
    return field


def check_client(client: object) -> None:
    """Refuse an unknown client; None means any of the known ones."""
    if client is not None and client not in (*CLIENTS, *PROTOCOLS):
        raise InvalidValue("client", client, ", ".join(_ENCODERS), "Omit it where all clients agree")


def _common(value: object, client: Client) -> Field | None:
    """The types that most clients encode alike; bool comes first because it is an int."""
    match value:
        case None:
            return Field("V")
        case bool():
            return Field("t", value)
        case str():
            return Field("S", _text(value, client))
        case datetime() if value == value:  # noqa: PLR0124 - NaT of pandas is not
            # amqplib and rabbitmq-client send a JavaScript Date as an object without keys.
            return Field("F", ()) if client in NODE_CLIENTS else Field("T", seconds(value, client))
        case list():
            return Field("A", tuple(encode(item, client) for item in value))
        case _:
            return None


NODE_CLIENTS: Final = ("amqplib", "rabbitmq-client")


def _pika(value: object) -> Field | None:
    match value:
        case bytes():
            return Field("x", value)
        case int():
            # pika makes a `long` of its own of integers in messages.
            decoded = type(value).__module__ == "pika.compat"
            return _integer(value, [("l", "q")] if decoded else [("I", "i"), ("l", "q")])
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
            # Rounded to 32 bits.
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


def _javascript(value: object, client: Client) -> Field | None:
    match value:
        case bytes() | bytearray() if client == "amqplib":
            return Field("x", bytes(value))
        case bytes() | bytearray():  # an object, whose keys are the indices
            return _javascript({str(index): byte for index, byte in enumerate(value)}, client)
        case int() | float():
            return _number(value)
        case dict():
            return _table(_javascript_order(value), client)
        case _:
            return None


# isFloatingPoint in amqplib's codec.js, getBestType in rabbitmq-client's codec.js.
def _number(value: float) -> Field:
    number = float(value)
    if number != value or (isinstance(value, int) and value >= 2**63):
        raise OverflowError  # JavaScript has no such integer; larger ones are doubles
    if number >= 2**63 or (abs(number) < 2**50 and not number.is_integer()):
        return Field("d", number)
    return _integer(int(number), [("b", "b"), ("s", "h"), ("I", "i"), ("l", "q")])


def _javascript_order(table: dict[str, object]) -> list[tuple[str, object]]:
    """The entries of an object: array indices in ascending order, then the other keys as inserted."""
    indices = {
        name for name in table if name == "0" or (name.isascii() and name.isdigit() and name[0] != "0")
    }
    return sorted(table.items(), key=lambda entry: (0, int(entry[0])) if entry[0] in indices else (1, 0))


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
            # A positive exponent is an error, as in struct; so are NaN and the infinities.
            return _scaled(-exponent, int(value.scaleb(-exponent))) if isinstance(exponent, int) else None
        case dict():
            return _table(value.items(), "py-amqp")
        case tuple():
            return Field("A", tuple(encode(item, "py-amqp") for item in value))
        case _:
            return None


# mc_amqp.erl keeps integers of every width as they are, a UUID as its 16 bytes, and a time in milliseconds.
def _amqp10(value: object) -> Field | None:
    match value:
        case None | bool() | str():
            return _common(value, "amqp10")
        case int() if -(2**63) <= value < 2**63:
            return Field("l", int(value))
        case float() if value.is_integer():
            raise AmbiguousHeader(
                f"AMQP 1.0 clients in JavaScript send {value} as an integer, others do not, and RabbitMQ hashes the "
                "difference; send text, or pass what is sent: an int, or Field('d', ...)"
            )
        case float():
            return Field("d", float(value))
        case bytes() | bytearray():
            return Field("x", bytes(value))
        case datetime() if value == value:  # noqa: PLR0124
            return Field("l", milliseconds(value))
        case _:
            # Not decimals: the broker hashes a message with one like a message without the header.
            return Field("x", uuid_bytes(value)) if uuid_bytes(value) else None


def _stomp(value: object) -> Field | None:
    # Every client writes an integer as decimal text, but not true and 1.0.
    return _user_property(str(int(value)) if type(value) is int else value)


def _user_property(value: object) -> Field | None:
    return Field("S", value.encode()) if isinstance(value, str) else None


_ENCODERS: Final[dict[str, Callable[[object], Field | None]]] = {
    "pika": _pika,
    "aio-pika": _pamqp,
    "py-amqp": _pyamqp,
    "amqpstorm": _pamqp,
    "amqplib": partial(_javascript, client="amqplib"),
    "rabbitmq-client": partial(_javascript, client="rabbitmq-client"),
    "amqp10": _amqp10,
    "mqtt": _user_property,
    "stomp": _stomp,
}


def _integer(value: int, tags: list[tuple[str, str]]) -> Field:
    """The value with the first tag whose C type holds it; OverflowError if none does."""
    for tag, code in tags:
        try:
            struct.pack(f">{code}", value)
        except struct.error:
            continue
        return Field(tag, int(value))  # Erlang has no subclasses, such as pika's
    raise OverflowError


def _decimal(value: Decimal) -> Field | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):  # NaN and the infinities
        return None
    if exponent > 0:
        return _scaled(0, int(value)) if -(2**31) <= value < 2**31 else None  # int() of 1E+999999 takes long
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
    # Only py-amqp sends lone surrogates.
    return value.encode("utf-8", "surrogatepass" if client == "py-amqp" else "strict")


def seconds(value: datetime, client: Client | None = None) -> int:
    """Whole seconds since 1970; every client takes a datetime without a zone as UTC.

    A datetime before 1970 is an OverflowError, because AMQP timestamps are unsigned.
    """
    if client in ("aio-pika", "amqpstorm"):
        # Via a float, which from 2514 on rounds the last microsecond of a second up.
        number = int((value if value.utcoffset() is not None else value.replace(tzinfo=UTC)).timestamp())
    else:
        number = calendar.timegm(value.utctimetuple())
    if number < 0:
        raise OverflowError
    return number


def uuid_bytes(value: Any) -> bytes:
    """The 16 bytes of a UUID; none of any other value."""
    known = sys.modules.get("uuid")  # importing it takes longer than the rest of this package
    return value.bytes if known is not None and isinstance(value, known.UUID) else b""


def milliseconds(value: datetime) -> int:
    """Milliseconds since 1970, rounded down; a datetime without a zone is taken as UTC."""
    moment = value if value.utcoffset() is not None else value.replace(tzinfo=UTC)
    return (moment - EPOCH) // MILLISECOND


def _utf8(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
