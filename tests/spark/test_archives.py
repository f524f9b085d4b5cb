"""Installs what docs/spark.md and docs/spark-cluster.md say where Python has no packages, and writes and reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from rabbit_chx.streams import connect
from tests.canary import may_hold
from tests.inbox import Inbox
from tests.patience import PATIENCE
from tests.programs import ran
from tests.spark import BRIEF_JAVA, machines
from tests.spark.conftest import PASSWORD
from tests.spark.streams import Streams
from tests.unit.test_docs import marked
from tests.users import a_user
from tests.wheels import installed, write_wheel

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.proof,
    pytest.mark.timeout(1_200),
]

SECTION = re.search(
    r"^## Install it on the executors\n(.*?)^## ",
    (Path(__file__).parents[2] / "docs" / "spark-cluster.md").read_text(),
    re.DOTALL | re.MULTILINE,
)[1]
WRITING = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
PACK, SUBMIT, DOCTOR = re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)

ROWS = 1_000
APP = f"""
import json, os, socket
from collections import Counter
from pyspark.sql import SparkSession
from rabbit_chx.cli.spark import ask_executors

spark = SparkSession.builder.getOrCreate()
rows = spark.range(0, {ROWS}, 1, 4).selectExpr("string(id) AS value", "string(id) AS routing_key")
url, (targets, sources, hidden) = os.environ["AMQP_URL"], json.loads(os.environ["GIVEN"])
for options in targets:
    rows.write.format("rabbitmq").option("url", url).options(**options).mode("append").save()
read = []
for options in sources:
    frame = spark.read.format("rabbitmq").option("url", url).options(**options).load()
    found = Counter(int(row.value) for row in frame.select("value").collect())
    read.append(found[0] if found == Counter([*range({ROWS})] * found[0]) else found)
executors = [(one["process"], *one["faults"]) for one in ask_executors(spark, {{"url": url, **targets[-1]}})[0]]
tasks = spark.sparkContext.parallelize(range(20), 20)
seen = tasks.map(lambda _: (socket.gethostname(), *filter(os.path.exists, hidden))).distinct().collect()
print(json.dumps([read, executors, sorted(seen)]))
"""

PAGES = """
import json, os
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.log.level", "ERROR").getOrCreate()
df, rows = spark.sql("SELECT 'ada' AS customer, 1 AS seq"), spark.sql("SELECT 'one' AS value")
url = os.environ["STREAM_URL"]
{blocks}
print(json.dumps([bytes(row.value).decode() for row in rows.collect()]))
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
            timeout=8 * PATIENCE,
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
    packed = place.run(PACK, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_NO_COMPILE="1", GZIP="-1")
    assert packed.returncode == 0, packed.stderr
    yield place
    shutil.rmtree(folder)


@contextmanager
def an_exchange_a_stream_and_a_super_stream(broker, hidden):
    """The messages of the exchange, and what the program is given; streams receive what the exchange routes, too."""
    port = str(urlsplit(broker.stream_url).port)
    with Inbox(broker.url) as inbox, Streams(broker.url) as streams:
        for bound in (streams.stream(), streams.stream()):
            streams.channel.queue_bind(bound, inbox.exchange)
        to_streams = [
            {"stream": streams.stream(), "streamPort": port},
            {"superStream": streams.super_stream(3)[0], "streamPort": port},
        ]
        exchange = {"exchange": inbox.exchange}
        read = {**exchange, "managementUrl": broker.management_url, "streamPort": port}
        given = [[exchange, *to_streams], [read, *to_streams], [*map(str, hidden)]]
        yield inbox, {"AMQP_URL": inbox.url, "GIVEN": json.dumps(given)}


def told(done: subprocess.CompletedProcess[str]) -> str:
    """What a driver printed, without the stack traces of Java."""
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if not line.startswith("\tat "))


def test_the_archive_is_all_that_machines_with_their_own_file_systems_need(place, rabbitmq_broker, tmp_path):
    hidden = [place.folder, Path(__file__), Path(pa.__file__)]
    assert all(path.exists() for path in hidden)
    with an_exchange_a_stream_and_a_super_stream(rabbitmq_broker, hidden) as (inbox, given):
        with machines.cluster(tmp_path, "worker-1", "worker-2") as master:
            lines = SUBMIT.replace("spark-submit", f"spark-submit --master {master}")
            done = place.run(lines, **given, PYSPARK_PYTHON=str(machines.PYTHON))
        assert done.returncode == 0, told(done)
        assert inbox.bodies() == {b"%d" % number: 1 for number in range(ROWS)}
    read, executors, seen = json.loads(done.stdout.splitlines()[-1])
    assert read == [2, 1, 1]
    assert seen == [["worker-1"], ["worker-2"]]
    assert [faults for _, *faults in executors] == [[], []]


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


@pytest.fixture(scope="module")
def install(place, tmp_path_factory):
    """Runs a program, with options in variables, in an empty environment after the command of docs/spark.md."""
    folder = tmp_path_factory.mktemp("install")
    command = re.search(r"^```sh\n(pip install 'rabbit-chx\[spark\]')", WRITING, re.MULTILINE)[1]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "empty"], check=True)
    python = folder / "empty" / "bin" / "python"
    for one in installed("rabbit-chx[spark]"):
        write_wheel(one, folder)
    pip = f"python -m pip --python {python} install --no-index --no-compile -f {folder}"
    done = place.run(command.replace("pip install", pip))
    assert done.returncode == 0, done.stderr

    def run(program: Path, **given: str) -> str:
        more = given | {"SPARK_HOME": "", "SPARK_CONF_DIR": "", "PYSPARK_PYTHON": str(python)}
        lines = f"unset SPARK_HOME SPARK_CONF_DIR; PATH={python.parent}:$PATH python {program}"
        done = place.run(lines, **more, SPARK_LOCAL_IP="127.0.0.1")
        assert done.returncode == 0, told(done)
        return done.stdout.splitlines()[-1]

    yield run
    shutil.rmtree(folder)


def test_the_documented_install_is_enough_to_write_and_read_a_super_stream(place, rabbitmq_broker, install):
    with an_exchange_a_stream_and_a_super_stream(rabbitmq_broker, []) as (inbox, given):
        read, executors, _ = json.loads(install(place.folder / "app.py", **given))
        assert inbox.bodies() == {b"%d" % number: 1 for number in range(ROWS)}
    assert read == [2, 1, 1]
    assert [faults for _, *faults in executors] == [[]]


def test_the_documented_install_is_enough_for_the_examples_of_the_pages(rabbitmq_broker, install, tmp_path):
    amqp, streams = (urlsplit(url) for url in (rabbitmq_broker.url, rabbitmq_broker.stream_url))
    blocks = [
        marked("spark.md", "test_the_first_lines_write_a_frame"),
        marked("spark.md", "test_a_frame_is_written_to_a_stream"),
        marked("spark.md", "test_the_mirror_in_a_frame"),
        marked("spark-bulk.md", "test_the_created_super_stream_is_there").replace("orders", "super"),
        marked("spark-bulk.md", "test_rows_are_written_once_and_read_back").replace("orders", "super"),
        marked("spark-read.md", "test_the_first_lines_read_a_stream").replace(
            "amqp://user@host", f"rabbitmq-stream://user@{streams.hostname}:{streams.port}"
        ),
    ]
    lines = "\n".join(blocks).replace("user@host", f"user@{amqp.hostname}:{amqp.port}")
    lines = lines.replace("rabbitmq-stream://user:password@host", rabbitmq_broker.stream_url)
    may_hold(tmp_path / "pages.py").write_text(PAGES.format(blocks=lines))
    with (
        Inbox(rabbitmq_broker.url) as inbox,
        Streams(rabbitmq_broker.url) as own,
        a_user(rabbitmq_broker, "", "^orders$", "^events$", name="user", password=PASSWORD),
    ):
        own.declare("events")
        own.channel.exchange_declare("orders", "fanout", durable=True)
        own.channel.exchange_bind(inbox.exchange, "orders")
        try:
            given = {"STREAM_URL": rabbitmq_broker.stream_url, "RABBITMQ_PASSWORD": PASSWORD}
            assert json.loads(install(tmp_path / "pages.py", **given)) == ["one"]
            assert inbox.bodies() == {b'{"customer":"ada","seq":1}': 1}
        finally:
            own.channel.exchange_delete("orders")
            own.channel.queue_delete("events")
            with connect(rabbitmq_broker.stream_url) as connection:
                connection.delete_super_stream("super")
