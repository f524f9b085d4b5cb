"""What a group of streams parks together, and over one connection: failures may be many."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

from rabbit_chx.streams import StreamBatch
from rabbit_chx.streams.group import parking
from rabbit_chx.streams.group.lanes import Attention, StreamLane
from rabbit_chx.streams.messages.chunks import parse_chunk
from tests.stream_chunks import a_chunk, sized
from tests.stream_forgeries import BODY
from tests.unit.test_stream_parking import Encoding, a_lot, park_in


def test_messages_are_parked_over_one_connection_that_is_closed_when_none_comes(monkeypatch):
    """Once, each had a thread and a connection of its own."""
    opened, closed = [], threading.Event()

    @contextmanager
    def connect():
        opened.append(threading.current_thread())
        yield SimpleNamespace()
        closed.set()

    driver = Encoding()
    monkeypatch.setattr(parking, "_KEPT", 60.0)
    lot = a_lot(monkeypatch, driver, connect)
    for offset in range(20):
        if offset == 19:
            monkeypatch.setattr(parking, "_KEPT", 0.1)
        park_in(lot, offset)
    assert closed.wait(60)
    assert len(driver.sent) == 20
    assert len(opened) == 1
    park_in(lot, 20)
    lot.end()
    opened[-1].join(60)
    assert len(opened) == 2
    assert not opened[-1].is_alive()


def test_a_kept_connection_that_was_lost_is_replaced_at_once(monkeypatch, caplog):
    class Resetting(Encoding):
        def basic_publish(self, **given):
            if len(self.sent) == 1 and len(opened) == 1:
                raise ConnectionResetError
            super().basic_publish(**given)

    driver, opened = Resetting(), []
    monkeypatch.setattr(parking.Backoff, "failed", lambda _: 3600)
    lot = a_lot(monkeypatch, driver, lambda: opened.append(1) or nullcontext())
    for offset in range(2):
        park_in(lot, offset)
    lot.end()
    assert len(driver.sent) == len(opened) == 2
    assert "trying again" not in caplog.text


CUT = b"\0\x53\x75\xa0\x05ab"


def test_undecodable_messages_that_follow_each_other_are_parked_together(monkeypatch):
    """Once, each was a round of its own, with a stored offset."""
    stored = [sized(BODY), *[sized(CUT)] * 300, sized(BODY), sized(CUT), sized(CUT)]
    lane = StreamLane("s", batches=False, store_every=100, attention=Attention())
    lane.assign(0, None)
    lane.add(parse_chunk(a_chunk(stored), "s"))
    taken = []
    while (item := lane.take()) is not None:
        is_batch = isinstance(item, StreamBatch)
        assert not is_batch or lane.why_undecodable(item)
        taken.append((item.first, item.last) if is_batch else item.offset)
        lane.finish(item, lane.channel)
    assert taken == [0, (1, 300), 301, (302, 303)]
    assert (lane.handled, lane.done) == (304, 303)
    batch = StreamBatch([parse_chunk(a_chunk(stored), "s")])
    assert [(each.first, each.last) for each in batch._around_undecodable()] == [
        *((0, 0), (1, 300), (301, 301), (302, 303))
    ]
