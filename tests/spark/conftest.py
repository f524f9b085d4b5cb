"""One Spark for all tests of this folder: two threads, no network but this machine's own."""

from __future__ import annotations

import os
import sys

import pytest

from tests.inbox import Inbox
from tests.spark import BRIEF_JAVA

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.executor.extraJavaOptions": BRIEF_JAVA,
}
PASSWORD = "a-password-of-the-guide"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["RABBITMQ_PASSWORD"] = PASSWORD  # as docs/spark.md has it: the workers inherit it
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = builder.config(map=SETTINGS | warehouse).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def broker(rabbitmq_broker):
    return rabbitmq_broker


@pytest.fixture
def inbox(broker):
    with Inbox(broker.url) as inbox:
        yield inbox
