"""The broker hangs, loses its network, or closes the connection and keeps running."""

from __future__ import annotations

import json
import logging
import urllib.request
from base64 import b64encode
from urllib.parse import quote

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import ALIVE, Control, Load, on_queues, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def log(caplog):
    """What the publisher logged."""
    caplog.set_level(logging.INFO, "rabbit_chx.publisher")
    return lambda text: [
        record
        for record in caplog.records
        if record.name == "rabbit_chx.publisher" and text in record.getMessage()
    ]


def test_a_broker_that_is_paused_for_a_moment(broker, topology, judge):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, size=20_000, held=True, heartbeat=1)
    control.start()
    load = Load(broker.url, used.exchange, heartbeat=2, timeouts=Timeouts(connect=2)).start()
    load.flow()
    load.until_confirmed(5_000)
    broker.pause()
    try:
        load.hold()
        control.flow()
        wait_until(lambda: load.publisher.totals.pending, "messages are under way")
        wait_until(lambda: control.ledger.taken_in, "the control believes that it has sent something")
        control.hold()
    finally:
        broker.unpause()
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.publisher.totals.connections == 1
    assert load.ledger.outcomes == {}
    judge("container paused (short)", load, control=loss, harmless=ALIVE)


PATIENT = {"heartbeat": 2, "timeouts": Timeouts(connect=2)}


def test_a_broker_that_is_paused_until_its_heartbeats_are_missed(broker, survives, log):
    def pause(load, control):
        broker.pause()
        try:
            load.hold()
            wait_until(lambda: log("trying again"), "the publisher notices that the broker is silent")
            wait_until(lambda: control.broken, "the control notices, too")
        finally:
            broker.unpause()
        # A broker that wakes up goes on reading, so the control's queues hang until it has reconnected: by then a
        # heartbeat has met the closed connection, and what the control's side still held is gone.
        wait_until(lambda: control.connections > 1, "the control has reconnected")

    load = survives("container paused (long)", pause, quiet=1, control={"heartbeat": 1}, **PATIENT)
    assert load.publisher.totals.connections == 2


def test_a_broker_that_loses_its_network(broker, survives):
    def disconnect(load, control):
        broken = control.broken
        broker.disconnect()
        load.hold()
        # A network that returns before anyone notices has lost nothing: TCP sends everything again.
        wait_until(lambda: control.broken > broken, "the control notices that the broker is gone")
        broker.reconnect()

    what = "network of the container disconnected"
    survives(what, disconnect, rounds=2, quiet=1, control={"heartbeat": 1}, **PATIENT)


def test_a_connection_closed_by_the_management_api(broker, survives, log):
    closed = set()

    def close(_load, control):
        names = [
            name_of_connection(broker, name, closed) for name in ("to be closed", "control to be closed")
        ]
        for name in names:
            http(broker, "DELETE", f"/api/connections/{quote(name, safe='')}")
        wait_until(lambda: control.broken == len(closed) // 2 + 1, "the control notices")
        closed.update(names)

    named = {"client_properties": {"connection_name": "control to be closed"}}
    what = "connection closed by the management API"
    load = survives(what, close, rounds=2, control=named, name="to be closed")
    assert load.publisher.totals.connections == 3
    assert len(log("CONNECTION_FORCED")) == 2


def test_a_channel_that_crashes_in_the_broker(broker, survives):
    def crash(_load, _control):
        broker.eval("[exit(Pid, kill) || Pid <- rabbit_channel:list_local()].")

    load = survives("channel crashes in the broker", crash, rounds=3)
    assert load.publisher.totals.connections == 4


def name_of_connection(broker, name, closed):
    """Return the broker's name for a connection; its list is some seconds late."""
    found = []

    def look():
        found[:] = [
            each["name"]
            for each in http(broker, "GET", "/api/connections")
            if each.get("client_properties", {}).get("connection_name") == name and each["name"] not in closed
        ]
        return found

    wait_until(look, f"the broker lists the connection named {name!r}")
    return found[0]


def http(broker, method, path):
    token = b64encode(f"{broker.username}:{broker.password}".encode()).decode()
    request = urllib.request.Request(
        broker.management_url + path, method=method, headers={"Authorization": f"Basic {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or "null")


@pytest.mark.parametrize("wakes_up", [True, False])
def test_a_queue_that_hangs(broker, topology, judge, wakes_up):
    """The connection is alive and its heartbeats arrive, but nothing is confirmed."""
    used, other = topology(queues=1), topology(queues=1)
    control = Control(broker.url, other.exchange, held=True)
    control.start()
    load = Load(broker.url, used.exchange, timeouts=Timeouts(confirm=30 if wakes_up else 3)).start()
    load.flow()
    load.until_confirmed(2_000)
    on_queues(broker, [*used.queues, *other.queues], "sys:suspend(Queue)")
    wait_until(lambda: load.publisher.totals.pending >= 3_000, "nothing is confirmed any more")
    load.hold()
    control.flood()
    control.hold()
    if wakes_up:
        on_queues(broker, [*used.queues, *other.queues], "sys:resume(Queue)")
        load.finish(30)
    else:
        load.finish(3 + 5)
        on_queues(
            broker, [*used.queues, *other.queues], "exit(Queue, kill)"
        )  # loses what it had not read yet
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.publisher.totals.connections == 1
    assert load.publisher.totals.resent == 0
    if wakes_up:
        assert load.ledger.outcomes == {}
    else:
        assert "confirmed nothing for 3 seconds" in load.publisher.failures[0].reply
        assert set(load.ledger.outcomes.values()) <= {Outcome.UNKNOWN, Outcome.UNSENT}
    what = f"queue process hangs ({'and wakes up' if wakes_up else 'until killed'})"
    judge(what, load, control=loss, harmless=ALIVE if wakes_up else "")
