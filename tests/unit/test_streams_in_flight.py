"""What is in flight to a stream, compared with a set of publishing ids, whatever the broker confirms and in whatever order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st

from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing.messages import Outcome
from rabbit_chx.streams.publishing.lots import InFlight, Lot, LotOutbox

OWNER: Any = SimpleNamespace(settled=lambda *_: None)


def lot(ids: list[int] | range) -> Lot:
    return Lot(range(len(ids)), [None] * len(ids), [b"%d" % each for each in ids], ids, OWNER)


@st.composite
def lots(draw) -> list[Lot]:
    """Lots whose ids increase: without gaps, as one stream gets them, or with gaps, as the streams of an exchange do."""
    made, start = [], 1
    for size in draw(st.lists(st.integers(1, 5), max_size=5)):
        gaps = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
        ids = [start + sum(gaps[:place]) for place in range(size)]
        made.append(lot(range(start, start + size) if draw(st.booleans()) else ids))
        start = made[-1].ids[-1] + draw(st.integers(1, 3))
    return made


@given(lots(), st.data())
def test_confirms_in_any_order_leave_what_a_set_says(sent: list[Lot], data) -> None:
    in_flight, done = InFlight(), []
    in_flight.add(sent)
    open_ids = {each for one in sent for each in one.ids or ()}
    highest = max(open_ids, default=0) + 2
    for confirmed in data.draw(st.lists(st.lists(st.integers(0, highest), max_size=8), max_size=8)):
        done += in_flight.confirm(confirmed)
        open_ids.difference_update(confirmed)
        assert len(in_flight) == len(open_ids)
        entries = [entry for one in in_flight for entry in one.entries()]
        assert entries == [(each, b"%d" % each) for each in sorted(open_ids)]
        assert [*done, *in_flight] == sent
        assert not any(open_ids.intersection(one.ids or ()) for one in done)
        assert not sent or not list(in_flight) or open_ids.intersection(next(iter(in_flight)).ids or ())
    for one in in_flight:
        found = one.by_outcome(()).get(Outcome.UNKNOWN, ())
        assert [message.body for message in found] == [b"%d" % each for each in one.ids if each in open_ids]


def test_duplicates_are_counted_while_another_thread_withdraws_messages() -> None:
    outbox, confirmed = LotOutbox(max_messages=9, max_bytes=99), lot([1, 2])
    confirmed.duplicates = 2

    class Withdrawn(Lot):
        # As if the thread that sends had its turn at this moment.
        duplicates = property(lambda _: outbox.settle([confirmed], Outcome.CONFIRMED) or 0, lambda *_: None)

    outbox.settle([Withdrawn([0], [None], [b"a"], [3], OWNER)], Outcome.UNSENT)
    totals = outbox.totals()
    assert (totals.confirmed, totals.duplicates, totals.unsent) == (2, 2, 1)


def test_a_lot_for_an_outbox_that_was_closed_is_left_to_its_caller() -> None:
    """Who has locks at this moment that a hook, which is told the outcome, may need."""
    told: list[Outcome] = []
    late = lot([1])
    late.owner = SimpleNamespace(settled=lambda _, outcome, __: told.append(outcome))
    outbox = LotOutbox(max_messages=9, max_bytes=99)
    outbox.give_up(BrokerUnavailable("its stream was removed"), closed=True)
    assert not outbox.put(late)
    assert (told, outbox.totals().pending) == ([], 1)
