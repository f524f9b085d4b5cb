"""Plans in files, so that the plan that was reviewed is the plan that is applied.

A plan file contains the topology, the options and the steps. `rabbit-chx apply` plans again from the topology and the broker,
and compares the steps with those of the file. Steps that are only in the file are never carried out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rabbit_chx.base.advice import Advice
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.ring import Ring
from rabbit_chx.topology.file.dump import json_text, values_of
from rabbit_chx.topology.file.load import MAX_BYTES, loads, read_text
from rabbit_chx.topology.model import Observed, Topology
from rabbit_chx.topology.planning.plan import rings_after
from rabbit_chx.topology.planning.steps import Plan

_FORMAT: Final = 1
_MAX_BYTES: Final = 8 * MAX_BYTES
"""The steps take several times the space of the topology, which may have ranges."""
OPTIONS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "strategy": (str, type(None)),
    "prune": bool,
    "force": bool,
    "max_moved": (int, float),
}
"""The options that decide a plan, and the types of their values."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The plan of one virtual host, as it was shown."""

    wanted: Topology
    cluster: str
    steps: tuple[str, ...]
    orders: Mapping[str, str]
    """The order in which the plan leaves each ring, as far as it is known."""

    @classmethod
    def of(cls, wanted: Topology, made: Plan, observed: Observed) -> Reviewed:
        """What a plan does in one virtual host."""
        orders = dict(_orders(rings_after(wanted, made.changes, observed)))
        return cls(wanted, observed.cluster, tuple(map(str, made.steps)), orders)

    def refusals(self, made: Plan, observed: Observed) -> tuple[str, ...]:
        """The differences of a plan that was made again; steps may be missing at its start, because they are done."""
        if observed.cluster != self.cluster:
            return (f"the plan is for cluster {self.cluster!r}, and this is cluster {observed.cluster!r}",)
        now = Reviewed.of(self.wanted, made, observed)
        found = [*self._other_steps(now.steps), *self._other_orders(now.orders)]
        if found:
            found.insert(
                0, "the broker has changed since this plan was made. Plan again, and review the new plan"
            )
        return tuple(found)

    def _other_steps(self, now: Sequence[str]) -> list[str]:
        left = iter(self.steps)
        if all(step in left for step in now):
            return []
        new, gone = Counter(now) - Counter(self.steps), Counter(self.steps) - Counter(now)
        if not new:
            return ["the steps of the plan are needed in another order now"]
        return [
            *(f"not in the plan, but needed now: {step}" for step in new),
            *(f"in the plan, but not needed now: {step}" for step in gone),
        ]

    def _other_orders(self, now: Mapping[str, str]) -> Iterator[str]:
        for exchange, order in self.orders.items():
            if exchange not in now:
                yield f"exchange {exchange!r}: the order of its ring was known, and is unknown now: {Advice.LEARN_ORDER}"
            elif now[exchange] != order:
                yield f"exchange {exchange!r}: the plan ends in the order {order}, and would now end in {now[exchange]}"


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """The contents of a plan file."""

    options: Mapping[str, Any]
    """The arguments of `plan`."""
    reviewed: tuple[Reviewed, ...]

    def of(self, vhost: str) -> Reviewed:
        """The plan of a virtual host in the file."""
        return next(each for each in self.reviewed if each.wanted.vhost == vhost)


def dumps_plan(saved: SavedPlan, *, version: str) -> str:
    """The text of a plan file that this version of the package writes."""
    vhosts = [
        {
            "cluster": each.cluster,
            "steps": each.steps,
            "orders": each.orders,
            "topology": values_of(each.wanted),
        }
        for each in saved.reviewed
    ]
    return json_text({"plan": _FORMAT, "rabbit-chx": version, "options": saved.options, "vhosts": vhosts})


def is_plan_file(path: str | Path) -> bool:
    """Whether this is the name of a plan file, and not of a topology file."""
    return Path(path).suffix.lower() == ".plan"


def load_plan(path: str | Path) -> SavedPlan:
    """Read a plan file."""
    text, value = read_text(str(path), at_most=_MAX_BYTES), None
    try:
        value = json.loads(text)
        _check_format(value)
        options = {name: _field(value["options"], name, kind) for name, kind in OPTIONS.items()}
        reviewed = tuple(_reviewed(each, f"{path} (topology)") for each in _field(value, "vhosts", list))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise _damaged(path) from None
    if not reviewed:
        raise _damaged(path)
    return SavedPlan(options, reviewed)


def _damaged(path: str | Path) -> InvalidValue:
    hint = "The file is damaged: plan again"
    return InvalidValue("plan file", str(path), "a file that `rabbit-chx plan --out` has written", hint)


def _check_format(value: Mapping[str, Any]) -> None:
    found = _field(value, "plan", int)
    if found != _FORMAT:
        version = _field(value, "rabbit-chx", str)
        hint = f"rabbit-chx {version} has written the file: use that version to apply it, or plan again"
        raise InvalidValue("format of the plan file", found, str(_FORMAT), hint)


def _reviewed(value: Mapping[str, Any], name: str) -> Reviewed:
    steps, orders = _field(value, "steps", list), _field(value, "orders", dict)
    if not all(isinstance(each, str) for each in (*steps, *orders.values())):
        raise TypeError
    wanted = loads(json.dumps(value["topology"]), format="json", name=name)
    return Reviewed(wanted, _field(value, "cluster", str), tuple(steps), orders)


def _field(value: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    found = value[name]
    if not isinstance(found, kind):
        raise TypeError
    return found


def _orders(rings: Mapping[str, Ring]) -> Iterator[tuple[str, str]]:
    for exchange, ring in rings.items():
        if ring.runs is not None:
            yield exchange, ", ".join(f"{each}={weight}" for each, weight in ring.runs)
