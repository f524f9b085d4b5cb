"""Topology as code: what a broker should hold, what it holds, and the steps from one to the other.

    >>> from rabbit_chx.topology import Observed, loads, plan
    >>> wanted = loads("exchanges: {orders: {type: fanout}}", format="yaml")
    >>> for step in plan(wanted, Observed()).steps:
    ...     print(step)
    declare exchange 'orders' of type fanout

The names below are everything that a caller needs: whatever these functions take or return can be imported from
here. A name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rabbit_chx.broker.applying.apply import Applied, apply, apply_async
    from rabbit_chx.broker.management import Management, Overview, User
    from rabbit_chx.broker.reading.node import NodeAccess, NodeCommand
    from rabbit_chx.broker.reading.reader import read
    from rabbit_chx.errors import ApplyStopped, InvalidValue
    from rabbit_chx.releases import Release, Store
    from rabbit_chx.ring import Destination, Ring, RingBinding, ToExchange
    from rabbit_chx.topology.checks.drift import Drift, drift
    from rabbit_chx.topology.checks.lint import lint
    from rabbit_chx.topology.checks.lint_rules import Finding
    from rabbit_chx.topology.checks.prometheus import prometheus_metrics
    from rabbit_chx.topology.file.definitions import from_definitions, to_definitions
    from rabbit_chx.topology.file.dump import dumps
    from rabbit_chx.topology.file.load import InvalidTopology, Problem, load, loads
    from rabbit_chx.topology.model import Binding, Exchange, Observed, Policy, Queue, Slots, Topology
    from rabbit_chx.topology.planning.drain_order import drain_first, drain_first_in, drain_stages
    from rabbit_chx.topology.planning.plan import plan
    from rabbit_chx.topology.planning.steps import (
        Bind,
        ClearPolicy,
        DeclareExchange,
        DeclareQueue,
        DeleteExchange,
        DeleteQueue,
        Plan,
        RingChange,
        SetPolicy,
        Step,
        Strategy,
        Unbind,
    )
    from rabbit_chx.topology.planning.what_if import assume_applied, what_if
    from rabbit_chx.topology.routes import Router, route
    from rabbit_chx.urls import BrokerUrl

_NAMES_IN = {
    "broker.applying.apply": ("Applied", "apply", "apply_async"),
    "broker.management": ("Management", "Overview", "User"),
    "broker.reading.node": ("NodeAccess", "NodeCommand"),
    "broker.reading.reader": ("read",),
    "errors": ("ApplyStopped", "InvalidValue"),
    "releases": ("Release", "Store"),
    "ring": ("Destination", "Ring", "RingBinding", "ToExchange"),
    "topology.checks.drift": ("Drift", "drift"),
    "topology.checks.lint": ("lint",),
    "topology.checks.lint_rules": ("Finding",),
    "topology.checks.prometheus": ("prometheus_metrics",),
    "topology.file.definitions": ("from_definitions", "to_definitions"),
    "topology.file.dump": ("dumps",),
    "topology.file.load": ("InvalidTopology", "Problem", "load", "loads"),
    "topology.model": ("Binding", "Exchange", "Observed", "Policy", "Queue", "Slots", "Topology"),
    "topology.planning.drain_order": ("drain_first", "drain_first_in", "drain_stages"),
    "topology.planning.plan": ("plan",),
    "topology.planning.steps": (
        "Bind",
        "ClearPolicy",
        "DeclareExchange",
        "DeclareQueue",
        "DeleteExchange",
        "DeleteQueue",
        "Plan",
        "RingChange",
        "SetPolicy",
        "Step",
        "Strategy",
        "Unbind",
    ),
    "topology.planning.what_if": ("assume_applied", "what_if"),
    "topology.routes": ("Router", "route"),
    "urls": ("BrokerUrl",),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

__all__ = [
    "Applied",
    "ApplyStopped",
    "Bind",
    "Binding",
    "BrokerUrl",
    "ClearPolicy",
    "DeclareExchange",
    "DeclareQueue",
    "DeleteExchange",
    "DeleteQueue",
    "Destination",
    "Drift",
    "Exchange",
    "Finding",
    "InvalidTopology",
    "InvalidValue",
    "Management",
    "NodeAccess",
    "NodeCommand",
    "Observed",
    "Overview",
    "Plan",
    "Policy",
    "Problem",
    "Queue",
    "Release",
    "Ring",
    "RingBinding",
    "RingChange",
    "Router",
    "SetPolicy",
    "Slots",
    "Step",
    "Store",
    "Strategy",
    "ToExchange",
    "Topology",
    "Unbind",
    "User",
    "apply",
    "apply_async",
    "assume_applied",
    "drain_first",
    "drain_first_in",
    "drain_stages",
    "drift",
    "dumps",
    "from_definitions",
    "lint",
    "load",
    "loads",
    "plan",
    "prometheus_metrics",
    "read",
    "route",
    "to_definitions",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"rabbit_chx.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
