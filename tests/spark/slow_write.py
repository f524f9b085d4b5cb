"""Write rows slowly to an exchange; `test_progress` runs this program in a terminal."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from spark_connector import register
from tests.spark.conftest import SETTINGS


def main(url: str, exchange: str) -> None:
    settings = {**SETTINGS, "spark.ui.showConsoleProgress": "true"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    rows = spark.range(0, 2_400, 1, 2).selectExpr("cast(id as string) as value", "'k' as key")
    options = {"url": url, "exchange": exchange, "maxRatePerTask": "100"}
    rows.write.format("rabbitmq").options(**options).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
