"""The judge of a group's history detects each kind of error."""

from __future__ import annotations

import pytest

from tests.faults.group_history import Diary, Sight, judge

ADA, BOB = ("ada", 1), ("bob", 1)
SECOND = 1_000_000_000


def history(text: str) -> list[Sight]:
    """Sights of one queue, a second apart, each as its process, key and number."""
    words = text.split()
    seen = zip(words[::2], words[1::2], strict=True)
    return [Sight(at * SECOND, (name, 1), "q0", key[0], int(key[1:])) for at, (name, key) in enumerate(seen)]


SLOW = "ada x0  ada z1  ada y2  ada y3  ada y4  ada y5  bob x0"
UNEXPLAINED = {"unexplained": [0]}


@pytest.mark.parametrize(
    ("text", "killed", "at_once", "errors"),
    [
        pytest.param("ada x0  bob y1  bob x2", set(), 1, {}, id="a good history"),
        pytest.param("ada x1  bob x0  bob y2", set(), 1, {"disorder": [0]}, id="a key out of order"),
        pytest.param("ada x1  bob y0  bob x2", set(), 1, {}, id="keys out of order"),
        pytest.param("ada x0  ada x1  bob x1  bob x2", {ADA}, 1, {}, id="the last message of a killed member"),
        pytest.param("ada x0  ada x1  bob x1  bob x2", set(), 1, {"unexplained": [1]}, id="of a running member"),
        pytest.param("ada x0  ada x1  bob x0  bob x2", {ADA}, 1, UNEXPLAINED, id="acknowledged with a later one"),
        pytest.param("ada x0  bob x0  eve x0", {ADA, BOB}, 1, {}, id="two killed members"),
        pytest.param("ada x0  bob x0  eve x0", {ADA}, 1, UNEXPLAINED, id="two repeated by one killed member"),
        pytest.param("bob x0  bob x1  ada x0  bob x2", {ADA}, 1, {}, id="a paused member, later than its successor"),
        pytest.param("ada x0  ada y1  bob x0", {ADA}, 1, UNEXPLAINED, id="an earlier one, if one at once"),
        pytest.param("ada x0  ada y1  bob x0", {ADA}, 2, {}, id="an earlier one, if two at once"),
        pytest.param("ada x0  ada y1  bob x0", set(), 2, UNEXPLAINED, id="an earlier one of a running member"),
        pytest.param(SLOW, {ADA}, 2, {}, id="of a slow handler, if two at once"),
        pytest.param(SLOW, {ADA}, 1, UNEXPLAINED, id="of a slow handler, if one at once"),
        pytest.param(f"{SLOW}  bob z1", {ADA}, 3, {}, id="of two slow handlers, if three at once"),
        pytest.param(f"{SLOW}  bob z1", {ADA}, 2, UNEXPLAINED, id="of two slow handlers, if two at once"),
    ],
)  # fmt: skip
def test_each_error_of_a_history_is_found_and_no_other(text, killed, at_once, errors) -> None:
    sights = history(text)
    published = dict.fromkeys([each.number for each in sights], 0)
    found = judge(reversed(sights), killed, published, at_once=at_once)  # sights are merged by time
    disorder = [sight.number for sight in found.disorder]
    shown = {"lost": found.lost, "unexpected": found.unexpected}
    shown |= {"disorder": disorder, "unexplained": found.unexplained}
    assert {name: numbers for name, numbers in shown.items() if numbers} == errors
    assert found.duplicated == len(sights) - len({each.number for each in sights})
    assert found.seen == len(sights)


def test_lost_and_unexpected_messages_are_found() -> None:
    found = judge(history("ada x0  ada x7"), set(), {0: 0, 1: 0})
    assert (found.lost, found.unexpected) == ([1], [7])


def test_a_diary_distinguishes_lives() -> None:
    diary = Diary("ada")
    for line in (
        "connected 2",
        "handled 5 q0 k1 7 False",
        "lost",
        "lost",
        "connected 0",
        "handled 9 q0 k1 7 True",
        "seat 1",
    ):
        diary.read(line)
    assert diary.sights == [
        Sight(5, ("ada", 1), "q0", "k1", 7, False),
        Sight(9, ("ada", 2), "q0", "k1", 7, True),
    ]
    assert diary.seat == 1
    assert diary.ended_badly == {("ada", 1), ("ada", 2)}
    diary.read("stopped")
    assert diary.ended_badly == {("ada", 1)}
