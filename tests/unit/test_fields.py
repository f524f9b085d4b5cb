"""Header values: the mirrored encoders against the bytes that the clients' own libraries write."""

from __future__ import annotations

import json
import logging
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import amqp.serialization
import pamqp.encode
import pika.compat
import pika.data
import pytest
from hypothesis import example, given, strategies as st

from rabbit_chx import BrokerWouldFail, InvalidValue
from rabbit_chx.mirror.fields import CLIENTS, Field, encode, seconds
from rabbit_chx.mirror.kernel import Atom
from rabbit_chx.mirror.kernel.terms import FALSE, TRUE, UNDEFINED, format_term
from tests import vectors
from tests.stream_messages import sized, tagged


def written_by_pika(value):
    pieces = []
    pika.data.encode_table(pieces, {"h": value})
    return b"".join(pieces)


WRITERS = {
    "pika": written_by_pika,
    "aio-pika": lambda value: pamqp.encode.field_table({"h": value}),
    "py-amqp": lambda value: amqp.serialization.dumps("F", [{"h": value}]),
}
JAVASCRIPT = [
    json.loads(line) for line in (vectors.HERE / "javascript_headers.jsonl").read_text().splitlines()
]


def from_javascript(value):
    match value:
        case {"$number": bits}:
            (number,) = struct.unpack(">d", bytes.fromhex(bits))
            return int(number) if number.is_integer() and number < 2**63 else number
        case {"$bytes": data}:
            return bytes.fromhex(data)
        case {"$date": moment}:
            return datetime.fromtimestamp(moment, UTC)
        case {"$object": entries}:
            return {name: from_javascript(item) for name, item in entries}
        case list():
            return [from_javascript(item) for item in value]
    return value


@pytest.mark.parametrize("client", ["amqplib", "rabbitmq-client"])
def test_a_value_from_javascript_gets_the_tags_and_the_bytes_that_the_client_writes(client):
    written = [line for line in JAVASCRIPT if line["client"] == client]
    assert len(written) > 80
    for line in written:
        value = from_javascript(line["value"])
        if line["table"] is None:
            with pytest.raises(InvalidValue):
                encode(value, client)
        else:
            assert table([("h", encode(value, client))]) == bytes.fromhex(line["table"])


def written(field):
    """A `Field` as it is sent: bytes tell apart what to Python is equal, such as 0.0 and -0.0, or 1 and True."""
    match field.tag:
        case "A":
            return b"A" + sized(b"".join(map(written, field.value)))
        case "F":
            return b"F" + table(field.value)
    return tagged(field)


def table(entries):
    """A table whose names are text, or bytes that a client has cut."""
    pieces = []
    for name, field in entries:
        encoded = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
        pieces += [bytes([len(encoded)]), encoded, written(field)]
    return sized(b"".join(pieces))


integers = st.one_of(
    st.integers(-(2**64), 2**64),
    st.builds(lambda bits, off, sign: sign * 2**bits + off, st.integers(0, 64), st.integers(-2, 2), st.sampled_from([1, -1])),
)  # fmt: skip
decimals = st.one_of(
    st.decimals(),
    st.builds(lambda digits, scale: Decimal(digits).scaleb(-scale), st.integers(-(2**33), 2**33), st.integers(-20, 300)),
)  # fmt: skip
zones = st.one_of(
    st.none(), st.just(UTC), st.builds(lambda hours: timezone(timedelta(hours=hours)), st.integers(-23, 23))
)
texts = st.text(st.characters(exclude_categories=[]), max_size=200)
leaves = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), decimals, texts, st.binary(max_size=300),
    st.builds(bytearray, st.binary(max_size=20)), st.datetimes(timezones=zones), st.dates(), st.complex_numbers(),
)  # fmt: skip
names = st.one_of(
    st.text(max_size=10),
    texts,
    st.text("é€🐇", min_size=40, max_size=140),
    st.binary(max_size=5),
    st.integers(),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.builds(tuple, st.lists(inner, max_size=4)),
        st.dictionaries(names, inner, max_size=4),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("client", WRITERS)
@given(value=values)
@example(value=float("nan"))
@example(value=-0.0)
@example(value=Decimal("sNaN"))
@example(value=Decimal("1E+3"))
@example(value=Decimal("2E+9"))
@example(value=Decimal("3E+9"))
@example(value=-(2**31))
@example(value=datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC))
@example(value=datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
@example(value={"n" * 130 + "a": 1, "n" * 130 + "b": 2})
@example(value={"é" * 64 + "€": "cut within a character"})
@example(value={"n" * 256: 1})
@example(value={b"raw": 1})
@example(value={"\ud800": "\udfff"})
@example(value={"b": 1, "a": 2})
def test_a_value_gets_the_tag_and_the_bytes_that_the_library_writes_or_is_refused_by_both(client, value):
    logging.disable(logging.WARNING)  # pamqp tells of every name that it cuts
    try:
        data = WRITERS[client](value)
    except Exception:  # noqa: BLE001 - each library has its own ways to fail
        with pytest.raises(InvalidValue):
            encode(value, client)
    else:
        assert table([("h", encode(value, client))]) == data
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("client", WRITERS)
@given(integers)
def test_an_integer_of_a_subclass_is_an_integer(client, value):
    decoded = pika.compat.long(value)  # as pika hands out what it decodes
    try:
        field = encode(value, client)
    except InvalidValue:
        with pytest.raises(InvalidValue):
            encode(decoded, client)
    else:
        assert type(encode(decoded, client).value) is int
        assert encode(decoded, client) == (Field("l", value) if client == "pika" else field)
        assert table([("h", encode(decoded, client))]) == WRITERS[client](decoded)


# What the broker makes of each tag: its own name for it, and the term.
TERMS = [
    (Field("S", "é"), "longstr", b"\xc3\xa9"),
    (Field("S", b"\xff"), "longstr", b"\xff"),
    (Field("x", b"\xff"), "binary", b"\xff"),
    (Field("t", True), "bool", TRUE),
    (Field("t", False), "bool", FALSE),
    (Field("V"), "void", UNDEFINED),
    (Field("b", -1), "byte", -1),
    (Field("B", 1), "unsignedbyte", 1),
    (Field("s", -1), "short", -1),
    (Field("u", 1), "unsignedshort", 1),
    (Field("I", -1), "signedint", -1),
    (Field("i", 1), "unsignedint", 1),
    (Field("l", -1), "long", -1),
    (Field("L", -1), "long", -1),
    (Field("f", 0.5), "float", 0.5),
    (Field("f", 0.1), "float", struct.unpack(">f", bytes.fromhex("3dcccccd"))[0]),
    (Field("d", 0.1), "double", 0.1),
    (Field("D", (2, 150)), "decimal", (2, 150)),
    (Field("D", (2, -150)), "decimal", (2, 2**32 - 150)),  # it knows no negative decimals
    (Field("T", 5), "timestamp", 5),
    (Field("A", (Field("I", 1), Field("V"))), "array", [(Atom("signedint"), 1), (Atom("void"), UNDEFINED)]),
    (Field("F", (("n", Field("t", True)),)), "table", [(b"n", Atom("bool"), TRUE)]),
]


@pytest.mark.parametrize(("field", "name", "term"), TERMS, ids=lambda given: str(given)[:30])
def test_a_field_has_the_type_and_the_term_that_the_broker_gives_it(field, name, term):
    assert field._pair == (Atom(name), term)


def test_an_integer_in_a_double_is_a_float_for_the_broker():
    # Compared as Erlang text, because 2 == 2.0 in Python.
    assert [format_term(Field(tag, 2)._term) for tag in "fdl"] == ["2.0", "2.0", "2"]


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        *(("b", 128), ("B", -1), ("s", 2**15), ("u", 2**16), ("I", 2**31), ("i", -1), ("l", 2**63)),
        *(("T", -1), ("T", None), ("f", 1e39), ("l", 0.5), ("d", "1.0")),
        *(
            ("S", 5),
            ("x", None),
            ("t", 1),
            ("V", 0),
            ("A", (1,)),
            ("A", 1),
            ("F", {"a": 1}),
            ("F", (("a", 1),)),
        ),
        *(
            ("D", 5),
            ("D", (256, 1)),
            ("D", (0, 2**32)),
            ("D", ("1", 1)),
            ("D", (1.5, 2)),
            ("A", {}),
            ("A", iter([])),
            ("F", {}),
        ),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(tag, value):
    with pytest.raises(InvalidValue, match=f"value of an AMQP field '{tag}'"):
        Field(tag, value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_erlang_lacks_has_no_term(number):
    for field in (
        Field("d", number),
        Field("A", (Field("f", number),)),
        Field("F", (("n", Field("d", number)),)),
    ):
        with pytest.raises(BrokerWouldFail, match="Erlang has no infinity or NaN"):
            field._term  # noqa: B018 - asking is the test


def test_a_field_is_taken_as_it_is_by_every_client():
    field = Field("u", 5)
    assert {encode(field, client) for client in CLIENTS} == {field}


class Unread(Decimal):
    """A decimal whose digits take half a minute, as those of 1E+999999."""

    def __int__(self):
        raise AssertionError("the digits are computed")


def test_a_huge_decimal_is_refused_without_computing_its_digits():
    with pytest.raises(InvalidValue, match="expected a value that aio-pika can encode"):
        encode(Unread("1E+30"), "aio-pika")


def test_an_unknown_tag_or_client_is_refused():
    with pytest.raises(InvalidValue, match="tag of an AMQP field"):
        Field("U", 1)
    with pytest.raises(InvalidValue, match="client"):
        encode("text", "kombu")


def test_seconds_are_counted_in_utc_and_not_before_1970():
    assert seconds(datetime(1970, 1, 2, tzinfo=UTC)) == seconds(datetime(1970, 1, 2)) == 86_400  # noqa: DTZ001
    assert seconds(datetime(1970, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 86_400 - 7_200
    with pytest.raises(OverflowError):
        seconds(datetime(1969, 12, 31, tzinfo=UTC))
