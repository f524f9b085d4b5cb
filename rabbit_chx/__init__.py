"""Which queue does a message land on? RabbitMQ's hash exchanges, mirrored bit for bit.

    >>> from rabbit_chx import ConsistentHashExchange
    >>> ConsistentHashExchange({"q0": 1, "q1": 1, "q2": 2}, release="4.3.6").route("customer-42")
    'q0'

Names are loaded when they are first used, so that ``import rabbit_chx`` costs next to nothing and
routing one key never imports NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rabbit_chx.broker.applying.apply import apply, apply_async
    from rabbit_chx.broker.management import Management
    from rabbit_chx.broker.reading.reader import read
    from rabbit_chx.errors import (
        AmbiguousHeader,
        ApplyStopped,
        BrokerUnavailable,
        BrokerWouldFail,
        Contradiction,
        InvalidValue,
        MissingDependency,
        PublishFailed,
        RabbitChxError,
        RingUnknown,
        Unpredictable,
        Unroutable,
    )
    from rabbit_chx.exchange import ConsistentHashExchange, Explanation
    from rabbit_chx.fields import Field
    from rabbit_chx.inference import Inference, infer
    from rabbit_chx.monitor import DeliveryMonitor
    from rabbit_chx.movement import Movement, moved, shares
    from rabbit_chx.partitioning import AnyOf, ModulusHashExchange, RandomExchange, SuperStream
    from rabbit_chx.releases import Release, Store
    from rabbit_chx.ring import Ring, RingBinding, ToExchange
    from rabbit_chx.skew import HotKey, QueueShare, Spread, spread
    from rabbit_chx.topology.checks.drift import drift
    from rabbit_chx.topology.checks.lint import lint
    from rabbit_chx.topology.file.load import load
    from rabbit_chx.topology.model import Observed, Topology
    from rabbit_chx.topology.planning.plan import plan
    from rabbit_chx.topology.planning.steps import Plan

__version__ = "0.1.0"

_MODULES = {
    "broker.management": ("Management",),
    "broker.applying.apply": ("apply", "apply_async"),
    "broker.reading.reader": ("read",),
    "errors": (
        "AmbiguousHeader",
        "ApplyStopped",
        "BrokerUnavailable",
        "BrokerWouldFail",
        "Contradiction",
        "InvalidValue",
        "MissingDependency",
        "PublishFailed",
        "RabbitChxError",
        "RingUnknown",
        "Unpredictable",
        "Unroutable",
    ),
    "exchange": ("ConsistentHashExchange", "Explanation"),
    "fields": ("Field",),
    "inference": ("Inference", "infer"),
    "movement": ("Movement", "moved", "shares"),
    "monitor": ("DeliveryMonitor",),
    "partitioning": ("AnyOf", "ModulusHashExchange", "RandomExchange", "SuperStream"),
    "releases": ("Release", "Store"),
    "ring": ("Ring", "RingBinding", "ToExchange"),
    "skew": ("HotKey", "QueueShare", "Spread", "spread"),
    "topology.checks.drift": ("drift",),
    "topology.checks.lint": ("lint",),
    "topology.file.load": ("load",),
    "topology.model": ("Observed", "Topology"),
    "topology.planning.plan": ("plan",),
    "topology.planning.steps": ("Plan",),
}
_MODULE_OF = {name: room for room, names in _MODULES.items() for name in names}

__all__ = [
    "AmbiguousHeader",
    "AnyOf",
    "ApplyStopped",
    "BrokerUnavailable",
    "BrokerWouldFail",
    "ConsistentHashExchange",
    "Contradiction",
    "DeliveryMonitor",
    "Explanation",
    "Field",
    "HotKey",
    "Inference",
    "InvalidValue",
    "Management",
    "MissingDependency",
    "ModulusHashExchange",
    "Movement",
    "Observed",
    "Plan",
    "PublishFailed",
    "QueueShare",
    "RabbitChxError",
    "RandomExchange",
    "Release",
    "Ring",
    "RingBinding",
    "RingUnknown",
    "Spread",
    "Store",
    "SuperStream",
    "ToExchange",
    "Topology",
    "Unpredictable",
    "Unroutable",
    "apply",
    "apply_async",
    "drift",
    "infer",
    "lint",
    "load",
    "moved",
    "plan",
    "read",
    "shares",
    "spread",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
