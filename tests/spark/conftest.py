"""One Spark for all tests of this folder: two threads, no network but this machine's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rabbit_chx.testing import Broker
from tests.broker.erlang import asked_quickly
from tests.brokers import running
from tests.inbox import Inbox
from tests.spark import BRIEF_JAVA
from tests.spark.streams import Streams

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
PRELOAD = Path(__file__).parent / "preload"
PASSWORD = "a-password-of-the-guide"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["RABBITMQ_PASSWORD"] = PASSWORD  # as docs/spark-cluster.md has it: the workers inherit it
    builder = SparkSession.builder.master("local[2,4]").appName("tests")
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PRELOAD), prepend=os.pathsep)  # Java passes it to the daemons
        session = builder.config(map=SETTINGS | warehouse).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def rabbitmq_broker(request):
    """The broker of all these tests, with the stream protocol, which the fixture of the plugin lacks."""
    release = request.config.getoption("--rabbitmq-release") or request.config.getini("rabbitmq_release")
    broker = Broker(release or None, plugins=["rabbitmq_stream"])
    with running(broker), asked_quickly(broker):
        yield broker


@pytest.fixture
def broker(rabbitmq_broker):
    return rabbitmq_broker


@pytest.fixture
def inbox(broker):
    with Inbox(broker.url) as inbox:
        yield inbox


@pytest.fixture
def streams(broker):
    with Streams(broker.url) as streams:
        yield streams
