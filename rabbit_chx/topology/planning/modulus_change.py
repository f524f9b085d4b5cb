"""Changes of an ``x-modulus-hash`` exchange, where the number of bindings determines the queue of every key."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final

import numpy as np

from rabbit_chx.errors import Unpredictable
from rabbit_chx.partitioning import ModulusHashExchange
from rabbit_chx.topology.planning.ring_change import Limits, Part
from rabbit_chx.topology.planning.steps import Bind, Unbind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rabbit_chx.releases import Release
    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Binding
    from rabbit_chx.topology.planning.steps import Step

__all__ = ["change_modulus", "modulus_moved"]

_HASHES: Final = 1 << 27
"""The number of values of phash2."""
_MOST_COUNTED: Final = 64
"""The most steps that are counted one by one; a longer change is counted only as a whole."""
_HINT: Final = (
    "with slots (`slots: 64`) under a new exchange, one queue more or less moves only its own share"
)


def change_modulus(
    found: Sequence[Binding],
    missing: Sequence[Binding],
    extra: Sequence[Binding],
    release: Release,
    limits: Limits,
    waiting: Callable[[Iterable[Destination]], int | None],
) -> Part:
    """The steps for one exchange, with the share of keys that they move."""
    if not found:
        return Part(steps=[Bind(binding) for binding in missing])
    gone = {binding.identity for binding in extra}
    after = [*(binding for binding in found if binding.identity not in gone), *missing]
    share = modulus_moved(found, after, release)
    cost = "an unknown share" if share is None else f"{share:.2%}"
    exchange = found[0].source
    part = Part(steps=_steps(found, missing, extra, release, waiting))
    part.notes.append(f"exchange {exchange!r}: another number of bindings moves {cost} of its keys; {_HINT}")
    if extra and (share is None or share > limits.max_moved) and not limits.force:
        part.refusals.append(
            f"exchange {exchange!r}: this change moves {cost} of its keys, which exceeds the limit of "
            f"{limits.max_moved:.0%}: build a new exchange under another name and switch over to it (blue/green), "
            f"raise the limit, or use force; {_HINT}"
        )
    return part


def _steps(
    found: Sequence[Binding],
    missing: Sequence[Binding],
    extra: Sequence[Binding],
    release: Release,
    waiting: Callable[[Iterable[Destination]], int | None],
) -> list[Step]:
    counted = len(missing) + len(extra) <= _MOST_COUNTED
    steps: list[Step] = []
    now = list(found)
    commands: list[tuple[type[Bind | Unbind], Binding]] = [
        *((Bind, each) for each in missing),
        *((Unbind, each) for each in extra),
    ]
    # Keys may leave any destination when the number of bindings changes.
    at_risk = waiting({each.destination for each in found})
    for kind, binding in commands:
        share = None
        if counted:
            after = [*now, binding] if kind is Bind else [each for each in now if each != binding]
            share = modulus_moved(now, after, release)
            now = after
        steps.append(kind(binding, exchange_moved=binding.source, moved=share, at_risk=at_risk))
    return steps


def modulus_moved(old: Sequence[Binding], new: Sequence[Binding], release: Release) -> float | None:
    """The exact share of hashed keys that change destination; None if the broker has no defined order.

    An exchange without bindings has no keys to move.
    """
    if not old:
        return 0.0
    if not new:
        return 1.0
    try:
        before, after = (
            ModulusHashExchange(
                [(each.destination, each.key) for each in bindings], release=release
            ).destinations
            for bindings in (old, new)
        )
    except Unpredictable:
        return None
    period = lcm(len(before), len(after))
    index = {destination: i for i, destination in enumerate(dict.fromkeys([*before, *after]))}
    columns = [np.resize([index[destination] for destination in side], period) for side in (before, after)]
    differs = columns[0] != columns[1]
    times, rest = divmod(_HASHES, period)
    return (times * int(np.count_nonzero(differs)) + int(np.count_nonzero(differs[:rest]))) / _HASHES
