"""Settings of a session: the defaults of options, and which writes the driver rejects."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as t

from rabbit_chx import InvalidValue
from spark_connector import RabbitMQDataSource
from spark_connector.connections import credentials_of, tls_of
from spark_connector.queues.options import QUEUE_OPTIONS, QueueOptions
from spark_connector.reading.options import READ_OPTIONS, ReadOptions
from spark_connector.session import SessionSettings, set_python_of_tasks
from spark_connector.writing.options import OPTIONS, WriteOptions
from tests.unit.complaints import complaint

SCHEMA = t.StructType([t.StructField("value", t.StringType()), t.StructField("key", t.StringType())])


def session(**defaults: str) -> SessionSettings:
    return SessionSettings.of(
        {f"spark.datasource.rabbitmq.{name}": value for name, value in defaults.items()}
    )


def source(settings: SessionSettings, **options: str) -> RabbitMQDataSource:
    """As a worker of Spark unpickles it."""
    made = type("RabbitMQDataSource", (RabbitMQDataSource,), {"session": settings})
    found = pickle.loads(cloudpickle.dumps(made))(options)
    assert isinstance(found, RabbitMQDataSource)
    return found


def test_a_setting_is_the_default_of_its_option_in_reads_and_writes() -> None:
    settings = session(url="amqp://me@h", maxInFlight="7", columns="value", exchange="orders")
    write = settings.complete(WriteOptions, {})
    assert (write.url, write.max_in_flight, write.exchange) == ("amqp://me@h", 7, "orders")
    read = settings.complete(ReadOptions, {"stream": "s"})
    assert (read.url, read.columns, read.exchange) == ("amqp://me@h", ("value",), None)
    assert settings.complete(ReadOptions, {}).exchange == "orders"
    assert settings.complete(QueueOptions, {"queue": "q"}).queue == "q"


@pytest.mark.parametrize(
    ("defaults", "given", "expected"),
    [
        ({"maxInFlight": "7"}, {"maxinflight": "8", "host": "h"}, {"max_in_flight": 8}),
        ({"host": "h", "user": "a"}, {"username": "b"}, {"host": "h", "username": "b"}),
        ({"url": "amqp://h"}, {"host": "other"}, {"url": None, "host": "other"}),
        ({"host": "h", "port": "1", "vhost": "v"}, {"url": "amqp://o"}, {"host": None, "virtual_host": None}),
        (
            {"url": "amqp://h", "passwordEnv": "A"},
            {"passwordFile": "f"},
            {"password_env": None, "url": "amqp://h"},
        ),
        ({"host": "h", "maxMessageBytes": "9"}, {"exchange": "x"}, {"max_message_bytes": 9}),
        ({"host": "h", "maxMessageBytes": "9"}, {"stream": "s"}, {"max_message_bytes": None}),
        ({"host": "h"}, {"stream": "s", "maxMessageBytes": "9"}, {"max_message_bytes": 9}),
    ],
)
def test_a_given_option_replaces_the_defaults_that_it_contradicts(
    defaults: dict[str, str], given: dict[str, str], expected: dict[str, object]
) -> None:
    options = session(**defaults).complete(WriteOptions, given)
    assert {name: getattr(options, name) for name in expected} == expected


SECURE = {
    "url": "amqps://broker",
    "username": "etl",
    "passwordEnv": "SECRET",
    "tlsCaFile": "ca.pem",
    "tlsCertFile": "c.pem",
    "tlsKeyFile": "k.pem",
    "tlsServerName": "b",
}


@pytest.mark.parametrize("table", [WriteOptions, ReadOptions, QueueOptions])
@pytest.mark.parametrize("given", [{"host": "other", "TLS": "false"}, {"URL": "amqp://other"}])
def test_the_user_and_the_password_of_the_settings_go_to_no_other_address(
    table: type[WriteOptions | ReadOptions | QueueOptions], given: dict[str, str]
) -> None:
    target = "queue" if table is QueueOptions else "exchange"
    options = session(**SECURE).complete(table, {target: "t", **given})
    assert options.urls[0].login == ("guest", "guest")
    assert (credentials_of(options), tls_of(options), options.tls_cert_file) == (None, None, None)


@pytest.mark.parametrize(
    "given",
    [
        {"exchange": "x", "managementUrl": "http://other:15672"},
        {"stream": "s", "streamPort": "1"},
        {"exchange": "x", "tlsVerify": "false"},
        {"exchange": "x", "tlsCaFile": "other.pem"},
        {"exchange": "x", "tls": "false"},
    ],
)
def test_an_option_that_says_who_gets_the_password_needs_the_address_beside_it(given: dict[str, str]) -> None:
    """The management API and the port of streams get the password, too."""
    for settings in (session(**SECURE), session(host="broker", username="etl", passwordEnv="SECRET")):
        for table in (WriteOptions, ReadOptions):
            error = complaint(lambda table=table, settings=settings: settings.complete(table, given))
            assert error.expected == "the option url or host"
            assert "replaces the address and the user in settings of the session" in error.hint


def test_the_management_api_and_the_stream_port_of_the_settings_get_no_other_password() -> None:
    settings = session(
        url="amqp://broker", managementUrl="http://broker:1", streamPort="2", followAdvertised="true"
    )
    given = {"url": "amqp://me:mine@other"}
    assert settings.complete(WriteOptions, {"exchange": "x", **given}).management_url is None
    to_stream = settings.complete(WriteOptions, {"stream": "s", **given})
    assert (to_stream.urls[0].host, to_stream.stream_port, to_stream.follow_advertised) == (
        "other",
        None,
        False,
    )


def test_defaults_that_do_not_apply_to_the_target_are_left_out() -> None:
    settings = session(
        url="amqp://me@h", exchange="orders", maxInFlight="7", producerName="import", managementUrl="http://h"
    )
    to_stream = settings.complete(WriteOptions, {"stream": "events"})
    assert (to_stream.exchange, to_stream.producer_name, to_stream.management_url) == (None, "import", None)
    to_exchange = settings.complete(WriteOptions, {})
    assert (to_exchange.exchange, to_exchange.producer_name, to_exchange.max_in_flight) == ("orders", None, 7)
    to_columns = session(url="amqp://me@h", managementUrl="http://h").complete(WriteOptions, {})
    assert to_columns.management_url is None


def test_defaults_that_do_not_apply_to_the_source_of_a_read_are_left_out() -> None:
    settings = session(url="amqp://me@h", managementUrl="http://h", keys="a")
    for given, management_url, keys in [
        ({"stream": "s"}, None, None),
        ({"superStream": "s"}, None, ("a",)),
        ({"EXCHANGE": "x"}, "http://h", ("a",)),
    ]:
        read = settings.complete(ReadOptions, given)
        assert (read.management_url, read.keys) == (management_url, keys)
    given = {"url": "amqp://h", "managementUrl": "http://h"}
    for table, target in ((ReadOptions, {"stream": "s"}), (WriteOptions, {})):
        error = complaint(lambda table=table, target=target: settings.complete(table, given | target))
        assert error.expected == "the option exchange as well"


def test_a_default_that_only_batches_or_only_queries_have_does_not_disturb_the_others() -> None:
    schema = t.StructType([t.StructField("value", t.BinaryType())])
    limited = source(session(url="amqp://h", maxRowsPerTrigger="1000", stream="s"))
    ended = source(session(url="amqp://h", endingOffsets="latest", stream="s"))
    assert limited.reader(schema)
    assert ended.streamReader(schema)
    given = source(session(url="amqp://h"), stream="s", maxRowsPerTrigger="5", endingOffsets="latest")
    assert complaint(lambda: given.reader(schema)).what == "option maxRowsPerTrigger"
    assert complaint(lambda: given.streamReader(schema)).what == "option endingOffsets"


@pytest.mark.parametrize(("limit", "rows"), [("100000", 10_000), ("500", 500)])
def test_a_default_limit_that_only_streams_can_have_does_not_apply_to_a_queue(limit: str, rows: int) -> None:
    settings = session(url="amqp://h", maxRowsPerTrigger=limit)
    assert settings.complete(QueueOptions, {"queue": "q"}).max_rows_per_trigger == rows
    error = complaint(lambda: settings.complete(QueueOptions, {"queue": "q", "maxRowsPerTrigger": "100000"}))
    assert error.expected == "an integer from 1 to 32767"
    invalid = session(url="amqp://h", maxRowsPerTrigger="many")
    assert complaint(lambda: invalid.complete(QueueOptions, {"queue": "q"})).got == "many"


def test_a_setting_that_names_no_option_is_an_error() -> None:
    error = complaint(lambda: session(exchnge="x"))
    assert (error.got, error.hint) == ("spark.datasource.rabbitmq.exchnge", "Did you mean exchange?")


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("password", "CANARY", "passwordFile"),
        ("PASSWORD", "CANARY", "passwordFile"),
        ("url", "amqp://me:CANARY@h", "passwordEnv"),
        ("url", "amqps://me@h1,amqps://me:CANARY@h2", "passwordEnv"),
        ("url", "me:CANARY@h", "passwordEnv"),
        ("url", "amqp://me@example.com:CANARY@h", "passwordEnv"),
        ("url", "amqp://me@h1,me:CANARY@h2", "passwordEnv"),
        ("url", "amqp://me@h1,AMQP://me:CANARY@h2", "passwordEnv"),
        ("managementUrl", "http://me:CANARY@h:15672", "passwordEnv"),
        ("tlsKeyPassword", "CANARY", "tlsKeyFile"),
    ],
)
def test_a_password_in_a_setting_is_an_error(name: str, value: str, remedy: str) -> None:
    """Spark shows settings in its UI and its event log."""
    error = complaint(lambda: session(**{name: value}))
    assert name.lower() in error.what.lower()
    assert remedy in error.hint
    assert "CANARY" not in str(error)


def test_settings_without_a_password_are_accepted() -> None:
    given = {"url": "amqp://h1:5672/v,AMQP://me@h2:5672", "managementUrl": "http://me@h:15672/a:b"}
    assert session(**given, passwordEnv="NAME", passwordFile="f").options


def test_every_option_with_a_secret_is_refused_as_a_setting() -> None:
    secrets = {one.name for one in (*OPTIONS, *READ_OPTIONS, *QUEUE_OPTIONS) if one.secret}
    for name in secrets:
        complaint(lambda name=name: session(**{name: "amqp://me:CANARY@h"}))


def test_a_default_queue_is_read_unless_another_source_is_given() -> None:
    settings = session(url="amqp://h", queue="q", columns="value")
    assert settings.reads_queue({})
    assert not settings.reads_queue({"stream": "s"})
    assert settings.complete(ReadOptions, {"stream": "s"}).stream == ("s",)


def test_the_driver_rejects_speculation() -> None:
    settings = SessionSettings.of({"spark.speculation": "true"})
    given = {"url": "amqp://127.0.0.1:1", "exchange": "x", "checkExchange": "false"}
    error = complaint(lambda: source(settings, **given).writer(SCHEMA, False))
    assert "allowSpeculation=true" in error.hint
    assert source(settings, **given, allowSpeculation="true").writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("master", "rejected"), [("local[2]", True), ("local-cluster[1,1,1]", False), ("yarn", False)]
)
def test_the_driver_rejects_a_missing_password_if_the_tasks_run_on_its_machine(
    master: str, rejected: bool
) -> None:
    settings = SessionSettings.of({"spark.master": master})
    made = source(
        settings, url="amqp://127.0.0.1:1", exchange="x", checkExchange="false", passwordEnv="NO_SUCH_1"
    )
    if rejected:
        with pytest.raises(InvalidValue, match="NO_SUCH_1, which is not set on"):
            made.streamWriter(SCHEMA, overwrite=False)
    else:
        assert made.streamWriter(SCHEMA, overwrite=False)


@pytest.mark.parametrize("given", [{"option.exchange": "x", "exchange": "x"}, {"owner": "me"}])
def test_the_error_of_create_table_without_columns_suggests_statements_that_work(
    given: dict[str, str],
) -> None:
    error = complaint(source(session(), **given).schema)
    assert "CREATE TABLE t (value STRING" in error.hint
    assert "INSERT INTO t WITH" in error.hint
    assert "SELECT ... FROM t WITH" in error.hint


@pytest.mark.parametrize(
    ("master", "named", "expected"),
    [
        ("local[2]", None, sys.executable),
        ("local", None, sys.executable),
        ("local[2]", "/no/python", "/no/python"),
        ("spark://h:7077", None, "/no/python"),
    ],
)
def test_local_tasks_run_the_python_of_the_driver(
    master: str, named: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    context = SimpleNamespace(master=master, pythonExec="/no/python")
    set_python_of_tasks(context)
    assert context.pythonExec == expected


@pytest.mark.parametrize(
    ("script", "rejected"),
    [
        ("echo 3.9", True),
        ("echo {version}", False),
        ("echo Welcome", False),
        ("exit 1", False),
        (None, False),
    ],
    ids=["another version", "the same version", "no version", "no Python", "missing"],
)
def test_a_python_of_another_minor_version_is_rejected(
    script: str | None, rejected: bool, tmp_path: Path
) -> None:
    version, program = "{}.{}".format(*sys.version_info), tmp_path / "python3.9"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script.format(version=version)}\n")
        program.chmod(0o755)
    context = SimpleNamespace(master="yarn", pythonExec=str(program), pythonVer=version)
    if not rejected:
        set_python_of_tasks(context)
        return
    error = complaint(lambda: set_python_of_tasks(context))
    assert (str(error.got), error.expected) == (
        f"Python 3.9 ({program})",
        f"Python {version}, like the driver",
    )
    assert "PYSPARK_PYTHON" in error.hint
