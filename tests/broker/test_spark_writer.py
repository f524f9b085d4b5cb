"""The connector's writer against real brokers, without Spark: what is written, and what each failure becomes."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from pyspark.sql import types as t

from rabbit_chx import InvalidValue
from rabbit_chx.errors import BrokerUnavailable
from spark_connector import WriteFailed
from tests.broker.spark_frames import TEXT, frame, rows, source, write
from tests.inbox import Inbox
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.one_release]


def task(broker, schema, *batches, **options):
    """Write as a task does whose driver has not asked the broker."""
    writer = source(broker, checkExchange="false", **options).writer(schema, overwrite=False)
    return writer.write(iter(batches))


def check(broker, schema, **options):
    """What the driver does before a write."""
    return source(broker, **options).writer(schema, overwrite=False)


# ---- what arrives


def test_the_type_of_a_header_is_the_type_of_its_column(broker, inbox):
    moment = datetime(2024, 2, 29, 12, 30, 15, 999_999, tzinfo=UTC)
    fields = {
        "s": (TEXT, "text", b"S"),
        "x": (t.BinaryType(), b"\xff", b"x"),
        "t": (t.BooleanType(), True, b"t"),
        "i8": (t.ByteType(), -1, b"I"),
        "i16": (t.ShortType(), 300, b"I"),
        "i32": (t.IntegerType(), 5, b"I"),
        "i64": (t.LongType(), 5, b"l"),
        "at": (t.TimestampType(), moment, b"T"),
    }
    kind = t.StructType([t.StructField(name, field[0]) for name, field in fields.items()])
    values = {name: value for name, (_, value, _) in fields.items()}
    schema, batch = frame({"value": TEXT, "headers": kind}, ("x", values))
    write(broker, schema, batch, exchange=inbox.exchange, routingKey="")
    (one,) = inbox.take(1)
    found = one.properties.headers
    found["at"] = found["at"].replace(tzinfo=UTC)  # releases of pika differ in the zone
    assert found == values | {"at": moment.replace(microsecond=0)}
    raw = b"".join(one.properties.encode())  # pika keeps the width of integers
    assert all(bytes([len(name)]) + name.encode() + tag in raw for name, (*_, tag) in fields.items())


def test_each_row_may_name_its_exchange(broker, inbox):
    with Inbox(broker.url) as other:
        names = [inbox.exchange, other.exchange, other.exchange, inbox.exchange]
        schema, batch = frame(
            {"value": TEXT, "key": TEXT, "exchange": TEXT},
            *((f"{n}", "k", name) for n, name in enumerate(names)),
        )
        write(broker, schema, batch)
        assert [one.body for one in inbox.take(2)] == [b"0", b"3"]
        assert [one.body for one in other.take(2)] == [b"1", b"2"]


def test_the_default_exchange_leads_to_a_queue_by_its_name(broker, inbox):
    schema, batch = frame({"value": TEXT}, ("x",))
    write(broker, schema, batch, exchange="", routingKey=inbox.queue)
    assert inbox.bodies() == {b"x": 1}


def test_a_rate_spreads_rows_over_time(broker, inbox):
    schema, batch = rows(60)
    began = time.monotonic()
    write(broker, schema, batch, exchange=inbox.exchange, maxRatePerTask="100")
    assert time.monotonic() - began > 0.4
    assert len(inbox) == 60


# ---- rows that cannot be sent


def test_an_invalid_row_holds_back_its_whole_batch_and_fails_the_commit(broker, inbox):
    kinds = {"value": TEXT, "key": TEXT}
    _, sound = frame(kinds, ("0", "a"), ("1", "b"))
    schema, bad = frame(kinds, ("2", "c"), ("3", "k" * 256), (None, "d"))
    with pytest.raises(WriteFailed) as caught:
        write(broker, schema, sound, bad, exchange=inbox.exchange)
    text = str(caught.value)
    assert "row 3 of partition 0: routing_key is longer than 255 bytes" in text
    assert "1 more in the same Arrow batch" in text
    assert "2 rows are in the broker already" in text
    assert inbox.bodies() == {b"0": 1, b"1": 1}


def test_invalid_rows_can_be_dropped_and_are_counted(broker, inbox):
    schema, batch = frame(
        {"value": TEXT, "key": TEXT}, *((None if n % 2 else f"{n}", f"k{n}") for n in range(20))
    )
    written = write(broker, schema, batch, batch, exchange=inbox.exchange, invalidRows="drop")
    assert (written.rows, written.confirmed, written.dropped) == (40, 20, 20)
    assert [row.partition(":")[0] for row in written.first_dropped] == [
        f"row {n} of partition 0" for n in (1, 3, 5, 7, 9)
    ]
    assert "'k1'" in written.first_dropped[0]
    assert inbox.bodies() == {f"{n}".encode(): 2 for n in range(0, 20, 2)}


def test_a_body_over_the_limit_of_the_broker_is_an_invalid_row(broker, inbox):
    limit = 16 << 20 if int(broker.version.partition(".")[0]) >= 4 else 128 << 20
    for size, options in [(1001, {"maxMessageBytes": "1000"}), (limit + 1, {})]:
        schema, batch = frame({"value": t.BinaryType(), "key": TEXT}, (b"x" * size, "k"))
        with pytest.raises(WriteFailed, match="row 0 of partition 0: value is longer than"):
            write(broker, schema, batch, exchange=inbox.exchange, **options)
    assert len(inbox) == 0


# ---- what the broker refuses


def test_a_row_that_no_queue_takes_fails_the_commit_and_not_the_task(broker):
    with Inbox(broker.url, kind="direct", binding="here") as inbox:
        schema, batch = frame({"value": TEXT, "key": TEXT}, ("0", "here"), ("1", "nowhere"), ("2", "here"))
        writer = check(broker, schema, exchange=inbox.exchange)
        written = writer.write(iter([batch]))
        assert (written.published, written.confirmed) == (3, 2)
        with pytest.raises(WriteFailed, match=r"row 1 of partition 0 .*'nowhere'\), returned: 312 NO_ROUTE"):
            writer.commit([written])
        assert inbox.bodies() == {b"0": 1, b"2": 1}


def test_a_missing_exchange_is_reported_before_a_task_or_by_it(broker):
    schema, batch = rows(3)
    with pytest.raises(InvalidValue, match="invalid exchange: got 'nope'"):
        check(broker, schema, exchange="nope")
    written = task(broker, schema, batch, exchange="nope")
    assert "NOT_FOUND" in written.problem
    assert written.confirmed == 0


@pytest.fixture
def orphan(broker):
    """An exchange whose type the broker does not know, as after a restart without the plugin."""
    registry = 'rabbit_registry:{}(exchange, <<"x-random">>{})'
    with broker.connection() as connection:
        connection.channel().exchange_declare("orphan", "x-random", durable=True)
        broker.eval(registry.format("unregister", ""))
        yield "orphan"
        broker.eval(registry.format("register", ", rabbit_exchange_type_random"))
        connection.channel().exchange_delete("orphan")


def test_a_missing_plugin_fails_the_commit_and_not_the_task(broker, orphan):
    schema, batch = rows(3)
    written = check(broker, schema, exchange=orphan).write(iter([batch]))
    assert "exchange type x-random not found" in written.problem
    assert written.confirmed == 0


@pytest.fixture
def stranger(broker):
    """A user who may write only to names that begin with allowed."""
    with a_user(broker, "", "^allowed", "") as user:
        yield user


def test_topic_permissions_do_not_fail_the_access_check(broker, stranger):
    schema, _ = rows(1)
    with pytest.raises(InvalidValue, match=r"no write permission on exchange 'amq\.topic'"):
        check(broker, schema, url=stranger.url, exchange="amq.topic")
    stranger.grant("", ".*", "")
    broker.ctl("set_topic_permissions", "-p", "/", stranger.name, "amq.topic", "^only-this", "")
    check(broker, schema, url=stranger.url, exchange="amq.topic")


def test_a_wrong_password_is_reported_before_a_task_or_by_it(broker):
    host = broker.url.rpartition("@")[2]
    schema, batch = rows(1)
    options = {"url": f"amqp://guest:CANARY@{host}", "exchange": "amq.fanout"}
    with pytest.raises(BrokerUnavailable, match="rejected the user name or password") as caught:
        check(broker, schema, **options)
    assert "CANARY" not in str(caught.value)
    assert "checkExchange" not in str(caught.value)
    written = task(broker, schema, batch, **options)
    assert "rejected the user name or password" in written.problem


# ---- secrets from elsewhere


def test_the_check_is_skipped_on_a_machine_without_the_secret(broker, inbox, caplog):
    schema, batch = rows(1)
    for absent in ({"passwordFile": "/no/such/file"}, {"passwordEnv": "NOT_SET_ANYWHERE"}):
        caplog.clear()
        writer = check(broker, schema, exchange=inbox.exchange, **absent, url="amqp://guest@127.0.0.1:1")
        (record,) = [one for one in caplog.records if one.name == "rabbit_chx.spark"]
        assert "the driver did not check" in record.getMessage()
        # On an executor it has to be there, and another attempt would not find it either.
        assert "is not set" in (problem := writer.write(iter([batch])).problem) or "is not on" in problem


# ---- dry runs


def test_a_dry_run_checks_everything_and_publishes_nothing(broker, inbox, stranger, caplog):
    schema, batch = frame(
        {"value": TEXT, "key": TEXT, "exchange": TEXT}, ("0", "k", inbox.exchange), (None, "k", "nope")
    )
    writer = check(broker, schema, dryRun="true")
    assert "row 1 of partition 0: value is null" in writer.write(iter([batch])).problem
    written = writer.write(iter([batch.slice(0, 1)]))
    assert (written.rows, written.published, written.problem) == (1, 0, "")
    with caplog.at_level("INFO"):
        writer.commit([written])
    assert '"event": "dry run"' in caplog.text
    writer = check(broker, schema, dryRun="true", nullValue="empty")
    assert "invalid exchange: got 'nope'" in writer.write(iter([batch])).problem
    writer = check(broker, schema, dryRun="true", url=stranger.url)
    assert "no write permission" in writer.write(iter([batch.slice(0, 1)])).problem
    assert len(inbox) == 0
