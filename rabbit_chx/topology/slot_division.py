"""How a fixed number of slots is divided among queues, with the fewest slots changed. Values only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rabbit_chx.ring import Destination

__all__ = ["divide", "quotas", "recommended_count"]


def quotas(count: int, weights: Mapping[str, int], have: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many slots each queue gets, its share rounded down or up: up for those that have more, then by largest remainder.

    >>> quotas(64, {"a": 1, "b": 1, "c": 3})
    {'a': 13, 'b': 13, 'c': 38}
    """
    total = sum(weights.values())
    if not total:
        return {}
    shares = {queue: divmod(count * weight, total) for queue, weight in weights.items()}
    left = count - sum(whole for whole, _ in shares.values())
    order = list(weights)
    first = sorted(
        order,
        key=lambda queue: (
            -((have or {}).get(queue, 0) > shares[queue][0]),
            -shares[queue][1],
            order.index(queue),
        ),
    )
    return {queue: shares[queue][0] + (queue in first[:left]) for queue in order}


def divide(
    names: Sequence[str],
    weights: Mapping[str, int],
    holders: Mapping[str, Sequence[Destination]] | None = None,
) -> dict[str, str]:
    """The queue of each slot, with the fewest slots changed.

    Args:
        names: the slots.
        weights: the queues that share them.
        holders: the destinations that each slot has now, the last bound last. A slot with two is an unfinished
            change, so the last one is preferred.
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


def recommended_count(queues: int) -> int:
    """How many slots a new top exchange should have: a power of two from 64 to 256, at least 16 for each queue if possible."""
    if queues < 1:
        raise InvalidValue("number of queues", queues, "at least 1")
    return next((count for count in (64, 128) if count >= 16 * queues), 256)
