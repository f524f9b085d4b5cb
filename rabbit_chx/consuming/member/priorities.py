"""The priority of each member of a group on each queue, which every member computes without asking the others.

Each member consumes all queues. On a quorum queue with a single active consumer, RabbitMQ 4.0 and later activate the
consumer with the highest ``x-priority``, so the priorities alone assign the queues, without a coordinator.

>>> [owner([0], queue, 4) for queue in range(4)]
[0, 0, 0, 0]
>>> [owner([0, 1], queue, 4) for queue in range(4)]
[0, 0, 1, 1]

Seat 0 takes all queues. Seat ``s`` takes ``queues // (s + 1)`` of them, one at a time from the seat that has the most.
So a new member never moves a queue between two others, and the loads of the seats 0 to ``s`` differ by at most one. The
queues of a free seat are spread over all other members. This module does no IO.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

DISPLACING: Final = (1 << 31) - 1
"""A priority above every member's."""

_HIGHEST: Final = 1 << 30


def priority(seat: int, queue: int, queues: int) -> int:
    """The priority of a seat on the queue with this index; ``queues`` is the number of queues."""
    takers = _takers(queues)[queue]
    below = bisect_left(takers, seat)
    if below < len(takers) and takers[below] == seat:
        return _taken(queue, takers[: below + 1])
    # Lower than the owner among the lower seats, and otherwise random, so the queues of an owner that ends are spread.
    return int(_random(queue, seat) * _taken(queue, takers[:below]))


def owner(seats: Iterable[int], queue: int, queues: int) -> int:
    """The seat, among the taken ones, whose member gets the messages of a queue."""
    return max(seats, key=lambda seat: priority(seat, queue, queues))


def _taken(queue: int, takers: Sequence[int]) -> int:
    """The priority of the last of these seats; each seat takes the queue from the seat before it."""
    found = 0.0
    for seat in takers:
        found += (1 - found) * (1 + _random(queue, seat)) / 3
    return int(_HIGHEST * found)


def _random(queue: int, seat: int) -> float:
    digest = blake2b(f"{queue}:{seat}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


@lru_cache(maxsize=16)
def _takers(queues: int) -> tuple[tuple[int, ...], ...]:
    """For each queue, the seats that take it, each from the seat before it."""
    held = [list(range(queues))]
    takers = [[0] for _ in range(queues)]
    most = [(-queues, 0)]
    for seat in range(1, queues):
        taken = []
        for _ in range(queues // (seat + 1)):
            count, giver = heappop(most)
            queue = held[giver].pop()
            taken.append(queue)
            takers[queue].append(seat)
            heappush(most, (count + 1, giver))
        held.append(taken)
        heappush(most, (-len(taken), seat))
    return tuple(map(tuple, takers))
