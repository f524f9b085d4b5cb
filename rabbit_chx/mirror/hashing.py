"""The part of a message that is hashed, as an Erlang term: its routing key, a header or a property.

There is one class for each. :meth:`HashOn.term` takes one value and also explains the term, :meth:`HashOn.hashes` takes
a column. The rules are those of the plugin's ``value_to_hash/2``, which differ by release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.base.text import too_long
from rabbit_chx.errors import AmbiguousHeader, BrokerWouldFail, InvalidValue, Unpredictable, Unquoted
from rabbit_chx.mirror.fields import CLIENTS, NODE_CLIENTS, PROTOCOLS, Client, Field, encode, seconds
from rabbit_chx.mirror.kernel.phash2 import last_binary_initval, phash2
from rabbit_chx.mirror.kernel.terms import UNDEFINED, Atom, Term, format_term
from rabbit_chx.mirror.protocols import has_header, id_as_sent, routing_key_as_sent, timestamp_as_sent
from rabbit_chx.mirror.releases import Release

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SHORTSTR: Final = 255
"""The maximum size of a routing key, message id or correlation id in bytes."""

_MAX_FIELD_NAME: Final = 128
_DATETIMES: Final = "times that a datetime of Python can hold"
_MAX_STRING: Final = 65_535  # of MQTT; AMQP 1.0 sets no limit


# rabbit_exchange_type_consistent_hash.erl, the clauses of jump_consistent_hash/2 above its arithmetic.
def hash_of(term: Term, release: Release) -> int:
    """The integer whose lowest 21 bits choose the bucket of a ring with more than one."""
    if isinstance(term, int):
        return term
    if term == [] and release.empty_list_fails:
        raise BrokerWouldFail(
            f"RabbitMQ {release}, like 3.13.0 to 4.3.4, fails on an empty array or table in the hash header; "
            "send text instead, or upgrade to 4.3.5"
        )
    return phash2(term)


def shortstr(value: object, what: str, *, limit: int = MAX_SHORTSTR) -> bytes:
    """Encode an AMQP short string: at most 255 bytes, given as text or as bytes."""
    if isinstance(value, str):
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                what,
                value,
                "text without lone surrogates",
                "Pass the raw bytes instead",
            ) from None
    elif isinstance(value, (bytes, bytearray)):
        encoded = bytes(value)
    else:
        raise InvalidValue(
            what,
            value,
            "str (sent as UTF-8) or bytes",
            "Convert the value to text the way its publisher does",
        )
    if len(encoded) > limit:
        raise InvalidValue(
            what,
            Unquoted(too_long(value if isinstance(value, str) else encoded, len(encoded))),
            f"at most {limit} bytes of UTF-8, the limit of the protocol",
        )
    return encoded


def as_column(values: Any) -> Any:
    """The values as a sequence; a generator is read into a list."""
    single = (
        isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or getattr(values, "ndim", 1) == 0
    )
    if type(values).__name__ == "MaskedArray":  # from NumPy: a masked value counts as missing
        return values.tolist()
    if not single and hasattr(values, "__len__"):
        return values
    if not single and isinstance(values, Iterable):
        return list(values)
    raise InvalidValue(
        "column",
        values,
        "a list, NumPy array or Arrow column",
        "Use route() for a single value",
    )


class HashOn(ABC):
    """The part of a message that an exchange hashes."""

    part: str
    """The argument of ``route`` that holds it."""
    name: str
    """The part as a noun phrase without an article."""

    def __str__(self) -> str:
        return f"the {self.name}"

    @abstractmethod
    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """A description of the hashed value, and the Erlang term the broker hashes."""

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """The hashes of a column of values; in a list, None is a message without the property."""
        return _one_by_one(self, python_values(column, self.name), release, client)


def hash_on(hash_header: str | None, hash_property: str | None) -> HashOn:
    """What an exchange hashes, by its arguments ``hash-header`` and ``hash-property``."""
    if hash_header is not None and hash_property is not None:
        raise InvalidValue(
            "hash arguments",
            "both a header and a property",
            "at most one of the two",
            "The broker refuses to declare such an exchange",
        )
    if hash_header is not None:
        return HashHeader(hash_header)
    if hash_property is None:
        return HashRoutingKey()
    if hash_property == "timestamp":
        return HashTimestamp()
    return HashId(hash_property)


class HashRoutingKey(HashOn):
    """The default. The broker hashes the head of a list of keys, so CC and BCC keys do not count."""

    part = "routing_key"
    name = "routing key"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """A binary."""
        return str(self), shortstr(routing_key_as_sent(value, release, client), self.name)

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of str or bytes."""
        if client in ("amqp10", "mqtt"):
            return super().hashes(column, release, client)
        return _shortstr_hashes(column, self.name)


class HashId(HashOn):
    """``hash-property``: ``message_id`` or ``correlation_id``, both plain binaries."""

    def __init__(self, name: str) -> None:
        if name not in ("message_id", "correlation_id"):
            raise InvalidValue(
                "property to hash",
                name,
                "message_id, correlation_id or timestamp",
                "To hash anything else, publish it as a header and hash that",
            )
        self.part = name
        self.name = f"property {name}"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """A binary, or the atom ``undefined`` for a message without the property."""
        if client == "aio-pika" and isinstance(value, str | bytes | bytearray | None) and not value:
            if self.part == "message_id":
                raise Unpredictable(
                    "aio-pika sends a random message_id where none is set, so the route is random; set message_id on "
                    "every message"
                )
            value = None  # aio-pika omits an empty property
        if value is None:
            return f"{self} is missing", UNDEFINED
        sent = id_as_sent(self.part, value, release, client)
        if type(sent) is int and 0 <= sent < 2**64:
            return f"{self}, a number", sent
        limit = MAX_SHORTSTR if client not in ("amqp10", "mqtt") else _MAX_STRING
        return str(self), shortstr(sent, self.name, limit=limit)

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of str or bytes; in a list, None is a message without the property."""
        if isinstance(column, (list, tuple)) or client in ("aio-pika", *PROTOCOLS):
            values = python_values(column, self.name)
            try:
                are_plain = client not in PROTOCOLS and all(values)
            except (TypeError, ValueError):  # NA of pandas and arrays are neither true nor false
                are_plain = False
            if not are_plain:
                return _one_by_one(self, values, release, client)
        return _shortstr_hashes(column, self.name)


class HashTimestamp(HashOn):
    """``hash-property: timestamp``: the decimal text of its seconds."""

    part = "timestamp"
    name = "property timestamp"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """A binary of digits, or the atom ``undefined`` for a message without the property."""
        try:
            number = timestamp_as_sent(value, release, client)
            number = seconds(number, client) if isinstance(number, datetime) else number
        except InvalidValue:
            raise
        except (OverflowError, TypeError, ValueError):  # ValueError: NaT of pandas
            number = -1
        if number is None:
            return f"{self} is missing", UNDEFINED
        if type(number) is not int or not 0 <= number < 2**64:
            raise InvalidValue(
                self.name,
                value,
                "a datetime, or whole seconds since 1970",
            )
        unit = "seconds" if client != "amqp10" or release.amqp10_in_core else "milliseconds"
        return f"{self}, its {unit} as text", str(number).encode()


class HashHeader(HashOn):
    """``hash-header``: the value of one header, of any AMQP type."""

    part = "headers"

    def __init__(self, header: str) -> None:
        if not isinstance(header, str) or not header:
            raise InvalidValue(
                "header to hash",
                header,
                "the name of a header",
                "Omit it to hash the routing key",
            )
        if len(shortstr(header, "header to hash")) > _MAX_FIELD_NAME:
            raise InvalidValue(
                "header to hash",
                header,
                f"at most {_MAX_FIELD_NAME} bytes, the limit of AMQP",
                "Aio-pika truncates longer names, so the broker would not find the header",
            )
        self.header = header
        self.name: str = f"header {header!r}"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """Up to 3.12 the pair of type and value, later the value; ``undefined`` for a message without the header."""
        if value is not None and not isinstance(value, Mapping):
            raise InvalidValue(
                "headers",
                value,
                "a mapping of names to values, or None",
                f"{{{self.header!r}: value}} is a message with the header",
            )
        if not value or self.header not in value:
            if value and self.header.encode() in value:
                raise InvalidValue(
                    "name of a header",
                    self.header.encode(),
                    "str",
                    f"Use {self.header!r}",
                )
            return f"{self} is missing", self._missing(release)
        if not has_header(self.header, value[self.header], release, client):
            return f"RabbitMQ {release} hides {self} of {client} from exchanges", self._missing(release)
        what = str(self) if client is None else f"{self} as {client} encodes it"
        try:
            return what, self._value_term(value[self.header], release, client)
        except RecursionError:
            shallow = "lists and dicts nested less deeply"
            raise InvalidValue("header value", value[self.header], shallow) from None

    def _missing(self, release: Release) -> Term:
        if release.missing_header_fails:
            raise BrokerWouldFail(
                f"RabbitMQ {release}, like 3.13.0 to 3.13.6, fails on a message without the hash header "
                f"{self.header!r}; always send the header, or upgrade to 3.13.7"
            )
        return UNDEFINED

    def _value_term(self, value: object, release: Release, client: Client | None) -> Term:
        """The term that the named client, or every client that can send the value, produces."""
        if client == "amqp10" and isinstance(value, int) and 2**63 <= value < 2**64:
            return int(value)  # no field of AMQP 0-9-1 holds such a number without its sign
        terms: dict[str, Term] = {}
        refusal: InvalidValue | None = None
        for name in CLIENTS if client is None else (client,):
            try:
                terms[name] = self._field_term(encode(value, name), release)
            except InvalidValue as error:
                refusal = error
        if not terms:
            assert refusal is not None
            if client is None:
                raise InvalidValue("header value", value, "a value that a client can encode", refusal.hint)
            raise refusal
        # Compared as Erlang text, because 1 == 1.0 == True in Python.
        if len({format_term(term) for term in terms.values()}) > 1:
            seen = ", ".join(f"{name} as {format_term(term)}" for name, term in terms.items())
            raise AmbiguousHeader(
                f"clients encode the header value {value!r} differently, and RabbitMQ {release} hashes the "
                f"difference ({seen}); name the client, or send text, which all clients encode alike"
            )
        return next(iter(terms.values()))

    def _field_term(self, field: Field, release: Release) -> Term:
        if release.typed_headers:
            return field._pair  # rabbit_misc:table_lookup/2
        if field.tag == "T":
            milliseconds: int = field.value * 1000  # as mc_amqpl stores timestamps
            return milliseconds
        term = field._term
        if not isinstance(term, list):
            return term
        return term[0] if term else []  # jump_consistent_hash/2 takes the head of a list

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of header values; every message has the header."""
        import numpy as np

        from rabbit_chx.mirror.kernel.batch import block_hash_column, phash2_column
        from rabbit_chx.mirror.kernel.binaries import is_text

        if client not in PROTOCOLS and is_text(column):
            if not release.typed_headers:
                return phash2_column(column, what=self.name)
            return block_hash_column(column, last_binary_initval(Atom("longstr")), what=self.name)
        array = np.asarray(column) if hasattr(column, "__array__") else np.empty(0, object)
        as_they_are = array.dtype.kind in "iu" and array.ndim == 1 and not release.typed_headers
        # Clients send integers up to 2^63, those for Node only the ones that a double represents.
        if as_they_are and array.max(initial=0) < 2**63 and client not in (*NODE_CLIENTS, *PROTOCOLS):
            return array.astype(np.int64)
        values = [{self.header: value} for value in python_values(column, self.name)]
        return _one_by_one(self, values, release, client)


def _shortstr_hashes(column: Any, what: str) -> NDArray[Any]:
    from rabbit_chx.mirror.kernel.batch import phash2_column

    return phash2_column(column, what=what, limit=MAX_SHORTSTR)


def python_values(column: Any, what: str) -> Sequence[Any]:
    """The Python values of a column; None is a value in a list, and an error in any other column."""
    if isinstance(column, (list, tuple)):
        return column
    kind = getattr(getattr(column, "dtype", None), "kind", "")
    if kind in ("M", "m") and not hasattr(column, "to_list"):
        # The finest unit that NumPy converts to datetimes and timedeltas; pandas converts all units by itself.
        column = column.astype(f"{kind}8[us]")
    try:
        values = _as_python(column)
    except OverflowError:  # of Arrow
        raise InvalidValue(what, Unquoted("a time outside the years 1 to 9999"), _DATETIMES) from None
    if kind == "M" and (numbers := [each for each in values if type(each) is int]):
        raise InvalidValue(
            f"{what} in row {values.index(numbers[0])}", column[values.index(numbers[0])], _DATETIMES
        )
    try:
        row = values.index(None)
    except (TypeError, ValueError):  # also of an array or NA of pandas, which are refused as values
        return values
    raise InvalidValue(
        f"{what} in row {row}",
        None,
        "a value in every row",
        "Fill the gaps first, or pass a list, where None is a message without it",
    )


def _as_python(column: Any) -> list[Any]:
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow; pandas and polars; NumPy
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _one_by_one(on: HashOn, values: Sequence[Any], release: Release, client: Client | None) -> NDArray[Any]:
    """Hash values one at a time, for types without a column form; errors name the row."""
    import numpy as np

    hashes = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        try:
            _, term = on.term(value, release, client)
        except InvalidValue as error:
            raise InvalidValue(f"{error.what} in row {row}", error.got, error.expected, error.hint) from None
        hashes[row] = hash_of(term, release) & 0x7FFF_FFFF  # 21 bits count, of integers of any size
    return hashes
