"""Divide a fixed number of slots among queues while changing the fewest slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rabbit_chx.base.text import counted
from rabbit_chx.errors import Unquoted
from rabbit_chx.mirror.ring import Destination

SLOTS_PER_QUEUE: Final = 16
"""With fewer, the shares of the queues are coarse."""
MOST_SLOTS: Final = 256


def quotas(count: int, weights: Mapping[str, int], have: Mapping[str, int] | None = None) -> dict[str, int]:
    """The number of slots of each queue: its share, rounded down or up.

    Rounding up prefers queues that have more slots already (``have``), then the largest remainder.

    >>> quotas(64, {"a": 1, "b": 1, "c": 3})
    {'a': 13, 'b': 13, 'c': 38}
    """
    total = sum(weights.values())
    shares = {queue: divmod(count * weight, total) for queue, weight in weights.items()}
    left = count - sum(whole for whole, _ in shares.values())
    have = have or {}
    first = sorted(shares, key=lambda queue: (have.get(queue, 0) <= shares[queue][0], -shares[queue][1]))
    return {queue: whole + (queue in first[:left]) for queue, (whole, _) in shares.items()}


def divide(
    names: Sequence[str],
    weights: Mapping[str, int],
    holders: Mapping[str, Sequence[Destination]] | None = None,
) -> dict[str, str]:
    """Assign a queue to each slot while changing the fewest slots.

    ``holders`` has the current destinations of each slot. Two destinations are the sign of an unfinished change; the
    last is the new one, and preferred.
    """
    held = {slot: [queue for queue in (holders or {}).get(slot, ()) if queue in weights] for slot in names}
    have = {queue: sum(held[slot] == [queue] for slot in names) for queue in weights}
    quota = quotas(len(names), weights, have)
    division: dict[str, str] = {}
    for slot in sorted(names, key=lambda slot: len(held[slot])):  # slots with a choice come last
        queue = next((queue for queue in reversed(held[slot]) if quota[str(queue)]), None)
        if queue is not None:
            division[slot] = str(queue)
            quota[str(queue)] -= 1
    for slot in names:
        if slot not in division and quota:
            queue = max(quota, key=lambda queue: quota[queue])
            division[slot] = queue
            quota[queue] -= 1
    return {slot: division[slot] for slot in names if slot in division}


def too_few(slots: int, queues: int) -> tuple[Unquoted, str, str] | None:
    """What is wrong, what is expected and a hint, if there are fewer slots than queues."""
    if slots >= queues:
        return None
    got = Unquoted(f"{counted(slots, 'slot')} for {counted(queues, 'queue')}")
    return got, "at least one slot per queue", "64 slots suit most exchanges"


def recommended_count(queues: int) -> int:
    """The recommended number of slots: 64, 128 or 256, and at least 16 per queue if possible."""
    return next((count for count in (64, 128) if count >= SLOTS_PER_QUEUE * queues), MOST_SLOTS)
