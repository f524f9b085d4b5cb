"""The judge of a group's history detects each kind of error."""

from __future__ import annotations

from tests.faults.group_history import Diary, Sight, Verdict, judge

ADA, BOB = ("ada", 1), ("bob", 1)
SECOND = 1_000_000_000


def history(*rows: tuple[tuple[str, int], str, int]) -> list[Sight]:
    """Sights of one queue, a second apart: life, key, number."""
    return [Sight(at * SECOND, life, "q0", key, number) for at, (life, key, number) in enumerate(rows, 1)]


def verdict_on(
    *rows: tuple[tuple[str, int], str, int], killed: tuple[tuple[str, int], ...] = (), published: int = 3
) -> Verdict:
    return judge(history(*rows), set(killed), dict.fromkeys(range(published), 0))


def test_a_good_history() -> None:
    found = verdict_on((ADA, "x", 0), (BOB, "y", 1), (BOB, "x", 2))
    assert (found.lost, found.unexpected, found.disorder, found.unexplained) == ([], [], [], [])
    assert found.duplicated == 0
    assert found.handled == {"ada": 1, "bob": 2}


def test_lost_and_unexpected_messages() -> None:
    found = verdict_on((ADA, "x", 0), (ADA, "x", 7), published=2)
    assert found.lost == [1]
    assert found.unexpected == [7]


def test_a_key_out_of_order_across_processes() -> None:
    found = verdict_on((ADA, "x", 1), (BOB, "x", 0), (BOB, "y", 2))
    assert [sight.number for sight in found.disorder] == [0]
    assert not verdict_on((ADA, "x", 1), (BOB, "y", 0), (BOB, "x", 2)).disorder


def test_a_repeated_sight_is_not_disorder() -> None:
    found = verdict_on((ADA, "x", 0), (ADA, "x", 1), (BOB, "x", 1), (BOB, "x", 2), killed=(ADA,))
    assert not found.disorder
    assert found.duplicated == 1


def test_sights_are_merged_by_time_and_not_by_their_order_in_the_files() -> None:
    rows = history((ADA, "x", 0), (BOB, "x", 1), (ADA, "x", 2))
    assert not judge(reversed(rows), set(), {0: 0, 1: 0, 2: 0}).disorder


def test_the_last_message_of_a_killed_member_may_be_seen_again() -> None:
    found = verdict_on((ADA, "x", 0), (ADA, "x", 1), (BOB, "x", 1), (BOB, "x", 2), killed=(ADA,))
    assert found.unexplained == []


def test_a_running_or_stopped_member_does_not_explain_a_duplicate() -> None:
    found = verdict_on((ADA, "x", 0), (ADA, "x", 1), (BOB, "x", 1), (BOB, "x", 2))
    assert found.unexplained == [1]


def test_a_message_acknowledged_with_a_later_one_must_not_be_seen_again() -> None:
    found = verdict_on((ADA, "x", 0), (ADA, "x", 1), (BOB, "x", 0), (BOB, "x", 2), killed=(ADA,))
    assert found.unexplained == [0]


def test_each_further_sight_needs_a_life_that_ended_badly() -> None:
    rows = ((ADA, "x", 0), (BOB, "x", 0), (("eve", 1), "x", 0))
    assert verdict_on(*rows, killed=(ADA, BOB), published=1).unexplained == []
    assert verdict_on(*rows, killed=(ADA,), published=1).unexplained == [0]


def test_a_paused_member_may_record_its_message_after_its_successor() -> None:
    found = verdict_on((BOB, "x", 0), (BOB, "x", 1), (ADA, "x", 0), (BOB, "x", 2), killed=(ADA,))
    assert found.unexplained == []


def test_the_longest_wait_of_a_queue_with_messages() -> None:
    sights = [
        Sight(1 * SECOND, ADA, "q0", "x", 0),
        Sight(31 * SECOND, BOB, "q0", "x", 1),
        Sight(32 * SECOND, BOB, "q1", "y", 2),
    ]
    found = judge(sights, set(), {0: 0, 1: 2 * SECOND, 2: 30 * SECOND})
    assert found.waits == {
        "q0": 29.0,
        "q1": 2.0,
    }  # q0 waits from the time when the next message was published
    assert found.longest_wait == 29.0


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


def test_with_several_messages_at_once_an_earlier_one_may_be_the_unacknowledged_one() -> None:
    rows = history((ADA, "x", 0), (ADA, "y", 1), (BOB, "x", 0))
    assert judge(rows, {ADA}, {0: 0, 1: 0}).unexplained == [0]
    assert judge(rows, {ADA}, {0: 0, 1: 0}, at_once=2).unexplained == []
    assert judge(rows, set(), {0: 0, 1: 0}, at_once=2).unexplained == [0]


def test_with_several_messages_at_once_the_message_of_a_slow_handler_may_be_seen_again() -> None:
    later = [(ADA, "y", number) for number in range(2, 9)]
    slow = history((ADA, "x", 0), (ADA, "z", 1), *later, (BOB, "x", 0))
    both = history((ADA, "x", 0), (ADA, "z", 1), *later, (BOB, "x", 0), (BOB, "z", 1))
    published = dict.fromkeys(range(9), 0)
    assert judge(slow, {ADA}, published, at_once=2).unexplained == []
    assert judge(slow, {ADA}, published, at_once=1).unexplained == [0]
    assert judge(both, {ADA}, published, at_once=3).unexplained == []
    assert judge(both, {ADA}, published, at_once=2).unexplained == [0]
