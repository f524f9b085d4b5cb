"""Merge the records of a group's members, and judge them. This module does no IO.

A member's *life* is one connection. Each handled message is a `Sight`; a message may be seen again if its first sight could
not be acknowledged. The verdict:

    lost          messages that were published and never seen
    disorder      first sights that come after the first sight of a later message with the same key
    unexplained   messages with more than one acknowledged sight
    waits         how long each queue had messages that no member handled

A sight can be unacknowledged only if its life ended without a stop. Acknowledgements are cumulative: if a sight was not
acknowledged, every later message that the same life handled from the same queue must have been seen again too. With
``order="key"``, each later message that is handled is acknowledged alone, so there are exceptions: as many as a member handles at the
same time, of which all but one may be as old as they like, because their handlers were slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Life: TypeAlias = "tuple[str, int]"
"""A process, and the number of its connection."""


class Sight(NamedTuple):
    """A message that was handled."""

    time: int
    """Nanoseconds of the clock that all processes of a machine share."""
    life: Life
    queue: str
    key: str
    number: int
    """The message's number; the numbers of a key ascend."""
    redelivered: bool = False


@dataclass
class Diary:
    """The record of one process, parsed line by line."""

    process: str
    sights: list[Sight] = field(default_factory=list)
    lives: int = 0
    seat: int | None = None
    lost: set[Life] = field(default_factory=set)
    stopped: bool = False

    def read(self, line: str) -> None:
        """Parse the next line."""
        kind, *words = line.split(" ")
        match kind:
            case "handled":
                time, queue, key, number, redelivered = words
                life = (self.process, self.lives)
                self.sights.append(Sight(int(time), life, queue, key, int(number), redelivered == "True"))
            case "seat":
                self.seat = int(words[0])
            case "connected":
                self.lives += 1
                self.seat = int(words[0])
            case "lost":
                self.lost.add((self.process, self.lives))
                self.seat = None
            case "stopped":
                self.stopped = True

    @property
    def ended_badly(self) -> set[Life]:
        """The lives that ended without a stop; valid after the process has ended."""
        return self.lost if self.stopped else {*self.lost, (self.process, self.lives)}


@dataclass
class Verdict:
    """The result of judging a history."""

    lost: list[int]
    unexpected: list[int]
    disorder: list[Sight]
    duplicated: int
    unexplained: list[int]
    waits: dict[str, float]
    """For each queue, the longest time in seconds for which it had messages that no member handled."""
    handled: dict[str, int]
    """The number of sights of each process."""

    @property
    def seen(self) -> int:
        return sum(self.handled.values())

    @property
    def longest_wait(self) -> float:
        return max(self.waits.values(), default=0.0)


def judge(
    sights: Iterable[Sight], ended_badly: set[Life], published: Mapping[int, int], *, at_once: int = 1
) -> Verdict:
    """Judge the sights of all processes.

    Args:
        sights: of all processes.
        ended_badly: the lives that ended without a stop.
        published: the publishing time of each confirmed number.
        at_once: how many messages of a queue a member handles at the same time.
    """
    ordered = sorted(sights)
    first: dict[int, Sight] = {}
    for sight in ordered:
        first.setdefault(sight.number, sight)
    handled: defaultdict[str, int] = defaultdict(int)
    for sight in ordered:
        handled[sight.life[0]] += 1
    return Verdict(
        lost=sorted(published.keys() - first.keys()),
        unexpected=sorted(first.keys() - published.keys()),
        disorder=list(_disorder(first.values())),
        duplicated=len(ordered) - len(first),
        unexplained=sorted(_unexplained(ordered, ended_badly, at_once)),
        waits=_waits(ordered, published),
        handled=dict(handled),
    )


def _disorder(firsts: Iterable[Sight]) -> Iterator[Sight]:
    highest: dict[str, int] = {}
    for sight in firsts:
        if sight.number < highest.get(sight.key, -1):
            yield sight
        else:
            highest[sight.key] = sight.number


def _unexplained(ordered: Sequence[Sight], ended_badly: set[Life], at_once: int) -> Iterator[int]:
    """The numbers of messages with more than one acknowledged sight."""
    seen: defaultdict[int, list[Sight]] = defaultdict(list)
    runs: defaultdict[tuple[Life, str], list[Sight]] = defaultdict(list)
    for sight in ordered:
        seen[sight.number].append(sight)
        runs[sight.life, sight.queue].append(sight)
    unacknowledged: set[Sight] = set()
    for (life, _), run in runs.items():
        left = at_once if life in ended_badly else 0
        slow = left - 1
        for sight in reversed(run):
            left -= len(seen[sight.number]) < 2
            if left > 0:
                unacknowledged.add(sight)
            elif slow > 0 and sight is not seen[sight.number][-1]:
                unacknowledged.add(sight)
                slow -= 1
            elif slow <= 0:
                break
    for number, its in seen.items():
        if len(its) - sum(sight in unacknowledged for sight in its) > 1:
            yield number


def _waits(ordered: Sequence[Sight], published: Mapping[int, int]) -> dict[str, float]:
    latest: dict[str, int] = {}
    waits: dict[str, float] = {}
    for sight in ordered:
        begun = max(latest.get(sight.queue, 0), published.get(sight.number, sight.time))
        wait = (sight.time - begun) / 1e9
        waits[sight.queue] = max(waits.get(sight.queue, 0.0), wait)
        latest[sight.queue] = sight.time
    return waits
