"""Write DataFrames to RabbitMQ with every row confirmed, and read its streams and queues.

    df.write.format("rabbitmq").option("url", url).option("exchange", "orders").mode("append").save()
    spark.read.format("rabbitmq").option("url", url).option("superStream", "orders").load()

docs/spark-options.md lists the options and columns.

Names are loaded when they are first used: ``import spark_connector`` starts no JVM and imports no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.base.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rabbit_chx import Spread as Spread
    from spark_connector.data_source import (
        RabbitMQDataSource as RabbitMQDataSource,
        foreach_batch as foreach_batch,
        register as register,
    )
    from spark_connector.reading.lag import LagListener as LagListener
    from spark_connector.reading.offsets import DataLoss as DataLoss
    from spark_connector.routing.queue_column import (
        order_for as order_for,
        queue_of as queue_of,
        register_queue_of as register_queue_of,
    )
    from spark_connector.routing.split_valid import split_valid as split_valid
    from spark_connector.routing.spread_rows import spread as spread
    from spark_connector.worker import WriteFailed as WriteFailed
    from spark_connector.writing.writer import Counts as Counts

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rabbit_chx": "Spread",
            "spark_connector.data_source": "RabbitMQDataSource foreach_batch register",
            "spark_connector.reading.lag": "LagListener",
            "spark_connector.reading.offsets": "DataLoss",
            "spark_connector.routing.queue_column": "order_for queue_of register_queue_of",
            "spark_connector.routing.split_valid": "split_valid",
            "spark_connector.routing.spread_rows": "spread",
            "spark_connector.worker": "WriteFailed",
            "spark_connector.writing.writer": "Counts",
        },
    )
