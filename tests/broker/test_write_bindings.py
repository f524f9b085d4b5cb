"""The summary of a write lists the bindings that changed during the write."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from uuid import uuid4

import pytest

from spark_connector import WriteFailed
from spark_connector.worker import Written
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.bindings import bindings_of
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.writer import Writer
from tests.queues import a_channel
from tests.unit.spark.test_writer import job

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

WRITTEN = Written(0, rows=3, published=3, confirmed=3)


@pytest.fixture
def exchange(broker):
    """An exchange that is bound to the queues kept, unbound and deleted, and an unbound queue new."""
    name = f"bindings-{uuid4().hex[:8]}"
    with a_channel(broker) as channel:
        channel.exchange_declare(name, "x-consistent-hash")
        for queue in ("kept", "unbound", "deleted", "new"):
            channel.queue_declare(f"{name}.{queue}")
        for number, queue in enumerate(("kept", "unbound", "deleted"), 1):
            channel.queue_bind(f"{name}.{queue}", name, str(number))
        yield name, channel
        for queue in ("kept", "unbound", "deleted", "new"):
            channel.queue_delete(f"{name}.{queue}")
        channel.exchange_delete(name)


def started(broker, name: str, **options: str) -> WriteJob:
    chosen = {"url": broker.url, "exchange": name, "managementUrl": broker.management_url, **options}
    write = replace(job(), options=WriteOptions.of(chosen))
    return replace(write, bindings=bindings_of(write.options))


def summary(caplog: pytest.LogCaptureFixture) -> tuple[int, list[str]]:
    (record,) = [one for one in caplog.records if one.name == "rabbit_chx.spark"]
    return record.levelno, json.loads(record.getMessage()).get("bindings_changed", [])


def test_a_queue_that_was_deleted_during_a_write_fails_it(broker, exchange, caplog):
    """Once, 2,136 of 20,000 rows were lost, and the write succeeded."""
    name, channel = exchange
    write = started(broker, name)
    channel.queue_delete(f"{name}.deleted")
    with pytest.raises(WriteFailed) as caught, caplog.at_level(logging.INFO):
        Writer(write).commit([WRITTEN])
    assert str(caught.value) == (
        f"rows are lost: queue '{name}.deleted' (binding key '3') is no longer bound: the queue was deleted, with the rows in it. "
        "The broker has confirmed all 3 rows, and another run would write them again; failOnDataLoss=false logs a warning instead"
    )
    assert not caplog.records


def test_a_queue_that_was_only_unbound_or_bound_does_not_fail_a_write(broker, exchange, caplog):
    name, channel = exchange
    write = started(broker, name)
    channel.queue_unbind(f"{name}.unbound", name, "2")
    channel.queue_bind(f"{name}.new", name, "1")
    with caplog.at_level(logging.INFO):
        Writer(write).commit([WRITTEN])
    assert summary(caplog)[0] == logging.WARNING


def test_with_fail_on_data_loss_false_all_changes_are_named_in_a_warning(broker, exchange, caplog):
    name, channel = exchange
    write = started(broker, name, failOnDataLoss="false")
    channel.queue_unbind(f"{name}.unbound", name, "2")
    channel.queue_delete(f"{name}.deleted")
    channel.queue_bind(f"{name}.new", name, "1")
    with caplog.at_level(logging.INFO):
        Writer(write).commit([WRITTEN])
    level, changed = summary(caplog)
    assert level == logging.WARNING
    assert changed == [
        f"queue '{name}.deleted' (binding key '3') is no longer bound: the queue was deleted, with the rows in it",
        f"queue '{name}.unbound' (binding key '2') is no longer bound",
        f"queue '{name}.new' (binding key '1') is newly bound",
    ]


def test_unchanged_bindings_cause_no_warning(broker, exchange, caplog):
    name, _ = exchange
    with caplog.at_level(logging.INFO):
        Writer(started(broker, name)).commit([WRITTEN])
    assert summary(caplog) == (logging.INFO, [])


def test_a_write_succeeds_if_the_api_does_not_answer_at_its_end(broker, exchange, caplog):
    name, _ = exchange
    write = started(broker, name)
    unanswered = replace(write, options=replace(write.options, management_url="http://127.0.0.1:1"))
    with caplog.at_level(logging.INFO):
        Writer(unanswered).commit([WRITTEN])
    level, (changed,) = summary(caplog)
    assert level == logging.WARNING
    assert changed.startswith("unknown: no management API answers at http://127.0.0.1:1")
