"""Write DataFrames to RabbitMQ with ``df.write.format("rabbitmq")``: batch and streaming, every row confirmed.

    df.write.format("rabbitmq").option("url", url).option("exchange", "orders").mode("append").save()

Names are loaded when they are first used: ``import spark_connector`` starts no JVM and imports no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_connector.columns import AMQP_TAGS, COLUMNS
    from spark_connector.data_source import RabbitMQDataSource, register
    from spark_connector.micro_batches import foreach_batch
    from spark_connector.options import OPTIONS
    from spark_connector.ordering import order_for
    from spark_connector.queue_column import queue_of, register_queue_of
    from spark_connector.spread_rows import HotKey, QueueShare, Spread, spread
    from spark_connector.sql_checks import split_valid
    from spark_connector.writer import WriteFailed

_MODULES = {
    "queue_column": ("queue_of", "register_queue_of"),
    "columns": ("AMQP_TAGS", "COLUMNS"),
    "options": ("OPTIONS",),
    "ordering": ("order_for",),
    "data_source": ("RabbitMQDataSource", "register"),
    "spread_rows": ("HotKey", "QueueShare", "Spread", "spread"),
    "micro_batches": ("foreach_batch",),
    "sql_checks": ("split_valid",),
    "writer": ("WriteFailed",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AMQP_TAGS",
    "COLUMNS",
    "OPTIONS",
    "HotKey",
    "QueueShare",
    "RabbitMQDataSource",
    "Spread",
    "WriteFailed",
    "foreach_batch",
    "order_for",
    "queue_of",
    "register",
    "register_queue_of",
    "split_valid",
    "spread",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
