"""A bad network between publisher and broker, simulated by a proxy; and a caller that stalls."""

from __future__ import annotations

import time

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import SLACK
from tests.faults.proxy import Proxy
from tests.patience import wait_until
from tests.proof import LONG, SEED

pytestmark = [pytest.mark.broker, pytest.mark.long]

CUTS = 40 if LONG else 15


@pytest.fixture
def proxy(broker):
    with Proxy(broker.url, seed=SEED) as proxy:
        yield proxy


@pytest.mark.proof
def test_connections_reset_in_mid_stream(scene, proxy):
    with scene("proxy: reset", faults=12, url=proxy.url) as it:
        it.load.flow()
        for _ in range(12):
            it.load.until_confirmed(1_500)
            it.control.flood()
            before = it.totals.connections
            proxy.cut()
            it.control.hold()
            wait_until(lambda before=before: it.totals.connections > before, "it connects again")
        it.hold()
    assert it.totals.connections >= 13


def test_connections_cut_at_any_byte(scene, proxy):
    proxy.cut_after = (600, 400_000)
    with scene("proxy: cut at a random byte", url=proxy.url, size=1_000) as it:
        it.load.flow()
        it.control.flow()
        wait_until(lambda: proxy.cuts >= CUTS and it.control.broken >= 8, f"{CUTS} connections are cut")
        it.load.hold()
        proxy.cut_after = None
        proxy.cut()
        it.faults = proxy.cuts


def test_connections_cut_in_the_handshake(scene, proxy):
    """A connection that ends before it is open says nothing about user, password and virtual host."""
    harmless = {"control": None, "harmless": "nothing is sent before the handshake is over"}
    patient = {"more": 1_000, "timeouts": Timeouts(reconnect=60)}
    with scene("proxy: cut in the handshake", url=proxy.url, **harmless, **patient) as it:
        it.load.more(1_000)
        wait_until(lambda: it.totals.confirmed == 1_000, "the first messages are confirmed")
        proxy.cut_after = (1, 400)
        proxy.cut()
        wait_until(lambda: proxy.cuts >= 10 or it.load.error, "10 connections are cut while they open")
        proxy.cut_after = None
        it.faults = proxy.cuts


def test_a_network_that_never_lets_a_message_through(scene, proxy):
    patience = {"timeouts": Timeouts(reconnect=4), "outcomes": {Outcome.UNKNOWN, Outcome.UNSENT}}
    what, large = "proxy: nothing gets through", {"size": 20_000}
    with scene(what, url=proxy.url, start=100, control=large, **large, **patience) as it:
        wait_until(lambda: it.totals.confirmed == 100, "the first messages are confirmed")
        proxy.cut_after = (2_000, 15_000)  # enough to open the connection, never enough for a message
        proxy.cut()
        it.control.flood(3)
        it.load.more(200)
        it.load.finish(4 + SLACK)
        it.faults = proxy.cuts
    assert "attempts)" in it.load.bulk.failures[0].reply


@pytest.mark.proof
@pytest.mark.parametrize(
    ("what", "settings", "count", "size"),
    [
        ("delay of 100 ms", {"delay": 0.1}, 3_000, 100),
        ("200 KB/s", {"rate": 200_000, "slice": 4_096}, 6_000, 400),
        ("slices of 1 to 7 bytes", {"slice": 7}, 2_000, 50),
    ],
)
def test_slow_networks(scene, proxy, what, settings, count, size):
    vars(proxy).update(settings)
    harmless = {"control": None, "harmless": "no loss is possible, bytes are late and not gone"}
    with scene(f"proxy: {what}", url=proxy.url, start=count, size=size, heartbeat=5, **harmless) as it:
        pass
    assert it.totals.connections == 1
    assert it.totals.resent == 0


@pytest.mark.proof
def test_a_caller_that_stalls_for_three_heartbeats(scene):
    harmless = {"control": None, "harmless": "no loss is possible, nothing is in flight"}
    with scene("caller stalls for three heartbeats", start=1_000, more=1_000, heartbeat=5, **harmless) as it:
        wait_until(lambda: it.totals.confirmed == 1_000, "the first messages are confirmed")
        end = time.monotonic() + 3 * 5 + 1
        wait_until(lambda: time.monotonic() > end, "the stall, which is the test, is over")
    assert it.totals.connections == 1
