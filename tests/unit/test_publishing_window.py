"""The window of unconfirmed messages, compared with a simple model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rabbit_chx.publishing.messages import OutgoingMessage
from rabbit_chx.publishing.window import Window


def message(row: int, key: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(row, b"", key, b"", b"")


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


TestWindow = WindowModel.TestCase


def test_returns_are_found_in_publish_order() -> None:
    window = Window()
    sent = [message(row, key) for row, key in enumerate([b"a", b"b", b"a", b"a", b"b"])]
    window.sent(sent)
    found = [window.find_returned(lambda one, key=key: one.routing_key == key) for key in (b"a", b"a", b"b")]
    assert [one.row for one in found if one is not None] == [0, 2, 4]


def test_a_return_of_something_that_is_not_in_flight_is_nothing() -> None:
    window = Window()
    window.sent([message(0, b"a")])
    assert window.find_returned(lambda one: one.routing_key == b"z") is None
    window.settle([(1, False, True)])
    assert window.find_returned(lambda _: True) is None


def test_a_new_channel_looks_for_returns_from_its_own_first_message() -> None:
    window = Window()
    window.sent([message(0, b"a"), message(1, b"a")])
    assert window.find_returned(lambda _: True) is not None
    window.sent(window.abandon())
    found = window.find_returned(lambda one: one.row == 0)
    assert found is not None


def test_confirms_read_together_are_booked_one_after_the_other() -> None:
    window = Window()
    window.sent([message(row) for row in range(6)])
    acked, nacked = window.settle([(3, False, True), (1, False, False), (4, True, True), (9, False, True)])
    assert (rows(acked), rows(nacked)) == ([2, 1, 3], [0])
    assert rows(window.abandon()) == [4, 5]
