"""``rabbit-chx doctor --spark`` asks every executor, and reports what a job would fail on."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rabbit_chx.cli.spark import ask_executors
from tests.patience import PATIENCE
from tests.programs import ran
from tests.spark import BRIEF_JAVA
from tests.spark.streams import Streams
from tests.unit.test_tls_refusals import authority  # noqa: F401 - the fixture
from tests.users import a_user

pytestmark = [pytest.mark.spark, pytest.mark.long]

CLUSTER = [
    *("--spark", "local-cluster[2,1,700]", "--conf", "spark.executor.memory=700m"),
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", f"spark.executor.extraJavaOptions={BRIEF_JAVA}"),
]
NOBODY = "127.0.0.1:1"


def doctor(*arguments: str, **env: str) -> tuple[int, list[dict[str, object]]]:
    """Its exit code and its rows; it never shows a traceback, nor a password."""
    done = ran(
        [Path(sys.executable).with_name("rabbit-chx"), "doctor", "--output", "json", *arguments],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable} | env,
        timeout=4 * PATIENCE,
    )
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    assert "sesame" not in done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def named(rows, name: str) -> list[dict[str, object]]:
    return [row for row in rows if row["name"] == name]


@pytest.mark.broker
@pytest.mark.proof
def test_both_executors_are_met_and_reach_the_broker_with_a_password_of_their_own(rabbitmq_broker):
    url = urlsplit(rabbitmq_broker.url)
    own = {
        "host": url.hostname,
        "port": url.port,
        "passwordEnv": "HIDDEN",
        "username": rabbitmq_broker.username,
    }
    options = [f"--option={name}={value}" for name, value in own.items()]
    code, rows = doctor(*CLUSTER, *options, f"--conf=spark.executorEnv.HIDDEN={rabbitmq_broker.password}")
    assert [row["found"] for row in named(rows, "executors")] == ["2 of 2 answered"]
    executors = named(rows, "executor")
    assert len({row["process"] for row in executors}) == 2
    packages = ("rabbit-chx", "numpy", "pyarrow", "pika", "mmh3", "pyspark")
    for row in executors:
        assert row["state"] == "ok", row
        assert row["packages"] == {package: metadata.version(package) for package in packages}
        assert re.search(f"; {url.hostname}:{url.port}, .* in \\d+ ms$", str(row["found"]))
    assert [row["state"] for row in named(rows, "data source rabbitmq")] == ["ok"]
    # The driver has no password, which a write survives.
    (broker,) = named(rows, "broker")
    assert broker["state"] == "missing"
    assert "HIDDEN, which is not set" in str(broker["found"])
    assert code == 0


@pytest.mark.broker
def test_a_wrong_password_is_told_from_a_broker_that_is_not_there(spark, rabbitmq_broker):
    place = rabbitmq_broker.url.rpartition("@")[2]
    ((answer,), _) = ask_executors(spark, {"url": f"amqp://me:sesame@{place}"})
    assert "user name or password" in answer["refused"]
    ((answer,), _) = ask_executors(spark, {"url": rabbitmq_broker.url})
    assert answer["broker"].startswith(place.partition("/")[0])


@pytest.mark.broker
def test_an_executor_checks_a_read_and_a_write_of_streams(spark, rabbitmq_broker):
    port = str(urlsplit(rabbitmq_broker.stream_url).port)
    source = {"url": rabbitmq_broker.url, "streamPort": port}
    with Streams(rabbitmq_broker.url) as streams, a_user(rabbitmq_broker, "^$", "^$", ".*") as user:
        stream = source | {"stream": streams.stream()}
        super_stream = source | {"superStream": streams.super_stream(3)[0]}
        for options, words in [
            (super_stream, "read of streams: 3, and write to streams"),
            (super_stream | {"url": user.url}, "read of streams: 3; a write would fail: "),
            (stream | {"columns": "value"}, "read of streams: 1"),
        ]:
            ((answer,), _) = ask_executors(spark, options)
            found = answer["broker"] + answer["refused"]
            assert words in found
            assert ("write" in words) == ("write" in found)


@pytest.mark.parametrize("target", [f"spark://{NOBODY}", f"sc://{NOBODY}/;token=sesame"])
def test_a_master_that_is_not_there_is_named_within_seconds(target):
    code, rows = doctor("--spark", target)
    assert code == 1
    assert rows[-1]["state"] == "failed"
    assert f"cannot connect to {NOBODY}" in str(rows[-1]["found"])


def test_a_master_that_spark_does_not_know_fails_with_sparks_own_words():
    code, rows = doctor("--spark", "sparc://host")
    assert code == 1
    assert "Master must either be yarn or start with" in str(rows[-1]["found"])
