"""Messages that Qpid Proton encodes are decoded to the same values, and Proton decodes those that are encoded here."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from rabbit_chx.streams.messages.amqp10 import as_text
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.messages.message import is_basic
from tests.stream_messages import decode

pytest.importorskip("proton", reason="python-qpid-proton is missing: building it needs a C compiler")

from proton import Message, timestamp, ulong

# Proton truncates some strings at NUL.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)
numbers = st.integers(-(2**63), 2**63 - 1)
simple = st.one_of(
    texts, numbers, st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False), st.uuids()
)


def as_expected(value):
    """Convert a value to text, following the table in `amqp10.as_text`."""
    if isinstance(value, (str, type(None))):
        return value
    return str(value) if isinstance(value, uuid.UUID) else json.dumps(value)


@given(
    body=st.binary(max_size=300),
    headers=st.dictionaries(texts.filter(lambda name: not name.startswith("x-")), simple, max_size=5),
    properties=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(
                ("content_type", "content_encoding"),
                st.text(st.characters(codec="ascii", min_codepoint=1), min_size=1),
            ),
            **dict.fromkeys(("reply_to", "correlation_id", "id", "group_id", "subject"), texts),
            "priority": st.integers(0, 9),
            "durable": st.booleans(),
        },
    ),
)
def test_messages_encoded_by_qpid_proton_are_decoded(body, headers, properties) -> None:
    message = Message(body=body, inferred=True, properties=headers or None, **properties)
    found = decode(bytes(message.encode()), "s", 0)
    assert found.body == body
    assert found.headers == {name: as_expected(value) for name, value in headers.items()}
    assert (found.message_id, found.correlation_id) == (
        properties.get("id"),
        properties.get("correlation_id"),
    )
    assert (found.type, found.app_id) == (properties.get("subject"), properties.get("group_id"))
    assert found.content_type == properties.get("content_type")
    if "priority" in properties and properties["priority"] != 4:  # proton omits the default, 4
        assert found.priority == properties["priority"]


nested = st.recursive(
    simple,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(nested, max_size=4))
def test_nested_values_become_json(value) -> None:
    found = decode(bytes(Message(body=value, inferred=False).encode()), "s", 0)
    assert found.body is not None
    assert json.loads(found.body) == json.loads(json.dumps(value, default=str))


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (2**63 - 1, "9223372036854775807"),
    ],
)
def test_times_are_iso_8601_in_the_years_1_to_9999(milliseconds: int, text: str) -> None:
    message = Message(body=b"", inferred=True, properties={"at": timestamp(milliseconds)})
    assert decode(bytes(message.encode()), "s", 0).headers == {"at": text}
    if text.endswith("Z"):
        moment = datetime.fromisoformat(text)
        assert round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) == milliseconds


@pytest.mark.parametrize(
    ("number", "text"), [(float("inf"), "inf"), (float("-inf"), "-inf"), (float("nan"), "nan")]
)
def test_infinity_and_nan_are_text(number: float, text: str) -> None:
    message = Message(body=[number], inferred=False, properties={"n": number, "id": ulong(1)})
    found = decode(bytes(message.encode()), "s", 0)
    assert found.headers == {"n": text, "id": "1"}
    assert found.body == b'["%s"]' % text.encode()


# ---- encoded here

short_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=63)
symbols = st.text(st.characters(codec="ascii", min_codepoint=1), min_size=1, max_size=255)
times = st.integers(0, 2**37).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
values = st.one_of(
    texts,
    st.binary(max_size=300),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
PROPERTIES = {
    **dict.fromkeys(("message_id", "correlation_id", "reply_to", "app_id"), short_texts),
    **dict.fromkeys(("content_type", "content_encoding"), symbols),
    "type": short_texts,
    "timestamp": times,
    "expiration": st.integers(0, 2**32 - 1),
    "priority": st.integers(0, 255),
    "delivery_mode": st.sampled_from([1, 2]),
}
OF_PROTON = {"message_id": "id", "app_id": "group_id", "timestamp": "creation_time"}


@given(
    body=st.binary(max_size=300),
    key=short_texts,
    # A header with such a name is read as a property.
    headers=st.dictionaries(short_texts.filter(lambda name: not is_basic(name)), values, max_size=30),
    properties=st.fixed_dictionaries({}, optional=PROPERTIES),
)
def test_qpid_proton_and_decode_return_the_encoded_values(body, key, headers, properties) -> None:
    (encoded,) = encode_messages([body], routing_keys=key, exchange="orders", headers=[headers], **properties)
    message = Message()
    message.decode(encoded)
    assert bytes(message.body) == body
    assert dict(message.annotations)["x-routing-key"] == key
    assert (message.properties or {}) == headers
    for name in properties.keys() & {
        "message_id",
        "correlation_id",
        "reply_to",
        "app_id",
        "content_type",
        "timestamp",
    }:
        value = properties[name]
        expected = round(value.timestamp()) if name == "timestamp" else value
        assert getattr(message, OF_PROTON.get(name, name)) == expected, name

    found = decode(encoded, "s", 0)
    assert (found.body, found.routing_key, found.exchange) == (body, key, "orders")
    assert found.headers == {name: as_text(value) for name, value in headers.items()}
    read = dict(properties)
    if "expiration" in read:
        read["expiration"] = str(read["expiration"])
    assert {name: getattr(found, name) for name in read} == read


@given(when=times)
def test_a_time_in_a_header_is_a_timestamp_in_milliseconds(when) -> None:
    (encoded,) = encode_messages([b""], headers=[{"when": when}])
    message = Message()
    message.decode(encoded)
    assert message.properties["when"] == round(when.timestamp() * 1000)
