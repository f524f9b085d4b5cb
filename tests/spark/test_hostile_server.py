"""A server that turns hostile after the handshake ends a write of Spark with an error, and shows nothing raw."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException

from rabbit_chx.base.text import UNPRINTABLE
from spark_connector import register
from tests.amqp_server import AmqpServer
from tests.faults.test_hostile_servers import AFTER_THE_HANDSHAKE, pieces

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.proof]

TIMEOUTS = {f"{name}TimeoutMs": "1000" for name in ("reconnect", "blocked", "confirm", "retry")}
"""Short ones; only opening the connection may take longer on a busy machine."""


@pytest.fixture(scope="module")
def errors(spark) -> dict[str, str]:
    """The error of a write to each server. Two writes run at a time, since they mostly wait."""

    def error_of(behaviour: str) -> str:
        register(spark)  # as each thread must
        rows = spark.range(3).selectExpr("cast(id as string) as value", "cast(id as string) as routing_key")
        with AmqpServer(pieces(AFTER_THE_HANDSHAKE[behaviour])) as server:
            options = {"url": server.url, "exchange": "orders", "connectionTimeoutMs": "5000", **TIMEOUTS}
            try:
                rows.coalesce(1).write.format("rabbitmq").options(**options).mode("append").save()
            except PySparkException as error:
                return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(AFTER_THE_HANDSHAKE, threads.map(error_of, AFTER_THE_HANDSHAKE), strict=True))


@pytest.mark.parametrize("behaviour", AFTER_THE_HANDSHAKE)
def test_a_server_that_turns_hostile_ends_the_write(errors, behaviour: str) -> None:
    assert errors[behaviour]
    assert not UNPRINTABLE.search(errors[behaviour].replace("\n", "").replace("\t", ""))
