"""The broker hangs, loses its network, or closes the connection and keeps running."""

from __future__ import annotations

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import ALIVE, SLACK, on_queues, paused
from tests.patience import wait_until
from tests.proof import LONG

pytestmark = [pytest.mark.broker, pytest.mark.long]

PATIENT = {"heartbeat": 2, "timeouts": Timeouts(connect=5)}
ROUNDS = 2 if LONG else 1
"""How often a fault hits the same connection."""


def test_a_broker_that_is_paused_for_a_moment(broker, scene):
    control, brief = {"size": 20_000, "heartbeat": 60}, "container paused (short)"
    with scene(brief, more=1_000, control=control, harmless=ALIVE, heartbeat=60) as it:
        it.flow(5_000)
        with paused(broker):
            it.control.flow()
            wait_until(lambda: it.totals.pending, "messages are in flight")
            it.load.hold()
            wait_until(lambda: it.control.ledger.taken_in, "the control publishes")
            it.control.hold()
    assert it.totals.connections == 1


def test_a_broker_that_is_paused_until_its_heartbeats_are_missed(broker, survives, log):
    def pause(load, control):
        # On a busy machine, both may have lost a connection before.
        tried, broken, connections = len(log("trying again")), control.broken, control.connections
        with paused(broker):
            load.hold()
            wait_until(
                lambda: len(log("trying again")) > tried, "the publisher notices that the broker is silent"
            )
            wait_until(lambda: control.broken > broken, "the control notices, too")
        # The resumed broker continues to read, so the control's queues hang until it has reconnected: by then a
        # heartbeat has met the closed connection, and what the control's side still held is gone.
        wait_until(lambda: control.connections > connections, "the control has reconnected")

    totals = survives("container paused (long)", pause, control={"heartbeat": 1}, **PATIENT)
    assert totals.connections >= 2


def test_a_broker_that_loses_its_network(broker, survives):
    def disconnect(load, control):
        broken = control.broken
        broker.disconnect()
        try:
            load.hold()
            # A network that returns before anyone notices has lost nothing: TCP sends everything again.
            wait_until(lambda: control.broken > broken, "the control notices that the broker is gone")
        finally:
            broker.reconnect()

    what = "network of the container disconnected"
    survives(what, disconnect, rounds=ROUNDS, control={"heartbeat": 1}, **PATIENT)


def test_a_connection_closed_by_the_management_api(broker, survives, log):
    closed, management = set(), Management.of(broker.url, broker.management_url)

    def close(_load, control):
        names = [name_of_connection(management, name, closed) for name in ("to be closed", "control")]
        broken = control.broken
        for name in names:
            management._request("DELETE", ["connections", name])
        wait_until(lambda: control.broken > broken, "the control notices")
        closed.update(names)

    control = {"client_properties": {"connection_name": "control"}}
    what = "connection closed by the management API"
    totals = survives(what, close, rounds=ROUNDS, control=control, connection_name="to be closed")
    assert totals.connections >= ROUNDS + 1
    assert len(log("CONNECTION_FORCED")) == ROUNDS


def test_a_channel_that_crashes_in_the_broker(broker, survives):
    def crash(_load, _control):
        broker.eval("[exit(Pid, kill) || Pid <- rabbit_channel:list_local()].")

    assert survives("channel crashes in the broker", crash, rounds=ROUNDS).connections == ROUNDS + 1


def name_of_connection(management, name, closed):
    """Return the broker's name for a connection; its list is some seconds late."""
    found = []

    def look():
        found[:] = [
            each["name"]
            for each in management._request("GET", ["connections"])
            if each.get("client_properties", {}).get("connection_name") == name and each["name"] not in closed
        ]
        return found

    wait_until(look, f"the broker lists the connection named {name!r}")
    return found[0]


HANGS = {
    "and wakes up": {"harmless": ALIVE},
    "until killed": {
        "outcomes": {Outcome.UNKNOWN, Outcome.UNSENT}, "timeouts": Timeouts(confirm=3), "limit": 3 + SLACK
    },
}  # fmt: skip


@pytest.mark.parametrize("end", HANGS)
def test_a_queue_that_hangs(broker, scene, end):
    """The connection is alive and its heartbeats arrive, but nothing is confirmed."""
    with scene(f"queue process hangs ({end})", queues=1, **HANGS[end]) as it:
        queues = [*it.used.queues, *it.other.queues]
        it.flow(2_000)
        on_queues(broker, queues, "sys:suspend(Queue)")
        # On a slow machine, the publisher may have given up its messages by now.
        wait_until(
            lambda: it.totals.pending >= 3_000 or it.load.error is not None, "nothing is confirmed any more"
        )
        it.load.hold()
        it.control.flood()
        it.control.hold()
        if end == "and wakes up":
            on_queues(broker, queues, "sys:resume(Queue)")
        else:
            it.load.finish(3 + SLACK)
            on_queues(broker, queues, "exit(Queue, kill)")  # loses what it had not read yet
            assert "confirmed nothing for 3 seconds" in it.load.bulk.failures[0].reply
    assert it.totals.connections == 1
    assert it.totals.resent == 0
