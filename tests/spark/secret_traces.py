"""Writes and reads that carry secrets in every option that takes one, and all that Spark says, shows and stores about them.

A separate program, since a process can hold only one Spark and Spark's logs are searched, too. It reads its task as
one line of JSON from stdin, so that no secret is in its command line, and leaves a file or folder for each place where a
secret could appear. At the end it prints ``ready`` and continues to write until stdin is closed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from pyspark.sql import DataFrame, SparkSession

from spark_connector import register
from spark_connector.session import PREFIX
from tests.patience import PATIENCE
from tests.programs import command_lines
from tests.spark.conftest import SETTINGS

DEADLINE = 2 * PATIENCE
_PAGE = 10
MODES = ("", "EXTENDED", "CODEGEN", "COST", "FORMATTED")


@dataclass(frozen=True)
class Way:
    """One way to give secrets."""

    name: str
    good: dict[str, str]
    """The options of a write that succeeds."""
    wrong: dict[str, dict[str, str]]
    """Options with a wrong secret, each under the words that refuse it."""
    nowhere: dict[str, str]
    """Where no broker is; empty where the options hold no secret themselves, and SQL need not be tried either."""
    read: dict[str, str]
    """What to read: a stream and a queue, and the port of the stream protocol without TLS and with it."""

    def reading(self, options: dict[str, str], source: str = "stream") -> dict[str, str]:
        """The same connection for a read."""
        connection = {name: value for name, value in options.items() if name != "exchange"}
        given = connection | {source: self.read[source], "reconnectTimeoutMs": "500"}
        if source == "stream":
            secure = options.get("url", "").startswith("amqps")
            given["streamPort"] = self.read["secure" if secure else "plain"]
        return given


class Traces:
    """What was seen, one file for each place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, place: str, *texts: object) -> None:
        """Keep what was seen at a place."""
        with (self.folder / place).open("a") as file:
            file.writelines(f"{text}\n" for text in texts)

    def failing(self, call: Callable[[], object], words: str) -> None:
        """Keep what an error says, all of it; it has to say these words."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - Spark has many
            whole = "".join(traceback.format_exception(error))
            assert words in whole, whole
            self.note("exceptions", repr(error), whole, getattr(error, "_stackTrace", ""))
        else:
            raise AssertionError(f"nothing said {words!r}")


# -- writes ----------------------------------------------------------------------------------------


def batches(frame: DataFrame, way: Way, traces: Traces) -> None:
    """A write that succeeds, and one error of each kind: in writer(), write() and commit()."""

    def write(options: dict[str, str], rows: DataFrame = frame, **more: str) -> Callable[[], None]:
        writer = rows.write.format("rabbitmq").options(**options, **more).mode("append")
        return writer.save

    write(way.good)()
    for refusal, options in way.wrong.items():
        traces.failing(write(options), refusal)
        traces.failing(write(options, checkExchange="false"), refusal)
    if way.nowhere:
        traces.failing(write(way.good, exchnge="x"), "Did you mean exchange?")
        quick = {"checkExchange": "false", "connectionTimeoutMs": "500"}
        traces.failing(write(way.nowhere, **quick), "no broker answers")
        nulls = frame.selectExpr("nullif(value, '3') as value", "key")
        traces.failing(write(way.good, nulls), "value is null")


def streams(spark: SparkSession, ways: list[Way], traces: Traces) -> None:
    """For each way a query that succeeds and one that is refused, side by side."""
    source = traces.folder / "lines"
    source.mkdir()
    (source / "a").write_text("a stream's row\n")
    frame = spark.readStream.text(str(source)).selectExpr("value", "value as key")

    def start(name: str, options: dict[str, str]) -> Any:
        writer = frame.writeStream.format("rabbitmq").options(**options).queryName(re.sub(r"\W", "_", name))
        checkpoint = traces.folder / "checkpoints" / name
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    for way in ways:
        good = start(f"good {way.name}", way.good)
        refusal, options = next(iter(way.wrong.items()))
        wrong = start(f"wrong {way.name}", options)
        assert good.awaitTermination(DEADLINE), "still running"
        traces.failing(lambda query=wrong: query.awaitTermination(DEADLINE), refusal)
        traces.note("exceptions", wrong.exception())
        for query in (good, wrong):
            describe(query, traces)


def reads(spark: SparkSession, ways: list[Way], traces: Traces) -> None:
    """For each way a batch and a query that succeed and are refused; a queue is read one way."""

    def rows(options: dict[str, str]) -> int:
        return spark.read.format("rabbitmq").options(**options).load().count()

    def start(name: str, options: dict[str, str]) -> Any:
        frame = spark.readStream.format("rabbitmq").options(**options).load()
        writer = frame.writeStream.format("noop").queryName(re.sub(r"\W", "_", name))
        checkpoint = traces.folder / "checkpoints" / name
        return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()

    for way in ways:
        good = way.reading(way.good)
        assert rows(good) > 0
        plan = spark.read.format("rabbitmq").options(**good).load()._jdf.queryExecution()
        traces.note("explain", plan.toString(), plan.simpleString())
        queries = [start(f"read {way.name}", good | {"startingOffsets": "earliest"})]
        # Alone, because Spark waits only ten seconds for the process of a source.
        assert queries[0].awaitTermination(DEADLINE), "still running"
        for number, (refusal, options) in enumerate(way.wrong.items()):
            wrong = way.reading(options)
            traces.failing(lambda wrong=wrong: rows(wrong), refusal)
            queries.append(start(f"read wrong {way.name} {number}", wrong))
            traces.failing(lambda query=queries[-1]: query.awaitTermination(DEADLINE), refusal)
        if way.nowhere:
            nowhere = way.reading(way.nowhere) | {"streamPort": "1"}
            traces.failing(lambda nowhere=nowhere: rows(nowhere), "Connection refused")
            traces.failing(lambda good=good: rows(good | {"steam": "x"}), "Did you mean stream?")
        for query in queries:
            describe(query, traces)
    received = start("read queue", ways[0].reading(ways[0].good, "queue"))
    assert received.awaitTermination(DEADLINE), "still running"
    describe(received, traces)


def describe(query: Any, traces: Traces) -> None:
    """All that a query says of itself."""
    traces.note("explain", query._jsq.explainInternal(False), query._jsq.explainInternal(True))
    traces.note("progress", query.name, query.status, query.lastProgress, query.recentProgress)


def unending(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> Any:
    """A query that writes a row a second."""
    frame = spark.readStream.format("rate").load().selectExpr("'a second' as value", "'k' as key")
    writer = frame.writeStream.format("rabbitmq").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def misspelt(spark: SparkSession, options: dict[str, str], traces: Traces) -> None:
    """What Spark itself shows of a stream whose secret has a name that does not suggest one."""
    query = unending(spark, options, traces.folder / "checkpoints" / "misspelt")
    with suppress(Exception):
        query.awaitTermination(DEADLINE)
    traces.note("misspelt", query.exception(), query._jsq.explainInternal(True))


def while_it_writes(spark: SparkSession, way: Way, traces: Traces) -> None:
    """Say ``ready`` while a query holds its connections, and let it end on demand."""
    query = unending(spark, way.good, traces.folder / "checkpoints" / "unending")
    while not any(one["sink"]["numOutputRows"] > 0 for one in query.recentProgress):
        assert not query.awaitTermination(0.5), query.exception()
    print("ready", flush=True)
    sys.stdin.readline()
    query.stop()


# -- SQL -------------------------------------------------------------------------------------------


def statements(spark: SparkSession, way: Way, traces: Traces) -> None:
    """Options in SQL: of a view, of a table, and of the insert itself."""
    given = ", ".join(f"{name} = '{value}'" for name, value in way.good.items())
    rows = "SELECT 'by SQL' AS value, 'k' AS key"
    spark.sql(f"CREATE TEMPORARY VIEW a_view (value string, key string) USING rabbitmq OPTIONS ({given})")
    spark.sql(f"CREATE TABLE a_table (value string, key string) USING rabbitmq OPTIONS ({given})")
    spark.sql("CREATE TABLE bare (value string, key string) USING rabbitmq")
    for insert in (f"INSERT INTO a_view {rows}", f"INSERT INTO bare WITH ({given}) {rows}"):
        spark.sql(insert)
        for mode in MODES:
            traces.note("explain", *(row[0] for row in spark.sql(f"EXPLAIN {mode} {insert}").collect()))
    for told in (
        "DESCRIBE EXTENDED a_table",
        "DESCRIBE EXTENDED a_view",
        "SHOW CREATE TABLE a_table",
        "SHOW TBLPROPERTIES a_table",
        "SHOW TABLE EXTENDED LIKE 'a_*'",
    ):
        traces.note("sql", told, *spark.sql(told).collect())
    traces.note("sql", spark.catalog.listTables(), spark.catalog.getTable("a_table"))
    quoted(spark, f"INSERT INTO bare WITH ({given}) SELEKT 1", traces)
    for name in ("a_table", "bare"):
        spark.sql(f"DROP TABLE {name}")
    spark.catalog.dropTempView("a_view")


# -- settings of the session -----------------------------------------------------------------------


def settings(spark: SparkSession, way: Way, password: str, traces: Traces) -> None:
    """Write with settings instead of options; a password among them is refused, but Spark has seen it by then."""
    given = {f"{PREFIX}{name}": value for name, value in way.good.items()}
    frame = spark.createDataFrame([("by settings", "k")], "value string, key string")
    for name, value in given.items():
        spark.conf.set(name, value)
    register(spark)
    frame.write.format("rabbitmq").mode("append").save()
    spark.conf.set(f"{PREFIX}password", password)
    traces.failing(lambda: register(spark), "passwordEnv")
    assert frame.count() == 1  # a job while the password is a setting
    for name in (*given, f"{PREFIX}password"):
        spark.conf.unset(name)
    register(spark)


def quoted(spark: SparkSession, statement: str, traces: Traces) -> None:
    """What Spark says of a statement that is no SQL."""
    try:
        spark.sql(statement)
    except Exception as error:  # noqa: BLE001 - its text is what counts
        traces.note("errors of SQL", error)


# -- the end ---------------------------------------------------------------------------------------


def pages(spark: SparkSession) -> Iterator[str]:
    """What the UI shows: its REST API, and its pages of SQL and of streams."""
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"

    opener = build_opener(ProxyHandler({}))  # no proxy leads to this machine

    def get(url: str) -> str:
        with opener.open(url, timeout=60) as answer:
            return str(answer.read().decode())

    for offset in count(step=_PAGE):  # in parts, as a long answer may take longer than Spark's server allows
        executions = get(f"{base}/sql?details=true&planDescription=true&offset={offset}&length={_PAGE}")
        yield executions
        for one in json.loads(executions):
            yield get(f"{context.uiWebUrl}/SQL/execution/?id={one['id']}")
        if len(json.loads(executions)) < _PAGE:
            break
    yield from map(get, (f"{base}/environment", f"{base}/jobs", f"{base}/stages?details=true"))
    yield from (get(f"{context.uiWebUrl}/{page}/") for page in ("SQL", "StreamingQuery", "environment"))


def session(folder: Path, configured: str) -> SparkSession:
    """A Spark that stores all it can in this folder, with a secret in its configuration."""
    kept = {name: folder / name for name in ("event log", "local", "warehouse")}
    for place in kept.values():
        place.mkdir()
    settings = SETTINGS | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": kept["event log"].as_uri(),
        "spark.local.dir": str(kept["local"]),
        "spark.sql.warehouse.dir": kept["warehouse"].as_uri(),
        "spark.executorEnv.RABBITMQ_PASSWORD": configured,
        "spark.sql.pyspark.jvmStacktrace.enabled": "true",
        "spark.sql.pyspark.worker.logging.enabled": "true",  # from 4.1 on
    }
    made = SparkSession.builder.master("local[2]").appName("secrets").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("DEBUG")
    return made


def main() -> None:
    told = json.loads(sys.stdin.readline())
    folder = Path(told["folder"])
    traces = Traces(folder)
    with command_lines() as commands:
        # What Python's own logging has to say, py4j's talk with the JVM included.
        logging.basicConfig(filename=folder / "python log", level=logging.DEBUG)
        spark = session(folder, told["configured"])
        ways = [Way(**one) for one in told["ways"]]
        frame = spark.range(20).selectExpr("cast(id as string) as value", "'k' as key").repartition(2)
        by_env = next(way for way in ways if way.name == "env")
        settings(
            spark, by_env, told["setting"], traces
        )  # first, since PySpark 4.0 replaces no format that it has found
        for way in ways:
            batches(frame, way, traces)
            if way.nowhere:
                statements(spark, way, traces)
        streams(spark, ways, traces)
        reads(spark, ways, traces)
        misspelt(spark, told["misspelt"], traces)
        if hasattr(spark.tvf, "python_worker_logs"):  # from PySpark 4.1 on
            traces.note("worker logs", *spark.tvf.python_worker_logs().collect())
        traces.note("ui", *pages(spark))
        with suppress(shutil.Error):  # Spark has cleaned up a file meanwhile; the others are copied
            shutil.copytree(folder / "local", folder / "local files")
    traces.note("command lines", *sorted(commands))
    while_it_writes(spark, ways[0], traces)
    spark.stop()


if __name__ == "__main__":
    main()
