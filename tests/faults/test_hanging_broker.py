"""The broker hangs, is cut off, or closes the connection while it goes on living."""

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
        wait_until(lambda: control.ledger.taken_in, "the control believes to have sent something")
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


def test_a_broker_that_is_paused_until_its_heartbeats_are_missed(broker, topology, judge, log):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, size=2_000, held=True, heartbeat=1)
    control.start()
    load = Load(broker.url, used.exchange, heartbeat=2, timeouts=Timeouts(connect=2)).start()
    control.jam(broker, other.queues)
    load.flow()
    load.until_confirmed(5_000)
    broker.pause()
    try:
        load.hold()
        wait_until(lambda: log("trying again"), "the publisher sees that the broker is silent")
        wait_until(lambda: control.broken, "so does the control")
        control.hold()
    finally:
        broker.unpause()
    # A broker that wakes up reads on, so the control's queues hang until it has opened another connection: by then a
    # heartbeat has met the closed one, and what the control's end still held is gone.
    wait_until(lambda: control.connections > 1, "the control is back")
    on_queues(broker, other.queues, "sys:resume(Queue)")
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.publisher.totals.connections == 2
    assert load.ledger.outcomes == {}
    judge("container paused (long)", load, control=loss)


def test_a_broker_that_loses_its_network(broker, topology, judge):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, size=2_000, held=True, heartbeat=1)
    control.start()
    load = Load(broker.url, used.exchange, heartbeat=2, timeouts=Timeouts(connect=2)).start()
    for _ in range(2):
        control.jam(broker, other.queues)
        load.flow()
        load.until_confirmed(5_000)
        broken = control.broken
        broker.disconnect()
        load.hold()
        control.hold()
        # A network that comes back before anybody noticed has lost nothing: TCP sends it all again.
        wait_until(lambda: control.broken > broken, "the control sees that the broker is gone")  # noqa: B023
        broker.reconnect()
        on_queues(broker, other.queues, "sys:resume(Queue)")
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.ledger.outcomes == {}
    judge("network of the container disconnected", load, faults=2, control=loss)


def test_a_connection_closed_by_the_management_api(broker, topology, judge, log):
    used, other = topology(), topology()
    control = Control(
        broker.url,
        other.exchange,
        size=2_000,
        held=True,
        client_properties={"connection_name": "control to be closed"},
    )
    control.start()
    load = Load(broker.url, used.exchange, name="to be closed").start()
    closed = set()
    for _ in range(2):
        names = [
            name_of_connection(broker, name, closed) for name in ("to be closed", "control to be closed")
        ]
        control.jam(broker, other.queues)
        load.flow()
        load.until_confirmed(5_000)
        for name in names:
            http(broker, "DELETE", f"/api/connections/{quote(name, safe='')}")
        load.hold()
        wait_until(lambda: control.broken == len(closed) // 2 + 1, "the control notices")
        control.hold()
        on_queues(broker, other.queues, "sys:resume(Queue)")
        closed.update(names)
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.publisher.totals.connections == 3
    assert len(log("CONNECTION_FORCED")) == 2
    judge("connection closed by the management API", load, faults=2, control=loss)


def test_a_channel_that_crashes_in_the_broker(broker, topology, judge, log):
    used, other = topology(), topology()
    control = Control(broker.url, other.exchange, size=2_000, held=True)
    control.start()
    load = Load(broker.url, used.exchange).start()
    for _ in range(3):
        control.jam(broker, other.queues)
        load.flow()
        load.until_confirmed(5_000)
        broker.eval("[exit(Pid, kill) || Pid <- rabbit_channel:list_local()].")
        load.hold()
        control.hold()
        on_queues(broker, other.queues, "sys:resume(Queue)")
    load.more(1_000)
    load.finish(60)
    load.drain(broker.url, used.queues)
    loss = control.finish(broker.url, other.queues)

    assert load.error is None
    assert load.publisher.totals.connections == 4
    judge("channel crashes in the broker", load, faults=3, control=loss)


def name_of_connection(broker, name, closed):
    """What the broker calls the connection that calls itself so; the list is some seconds late."""
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
    """The connection is fine and its heartbeats flow, but nothing is confirmed."""
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
        )  # what it had not read yet dies with it
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
