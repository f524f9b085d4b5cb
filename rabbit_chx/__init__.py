"""Predict which queue RabbitMQ's consistent-hash exchange routes a key to, and what a change would move.

    >>> from rabbit_chx import ConsistentHashExchange
    >>> ConsistentHashExchange({"q0": 1, "q1": 1, "q2": 2}, release="4.3.6").route("customer-42")
    'q0'

This package exports the mirror and the errors that it raises. `rabbit_chx.topology`, `rabbit_chx.broker`, `rabbit_chx.publishing`,
`rabbit_chx.consuming`, `rabbit_chx.streams`, `rabbit_chx.report`, `rabbit_chx.watch`, `rabbit_chx.testing` and `rabbit_chx.errors`
export the rest. A name is loaded when it is first used, so that ``import rabbit_chx`` takes no time and routing one key never imports NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx.errors import (
        BrokerWouldFail as BrokerWouldFail,
        InvalidValue as InvalidValue,
        RabbitChxError as RabbitChxError,
        Unpredictable as Unpredictable,
        Unroutable as Unroutable,
    )
    from rabbit_chx.mirror.exchange import (
        ConsistentHashExchange as ConsistentHashExchange,
        Explanation as Explanation,
    )
    from rabbit_chx.mirror.fields import Field as Field
    from rabbit_chx.mirror.inference import Inference as Inference, infer as infer
    from rabbit_chx.mirror.monitor import DeliveryMonitor as DeliveryMonitor
    from rabbit_chx.mirror.movement import Movement as Movement, moved as moved, shares as shares
    from rabbit_chx.mirror.partitioning import (
        AnyOf as AnyOf,
        ModulusHashExchange as ModulusHashExchange,
        RandomExchange as RandomExchange,
        SuperStream as SuperStream,
    )
    from rabbit_chx.mirror.releases import Release as Release, Store as Store
    from rabbit_chx.mirror.ring import Ring as Ring, RingBinding as RingBinding, ToExchange as ToExchange
    from rabbit_chx.mirror.skew import Spread as Spread, spread as spread

__version__ = "0.2.0"

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx.errors": "BrokerWouldFail InvalidValue RabbitChxError Unpredictable Unroutable",
            "rabbit_chx.mirror.exchange": "ConsistentHashExchange Explanation",
            "rabbit_chx.mirror.fields": "Field",
            "rabbit_chx.mirror.inference": "Inference infer",
            "rabbit_chx.mirror.monitor": "DeliveryMonitor",
            "rabbit_chx.mirror.movement": "Movement moved shares",
            "rabbit_chx.mirror.partitioning": "AnyOf ModulusHashExchange RandomExchange SuperStream",
            "rabbit_chx.mirror.releases": "Release Store",
            "rabbit_chx.mirror.ring": "Ring RingBinding ToExchange",
            "rabbit_chx.mirror.skew": "Spread spread",
        },
    )
