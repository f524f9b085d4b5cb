"""Publishers, streams and the Spark connector accept the same properties, and raise the same errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pika import BasicProperties

from rabbit_chx.broker.properties import Properties
from rabbit_chx.errors import InvalidValue
from rabbit_chx.message_fields import PROPERTIES
from rabbit_chx.publishing.batch_columns import property_column
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.streams import encode_messages
from rabbit_chx.streams.messages.message import decode

FRAME_MAX = 131_072
moments = st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC) | st.none())  # noqa: DTZ001
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=5),
    st.text(min_size=250, max_size=260),
    st.sampled_from(["5", "05", "-1", "1.5", "soon", "\ud800", str(2**32)]),
    moments,
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=1),
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800"),
    moments,
    st.binary(max_size=5),
    st.builds(object),
)
"""Streams store no lists, dicts and decimals, so only these are compared in headers."""
headers = st.dictionaries(
    st.one_of(st.text(max_size=5), st.just("x" * 256), st.just("CC")), plain, max_size=3
)


def outcome(encode: Any) -> Any:
    """What an encoder returns; for an invalid value its error, without the row."""
    try:
        return encode()
    except InvalidValue as error:
        return str(error).replace(" in row 0", "")


@st.composite
def named(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from(sorted(PROPERTIES)))
    return name, draw(headers if name == "headers" else anything)


@given(named())
def test_every_encoder_accepts_the_same_values_and_raises_the_same_errors(one: tuple[str, Any]) -> None:
    name, value = one
    found = {
        "one": outcome(lambda: encode_properties({name: value}, frame_max=FRAME_MAX)),
        "column": outcome(lambda: property_column({}, {name: [value]}, 1, frame_max=FRAME_MAX)[0]),
        "stream": outcome(lambda: next(iter(encode_messages([b""], **{name: [value]})))),  # type: ignore[arg-type]
    }
    errors = {each for each in found.values() if isinstance(each, str)}
    if errors:
        assert len(errors) == 1
        assert all(isinstance(each, str) for each in found.values())
        return
    assert found["one"] == found["column"]
    if name not in {"headers", "delivery_mode"}:
        sent = Properties().decode(found["one"])
        stored = decode(found["stream"], "s", 0)
        read = getattr(stored, name)
        at = None if name != "timestamp" or read is None else int(read.timestamp())
        kept = getattr(sent, name)
        assert (at if name == "timestamp" else read) == (kept if not isinstance(kept, bytes) else read)


finite = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
            lambda when: when.replace(microsecond=0)
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name not in {"CC", "BCC"}), finite, max_size=3)
)
def test_headers_arrive_as_they_were_given_however_deep_their_floats_are(table: dict[str, Any]) -> None:
    encoded = encode_properties({"headers": table}, frame_max=FRAME_MAX)
    assert (Properties().decode(encoded).headers or {}) == table


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(
                ("message_id", "type", "content_type", "app_id", "user_id"), st.text(max_size=20)
            ),
            "expiration": st.integers(0, 2**32 - 1).map(str),
            "priority": st.integers(0, 255),
            "delivery_mode": st.sampled_from([1, 2]),
        },
    )
)
def test_a_content_header_is_what_pika_encodes(properties: dict[str, Any]) -> None:
    found = encode_properties(properties, frame_max=FRAME_MAX)
    assert found == b"".join(BasicProperties(**{"delivery_mode": 2, **properties}).encode())


@pytest.mark.parametrize("name", ["cluster_id", "colour"])
def test_every_encoder_refuses_an_unknown_property(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"invalid property: got '{name}'"):
        encode_properties({name: "x"}, frame_max=FRAME_MAX)
    with pytest.raises(InvalidValue, match=f"invalid property: got '{name}'"):
        encode_messages([b""], **{name: "x"})  # type: ignore[arg-type]
