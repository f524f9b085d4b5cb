"""What of a message is hashed: its routing key, a header or a property, as an Erlang term.

One class for each, with a scalar face (:meth:`term`, which also says why) and one for columns
(:meth:`hashes`). The rules are those of the plugin's ``value_to_hash/2``, which differ by release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from rabbit_chx.errors import AmbiguousHeader, BrokerWouldFail, InvalidValue, Unpredictable
from rabbit_chx.fields import CLIENTS, Field, encode, seconds
from rabbit_chx.kernel.phash2 import last_binary_initval, phash2
from rabbit_chx.kernel.terms import UNDEFINED, Atom, Term, format_term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rabbit_chx.fields import Client
    from rabbit_chx.releases import Release

__all__ = [
    "MAX_SHORTSTR",
    "HashHeader",
    "HashId",
    "HashOn",
    "HashRoutingKey",
    "HashTimestamp",
    "as_column",
    "check_client",
    "hash_of",
    "hash_on",
    "shortstr",
]

MAX_SHORTSTR: Final = 255
"""Bytes in a routing key, message id or correlation id."""


_MAX_FIELD_NAME: Final = 128


# rabbit_exchange_type_consistent_hash.erl, the clauses of jump_consistent_hash/2 above its arithmetic.
def hash_of(term: Term, release: Release) -> int:
    """The integer whose lowest 21 bits choose the bucket, where there is more than one."""
    if isinstance(term, int):
        return term
    if term == [] and release.empty_list_fails:
        raise BrokerWouldFail(
            f"RabbitMQ {release} fails on an empty array or table in the hash header, as 3.13.0 to 4.3.4 do: "
            "send text instead, or upgrade to 4.3.5"
        )
    return phash2(term)


def shortstr(value: object, what: str) -> bytes:
    """A short string as it goes over the wire: at most 255 bytes of UTF-8, or the bytes themselves."""
    if isinstance(value, str):
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                what,
                value,
                "text that UTF-8 can express, so no lone surrogates",
                "Pass the raw bytes instead",
            ) from None
    elif isinstance(value, (bytes, bytearray)):
        encoded = bytes(value)
    else:
        raise InvalidValue(
            what,
            value,
            "str (sent as UTF-8) or bytes",
            "Make text of it, as its publisher does",
        )
    if len(encoded) > MAX_SHORTSTR:
        raise InvalidValue(
            what,
            f"{value!r:.60} ({len(encoded)} bytes)",
            f"at most {MAX_SHORTSTR} bytes of UTF-8",
            "AMQP cannot carry a longer one",
        )
    return encoded


def as_column(values: Any) -> Any:
    """Many values, as something that has a length; a generator is read into a list."""
    single = (
        isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or getattr(values, "ndim", 1) == 0
    )
    if not single and hasattr(values, "__len__"):
        return values
    if not single and isinstance(values, Iterable):
        return list(values)
    raise InvalidValue(
        "column",
        values,
        "a list, NumPy array or Arrow column of what is hashed",
        "Put a single one into a list, or use route()",
    )


def check_client(client: object) -> None:
    """Refuse a client that nobody has heard of; None stands for any of those that are known."""
    if client is not None and client not in CLIENTS:
        raise InvalidValue(
            "client",
            client,
            ", ".join(CLIENTS),
            "Leave it out where it makes no difference",
        )


class HashOn(Protocol):
    """The part of a message that an exchange hashes."""

    @property
    def part(self) -> str:
        """The argument of ``route`` that holds it."""

    def __str__(self) -> str:
        """Its name in a sentence."""

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """The term that the broker makes of it, behind a word on how it came about."""

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """The hashes of a whole column of it."""


def hash_on(hash_header: str | None, hash_property: str | None) -> HashOn:
    """What an exchange with these two arguments hashes."""
    if hash_header is not None and hash_property is not None:
        raise InvalidValue(
            "hash arguments",
            "both hash_header and hash_property",
            "one of the two, or none to hash the routing key",
            "The broker refuses to declare such an exchange",
        )
    if hash_header is not None:
        return HashHeader(hash_header)
    if hash_property is None:
        return HashRoutingKey()
    if hash_property == "timestamp":
        return HashTimestamp()
    return HashId(hash_property)


class HashRoutingKey:
    """The default. CC and BCC keys follow the routing key in the broker's list, whose head alone counts."""

    part = "routing_key"

    def __str__(self) -> str:
        return "the routing key"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:  # noqa: ARG002
        """A binary."""
        return "the routing key", shortstr(value, "the routing key")

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:  # noqa: ARG002
        """Of a column of str or bytes."""
        return _shortstr_hashes(column, "the routing key")


class HashId:
    """``hash-property``: ``message_id`` or ``correlation_id``, both plain binaries."""

    def __init__(self, name: str) -> None:
        if name not in ("message_id", "correlation_id"):
            raise InvalidValue(
                "hash_property",
                name,
                "message_id, correlation_id or timestamp, as the broker has it",
                "To hash anything else, let publishers put it into a header, and name that in hash_header",
            )
        self.part = name

    def __str__(self) -> str:
        return f"the property {self.part}"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:  # noqa: ARG002
        """A binary, or the atom ``undefined`` for a message without the property."""
        if client == "aio-pika" and not value:
            if self.part == "message_id":
                raise Unpredictable(
                    "aio-pika gives a message without a message_id a random one, so that its route is random "
                    "too: set message_id on every message"
                )
            value = None  # it takes an empty property for an absent one
        if value is None:
            return f"{self} is missing", UNDEFINED
        return str(self), shortstr(value, str(self))

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of str or bytes; in a list None stands for a message without the property."""
        if isinstance(column, (list, tuple)) or client == "aio-pika":
            values = _values(column, str(self))
            if not all(values):
                return _one_by_one(self, values, release, client)
        return _shortstr_hashes(column, str(self))


class HashTimestamp:
    """``hash-property: timestamp``: the decimal text of its seconds."""

    part = "timestamp"

    def __str__(self) -> str:
        return "the property timestamp"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:  # noqa: ARG002
        """A binary of digits, or the atom ``undefined`` for a message without the property."""
        if value is None:
            return f"{self} is missing", UNDEFINED
        try:
            number = seconds(value, client) if isinstance(value, datetime) else value
        except OverflowError:
            number = None
        if type(number) is not int or not 0 <= number < 2**64:
            raise InvalidValue(
                str(self),
                value,
                "a datetime, or whole seconds since 1970",
                "Use int(time.time())",
            )
        return f"{self}, its seconds as text", str(number).encode()

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of datetimes or whole seconds; in a list None stands for a message without it."""
        return _one_by_one(self, _values(column, str(self)), release, client)


class HashHeader:
    """``hash-header``: the value of one header, of any AMQP type."""

    part = "headers"

    def __init__(self, header: str) -> None:
        if not isinstance(header, str) or not header:
            raise InvalidValue(
                "hash_header",
                header,
                "the name of a header",
                "Leave it out to hash the routing key",
            )
        if len(shortstr(header, "hash_header")) > _MAX_FIELD_NAME:
            raise InvalidValue(
                "hash_header",
                header,
                f"at most {_MAX_FIELD_NAME} bytes, as AMQP has it",
                "Aio-pika cuts longer names, so that the broker would not find the header",
            )
        self.header = header

    def __str__(self) -> str:
        return f"the header {self.header!r}"

    def term(self, value: Any, release: Release, client: Client | None) -> tuple[str, Term]:
        """Up to 3.12 the pair of type and value, later the value; ``undefined`` where there is none."""
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
            if release.missing_header_fails:
                raise BrokerWouldFail(
                    f"RabbitMQ {release} fails on a message without the hash header {self.header!r}, as 3.13.0 "
                    "to 3.13.6 do: send the header always, or upgrade to 3.13.7"
                )
            return f"{self} is missing", UNDEFINED
        what = str(self) if client is None else f"{self} as {client} encodes it"
        return what, self._value_term(value[self.header], release, client)

    def _value_term(self, value: object, release: Release, client: Client | None) -> Term:
        """The term, if all clients that can send the value, or the one named, make the same of it."""
        terms: dict[str, Term] = {}
        refusal: InvalidValue | None = None
        for name in CLIENTS if client is None else (client,):
            try:
                terms[name] = self._field_term(encode(value, name), release)
            except InvalidValue as error:
                refusal = error
        if not terms:
            assert refusal is not None
            raise refusal
        # Told apart as Erlang text, since to Python 1 == 1.0 == True.
        if len({format_term(term) for term in terms.values()}) > 1:
            seen = ", ".join(f"{name} as {format_term(term)}" for name, term in terms.items())
            raise AmbiguousHeader(
                f"clients encode the header value {value!r} differently, and RabbitMQ {release} hashes the "
                f"difference ({seen}): name the client, or send text, on which all agree"
            )
        return next(iter(terms.values()))

    def _field_term(self, field: Field, release: Release) -> Term:
        if release.typed_headers:
            return field.pair  # rabbit_misc:table_lookup/2
        if field.tag == "T":
            milliseconds: int = field.value * 1000  # mc_amqpl keeps timestamps so
            return milliseconds
        term = field.term
        if not isinstance(term, list):
            return term
        return term[0] if term else []  # jump_consistent_hash/2 takes the head of a list

    def hashes(self, column: Any, release: Release, client: Client | None) -> NDArray[Any]:
        """Of a column of the header's values; every message has the header."""
        import numpy as np

        from rabbit_chx.kernel.batch import block_hash_column, phash2_column
        from rabbit_chx.kernel.binaries import is_text

        if is_text(column):
            if not release.typed_headers:
                return phash2_column(column, what=str(self))
            return block_hash_column(column, last_binary_initval(Atom("longstr")), what=str(self))
        array = np.asarray(column) if hasattr(column, "__array__") else np.empty(0, object)
        as_they_are = array.dtype.kind in "iu" and array.ndim == 1 and not release.typed_headers
        if as_they_are and array.max(initial=0) < 2**63:  # the most that a client can send
            return array.astype(np.int64)
        values = [{self.header: value} for value in _values(column, str(self))]
        return _one_by_one(self, values, release, client)


def _shortstr_hashes(column: Any, what: str) -> NDArray[Any]:
    from rabbit_chx.kernel.batch import phash2_column

    return phash2_column(column, what=what, limit=MAX_SHORTSTR)


def _values(column: Any, what: str) -> Sequence[Any]:
    """The Python values of a column; in a list None is one of them, in any other column it is a gap."""
    if isinstance(column, (list, tuple)):
        return column
    if getattr(getattr(column, "dtype", None), "kind", "") == "M" and hasattr(column, "astype"):
        column = column.astype("datetime64[us]")  # the finest that NumPy turns into datetimes
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow; pandas and polars; NumPy
        if hasattr(column, method):
            column = getattr(column, method)()
            break
    values = list(column)
    if None in values:
        raise InvalidValue(
            f"{what} in row {values.index(None)}",
            None,
            "a value in every row",
            "Fill the gaps first, or pass a list, where None stands for none",
        )
    return values


def _one_by_one(on: HashOn, values: Sequence[Any], release: Release, client: Client | None) -> NDArray[Any]:
    """For values that have no column form: the scalar path, and the row in what it complains about."""
    import numpy as np

    hashes = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        try:
            _, term = on.term(value, release, client)
        except InvalidValue as error:
            raise InvalidValue(f"{error.what} in row {row}", error.got, error.expected, error.hint) from None
        hashes[row] = hash_of(term, release) & 0x7FFF_FFFF  # 21 bits count, of integers of any size
    return hashes
