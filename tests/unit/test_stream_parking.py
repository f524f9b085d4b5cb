"""What a group of streams parks, without a broker: any AMQP 1.0 message can be in a stream, and none may hang or stop the group."""

from __future__ import annotations

import math
import struct
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pytest

from rabbit_chx.broker.commands import Driver, Lost, Refused
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.broker.properties import Properties
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.messages.message import Message
from rabbit_chx.streams import BatchFailed, Reject, StreamBatch, StreamGroup
from rabbit_chx.streams.group import offsets, parking
from rabbit_chx.streams.group.member import StreamMember
from rabbit_chx.streams.group.workers import StreamWorkers
from rabbit_chx.streams.messages.chunks import parse_chunk
from rabbit_chx.streams.messages.message import decode
from rabbit_chx.streams.messages.stored import stored_in
from rabbit_chx.working.parking import park
from tests.patience import wait_until
from tests.stream_chunks import a_chunk, sized
from tests.stream_forgeries import BODY, a_map, compound, text
from tests.unit.test_stream_groups import lane


class Encoding(PikaDriver):
    """Encodes what is published as it would be sent, instead of sending it, unless a function raises that it is refused."""

    def __init__(self, refuse=lambda driver, properties: None, *, frame_max: int = 131_072) -> None:
        Driver.__init__(self, None, 1.0, "/", "host")
        self._refuse = refuse
        parameters = SimpleNamespace(frame_max=frame_max)
        self._connection, self._torn = SimpleNamespace(_impl=SimpleNamespace(params=parameters)), False
        self._channel = None
        self.sent: list[tuple[bytes, Properties]] = []

    def _send_in_time(self, commands, seconds):
        return self._send(self, commands)

    def basic_publish(self, *, body, properties, **_):
        self._refuse(self, properties)
        self.sent.append((body, Properties().decode(b"".join(properties.encode()))))


def a_lot(monkeypatch, driver, connect=lambda: nullcontext(SimpleNamespace()), ended=None) -> parking.Parking:
    """What parks messages, with this driver on each of its connections."""
    monkeypatch.setattr(parking, "PikaDriver", lambda _: driver)
    return parking.Parking("g", "lot", connect, ended or threading.Event())


def park_in(lot: parking.Parking, offset: int, stored: bytes = BODY, why: Exception | None = None):
    """Park a message as it is stored in a stream; return what the member was told: what is left, and an error."""
    told, done = [], threading.Event()
    message = decode(stored, "events", offset)
    lot.begin([message], why or Reject("no"), 1, lambda *given: (told.extend(given), done.set()))
    assert done.wait(60)
    return tuple(told)


def parked(monkeypatch, driver, stored: bytes, why: Exception | None = None):
    """Park a message as it is stored in a stream; return what was sent, and the error that the member was told."""
    _, error = park_in(a_lot(monkeypatch, driver), 7, stored, why)
    return driver.sent, error


BEFORE_1970 = b"\x83" + struct.pack(">q", -1500)
NAN = b"\x82" + struct.pack(">d", math.nan)
INFINITE = b"\x72" + struct.pack(">f", -math.inf)
VALUES = {
    "good": (b"\x54\x05", 5),
    "time": (BEFORE_1970, "1969-12-31T23:59:58.500Z"),
    "ulong": (b"\x80" + b"\xff" * 8, "18446744073709551615"),
    "nan": (NAN, "nan"),
    "infinite": (INFINITE, "-inf"),
    "uuid": (b"\x98" + bytes(16), "00000000-0000-0000-0000-000000000000"),
    "list": (b"\xc0\x0b\x02" + NAN + b"\x41", ["nan", True]),
    "table": (b"\xc1\x0d\x02\xa1\x01t" + BEFORE_1970, {"t": "1969-12-31T23:59:58.500Z"}),
}


def test_a_message_that_amqp_0_9_1_cannot_express_is_parked_with_its_values_as_text(monkeypatch):
    values = {name.encode(): encoded for name, (encoded, _) in VALUES.items()}
    application = a_map(0x74, values | {b"n" * 256: b"\x41"})
    null = b"\x40"
    others = compound(0x73, b"\xd0", text(b"x" * 256), *[null] * 5, text(b"xx"), null, null, BEFORE_1970)
    ((body, properties),), error = parked(monkeypatch, Encoding(), others + application + BODY)
    assert (body, error) == (b"x", None)
    own = {name: value for name, value in properties.headers.items() if not name.startswith("x-")}
    assert own == {name: value for name, (_, value) in VALUES.items()}
    assert properties.headers["x-rabbit-chx-parked-offset"] == 7
    assert (properties.message_id, properties.timestamp, properties.content_type) == (None, None, "xx")


def test_a_routing_key_that_no_message_can_be_published_with_is_left_out(monkeypatch):
    forged = a_map(0x74, {b"x-rabbit-chx-parked-routing-key": text(b"xx")})
    stored = a_map(0x72, {b"x-routing-key": text(b"x" * 200_000), b"x-exchange": text(b"xx")}) + forged + BODY
    ((body, properties),), error = parked(monkeypatch, Encoding(), stored)
    assert (body, error) == (b"x", None)
    assert properties.headers["x-rabbit-chx-parked-exchange"] == "xx"
    assert properties.headers["x-rabbit-chx-parked-routing-key"] is None


@pytest.mark.parametrize(
    ("cause", "text"),
    [(ValueError("no stock"), "ValueError: no stock"), (None, "BatchFailed: the message at offset 7 failed")],
)
def test_the_error_of_a_parked_message_is_what_made_the_batch_fail(monkeypatch, cause, text):
    failed = BatchFailed(7)
    failed.__cause__ = cause
    ((_, properties),), _ = parked(monkeypatch, Encoding(), BODY, failed)
    assert properties.headers["x-rabbit-chx-parked-error"] == text


def test_an_unexpected_error_that_has_nothing_to_do_with_a_message_ends_the_member(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    _, error = parked(monkeypatch, Encoding(fail), b"body")
    assert isinstance(error, ZeroDivisionError)


HEADER = a_map(0x74, {b"own": b"\x41"}) + BODY
REFUSALS = {
    "the broker fails": Refused(541, "INTERNAL_ERROR"),
    "the broker refuses the contents": Refused(406, "PRECONDITION_FAILED - invalid message"),
    "pika cannot encode it": ZeroDivisionError(),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_message_that_is_refused_is_parked_without_properties_and_headers(monkeypatch, why):
    """Once, such a message ended every member of the group."""

    def refuse(_, properties):
        if "own" in properties.headers:
            raise REFUSALS[why]

    long = compound(0x73, b"\xd0", text(b"x" * 255))
    ((body, properties),), error = parked(
        monkeypatch, Encoding(refuse), long + HEADER, Reject("\u20ac" * 1_000)
    )
    assert (body, error) == (b"x", None)
    assert properties.headers["x-rabbit-chx-parked-left-out"] == "its properties and headers"
    assert properties.headers["x-rabbit-chx-parked-offset"] == 7
    assert len(properties.headers["x-rabbit-chx-parked-error"].encode()) <= 1_000
    assert properties.message_id is None


def test_a_message_that_cannot_be_parked_at_all_is_tried_until_the_member_ends(monkeypatch, caplog):
    def refuse(*_):
        tried.append(True)
        if len(tried) > 4:
            ended.set()
        raise Refused(406, "PRECONDITION_FAILED - no")

    monkeypatch.setattr(parking.Backoff, "failed", lambda _: 0.01)
    tried, ended = [], threading.Event()
    assert park_in(a_lot(monkeypatch, Encoding(refuse), ended=ended), 7, HEADER) == (7, None)
    assert "406 PRECONDITION_FAILED - no; trying again" in caplog.text


def test_a_message_is_parked_whole_after_a_token_has_expired(monkeypatch):
    def refuse(*_):
        if refusals:
            raise refusals.pop()

    refused = "refused for user 'u', backend rabbit_auth_backend_oauth2 returned an error: expired"
    refusals = [
        Refused(403, f"ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' {refused}")
    ]
    monkeypatch.setattr(parking.Backoff, "failed", lambda _: 0.01)
    ((_, properties),), error = parked(monkeypatch, Encoding(refuse), HEADER)
    assert error is None
    assert "own" in properties.headers


@pytest.mark.parametrize("refused", [True, False])
def test_a_parking_queue_that_cannot_be_checked_is_an_error_of_the_package(monkeypatch, refused):
    denied = Refused(403, "ACCESS_REFUSED - access to queue 'lot' in vhost '/' refused for user 'u'")

    def run(_):
        raise denied if refused else Lost("the connection was lost")

    with pytest.raises(BrokerUnavailable) as caught:
        a_lot(monkeypatch, SimpleNamespace(run=run)).check()
    assert caught.value.permanent == refused
    assert "set_permissions" not in str(caught.value)  # it would take away the permissions on the streams


def test_a_member_shows_why_a_message_cannot_be_parked_and_parks_it_later(handled, monkeypatch, caplog):
    def refuse(*_):
        if not room.is_set():
            raise BrokerUnavailable("the parking queue 'lot' rejected a message")

    driver, room = Encoding(refuse), threading.Event()
    monkeypatch.setattr(parking.Backoff, "failed", lambda _: 0.01)
    one = handled(driver)
    one.member.why_not = ""
    failing = threading.Thread(target=one.fail)
    failing.start()
    wait_until(lambda: "rejected" in one.member.status.reason, "the reason in the status")
    assert one.member.status.connected
    room.set()
    failing.join(60)
    assert one.member.status.reason == ""
    assert len(driver.sent) == 1
    assert "'lot' rejected a message; trying again" in caplog.text


@pytest.mark.parametrize("value", [2**64, datetime(1969, 1, 1, tzinfo=UTC)])
def test_what_pika_cannot_pack_is_left_out_of_a_parked_message(value):
    driver = Encoding()
    driver.run(park("lot", Message(b"x", headers={"h": value}), {"o": 1}))
    ((_, properties),) = driver.sent
    assert properties.headers == {"o": 1, "x-rabbit-chx-parked-left-out": "its properties and headers"}


class Handled:
    """A member without a connection, whose handler has failed for good with the first of two messages, or with a batch of both."""

    def __init__(self, new_lot, *, batches: bool = False) -> None:
        settings = StreamGroup(
            "amqp://127.0.0.1:1", stream="events", name="g", on_failure="park", parking_queue="lot"
        )._settings
        workers = StreamWorkers(print, settings)
        lot = new_lot(ended=workers.stopping)
        self.member = StreamMember(settings, lambda _: None, workers, lot, batches=batches)
        workers._owner = self.member
        self.lane = lane(batches=batches)
        self.lane.trusted_until = math.inf
        self.lane.add(parse_chunk(a_chunk([sized(b"a"), sized(b"b")]), "events"))
        self.taken = workers.next_of(self.lane)

    def fail(self) -> None:
        """Deal with the failed message until it is parked, or not."""
        self.member._failures.deal_with(self.lane, *self.taken, Reject("no"))
        wait_until(lambda: self.member._calls, "the message is dealt with")
        self.member._calls.popleft()()

    def close(self) -> None:
        for each in (self.member._woken, self.member._waker):
            each.close()


@pytest.fixture
def handled(monkeypatch):
    """Makes such a member, which parks with this driver."""
    with ExitStack() as opened:

        def made(driver=None, *, batches: bool = False, **more) -> Handled:
            one = Handled(partial(a_lot, monkeypatch, driver, **more), batches=batches)
            opened.callback(one.close)
            return one

        yield made


def test_a_member_that_is_stopped_while_it_parks_does_not_wait_for_its_handler(handled):
    def connect():
        one.member.stop()
        raise BrokerUnavailable("no connection")

    one = handled(connect=connect)
    one.fail()
    assert one.member.workers.next_of(one.lane) is None
    assert one.lane.is_idle
    assert one.lane.done is None  # it is not parked


def test_the_offset_of_a_parked_message_is_stored_before_the_next_one_is_handled(handled):
    """The next one may end the process: then this one would come back, and be parked again."""
    driver, stored = Encoding(), []
    one = handled(driver)
    connection = SimpleNamespace(
        store_offset=lambda _, stream, offset: stored.append(
            (stream, offset, one.member.workers._ready.qsize())
        ),
        query_offset=lambda *_: 0,
    )
    one.member._places.append(SimpleNamespace(connection=connection, lanes={0: one.lane}))
    one.fail()
    assert len(driver.sent) == 1
    assert stored[0] == ("events", 0, 0)
    assert one.member.workers._ready.qsize() == 1


def test_a_member_that_cannot_store_what_it_parked_handles_no_more_and_waits_for_no_handler(
    handled, monkeypatch
):
    monkeypatch.setattr(offsets, "_READ_BACK", 0.05)
    connection = SimpleNamespace(is_open=True, store_offset=lambda *_: None, query_offset=lambda *_: None)
    one = handled(Encoding())
    one.member._places.append(SimpleNamespace(connection=connection, lanes={0: one.lane}))
    one.fail()
    assert "did not store the offset" in str(one.member._error)
    assert one.member.workers.next_of(one.lane) is None
    assert one.lane.is_idle


def test_what_is_parked_of_a_batch_before_a_refusal_counts_as_handled(handled):
    """A member that starts again would park it again, each time."""

    def refuse(driver, _):
        if driver.sent:
            raise BrokerUnavailable("the message is too large", permanent=True)

    driver = Encoding(refuse)
    one = handled(driver, batches=True)
    one.fail()
    assert len(driver.sent) == 1
    assert (one.lane.done, one.lane.handled) == (0, 1)
    assert one.member.workers.stopped
    assert [batch.first for batch in one.lane._again] == [1]


# ---- many failures


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
    def reset(driver, _):
        if len(driver.sent) == 1 and len(opened) == 1:
            raise ConnectionResetError

    driver, opened = Encoding(reset), []
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
    it = lane()
    it.add(parse_chunk(a_chunk(stored), "s"))
    taken = []
    while (item := it.take()) is not None:
        is_batch = isinstance(item, StreamBatch)
        assert not is_batch or it.why_undecodable(item)
        taken.append((item.first, item.last) if is_batch else item.offset)
        it.finish(item, it.channel)
    assert taken == [0, (1, 300), 301, (302, 303)]
    assert (it.handled, it.done) == (304, 303)
    batch = StreamBatch([parse_chunk(a_chunk(stored), "s")])
    assert [(each.first, each.last) for each in batch._around_undecodable()] == [
        *((0, 0), (1, 300), (301, 301), (302, 303))
    ]


# ---- errors of the package itself


def broken(*_: object, **__: object) -> None:
    raise RecursionError("deep")


@pytest.mark.parametrize("batches", [False, True])
def test_a_message_that_makes_the_package_fail_has_failed_and_ends_no_member(
    handled, monkeypatch, caplog, batches
):
    """Queue members have the same boundary."""
    driver = Encoding()
    monkeypatch.setattr("rabbit_chx.streams.group.failures.Failures.planned", broken)
    one = handled(driver, batches=batches)
    one.fail()
    assert [body for body, _ in driver.sent] == ([b"a", b"b"] if batches else [b"a"])
    headers = driver.sent[0][1].headers
    assert headers["x-rabbit-chx-parked-error"] == "RecursionError: deep"
    assert headers["x-rabbit-chx-parked-left-out"] == "its properties and headers"
    assert not one.member.workers.stopped
    assert (one.lane.done, one.lane.failed) == ((1, 1) if batches else (0, 1))
    own = "group 'g': messages of stream 'events' made rabbit-chx fail; on_failure='park'"
    assert [record.message for record in caplog.records] == [own]


def test_a_batch_that_cannot_be_decoded_for_parking_does_not_count_as_parked(handled, monkeypatch):
    """Its offset would be stored, and no member would get the messages again."""
    one = handled(batches=True)
    monkeypatch.setattr("rabbit_chx.streams.group.batch.stored_in", broken)
    one.fail()
    assert isinstance(one.member._error, RecursionError)
    assert (one.lane.done, one.lane.handled) == (None, 0)
    assert [batch.first for batch in one.lane._again] == [0]


def test_with_stop_an_error_of_the_package_is_what_ends_the_member(handled, monkeypatch):
    monkeypatch.setattr("rabbit_chx.streams.group.failures.Failures.planned", broken)
    one = handled()
    one.member._failures._parking = None
    one.member._failures.deal_with(one.lane, *one.taken, Reject("no"))
    assert isinstance(one.member._error, RecursionError)
    assert one.lane.done is None


def test_a_parking_thread_that_cannot_start_ends_the_member(handled, monkeypatch):
    """Without a thread, and without an error, the stream would never continue."""

    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    one = handled()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        one.member._failures.deal_with(one.lane, *one.taken, Reject("no"))


def test_a_message_that_makes_the_decoding_fail_is_undecodable(monkeypatch):
    monkeypatch.setattr("rabbit_chx.streams.messages.stored.decode", broken)
    chunk = parse_chunk(a_chunk([sized(b"a"), sized(b"b")], offset=7), "s")
    found = list(stored_in([chunk]))
    assert [(each.offset, each.body, each.last) for each in found] == [(7, b"a", 7), (8, b"b", 8)]
    assert "decoding failed: RecursionError: deep" in str(found[0].error)


def test_messages_that_make_the_fast_decoding_fail_are_decoded_one_by_one(monkeypatch, caplog):
    monkeypatch.setattr("rabbit_chx.streams.messages.stored.Quick", broken)
    chunk = parse_chunk(a_chunk([sized(b"a")] * 20), "s")
    assert [each.body for each in stored_in([chunk])] == [b"a"] * 20
    assert "decoded one by one" in caplog.text
