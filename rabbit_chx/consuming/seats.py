"""The seats of a group: one exclusive queue for each member, which the broker deletes when the member's connection ends.

The seat's queue is the member's address: questions to the member are sent there. The generators yield commands for a driver
and do no IO.

The number of the seat determines the member's priority on each queue, so every member can compute all priorities without
asking the others. Each member consumes all queues. On a quorum queue with a single active consumer, RabbitMQ 4.0 and later
activate the consumer with the highest ``x-priority``, so the priorities alone assign the queues, without a coordinator.

>>> [max([0, 1], key=lambda seat: priority(seat, queue, 4)) for queue in range(4)]
[0, 0, 1, 1]

Seat 0 takes all queues. Seat ``s`` takes ``queues // (s + 1)`` of them, one at a time from the seat that has the most.
So a new member never moves a queue between two others, and the loads of the seats 0 to ``s`` differ by at most one. The
queues of a free seat are spread over all other members.
"""

from __future__ import annotations

import os
import socket
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, Final

from pika.spec import RESOURCE_LOCKED

from rabbit_chx.base.names import seat_queue
from rabbit_chx.broker.commands import Command, OnChannel, Refused, routed, unless_missing

DISPLACING: Final = (1 << 31) - 1
"""A priority above every member's."""

_HIGHEST: Final = 1 << 30


def consumer_tag(group: str, seat: int) -> str:
    """The consumer tag, which identifies a member in the management UI."""
    tag = f"rabbit-chx.{group}.{seat}.{socket.gethostname()}.{os.getpid()}"
    return tag.encode()[:255].decode(errors="ignore")


def take_seat(group: str, seats: Iterable[int]) -> Generator[Command, Any, int | None]:
    """Take the first of these seats that is free; None if all are taken.

    Publishes nothing, because under a memory or disk alarm the broker stops reading from a connection that publishes. Each
    taken seat costs a channel and an error in the broker's log.
    """
    for seat in seats:
        # Explicit, because the virtual host may have another default type.
        arguments = {"x-queue-type": "classic"}
        try:
            yield OnChannel(
                "queue_declare",
                {"queue": seat_queue(group, seat), "exclusive": True, "arguments": arguments},
            )
        except Refused as refused:
            if refused.code != RESOURCE_LOCKED:
                raise
        else:
            return seat
    return None


def is_taken(group: str, seat: int) -> Generator[Command, Any, bool]:
    """Whether another connection has a seat; publishes nothing, at the same cost as `take_seat`."""
    try:
        yield from unless_missing(
            OnChannel("queue_declare", {"queue": seat_queue(group, seat), "passive": True})
        )
    except Refused as refused:
        if refused.code != RESOURCE_LOCKED:
            raise
        return True
    return False


def find_free(group: str, below: int) -> Generator[Command, Any, list[int]]:
    """The lowest free seat with a number less than ``below``; empty if all are taken.

    Publishes an expiring empty message to each seat, which costs less than `take_seat`.
    """
    for seat in range(below):
        if not (yield from routed(seat_queue(group, seat), b"", {"expiration": "0"})):
            return [seat]
    return []


def looks_lower(seat: int, seats: int, share: float) -> bool:
    """Whether a member looks for a lower seat this time; members in high seats do so more often. ``share`` is random."""
    return share <= (seat + 1) / (seats + 1)


# -- priorities ---------------------------------------------------------------------------------------


def priority(seat: int, queue: int, queues: int) -> int:
    """The priority of a seat on the queue with this index; ``queues`` is the number of queues."""
    takers = _takers(queues)[queue]
    below = bisect_left(takers, seat)
    if below < len(takers) and takers[below] == seat:
        return _taken(queue, takers[: below + 1])
    # Lower than the owner among the lower seats, and otherwise random, so the queues of an owner that ends are spread.
    return int(_random(queue, seat) * _taken(queue, takers[:below]))


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
