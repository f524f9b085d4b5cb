"""Which message the broker has returned: it names exchange and key, and sends properties and body back."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.publishing.window import Window, find_returned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FRAME_MAX = 131_072
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


def sent(row: int, properties: Mapping[str, Any], *, key: bytes = b"k", body: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(row, b"x", key, encode_properties(properties, frame_max=FRAME_MAX), body)


def look_up(
    messages: list[OutgoingMessage], *returns: Mapping[str, Any], key: str | bytes = "k", body: bytes = b""
) -> list[int | None]:
    """The rows that are found for messages that come back with these properties."""
    window = Window()
    window.sent(messages)
    method = SimpleNamespace(exchange="x", routing_key=key)
    rows: list[int | None] = []
    for properties in returns:
        found = find_returned(window, method, encode_properties(properties, frame_max=FRAME_MAX), body)
        if found is not None:
            found.returned = True
        rows.append(None if found is None else found.row)
    return rows


def test_the_message_with_identical_properties_is_preferred() -> None:
    messages = [sent(0, {}), sent(1, {"headers": {"a": 1}}), sent(2, {"headers": {"a": 2}})]
    assert look_up(messages, {"headers": {"a": 2}}) == [2]
    messages = [sent(0, {}), sent(1, {"headers": {"a": 1}})]
    assert look_up(messages, {}) == [0]


def test_a_message_whose_properties_the_broker_changed_is_recognised() -> None:
    def messages() -> list[OutgoingMessage]:
        return [sent(0, {"headers": {"a": 1}}), sent(1, {"headers": {"a": 2, "BCC": ["q"]}})]

    assert look_up(messages(), {"headers": {"a": 2}}) == [1]
    assert look_up(messages(), {"headers": {"a": 2, "x-stamp": 7}, "timestamp": MOMENT}) == [1]
    assert look_up(messages(), {"headers": {"a": 3}}) == [0]  # overwritten, so only the rest is compared


def test_another_property_makes_another_message_even_if_the_broker_changed_the_headers() -> None:
    common = {
        "content_type": "text/plain",
        "priority": 3,
        "timestamp": MOMENT,
        "headers": {"a": 1, "BCC": ["q"]},
    }
    messages = [sent(0, {**common, "type": "t"}), sent(1, {**common, "type": "u"})]
    assert look_up(messages, {**common, "type": "u", "headers": {"a": 1}}) == [1]


def test_headers_that_differ_in_a_fraction_are_told_apart() -> None:
    messages = [sent(row, {"headers": {"a": a, "BCC": ["q"]}}) for row, a in enumerate((1.2, 1.7))]
    assert look_up(messages, {"headers": {"a": 1.7, "BCC": ["q"]}}) == [1]
    messages = [sent(row, {"headers": {"a": a, "BCC": ["q"]}}) for row, a in enumerate((1.2, 1.7))]
    assert look_up(messages, {"headers": {"a": 1.7}}) == [1]  # the broker has removed BCC


def test_similar_messages_that_are_all_returned_are_all_found() -> None:
    bcc, plain = {"headers": {"a": 1, "BCC": ["q"]}}, {"headers": {"a": 1}}
    messages = [sent(0, bcc), sent(1, plain), sent(2, bcc)]
    assert look_up(messages, plain, plain, plain, plain) == [1, 2, 0, None]
    messages = [sent(0, bcc), sent(1, plain), sent(2, {"headers": {"a": 2}})]
    assert look_up(messages, plain, plain) == [1, 0]


def test_another_key_or_body_is_another_message() -> None:
    messages = [sent(0, {}, body=b"b")]
    assert look_up(messages, {}, key="other", body=b"b") == [None]
    assert look_up(messages, {}, body=b"c") == [None]
