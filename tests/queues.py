"""Publish to the queues of a test, and close connections by their names."""

from __future__ import annotations

from contextlib import contextmanager

import pika


@contextmanager
def confirming_channel(broker):
    """A channel with publisher confirms; its connection has no heartbeats, because tests leave it idle."""
    with pika.BlockingConnection(pika.URLParameters(broker.url + "?heartbeat=0")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def close_connections(broker, name):
    """Have the broker close the connections with this name; there must be at least one."""
    listed = broker.ctl("list_connections", "pid", "client_properties")
    pids = [line.split("\t")[0] for line in listed.splitlines() if f'"{name}"' in line]
    assert pids, listed
    for pid in pids:
        broker.ctl("close_connection", pid, "by the test")
