"""Write with the options in a session's settings, and print the results as JSON.

`test_session_settings` runs this program without PYSPARK_PYTHON, as if no virtual environment were active.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_connector import register
from tests.spark.conftest import SETTINGS


def error_of(frame, **options) -> str:
    try:
        frame.write.format("rabbitmq").options(**options).mode("append").save()
    except Exception as error:  # noqa: BLE001 - what users see
        return str(error)
    return ""


def main(url: str, exchange: str, folder: str) -> None:
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
