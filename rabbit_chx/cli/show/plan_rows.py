"""Shorten the list of a plan's steps: steps that differ only in a running number become one row, and so do slots.

``--verbose`` and JSON list every step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeVar

from rabbit_chx.base.text import percent
from rabbit_chx.topology.planning.steps import Bind, Plan, Step, Unbind

_Other = TypeVar("_Other")

# The number at the end of a quoted name; keys and names that consist of digits only do not match.
_NUMBER: Final = re.compile(r"(?<=[^'0-9])([0-9]+)(?=')")
_SLOT: Final = re.compile(r"(.+)\.slot\.[0-9]+")


@dataclass(frozen=True)
class Row:
    """One line for one or more steps of a plan."""

    text: str
    count: int
    destructive: bool
    share: str
    """The formatted share of an exchange's keys that moves; empty where the step concerns no keys."""
    waiting: int | None
    """Messages in the queues that lose these keys."""


def condense(texts: Iterable[str]) -> list[str]:
    """Merge consecutive texts that differ only in a running number of one name, such as ``'q.{0..7}'``."""
    return [text for text, _, _ in _runs((text, None) for text in texts)]


def rows_of(plan: Plan, *, verbose: bool = False) -> list[Row]:
    """Return the rows for the steps of a plan."""
    if verbose:
        return [_row(step) for step in plan.steps]
    rows: list[Row] = []
    for top, steps in groupby(plan.steps, key=_top_of):
        if top is not None:
            rows.append(_slots_row(top, list(steps), plan))
            continue
        found = [_row(step) for step in steps]
        runs = _runs((row.text, replace(row, text="")) for row in found)
        rows += [replace(row, text=text, count=count) for text, row, count in runs]
    return rows


def _row(step: Step) -> Row:
    share = "" if step.exchange_moved is None else percent(step.moved)
    return Row(str(step), 1, step.destructive, share, step.at_risk if step.moved else None)


def _runs(items: Iterable[tuple[str, _Other]]) -> list[tuple[str, _Other, int]]:
    """Return each run as one text, with the value that its items have in common and their number."""
    runs: list[tuple[list[list[str]], _Other]] = []
    place: int | None = None
    for text, other in items:
        parts = _NUMBER.split(text)  # numbers have odd indexes
        found = _next_place(runs[-1][0][-1], parts) if runs and runs[-1][1] == other else None
        if found is not None and place in (None, found):
            place = found
            runs[-1][0].append(parts)
        else:
            place = None
            runs.append(([parts], other))
    return [(_as_one(run[0], run[-1]), common, len(run)) for run, common in runs]


def _next_place(last: Sequence[str], parts: Sequence[str]) -> int | None:
    """Return the index of the number that has grown by one, if nothing else differs."""
    if len(last) != len(parts):
        return None
    differing = [index for index, (old, new) in enumerate(zip(last, parts, strict=True)) if old != new]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    old, new = last[differing[0]], parts[differing[0]]
    following = str(int(old) + 1)
    return differing[0] if new in (following, following.zfill(len(old))) else None


def _as_one(first: Sequence[str], last: Sequence[str]) -> str:
    both = zip(first, last, strict=True)
    return "".join(old if old == new else f"{{{old}..{new}}}" for old, new in both)


def _top_of(step: Step) -> str | None:
    """Return the top exchange of the slot whose queue a step changes."""
    found = _SLOT.fullmatch(step.binding.source) if isinstance(step, (Bind, Unbind)) else None
    return found and found[1]


def _slots_row(top: str, steps: Sequence[Step], plan: Plan) -> Row:
    """Summarize all slots of an exchange by their old and new queues."""
    old: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    waiting: dict[str, int | None] = {}
    for step in steps:
        assert isinstance(step, (Bind, Unbind))
        queue = str(step.binding.destination)
        (new if isinstance(step, Bind) else old).setdefault(step.binding.source, []).append(queue)
        if isinstance(step, Unbind) and step.moved:
            waiting[queue] = step.at_risk
    slots = dict.fromkeys([*old, *new])
    ways = Counter(
        f"{','.join(old.get(slot, ()))} -> {','.join(new.get(slot, ()))}".strip() for slot in slots
    )
    listed = ", ".join(f"{way} ({count})" for way, count in ways.items())
    moved = None if any(step.moved is None for step in steps) else plan.slot_moves.get(top, 0.0)
    counts = list(waiting.values())
    return Row(
        f"point {len(slots)} slot{'s' * (len(slots) != 1)} of {top!r}: {listed}",
        len(steps),
        destructive=any(step.destructive for step in steps),
        share=percent(moved) if any(old.values()) or moved else "",
        waiting=sum(count or 0 for count in counts) if counts and None not in counts else None,
    )
