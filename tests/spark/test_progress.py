"""The progress of a write, in a terminal, in which this file is run as a program that writes rows slowly to an exchange."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector import register
from tests.spark.conftest import SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.proof]


def in_terminal(program: list[str]) -> str:
    """Run a program whose stderr is a terminal, and return what the terminal shows."""
    terminal, stderr = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=stderr, env=environment) as process:
        os.close(stderr)
        found = []
        try:
            while text := os.read(terminal, 4096):
                found.append(text)
        except OSError:  # Linux reports the end of a terminal in this way
            pass
        finally:
            os.close(terminal)
    shown = b"".join(found).decode()
    assert process.returncode == 0, shown
    return shown


@pytest.mark.pyspark("4.1", "register replaces a format that Spark has found")
def test_a_terminal_shows_how_many_rows_are_confirmed(broker, inbox):
    """Two tasks write 1,200 rows each, 100 per second, so the write takes twelve seconds."""
    shown = in_terminal([sys.executable, "-m", __name__, broker.url, inbox.exchange])
    lines = re.findall(r"\r\x1b\[Krabbitmq: ([\d,]+) rows confirmed, \d+ per second\r?\n", shown)
    assert lines, shown
    assert 0 < int(lines[-1].replace(",", "")) <= len(inbox) == 2_400


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
