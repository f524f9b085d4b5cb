"""Qpid Proton and `decode` return the values that `encode_messages` encoded."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from rabbit_chx.streams.messages.amqp10 import as_text
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.messages.message import is_basic
from tests.stream_messages import decode

pytest.importorskip("proton", reason="python-qpid-proton is missing: building it needs a C compiler")

from proton import Message

# Proton truncates strings at NUL.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=63)
long_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)
symbols = st.text(st.characters(codec="ascii", min_codepoint=1), min_size=1, max_size=255)
times = st.integers(0, 2**37).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
values = st.one_of(
    long_texts,
    st.binary(max_size=300),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
PROPERTIES = {
    **dict.fromkeys(("message_id", "correlation_id", "reply_to", "app_id"), texts),
    **dict.fromkeys(("content_type", "content_encoding"), symbols),
    "type": texts,
    "timestamp": st.integers(0, 2**37).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    "expiration": st.integers(0, 2**32 - 1),
    "priority": st.integers(0, 255),
    "delivery_mode": st.sampled_from([1, 2]),
}
OF_PROTON = {"message_id": "id", "app_id": "group_id", "timestamp": "creation_time"}


@given(
    body=st.binary(max_size=300),
    key=texts,
    # A header with such a name is read as a property.
    headers=st.dictionaries(texts.filter(lambda name: not is_basic(name)), values, max_size=30),
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
