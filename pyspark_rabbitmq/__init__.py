"""Makes PySpark find ``format("rabbitmq")`` wherever this package is installed.

PySpark imports every top-level module whose name begins with ``pyspark_`` and looks for its ``DefaultSource``. An error
in one of them silently hides the formats of all others. So the connector is imported on demand, and if that fails,
there is no ``DefaultSource``: `spark_connector.register` then shows the reason.
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
