"""The connections that the connector's writer keeps and closes, and one with TLS, on real brokers and without Spark."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import Publisher
from spark_connector.writing import publishers
from tests.broker.spark_frames import TEXT, frame, rows, source, write
from tests.inbox import Inbox
from tests.patience import wait_until
from tests.tls import Authority, Listener

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


@pytest.fixture
def reused_worker(monkeypatch):
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    yield
    for publisher, _ in list(publishers._kept.values()):
        publisher.close()
    publishers._kept.clear()
    publishers._watched.clear()


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


def test_an_error_of_the_rows_themselves_comes_through_and_leaves_no_connection(broker, inbox, reused_worker):
    schema, batch = rows(10)

    def broken():
        yield batch
        raise LookupError("upstream")

    writer = source(broker, exchange=inbox.exchange).writer(schema, overwrite=False)
    with pytest.raises(LookupError, match="upstream"):
        writer.write(broken())
    assert publishers._kept == {}


def test_a_row_is_written_with_a_client_certificate_and_another_server_name(broker, inbox, tmp_path):
    """Over a listener that ends TLS before the broker; tests/unit/spark/test_tls_refusals_spark.py has the refusals."""
    authority = Authority(tmp_path, "IP:127.0.0.1")
    authority.issue("elsewhere", names="DNS:elsewhere.example")
    authority.issue("client")
    authority.lock("client", "CANARY")
    files = {"tlsCaFile": "ca.pem", "tlsCertFile": "client.pem", "tlsKeyFile": "locked.key"}
    options = {option: str(tmp_path / name) for option, name in files.items()}
    schema, batch = rows(1)
    with Listener(authority.server("elsewhere"), broker.url) as listener:
        options["url"] = f"amqps://{broker.username}:{broker.password}@127.0.0.1:{listener.port}"
        options |= {"exchange": inbox.exchange, "tlsServerName": "elsewhere.example"}
        write(broker, schema, batch, **options, tlsKeyPassword="CANARY")
        assert listener.clients == ["client"] * 2  # one that asks and one that writes
        with pytest.raises(InvalidValue, match="tlsKeyPassword opens an encrypted key"):
            write(broker, schema, batch, **options)
        with pytest.raises(InvalidValue, match="tlsCaFile"):
            write(broker, schema, batch, **options | {"tlsCaFile": str(tmp_path / "client.key")})
    assert len(inbox) == 1
