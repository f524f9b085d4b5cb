"""The connections that the connector's writer keeps, names and mends, on real brokers and without Spark."""

from __future__ import annotations

import pytest

from rabbit_chx.publishing import Publisher
from spark_connector.worker import Task
from spark_connector.writing import publishers
from spark_connector.writing.partition import write_partition
from tests.broker.spark_frames import TEXT, frame, rows, source, write
from tests.inbox import Inbox
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


# ---- connections


@pytest.fixture
def reused_worker(monkeypatch):
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    yield
    for publisher, _ in list(publishers._kept.values()):
        publisher.close()
    publishers._kept.clear()
    publishers._watched.clear()


def test_a_worker_that_is_reused_keeps_its_connection(broker, inbox, reused_worker):
    schema, batch = rows(3)
    opened = [write(broker, schema, batch, exchange=inbox.exchange).connections for _ in range(4)]
    assert opened == [1, 0, 0, 0]
    assert len(inbox) == 12


def test_a_worker_that_ends_with_its_task_keeps_none(broker, inbox):
    schema, batch = rows(3)
    assert [write(broker, schema, batch, exchange=inbox.exchange).connections for _ in range(2)] == [1, 1]
    assert publishers._kept == {}


def test_an_idle_connection_is_closed(broker, inbox, reused_worker, monkeypatch):
    monkeypatch.setattr(publishers, "_IDLE_SECONDS", 0.2)
    schema, batch = rows(3)
    opened = []

    def open_publisher(*given, **more):
        opened.append(Publisher(*given, **more))
        return opened[-1]

    monkeypatch.setattr(publishers, "Publisher", open_publisher)
    write(broker, schema, batch, exchange=inbox.exchange)
    # It may be closed by now, and not be among those that are kept.
    (publisher,) = opened
    wait_until(lambda: "closed" in repr(publisher), "the idle connection is closed")
    assert publishers._kept == {}


def test_a_connection_that_met_a_failure_is_not_kept(broker, reused_worker):
    with Inbox(broker.url, kind="direct", binding="here") as inbox:
        schema, batch = frame({"value": TEXT, "key": TEXT}, ("0", "here"), ("1", "nowhere"))
        writer = source(broker, exchange=inbox.exchange).writer(schema, overwrite=False)
        assert writer.write(iter([batch])).problem
        assert publishers._kept == {}
        written = writer.write(iter([batch.slice(0, 1)]))
        assert (written.problem, written.connections, written.published) == ("", 1, 1)


def test_a_connection_says_where_it_comes_from(broker, inbox, reused_worker):
    schema, batch = rows(1)
    job = source(broker, exchange=inbox.exchange).writer(schema, overwrite=False)._job
    write_partition(iter([batch]), job, Task(3, 1, "my app", "q-1", "17"))
    listed = broker.ctl("list_connections", "client_properties")
    assert "rabbit-chx spark my app query q-1 batch 17 partition 3 attempt 1" in listed


def test_an_error_of_the_rows_themselves_comes_through_and_leaves_no_connection(broker, inbox, reused_worker):
    schema, batch = rows(10)

    def broken():
        yield batch
        raise LookupError("upstream")

    writer = source(broker, exchange=inbox.exchange).writer(schema, overwrite=False)
    with pytest.raises(LookupError, match="upstream"):
        writer.write(broken())
    assert publishers._kept == {}


def test_a_lost_connection_is_mended_by_the_publisher(broker, inbox):
    schema, batch = rows(20_000)
    named = source(broker, exchange=inbox.exchange, connectionName="to be cut")
    writer = named.writer(schema, overwrite=False)

    def cut_in_the_middle():
        for start in range(0, 20_000, 1000):
            if start == 10_000:
                listed = broker.ctl("list_connections", "pid", "client_properties").splitlines()
                (ours,) = [line.split()[0] for line in listed if "to be cut batch" in line]
                broker.ctl("close_connection", ours, "by the test")
            yield batch.slice(start, 1000)

    written = writer.write(cut_in_the_middle())
    assert (written.problem, written.confirmed, written.connections) == ("", 20_000, 2)
    assert set(inbox.bodies()) == {b"body %d" % n for n in range(20_000)}
