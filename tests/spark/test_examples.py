"""The examples that need a Spark: two in a process of their own, as a user would run them, the others in the tests' session."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import sys
from urllib.parse import urlsplit

import pytest

from rabbit_chx import Spread
from rabbit_chx.report.drawing import Picture
from rabbit_chx.report.page import Report
from tests.patience import PATIENCE
from tests.programs import ran
from tests.unit.test_examples import EXAMPLES, NOTEBOOKS, SPARK

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

ALONE = {  # how many rows each writes
    "spark_batch_write.py": 50_000,
    "spark_connect.py": 20_000,  # a process holds no classic session and a Connect session at a time
}
CLAIMS = {
    # On a slow machine, the interruption may come too late for the last micro-batch.
    "spark_bulk_load.py": r"(?s:9 micro-batches finished.*\n1|10 micro-batches finished.*\n0) finished by a second run"
    r"(?s:.*)\n0 finished by a third"
    r"(?s:.*)10,000 of 10,000 rows arrived, [\d,]+ of them twice",
    "spark_foreach_batch.py": r"12:00:00 30 30\n(?s:.*)12:09:00 30 30\n\d+ messages, 600 readings",
    "spark_ordered_write.py": r"20,000 changes of 100 customers, 0 customers out of order",
    "spark_queue_of.py": r"'customer-big' +4,000 +10\.00%(?s:.*)40,000 rows arrived, 0 queues differ",
    "spark_read_keys.py": r"10,000 rows, 100 customers with 100 rows each, 0 not on the predicted stream\n(?s:.*)"
    r"100 rows of customer-42 on one stream of 4, 100 on all of them\n(?s:.*)100 rows copied",
    "spark_read_stream.py": r"6,000 rows after the first run, 10,000 after the second, 10,000 of them different",
    "spark_stream.py": r"[1-9]\d*,\d{3} rows finished over a restart, 0 missing, \d+ twice",
}


def leftovers(broker) -> list[str]:
    listed = broker.ctl("list_queues", "name") + broker.ctl("list_exchanges", "name")
    return re.findall(r"example\.spark\S*", listed)


def test_every_spark_example_is_run_here():
    assert sorted([*ALONE, *CLAIMS]) == sorted(SPARK)


@pytest.mark.parametrize(("name", "rows"), ALONE.items())
def test_an_example_runs_as_a_user_runs_it(rabbitmq_broker, name, rows):
    here = {"AMQP_URL": rabbitmq_broker.url, "SPARK_LOCAL_IP": "127.0.0.1"}
    if "connect" in name:
        here["SPARK_TESTING"] = "1"  # has the server take a free port, and not 15002
    done = ran(
        [sys.executable, EXAMPLES / name],
        timeout=4 * PATIENCE,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | here,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    counts = re.findall(r"^example\.spark-\w+\.\d\b.*?([\d,]+)(?: arrived)?$", done.stdout, re.MULTILINE)
    assert len(counts) == 3
    assert sum(int(count.replace(",", "")) for count in counts) == rows
    assert leftovers(rabbitmq_broker) == []


@pytest.mark.parametrize("name", CLAIMS)
def test_an_example_does_what_it_says(spark, rabbitmq_broker, name, monkeypatch, capsys):
    monkeypatch.setenv("AMQP_URL", rabbitmq_broker.url)
    monkeypatch.setenv("STREAM_PORT", str(urlsplit(rabbitmq_broker.stream_url).port))
    runpy.run_path(str(EXAMPLES / name))
    assert re.search(CLAIMS[name], capsys.readouterr().out)
    assert leftovers(rabbitmq_broker) == []


def run_cells(path) -> list[object]:
    """Run the cells of a notebook one after the other; what each would show as its result."""
    names: dict[str, object] = {}
    shown = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            *before, last = ast.parse("".join(cell["source"])).body
            result = isinstance(last, ast.Expr)
            exec(compile(ast.Module(before if result else [*before, last], []), path.name, "exec"), names)
            if result:
                shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    return shown


def test_the_notebook_checks_skew_and_shows_it_as_tables_pictures_and_a_page(spark, monkeypatch, capsys):
    assert NOTEBOOKS == ["skew_check.ipynb"]
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # the other tests go on with it
    shown = run_cells(EXAMPLES / "skew_check.ipynb")
    (found,) = [one for one in shown if isinstance(one, Spread)]
    assert re.search(r"'customer-big' +4,000 +10\.00%", str(found))
    counts = [int(rows) for rows in re.findall(r"\|orders\.\d\| *(\d+)\|", capsys.readouterr().out)]
    assert counts == [one.rows for one in found.queues]
    assert (len(counts), sum(counts)) == (4, 40_000)
    (picture,) = [one for one in shown if isinstance(one, Picture)]
    assert "one more: " in "".join(picture.itertext())
    (page,) = [one for one in shown if isinstance(one, Report)]
    assert "40,000 rows of today's orders" in page.to_html()
    assert page._repr_html_().startswith("<iframe")


def test_the_notebook_is_committed_without_output():
    cells = json.loads((EXAMPLES / "skew_check.ipynb").read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
