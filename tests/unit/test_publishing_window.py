"""The window of unconfirmed messages, compared with a simple model.

Also which of them the broker has returned: it names exchange and key, and sends properties and body back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rabbit_chx.mirror.fields import Field
from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.properties import encode_properties
from rabbit_chx.publishing.window import Window, find_returned


def message(row: int, key: bytes = b"", *, exchange: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(row, exchange, key, b"", b"")


def rows(messages: list[OutgoingMessage]) -> list[int]:
    return [message.row for message in messages]


class WindowModel(RuleBasedStateMachine):
    """A dict of delivery tags, compared with the window under the rules of AMQP."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window()
        self.model: dict[int, int] = {}
        self.next_number = 1
        self.row = 0

    @rule(count=st.integers(0, 5))
    def send(self, count: int) -> None:
        self.window.sent([message(self.row + i) for i in range(count)])
        for _ in range(count):
            self.model[self.next_number] = self.row
            self.next_number += 1
            self.row += 1

    @rule(data=st.data(), multiple=st.booleans(), positive=st.booleans())
    def confirm(self, data: st.DataObject, multiple: bool, positive: bool) -> None:
        number = data.draw(st.integers(0 if multiple else 1, self.next_number + 1))
        if multiple:
            spoken_of = [n for n in self.model if n <= number or number == 0]
        else:
            spoken_of = [n for n in self.model if n == number]
        acked, nacked = self.window.settle([(number, multiple, positive)])
        told, silent = (acked, nacked) if positive else (nacked, acked)
        assert rows(told) == [self.model.pop(n) for n in spoken_of]
        assert not silent

    @precondition(lambda self: self.model)
    @rule()
    def lose_the_channel(self) -> None:
        assert rows(self.window.abandon()) == list(self.model.values())
        self.model.clear()
        self.next_number = 1

    @invariant()
    def never_holds_less_than_what_is_unconfirmed(self) -> None:
        assert len(self.window) >= len(self.model)


class TestWindow(WindowModel.TestCase):
    @pytest.fixture(autouse=True)
    def set_aside_early(self, monkeypatch) -> None:
        monkeypatch.setattr("rabbit_chx.publishing.window._MOST", 4)


def test_returns_are_found_in_publish_order() -> None:
    window = Window()
    sent = [message(row, key) for row, key in enumerate([b"a", b"b", b"a", b"a", b"b"])]
    window.sent(sent)
    found = [window.find_returned(lambda one, key=key: one.routing_key == key) for key in (b"a", b"a", b"b")]
    assert [one.row for one in found if one is not None] == [0, 2, 4]


def test_confirms_read_together_are_booked_one_after_the_other() -> None:
    window = Window()
    window.sent([message(row) for row in range(6)])
    acked, nacked = window.settle([(3, False, True), (1, False, False), (4, True, True), (9, False, True)])
    assert (rows(acked), rows(nacked)) == ([2, 1, 3], [0])
    assert rows(window.abandon()) == [4, 5]


@pytest.mark.parametrize(
    ("confirm", "left"),
    [(None, [1, 9]), ((2, False, True), [9]), ((2, True, True), [9]), ((0, True, True), [])],
)
def test_the_window_does_not_grow_behind_a_message_that_is_never_confirmed(
    confirm: Any, left: list[int]
) -> None:
    window = Window()
    window.sent([message(0), message(1)])
    window.settle([(1, False, True)])
    for first in range(3, 200_000, 500):
        window.sent([message(first + each) for each in range(500)])
        returned = window.find_returned(lambda one, row=first: one.row == row)
        assert returned is not None
        window.settle([(first + each, False, True) for each in range(500)])
    window.sent([message(9)])
    assert len(window) < 20_000
    window.settle([confirm] if confirm else [])
    assert rows(list(window)) == rows(window.abandon()) == left
    assert not window


# -- what was returned ---------------------------------------------------------------------------------------

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


def test_a_header_that_pika_cannot_decode_is_compared_all_the_same() -> None:
    late = Field("T", 253_402_300_800)  # the year 10000
    messages = [sent(0, {"headers": {"at": late, "a": 1}}), sent(1, {"headers": {"at": late, "a": 2}})]
    assert look_up(messages, {"headers": {"at": late, "a": 2, "x-stamp": 7}}) == [1]


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
    assert look_up([sent(0, {}, key=b"\xff")], {}, key=b"\xff") == [0]
