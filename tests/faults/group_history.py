"""What the members of a group did, put together and judged. This module does no IO.

A member's *life* is one connection. Each message that a member handled is a `Sight`; the same message may be seen again
where the first sight could not be acknowledged. The verdict:

    lost          published, and never seen
    disorder      first sights that come after the first sight of a later message with the same key
    unexplained   messages seen more than once although more than one of the sights was acknowledged
    waits         how long each queue had messages, and nobody worked on it

A sight can only be unacknowledged if its life ended without a stop. Acknowledgements are cumulative: whatever the same life
handled later from the same queue must have been seen elsewhere, too.
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
    """Of the message; they ascend for each key."""
    redelivered: bool = False


@dataclass
class Diary:
    """What one process wrote, line by line."""

    process: str
    sights: list[Sight] = field(default_factory=list)
    lives: int = 0
    seat: int | None = None
    lost: set[Life] = field(default_factory=set)
    stopped: bool = False

    def read(self, line: str) -> None:
        """Take in the next line."""
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
        """The lives that ended without a stop, once the process is gone."""
        return self.lost if self.stopped else {*self.lost, (self.process, self.lives)}


@dataclass
class Verdict:
    """What became of the messages."""

    lost: list[int]
    unexpected: list[int]
    disorder: list[Sight]
    duplicated: int
    unexplained: list[int]
    waits: dict[str, float]
    """The longest time in seconds for which each queue had messages and nobody worked on it."""
    handled: dict[str, int]
    """Sights of each process."""

    @property
    def seen(self) -> int:
        return sum(self.handled.values())

    @property
    def longest_wait(self) -> float:
        return max(self.waits.values(), default=0.0)


def judge(sights: Iterable[Sight], ended_badly: set[Life], published: Mapping[int, int]) -> Verdict:
    """Judge what all processes wrote; ``published`` has the time of each number that was confirmed."""
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
        unexplained=sorted(_unexplained(ordered, ended_badly)),
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


def _unexplained(ordered: Sequence[Sight], ended_badly: set[Life]) -> Iterator[int]:
    """Numbers of which more than one sight was acknowledged."""
    seen: defaultdict[int, list[Sight]] = defaultdict(list)
    runs: defaultdict[tuple[Life, str], list[Sight]] = defaultdict(list)
    for sight in ordered:
        seen[sight.number].append(sight)
        runs[sight.life, sight.queue].append(sight)
    unacknowledged: set[Sight] = set()
    for (life, _), run in runs.items():
        for sight in reversed(run):
            if life not in ended_badly or len(seen[sight.number]) < 2:
                break
            unacknowledged.add(sight)
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
