"""Topology as code: what a broker should hold, what it holds, and the steps from one to the other.

    >>> from rabbit_chx.topology import Observed, loads, plan
    >>> wanted = loads("exchanges: {orders: {type: fanout}}", format="yaml")
    >>> for step in plan(wanted, Observed()).steps:
    ...     print(step)
    declare exchange 'orders' of type fanout

`rabbit_chx.broker` reads a topology from a broker and applies a plan to it. A name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.errors import InvalidValue as InvalidValue
    from rabbit_chx.mirror.releases import Release as Release, Store as Store
    from rabbit_chx.mirror.ring import (
        Destination as Destination,
        Ring as Ring,
        RingBinding as RingBinding,
        ToExchange as ToExchange,
    )
    from rabbit_chx.topology.checks.drift import drift as drift
    from rabbit_chx.topology.checks.lint import lint as lint
    from rabbit_chx.topology.file.dump import dumps as dumps
    from rabbit_chx.topology.file.load import load as load, loads as loads
    from rabbit_chx.topology.file.problems import InvalidTopology as InvalidTopology
    from rabbit_chx.topology.model import (
        Binding as Binding,
        Exchange as Exchange,
        Observed as Observed,
        Policy as Policy,
        Queue as Queue,
        Slots as Slots,
        Topology as Topology,
    )
    from rabbit_chx.topology.planning.drain_order import (
        drain_first as drain_first,
        drain_first_in as drain_first_in,
    )
    from rabbit_chx.topology.planning.plan import plan as plan
    from rabbit_chx.topology.planning.slot_changes import plan_moves as plan_moves
    from rabbit_chx.topology.planning.steps import (
        Bind as Bind,
        ClearPolicy as ClearPolicy,
        DeclareExchange as DeclareExchange,
        DeclareQueue as DeclareQueue,
        DeleteExchange as DeleteExchange,
        DeleteQueue as DeleteQueue,
        Plan as Plan,
        SetPolicy as SetPolicy,
        Step as Step,
        Unbind as Unbind,
    )
    from rabbit_chx.topology.routes import route as route
    from rabbit_chx.topology.slots.rebalancing import rebalance as rebalance

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.errors": "InvalidValue",
            "rabbit_chx.mirror.releases": "Release Store",
            "rabbit_chx.mirror.ring": "Destination Ring RingBinding ToExchange",
            "rabbit_chx.topology.checks.drift": "drift",
            "rabbit_chx.topology.checks.lint": "lint",
            "rabbit_chx.topology.file.dump": "dumps",
            "rabbit_chx.topology.file.load": "load loads",
            "rabbit_chx.topology.file.problems": "InvalidTopology",
            "rabbit_chx.topology.model": "Binding Exchange Observed Policy Queue Slots Topology",
            "rabbit_chx.topology.planning.drain_order": "drain_first drain_first_in",
            "rabbit_chx.topology.planning.plan": "plan",
            "rabbit_chx.topology.planning.slot_changes": "plan_moves",
            "rabbit_chx.topology.planning.steps": "Bind ClearPolicy DeclareExchange DeclareQueue DeleteExchange DeleteQueue Plan SetPolicy Step Unbind",
            "rabbit_chx.topology.slots.rebalancing": "rebalance",
            "rabbit_chx.topology.routes": "route",
        },
    )
