"""The table of priorities: even loads, and a new member that moves no queue between other members."""

from __future__ import annotations

from collections import Counter

import pytest

from rabbit_chx.consuming.seats import priority

MOST_SEATS = 16


def owners(seats: list[int], queues: int) -> list[int]:
    """The seat whose member gets the messages of each queue."""
    return [max(seats, key=lambda seat: priority(seat, queue, queues)) for queue in range(queues)]


@pytest.mark.parametrize("queues", [1, 2, 3, 5, 7, 8, 16, 31, 64, 100, 257])
def test_each_new_member_takes_its_share_and_moves_no_other_queue(queues: int) -> None:
    before = owners([0], queues)
    for members in range(2, min(queues, MOST_SEATS) + 1):
        after = owners(list(range(members)), queues)
        loads = Counter(after)
        assert set(loads) == set(range(members))
        assert max(loads.values()) - min(loads.values()) <= 1
        assert {new for old, new in zip(before, after, strict=True) if old != new} == {members - 1}
        before = after


def test_a_new_member_only_takes_queues_even_if_lower_seats_are_free() -> None:
    before, after = owners([1, 4, 5], 16), owners([1, 3, 4, 5], 16)
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {3}


@pytest.mark.parametrize("members", [4, 5, 8])
def test_the_queues_of_a_free_seat_go_to_several_members(members: int) -> None:
    for gone in range(members):
        rest = [seat for seat in range(members) if seat != gone]
        lost = [queue for queue, seat in enumerate(owners(list(range(members)), 64)) if seat == gone]
        heirs = Counter(owners(rest, 64)[queue] for queue in lost)
        assert len(heirs) > 1
        assert max(heirs.values()) < len(lost)


def test_priorities_on_a_queue_are_distinct_and_fit_into_32_bits() -> None:
    for queue in range(64):
        column = [priority(seat, queue, 64) for seat in range(64)]
        assert len(set(column)) == 64
        assert 0 <= min(column) <= max(column) < 2**31


def test_priorities_can_be_computed_for_ten_thousand_seats() -> None:
    assert len({priority(seat, 0, 10_000) for seat in range(0, 10_000, 100)}) > 90
