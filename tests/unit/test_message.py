"""A message as a handler gets it, and its fields."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pika import BasicProperties

from rabbit_chx.broker.deliveries import RawDelivery
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message import Message, StreamMessage
from rabbit_chx.messages.message_fields import FIELDS, PROPERTIES, Properties, PropertyColumns, checked
from rabbit_chx.mirror.fields import Field
from rabbit_chx.working.messages import copied_properties, from_raw
from tests.unit.complaints import complaint

MOMENT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
SET: Properties = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "delivery_mode": 1,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": MOMENT,
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
}


def test_a_test_can_make_a_message() -> None:
    message = Message(b"body", "key", headers={"tenant": "acme"}, message_id="m-1")
    assert (message.body, message.routing_key, message.headers) == (b"body", "key", {"tenant": "acme"})
    assert (message.message_id, message.type, message.timestamp) == ("m-1", None, None)
    assert (message.redelivered, message.attempt, message.queue) == (False, 1, "")
    assert pickle.loads(pickle.dumps(message)).properties == {"message_id": "m-1"}


@pytest.mark.parametrize("kind", [Message, StreamMessage])
def test_every_property_is_an_attribute(kind: type[Message]) -> None:
    message = kind(b"", **SET)
    assert {name: getattr(message, name) for name in SET} == SET
    assert {*SET, "headers"} == set(PROPERTIES) == {*Properties.__annotations__, "headers"}
    assert PropertyColumns.__annotations__.keys() == SET.keys()


@pytest.mark.parametrize("kind", [Message, StreamMessage])
def test_the_properties_of_a_message_are_what_a_copy_of_it_may_have(kind: type[Message]) -> None:
    message = kind(b"", **SET)
    assert message.properties == {name: SET[name] for name in SET.keys() - {"user_id", "expiration"}}
    assert copied_properties(message, {"n": 5}) == {
        **message.properties,
        "headers": {"n": 5},
        "delivery_mode": 2,
    }


def test_a_message_has_no_unknown_property() -> None:
    error = complaint(lambda: Message(b"", mesage_id="m"))  # type: ignore[call-arg]
    assert "invalid property: got 'mesage_id', expected one of app_id, content_encoding" in str(error)


def test_a_delivery_has_what_was_received() -> None:
    sent = BasicProperties(**SET | {"timestamp": 1_700_000_000}, headers={"n": 5})
    delivered = from_raw("q", RawDelivery(7, True, "orders", "key", b"".join(sent.encode()), b"body"))
    assert isinstance(delivered, Message)
    assert (delivered.body, delivered.exchange, delivered.routing_key) == (b"body", "orders", "key")
    assert (delivered.queue, delivered.redelivered, delivered.headers) == ("q", True, {"n": 5})
    assert {name: getattr(delivered, name) for name in SET} == SET
    assert delivered.properties == Message(b"", **SET).properties
    late = from_raw(
        "q", RawDelivery(7, True, "", "", b"".join(BasicProperties(timestamp=2**63).encode()), b"")
    )
    assert (late.timestamp, late.properties, late.headers) == (None, {}, {})


def test_the_flags_are_those_of_the_protocol() -> None:
    assert {name: field.flag for name, field in PROPERTIES.items()} == {
        name: getattr(BasicProperties, f"FLAG_{name.upper()}") for name in PROPERTIES
    }
    assert len({field.name for field in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("message_id", "käse", "käse"),
        ("message_id", None, None),
        ("expiration", 5, "5"),
        ("expiration", "0", "0"),
        ("priority", 255, 255),
        ("delivery_mode", 2, 2),
        ("timestamp", MOMENT.replace(microsecond=999_999), 1_700_000_000),
        ("headers", {"n": [1.5, {"a": Decimal("1.5")}]}, {"n": [1.5, {"a": Decimal("1.5")}]}),
        ("headers", {"late": Field("T", 2**63)}, {"late": Field("T", 2**63)}),
        ("headers", {"CC": ["a", "b"]}, {"CC": ["a", "b"]}),
    ],
)
def test_a_valid_property_is_accepted(name: str, value: object, sent: object) -> None:
    assert checked(name, value) == sent


NESTED: list[object] = []
for _ in range(40):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("message_id", 5, "invalid property message_id: got 5, expected str"),
        ("message_id", "x" * 256, "expected at most 255 bytes"),
        ("message_id", "\udc80", "expected text without lone surrogates"),
        ("expiration", 5.0, "invalid property expiration: got 5.0, expected whole milliseconds"),
        ("expiration", True, "got True"),
        ("expiration", "soon", "got 'soon'"),
        ("expiration", 2**32, "below 2^32"),
        ("expiration", "9" * 5_000, "below 2^32"),
        ("expiration", [], "got []"),
        ("priority", 256, "invalid property priority: got 256, expected an integer from 0 to 255"),
        ("priority", True, "got True"),
        ("delivery_mode", 3, "expected an integer from 1 to 2"),
        ("timestamp", 1_700_000_000, "expected an aware datetime from 1970 to 9999"),
        ("timestamp", MOMENT.replace(tzinfo=None), "expected an aware datetime"),
        ("timestamp", datetime(1969, 12, 31, tzinfo=UTC), "from 1970 to 9999"),
        ("headers", [("a", 1)], "invalid headers: got [('a', 1)], expected a mapping"),
        (
            "headers",
            {"n": 2**63},
            "invalid header n: got 9223372036854775808, expected an integer of at most",
        ),
        ("headers", {"n": [1, {"m": float("nan")}]}, "invalid header n: got nan, expected a finite number"),
        ("headers", {"n": {"m": object}}, "invalid header n: got <class 'object'>"),
        ("headers", {"n": {5: "m"}}, "invalid name in header n: got 5"),
        ("headers", {"n": (1, 2)}, "invalid header n: got (1, 2)"),
        ("headers", {"n": NESTED}, "nested at most 32 deep"),
        ("headers", {"n": Decimal(2**40)}, "a decimal of at most 32 bits"),
        ("headers", {"n": datetime(2023, 1, 1)}, "invalid header n: got datetime.datetime(2023"),  # noqa: DTZ001
        ("headers", {"x" * 256: 1}, "invalid header name"),
        ("headers", {"CC": "a"}, "invalid header CC: got 'a', expected a list of str"),
        ("cluster_id", "c", "invalid property: got 'cluster_id', expected one of"),
    ],
)
def test_an_invalid_property_is_refused(name: str, value: object, words: str) -> None:
    error = complaint(lambda: checked(name, value))
    assert isinstance(error, InvalidValue)
    assert words in str(error)
