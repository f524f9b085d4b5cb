"""Settings of a session, in a program that starts a Spark of its own: this file, without PYSPARK_PYTHON, as if no virtual environment were active."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector import register
from tests.programs import ran
from tests.spark.conftest import SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.proof]


@pytest.mark.pyspark("4.1", "register replaces a format that Spark has found")
def test_settings_replace_options_and_invalid_writes_fail_before_a_job_starts(broker, inbox, tmp_path):
    """The first python3 on the PATH fails, like a Python without rabbit-chx."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PATH": f"{tmp_path}:{environment['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    rows = tmp_path / "rows"
    rows.mkdir()
    program = [sys.executable, "-m", __name__, broker.url, inbox.exchange, str(rows)]
    done = ran(program, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "invalid setting spark.speculation" in found["speculation"]
    assert "NO_SUCH_PASSWORD, which is not set on" in found["password"]
    assert (found["jobs"], found["written"], len(inbox)) == (0, "", 12)
    assert "value is null" in found["invalid"]
    assert found["counts"] == {
        "writes": 2,
        "failed_writes": 1,
        "rows": 12,
        "confirmed": 12,
        "already_stored": 0,
        "bytes": found["counts"]["bytes"],
        "connections": found["counts"]["connections"],
        "dropped": 0,
        "resent": 0,
        "possible_duplicates": 0,
    }


def error_of(frame, **options) -> str:
    try:
        frame.write.format("rabbitmq").options(**options).mode("append").save()
    except Exception as error:  # noqa: BLE001 - what users see
        return str(error)
    return ""


def main(url: str, exchange: str, folder: str) -> None:
    """Write with the options in the session's settings, and print the results as JSON."""
    user, _, host = url.removeprefix("amqp://").rpartition("@")
    name, _, os.environ["PASSWORD_OF_THE_BROKER"] = user.partition(":")
    settings = {
        **SETTINGS,
        "spark.speculation": "true",
        "spark.datasource.rabbitmq.url": f"amqp://{name}@{host}",
        "spark.datasource.rabbitmq.passwordEnv": "PASSWORD_OF_THE_BROKER",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.datasource.rabbitmq.exchange", exchange)
    counts = register(spark)
    frame = spark.range(10).selectExpr("cast(id as string) as value", "'k' as key")
    allowed = {"allowSpeculation": "true"}
    rejected = {
        "speculation": error_of(frame),
        "password": error_of(frame, url=f"amqp://guest@{host}", passwordEnv="NO_SUCH_PASSWORD", **allowed),
    }
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup())
    written = error_of(frame, **allowed)
    Path(folder, "rows").write_text("a\nb\n")
    lines = spark.readStream.text(folder).selectExpr("value", "'k' as key").writeStream.format("rabbitmq")
    lines = lines.options(**allowed).option("checkpointLocation", f"{folder}/checkpoint")
    lines.trigger(availableNow=True).start().awaitTermination()
    invalid = error_of(frame.selectExpr("cast(null as string) as value", "key"), **allowed)
    counted = dataclasses.asdict(counts.now)
    print(json.dumps({"jobs": jobs, "written": written, "invalid": invalid, "counts": counted, **rejected}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
