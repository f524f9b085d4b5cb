"""Returned messages are recognised, whatever they have in common, and quickly."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from rabbit_chx.publishing import Outcome, Publisher, Timeouts
from tests.faults.ledger import Ledger
from tests.faults.load import within
from tests.patience import PATIENCE
from tests.proof import record_result

pytestmark = [
    pytest.mark.broker,
    pytest.mark.proves(
        "Publisher",
        "returned messages distinguished",
        "an equal message that is not returned stays confirmed",
    ),
]

MIB = 1 << 20
NOWHERE = "amq.direct"
"""An exchange without bindings."""


def publish(broker, work, *, limit=PATIENCE, retry=0.5):
    """Run `work(bulk)`; return the returned rows and the totals."""
    ledger = Ledger()
    publisher = Publisher(broker.url, timeouts=Timeouts(retry=retry))

    def run():
        with publisher, publisher.bulk(on_failure=ledger.note) as bulk:
            work(bulk)

    within(limit, run, "publishing")
    returned = ledger.rows(Outcome.RETURNED)
    assert len(returned) == len(ledger.outcomes)
    return returned, publisher.totals


def test_messages_that_differ_only_in_a_header_are_told_apart(broker, topology, connection):
    used = topology(queues=1)
    exchange, channel = f"{used.exchange}.headers", connection.channel()
    channel.exchange_declare(exchange, "headers", auto_delete=True)
    channel.queue_bind(used.queues[0], exchange, "", {"x-match": "all", "wanted": "yes"})

    def work(bulk):
        for row in range(1_000):
            headers = {"wanted": "yes"} if row % 3 else {"wanted": "no"} if row % 2 else None
            bulk.add(b"0 ", "k", exchange=exchange, headers=headers)

    assert publish(broker, work)[0] == list(range(0, 1_000, 3))


# The broker returns these changed.
ALTERED = {
    "BCC, which the broker removes": {"headers": {"BCC": ["nowhere"], "a": 1}},
    "doubles": {"headers": {"BCC": ["nowhere"], "a": 1.7, "b": -1e300}},
    "numbers of every size": {"headers": {"a": [1, -1, 2**31, -(2**40), 2**62], "b": {"c": [True, None]}}},
    "text and bytes": {"headers": {"a": "é", "b": b"\xff\x00", "c": ""}},
    "every property": {
        "content_type": "text/plain", "content_encoding": "utf-8", "priority": 3, "correlation_id": "c",
        "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": datetime.fromtimestamp(1_700_000_000, UTC), "type": "t",
        "app_id": "a", "delivery_mode": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ALTERED)
def test_a_returned_message_is_recognised_whatever_its_properties(broker, kind):
    returned, _ = publish(broker, lambda bulk: bulk.add(b"0 ", "k", exchange=NOWHERE, **ALTERED[kind]))
    assert returned == [0]


def test_a_returned_message_is_recognised_by_a_key_that_is_not_utf_8(broker):
    assert publish(broker, lambda bulk: bulk.add(b"0 ", b"\xff", exchange=NOWHERE))[0] == [0]


# RabbitMQ 4.x keeps its interceptors in a persistent term, which every connection copies.
INTERCEPTORS = "persistent_term:{read}(message_interceptors{more})."
STAMP = "[{rabbit_msg_interceptor_timestamp, #{overwrite => true, incoming => true}}]"


@pytest.mark.long
def test_a_returned_message_is_recognised_when_the_broker_adds_a_header(broker, topology):
    """Message interceptors add headers with the time and the node."""
    used = topology(queues=1)
    before = broker.eval(INTERCEPTORS.format(read="get", more=""))
    broker.eval(INTERCEPTORS.format(read="put", more=f", {STAMP}"))

    def work(bulk):
        for row in range(2_000):
            exchange = used.exchange if row % 2 else NOWHERE
            bulk.add(b"0 ", "k", exchange=exchange, headers={"a": 1})

    try:
        assert publish(broker, work)[0] == list(range(0, 2_000, 2))
    finally:
        broker.eval(INTERCEPTORS.format(read="put", more=f", {before}"))


@pytest.mark.long
def test_a_fully_returned_batch_of_large_bodies_is_fast(broker):
    count, started = 64, time.monotonic()
    returned, totals = publish(
        broker, lambda bulk: bulk.add_many([b"x" * MIB] * count, "k", exchange=NOWHERE), retry=5
    )
    passes = (totals.bytes / MIB) / count
    took = time.monotonic() - started
    record_result(f"returns: {count} bodies of 1 MiB, all returned, {passes:.0f} times over in {took:.1f} s")
    assert returned == list(range(count))
    assert passes >= 2  # each was tried again


@pytest.mark.long
def test_a_fully_returned_window_of_small_messages_is_fast(broker):
    returned, _ = publish(broker, lambda bulk: bulk.add_many([b"the same"] * 20_000, "k", exchange=NOWHERE))
    assert len(returned) == 20_000
