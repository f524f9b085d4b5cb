"""The examples that need a Spark: one in a process of its own, as a user would run it, the others in the session of the tests."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys

import pytest

from tests.unit.test_examples import EXAMPLES, SPARK

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ALONE = "spark_batch_write.py"

CLAIMS = {
    "spark_bulk_load.py": r"[1-4] micro-batches, then an(?s:.*)[1-4] micro-batches more(?s:.*)\n0 in a third run"
    r"(?s:.*)10,000 of 10,000 rows arrived, [\d,]+ of them twice",
    "spark_foreach_batch.py": r"12:00:00 30 30\n(?s:.*)12:09:00 30 30\n\d+ messages, 600 readings",
    "spark_ordered_write.py": r"20,000 changes of 100 customers, 0 customers out of order",
    "spark_queue_of.py": r"'customer-big' +4,000 +10\.00%(?s:.*)40,000 rows arrived, 0 queues differ",
    "spark_stream.py": r"[1-9],\d{3} rows finished over a restart, 0 missing, \d+ twice",
}


def leftovers(broker) -> list[str]:
    listed = broker.ctl("list_queues", "name") + broker.ctl("list_exchanges", "name")
    return re.findall(r"example\.spark\S*", listed)


def test_every_spark_example_is_run_here():
    assert sorted([ALONE, *CLAIMS]) == sorted(SPARK)


def test_an_example_runs_as_a_user_runs_it(rabbitmq_broker):
    here = {"AMQP_URL": rabbitmq_broker.url, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / ALONE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | here,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    counts = re.findall(r"example\.spark-batch\.\d +([\d,]+)", done.stdout)
    assert len(counts) == 3
    assert sum(int(count.replace(",", "")) for count in counts) == 50_000
    assert leftovers(rabbitmq_broker) == []


@pytest.mark.parametrize("name", CLAIMS)
def test_an_example_does_what_it_says(spark, rabbitmq_broker, name, monkeypatch, capsys):
    monkeypatch.setenv("AMQP_URL", rabbitmq_broker.url)
    runpy.run_path(str(EXAMPLES / name))
    assert re.search(CLAIMS[name], capsys.readouterr().out)
    assert leftovers(rabbitmq_broker) == []
