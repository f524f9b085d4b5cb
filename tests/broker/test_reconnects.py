"""Clients whose connections open and are cut again wait longer each time, and work afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rabbit_chx.base.outages import Backoff
from rabbit_chx.consuming import Group, QueueReader
from rabbit_chx.streams import StreamGroup
from tests.broker.stream_scene import fill
from tests.faults.proxy import Proxy
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, confirming_channel

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]

CUTS = 6


@pytest.fixture
def pauses(monkeypatch) -> dict[Backoff, list[float]]:
    """The pauses that each client should make; none is made, and nothing works for long."""
    found: dict[Backoff, list[float]] = defaultdict(list)
    failed = Backoff.failed

    def noted(backoff: Backoff) -> float:
        found[backoff].append(failed(backoff))
        return 0.0

    monkeypatch.setattr(Backoff, "failed", noted)
    monkeypatch.setattr("rabbit_chx.base.outages._A_WHILE", 2 * PATIENCE)
    return found


@contextmanager
def cut_again_and_again(url: str, pauses: dict[Backoff, list[float]]) -> Iterator[tuple[str, Any]]:
    """An address of the broker, and a function that cuts its connections whenever the client works.

    Its pauses are random within a factor of two, so the one after the next is at least twice as long.
    """
    with Proxy(url) as proxy:

        def cut(works, failures) -> None:
            for number in range(CUTS):
                wait_until(works, "the client works")
                proxy.cut()
                wait_until(lambda number=number: failures() > number, "the client has noticed")
            wait_until(works, "the client works again")

        yield proxy.url, cut
    for each in pauses.values():
        assert all(later >= 2 * earlier for earlier, later in zip(each, each[2:CUTS], strict=False)), each


@pytest.mark.since_4_0
@pytest.mark.parametrize("kind", [Group, StreamGroup])
def test_a_member_whose_connections_are_cut_again_and_again(broker, stream_connection, stream, pauses, kind):
    seen = []
    with confirming_channel(broker) as channel:
        channel.queue_declare("cut", durable=True, arguments=ORDERED)
        url = broker.url if kind is Group else broker.stream_url
        source = {"exchange": "amq.direct", "queues": ["cut"]} if kind is Group else {"stream": stream}
        with cut_again_and_again(url, pauses) as (address, cut):
            group = kind(address, name="cut", **source)
            with running(group, seen.append):
                cut(lambda: group.status.connected, lambda: len(pauses[group._member._backoff]))
                channel.basic_publish("", "cut", b"x")
                fill(stream_connection, stream, range(1, 2))
                wait_until(lambda: seen, "a message is handled")
        channel.queue_delete("cut")


def test_a_reader_of_a_queue_whose_connections_are_cut_again_and_again(broker, pauses):
    with confirming_channel(broker) as channel, cut_again_and_again(broker.url, pauses) as (address, cut):
        channel.queue_declare("cut", durable=True)
        with QueueReader(address, "cut") as reader:
            cut(lambda: reader.waiting() is not None, lambda: sum(map(len, pauses.values())))
            channel.basic_publish("", "cut", b"x")
            wait_until(lambda: reader.take(1).messages, "a message is read")
        channel.queue_delete("cut")
