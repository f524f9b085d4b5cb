"""A bad network between publisher and broker, simulated by a proxy; and a caller that stalls."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest

from rabbit_chx.publishing import Outcome, Timeouts
from tests.faults.load import Control, Load, wait_until
from tests.faults.proxy import Proxy
from tests.proof import SEED

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def proxy(broker):
    parts = urlsplit(broker.url)
    with Proxy(parts.hostname, parts.port, seed=SEED) as proxy:
        proxy.url = broker.url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{proxy.port}")
        yield proxy


def finish(load, broker, used, limit=60):
    load.finish(limit)
    found = load.drain(broker.url, used.queues, quiet=1)
    assert load.error is None
    assert load.ledger.outcomes == {}
    return found


def test_connections_reset_in_mid_stream(broker, topology, judge, proxy):
    used, other = topology(), topology()
    control = Control(proxy.url, other.exchange)
    control.start()
    load = Load(proxy.url, used.exchange).start()
    load.flow()
    for _ in range(12):
        control.flow()
        load.until_confirmed(1_500)
        before = load.publisher.totals.connections
        proxy.cut()
        control.hold()
        wait_until(lambda before=before: load.publisher.totals.connections > before, "it connects again")
    load.hold()
    finish(load, broker, used)
    loss = control.finish(broker.url, other.queues)
    assert load.publisher.totals.connections == 13
    judge("proxy: reset", load, faults=12, control=loss)


def test_connections_cut_at_any_byte(broker, topology, judge, proxy):
    used, other = topology(), topology()
    control = Control(proxy.url, other.exchange)
    load = Load(proxy.url, used.exchange, size=1_000).start()
    proxy.cut_after = (600, 400_000)
    control.start()
    load.flow()
    wait_until(lambda: proxy.cuts >= 40, "40 connections are cut")
    load.hold()
    proxy.cut_after = None
    proxy.cut()
    finish(load, broker, used)
    loss = control.finish(broker.url, other.queues)
    judge("proxy: cut at a random byte", load, faults=proxy.cuts, control=loss)


def test_connections_cut_in_the_handshake(broker, topology, judge, proxy):
    """A connection that ends before it is open says nothing about user, password and virtual host."""
    used = topology()
    load = Load(proxy.url, used.exchange, timeouts=Timeouts(reconnect=60)).start()
    load.more(1_000)
    load.until_confirmed(1_000)
    proxy.cut_after = (1, 400)
    proxy.cut()
    wait_until(lambda: proxy.cuts >= 10 or load.error, "10 connections are cut while they open")
    proxy.cut_after = None
    load.more(1_000)
    finish(load, broker, used)
    judge(
        "proxy: cut in the handshake", load, faults=proxy.cuts, harmless="nothing is sent before it is over"
    )


def test_a_network_that_never_lets_a_message_through(broker, topology, judge, proxy):
    used, other = topology(), topology()
    control = Control(proxy.url, other.exchange, size=20_000)
    load = Load(proxy.url, used.exchange, size=20_000, timeouts=Timeouts(reconnect=4)).start(100)
    load.until_confirmed(100)
    proxy.cut_after = (2_000, 15_000)  # enough to open the connection, never enough for a message
    proxy.cut()
    control.start()
    started = time.monotonic()
    load.more(200)
    load.finish(4 + 5)
    took = time.monotonic() - started
    load.drain(broker.url, used.queues, quiet=1)
    loss = control.finish(broker.url, other.queues)
    assert took < 4 + 5
    assert "attempts)" in load.publisher.failures[0].reply
    assert set(load.ledger.outcomes.values()) <= {Outcome.UNKNOWN, Outcome.UNSENT}
    judge("proxy: nothing gets through", load, faults=proxy.cuts, control=loss)


@pytest.mark.parametrize(
    ("what", "settings", "count", "size"),
    [
        ("delay of 100 ms", {"delay": 0.1}, 3_000, 100),
        ("200 KB/s", {"rate": 200_000, "slice": 4_096}, 3_000, 400),
        ("slices of 1 to 7 bytes", {"slice": 7}, 2_000, 50),
    ],
)
def test_slow_networks(broker, topology, judge, proxy, what, settings, count, size):
    used = topology()
    for name, value in settings.items():
        setattr(proxy, name, value)
    load = Load(proxy.url, used.exchange, size=size, heartbeat=2).start(count)
    finish(load, broker, used)
    assert load.publisher.totals.connections == 1
    assert load.publisher.totals.resent == 0
    judge(f"proxy: {what}", load, harmless="no loss is possible, bytes are late and not gone")


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "control"])
def test_a_fence_keeps_late_messages_of_an_old_connection_out(broker, topology, judge, proxy, fenced):
    """The network delays the old connection's last messages until the new connection publishes."""
    used = topology(queues=1)
    options = {"fence": f"{used.exchange}.fence"} if fenced else {}
    load = Load(proxy.url, used.exchange, **options).start()
    load.flow()
    load.until_confirmed(2_000)
    proxy.hold()
    wait_until(lambda: proxy.held > 300_000, "some thousand messages are held back")
    load.more(500)
    proxy.orphan()
    wait_until(lambda: proxy.connections >= 2, "the publisher has connected again")
    if not fenced:
        load.until_confirmed(load.publisher.totals.pending + 500)
    proxy.release()
    (rows,) = finish(load, broker, used)
    what = f"old connection lives on ({'fence' if fenced else 'no fence'})"
    judge(what, load, harmless="no loss is possible, but disorder: without the fence")
    assert load.ledger.duplicated
    stale = rows[-1] < max(rows)  # an old copy arrived after newer messages
    assert stale is not fenced


def test_a_fence_that_another_connection_holds(broker, connection, topology):
    used = topology(queues=1)
    connection.channel().queue_declare("held by somebody", exclusive=True)
    load = Load(broker.url, used.exchange, fence="held by somebody", timeouts=Timeouts(connect=2)).start(10)
    load.finish(2 + 5)
    assert "405 RESOURCE_LOCKED" in str(load.error)
    assert "attempts)" in str(load.error)


def test_a_caller_that_stalls_for_three_heartbeats(broker, topology, judge):
    used = topology()
    load = Load(broker.url, used.exchange, heartbeat=2).start(1_000)
    load.until_confirmed(1_000)
    started = time.monotonic()
    wait_until(lambda: time.monotonic() - started > 3 * 2 + 1, "the stall, which is the test, is over")
    load.more(1_000)
    finish(load, broker, used)
    assert load.publisher.totals.connections == 1
    judge("caller stalls for three heartbeats", load, harmless="no loss is possible, nothing is in flight")
