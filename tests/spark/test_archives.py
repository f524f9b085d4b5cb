"""Installs what docs/spark.md and docs/spark-cluster.md say where Python has no packages, and writes and reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.inbox import Inbox
from tests.programs import ran
from tests.spark import BRIEF_JAVA
from tests.spark.streams import Streams
from tests.wheels import installed, write_wheel

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1_200)]

SECTION = re.search(
    r"^## Install it on the executors\n(.*?)^## ",
    (Path(__file__).parents[2] / "docs" / "spark-cluster.md").read_text(),
    re.DOTALL | re.MULTILINE,
)[1]
WRITING = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
PACK, SUBMIT, DOCTOR = re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)

ROWS = 1_000
APP = f"""
import json, os, sys
from pyspark.sql import SparkSession
from rabbit_chx.cli.spark import ask_executors

spark = SparkSession.builder.getOrCreate()
rows = spark.range(0, {ROWS}, 1, 4).selectExpr("string(id) AS value", "string(id) AS routing_key")
url, targets = os.environ["AMQP_URL"], json.loads(os.environ["TARGETS"])
for options in targets:
    rows.write.format("rabbitmq").option("url", url).options(**options).mode("append").save()
read = []
for options in targets[1:]:
    frame = spark.read.format("rabbitmq").option("url", url).options(**options).load()
    read.append(sorted(int(row.value) for row in frame.select("value").collect()) == [*range({ROWS})])
executors = [(one["process"], *one["faults"]) for one in ask_executors(spark, {{"url": url, **targets[-1]}})[0]]
print(json.dumps([read, executors]))
"""

DEFAULTS = f"""
spark.master                local-cluster[2,1,700]
spark.executor.memory       700m
spark.cores.max             2
spark.scheduler.minRegisteredResourcesRatio        1
spark.scheduler.maxRegisteredResourcesWaitingTime  300s
spark.driver.extraJavaOptions    {BRIEF_JAVA}
spark.executor.extraJavaOptions  {BRIEF_JAVA}
spark.driver.host           127.0.0.1
spark.driver.bindAddress    127.0.0.1
spark.ui.enabled            false
spark.log.level             ERROR
"""


class Place(NamedTuple):
    """A folder with the files that the docs mention, and a cluster that unpacks archives in it."""

    folder: Path
    python: Path

    def run(self, lines: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run commands of the docs in the folder, with the bare Python on the path."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK_"))
        }
        tools = Path(sys.executable).parent
        return ran(
            ["bash", "-euc", lines],
            cwd=self.folder,
            env=kept
            | {
                "PATH": f"{tools}:{kept['PATH']}",
                "PYSPARK_PYTHON": str(self.python),
                "SPARK_HOME": str(self.folder / "spark"),
                "SPARK_CONF_DIR": str(self.folder),
            }
            | more,
            timeout=1_000,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"], check=True)
    (folder / "app.py").write_text(APP)
    (folder / "spark-defaults.conf").write_text(DEFAULTS)
    # The executors of a local cluster unpack below SPARK_HOME, which is deleted at the end.
    (folder / "spark").mkdir()
    for one in ("bin", "jars", "python"):
        (folder / "spark" / one).symlink_to(Path(pyspark.__file__).parent / one)
    wheels = folder / "wheels"
    wheels.mkdir()
    for one in installed("rabbit-chx[arrow]"):
        write_wheel(one, wheels)
    place = Place(folder, folder / "bare" / "bin" / "python")
    packed = place.run(PACK, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_NO_COMPILE="1")
    assert packed.returncode == 0, packed.stderr
    yield place
    shutil.rmtree(folder)


def test_the_archive_is_enough_to_write_to_an_exchange_and_to_write_and_read_streams(place, rabbitmq_broker):
    port = str(urlsplit(rabbitmq_broker.stream_url).port)
    with Inbox(rabbitmq_broker.url) as inbox, Streams(rabbitmq_broker.url) as streams:
        targets = [
            {"exchange": inbox.exchange},
            {"stream": streams.stream(), "streamPort": port},
            {"superStream": streams.super_stream(3)[0], "streamPort": port},
        ]
        done = place.run(SUBMIT, AMQP_URL=inbox.url, TARGETS=json.dumps(targets))
        assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
        assert inbox.bodies() == {b"%d" % number: 1 for number in range(ROWS)}
    read, ((first, *lacks), (second, *lacks_too)) = json.loads(done.stdout.splitlines()[-1])
    assert read == [True, True]
    assert first != second
    assert not lacks + lacks_too


def test_without_the_archive_the_doctor_names_what_each_executor_lacks(place, rabbitmq_broker):
    lines = DOCTOR.replace(" spark://host:7077", "").replace("amqp://user@rabbit", rabbitmq_broker.url)
    alone = lines.replace("--conf spark.archives=environment.tar.gz#environment", "--output json")
    alone = alone.replace("--option passwordEnv=RABBITMQ_PASSWORD", "")
    assert len({DOCTOR, lines, alone}) == 3
    done = place.run(alone)
    assert done.returncode == 1, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    executors = [row for row in rows if row["name"] == "executor"]
    assert len({row["process"] for row in executors}) == len(executors) == 2
    for row in executors:
        assert row["packages"].keys() == {"pyspark"}
        for package in ("rabbit-chx", "numpy", "pyarrow", "pika", "mmh3"):
            assert f"{package}: missing" in row["found"]
        assert " is reachable in " in row["found"]
        assert "docs/spark-cluster.md" in row["hint"]


def test_the_doctor_runs_the_pyspark_of_spark_home(place):
    lines = (
        '"$PYSPARK_PYTHON" environment/bin/rabbit-chx doctor --output json --spark "local[1]"'
        " --conf spark.driver.host=127.0.0.1"
    )
    done = place.run(lines, PYTHONPATH="./environment")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (rows, done.stderr)
    assert {row["name"]: row["state"] for row in rows if row["name"] in {"Spark", "executor", "pyspark"}} == {
        "Spark": "ok",
        "executor": "ok",
        "pyspark": "missing",  # from pip
    }


def test_the_documented_install_is_enough_to_write_and_read_a_super_stream(place, rabbitmq_broker, tmp_path):
    command = re.search(r"^```sh\n(pip install 'rabbit-chx\[spark\]')", WRITING, re.MULTILINE)[1]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    for one in installed("rabbit-chx[spark]"):
        write_wheel(one, tmp_path)
    pip = f"python -m pip --python {python} install --no-index --no-compile -f {tmp_path}"
    done = place.run(command.replace("pip install", pip))
    assert done.returncode == 0, done.stderr
    with Streams(rabbitmq_broker.url) as streams, Inbox(rabbitmq_broker.url) as inbox:
        port = str(urlsplit(rabbitmq_broker.stream_url).port)
        targets = [
            {"exchange": inbox.exchange},
            {"stream": streams.stream(), "streamPort": port},
            {"superStream": streams.super_stream(3)[0], "streamPort": port},
        ]
        more = {"AMQP_URL": inbox.url, "TARGETS": json.dumps(targets), "SPARK_HOME": "", "SPARK_CONF_DIR": ""}
        lines = f"unset SPARK_HOME SPARK_CONF_DIR; PATH={python.parent}:$PATH python app.py"
        done = place.run(lines, **more, PYSPARK_PYTHON=str(python), SPARK_LOCAL_IP="127.0.0.1")
        assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
        assert inbox.bodies() == {b"%d" % number: 1 for number in range(ROWS)}
    read, executors = json.loads(done.stdout.splitlines()[-1])
    assert read == [True, True]
    assert [faults for _, *faults in executors] == [[]]
