"""Write DataFrames to RabbitMQ with every row confirmed, and read its streams and queues.

    df.write.format("rabbitmq").option("url", url).option("exchange", "orders").mode("append").save()
    spark.read.format("rabbitmq").option("url", url).option("superStream", "orders").load()

Columns of a write (value is required):

    value, routing_key, exchange, headers, message_id, correlation_id, content_type, content_encoding, reply_to,
    type, app_id, user_id, expiration, priority, delivery_mode, timestamp.

Options of a write:

    url, host, port, virtualHost, username, password, passwordEnv, passwordFile, connectionName,
    connectionTimeoutMs, reconnectTimeoutMs, heartbeatSeconds, blockedTimeoutMs, tls, tlsCaFile, tlsCertFile,
    tlsKeyFile, tlsKeyPassword, tlsServerName, tlsVerify, streamPort, followAdvertised, exactlyOnce,
    producerName, exchange, routingKey, managementUrl, stream, superStream, checkExchange, persistent,
    maxInFlight, confirmTimeoutMs, retryTimeoutMs, maxRatePerTask, taskHeaders, maxMessageBytes, invalidRows,
    failFast, failOnDataLoss, nullValue, ignoreUnknownColumns, allowSpeculation, dryRun.

Further options of a read of streams:

    stream, superStream, exchange, managementUrl, columns, keys, startingOffsets, endingOffsets,
    startingTimestamp, endingTimestamp, maxRowsPerTrigger, minPartitions, failOnDataLoss, invalidRows.

Further options of a read of a queue:

    queue, columns, maxRowsPerTrigger, minPartitions.

docs/spark-options.md describes each option and column.

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
