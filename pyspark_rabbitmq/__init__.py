"""The name by which PySpark finds ``format("rabbitmq")`` wherever this package is installed.

PySpark imports every top-level module whose name begins with ``pyspark_`` and takes its ``DefaultSource``. One that
fails makes the formats of all the others disappear without a word, so nothing is imported before it is asked for,
and what cannot be imported then is simply not offered: `spark_connector.register` says why.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from spark_connector.data_source import RabbitMQDataSource
        except Exception as error:
            raise AttributeError(f"the connector cannot be imported: {error}") from error
        return RabbitMQDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
