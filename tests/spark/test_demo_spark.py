"""`rabbit-chx demo --part spark` as it is run by `make demo`, in an environment that would lead any other Spark astray."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.patience import PATIENCE
from tests.programs import ran

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ASTRAY = {
    "PYSPARK_PYTHON": "/nowhere/python",
    "PYSPARK_SUBMIT_ARGS": "--master spark://nowhere.invalid:7077 pyspark-shell",
    "SPARK_HOME": "/nowhere",
    "SPARK_LOCAL_IP": "192.0.2.1",
    "SPARK_REMOTE": "sc://nowhere.invalid",
}


def test_the_demo_finds_every_row_that_spark_wrote_where_it_was_told_and_reads_it_back(
    rabbitmq_broker, tmp_path
):
    address = {
        "RABBIT_CHX_BROKER_URL": rabbitmq_broker.url,
        "RABBIT_CHX_STREAM_URL": rabbitmq_broker.stream_url,
    }
    done = ran(
        [sys.executable, "-m", "rabbit_chx", "demo", "--part", "spark"],
        env={**os.environ, **ASTRAY, **address},
        cwd=tmp_path,
        timeout=4 * PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^ *orders\.\d +([\d,]+) +([\d,]+)", done.stdout, re.MULTILINE)
    counts = [tuple(int(count.replace(",", "")) for count in row) for row in rows]
    assert len(counts) == 4
    assert [predicted for predicted, _ in counts] == [actual for _, actual in counts]
    assert sum(actual for _, actual in counts) == 200_000
    assert "0 differences, compared message by message" in done.stdout
    assert "0 of 200,000 rows are missing" in done.stdout
    assert list(tmp_path.iterdir()) == []
