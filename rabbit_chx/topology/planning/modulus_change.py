"""Changes of an ``x-modulus-hash`` exchange, where the number of bindings determines the queue of every key."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Final

import numpy as np

from rabbit_chx.base.advice import Advice
from rabbit_chx.errors import Unpredictable
from rabbit_chx.mirror.partitioning import HASHES, modulus_destinations
from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.model import Binding
from rabbit_chx.topology.planning.ring_change import Part, Request
from rabbit_chx.topology.planning.steps import Bind, Step, Unbind

_MOST_COUNTED: Final = 64
"""The most steps that are counted one by one; a longer change is counted only as a whole."""
_HINT: Final = (
    "with slots (`slots: 64`) under a new exchange, adding or removing a queue moves only that queue's share"
)


def change_modulus(
    found: Sequence[Binding], missing: Sequence[Binding], extra: Sequence[Binding], request: Request
) -> Part:
    """The steps for one exchange, with the share of keys that they move."""
    if not found:
        return Part([Bind(binding) for binding in missing])
    release, exchange = request.observed.release, found[0].source
    gone = {binding._identity for binding in extra}
    after = [*(binding for binding in found if binding._identity not in gone), *missing]
    share = modulus_moved(found, after, release)
    cost = "an unknown share" if share is None else f"{share:.2%}"
    part = Part(_steps(found, missing, extra, request))
    part.notes.append(f"exchange {exchange!r}: another number of bindings moves {cost} of its keys; {_HINT}")
    if extra and request.exceeds(share):
        part.refusals.append(
            f"exchange {exchange!r}: this change moves {cost} of its keys, which exceeds the limit of "
            f"{request.max_moved:.0%}: build a new exchange under another name and switch over to it (blue/green), "
            f"{Advice.RAISE_LIMIT}, or {Advice.FORCE}; {_HINT}"
        )
    return part


def _steps(
    found: Sequence[Binding], missing: Sequence[Binding], extra: Sequence[Binding], request: Request
) -> list[Step]:
    # Keys may leave any destination when the number of bindings changes.
    at_risk = request.waiting({each.destination for each in found})
    counted = len(missing) + len(extra) <= _MOST_COUNTED
    steps: list[Step] = []
    now = list(found)
    for binding in (*missing, *extra):
        kind = Bind if len(steps) < len(missing) else Unbind
        share = None
        if counted:
            after = [*now, binding] if kind is Bind else [each for each in now if each != binding]
            share = modulus_moved(now, after, request.observed.release)
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
            modulus_destinations([(each.destination, each.key) for each in bindings], release)
            for bindings in (old, new)
        )
    except Unpredictable:
        return None
    period = lcm(len(before), len(after))
    index = {destination: i for i, destination in enumerate(dict.fromkeys([*before, *after]))}
    columns = [np.resize([index[destination] for destination in side], period) for side in (before, after)]
    differs = columns[0] != columns[1]
    times, rest = divmod(HASHES, period)
    return (times * int(np.count_nonzero(differs)) + int(np.count_nonzero(differs[:rest]))) / HASHES
