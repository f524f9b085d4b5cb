"""Which queue does a message land on? RabbitMQ's hash exchanges, mirrored bit for bit.

    >>> from rabbit_chx import ConsistentHashExchange
    >>> ConsistentHashExchange({"q0": 1, "q1": 1, "q2": 2}, release="4.3.6").route("customer-42")
    'q0'

This package exports the mirror and its errors. `rabbit_chx.topology`, `rabbit_chx.publishing`, `rabbit_chx.report` and
`rabbit_chx.testing` export the rest. A name is loaded when it is first used, so that ``import rabbit_chx`` takes no time
and routing one key never imports NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rabbit_chx.errors import (
        AmbiguousHeader,
        BrokerUnavailable,
        BrokerWouldFail,
        Contradiction,
        InvalidValue,
        MissingDependency,
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
    from rabbit_chx.ring import Destination, Ring, RingBinding, ToExchange
    from rabbit_chx.skew import HotKey, QueueShare, Spread, spread

__version__ = "0.1.0"

_NAMES_IN = {
    "errors": (
        "AmbiguousHeader",
        "BrokerUnavailable",
        "BrokerWouldFail",
        "Contradiction",
        "InvalidValue",
        "MissingDependency",
        "RabbitChxError",
        "RingUnknown",
        "Unpredictable",
        "Unroutable",
    ),
    "exchange": (
        "ConsistentHashExchange",
        "Explanation",
    ),
    "fields": ("Field",),
    "inference": (
        "Inference",
        "infer",
    ),
    "monitor": ("DeliveryMonitor",),
    "movement": (
        "Movement",
        "moved",
        "shares",
    ),
    "partitioning": (
        "AnyOf",
        "ModulusHashExchange",
        "RandomExchange",
        "SuperStream",
    ),
    "releases": (
        "Release",
        "Store",
    ),
    "ring": (
        "Destination",
        "Ring",
        "RingBinding",
        "ToExchange",
    ),
    "skew": (
        "HotKey",
        "QueueShare",
        "Spread",
        "spread",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

__all__ = [
    "AmbiguousHeader",
    "AnyOf",
    "BrokerUnavailable",
    "BrokerWouldFail",
    "ConsistentHashExchange",
    "Contradiction",
    "DeliveryMonitor",
    "Destination",
    "Explanation",
    "Field",
    "HotKey",
    "Inference",
    "InvalidValue",
    "MissingDependency",
    "ModulusHashExchange",
    "Movement",
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
    "Unpredictable",
    "Unroutable",
    "infer",
    "moved",
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
