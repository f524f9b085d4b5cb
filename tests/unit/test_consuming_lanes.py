"""What a lane and the workers of a member do with messages and markers, and the settings of a group."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace

import pytest

from rabbit_chx.base.replies import REPLY_TO
from rabbit_chx.base.timeouts import Timeouts
from rabbit_chx.broker.applying.handover import MARKER
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.lanes import QueueLane, status_of
from rabbit_chx.consuming.member.roll_call import holds_in
from rabbit_chx.errors import InvalidValue
from rabbit_chx.working.markers import HOLD, Hold, Kind, kind_of
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.parking import park
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.workers import Progress, Workers
from tests.wire import encoded_properties

SETTINGS = {
    "exchange": "orders",
    "name": "billing",
    "prefetch": 50,
    "concurrency": 4,
    "attempts": 5,
    "backoff": 1.0,
    "on_failure": "stop",
    "parking_queue": None,
    "crashes": 5,
    "timeouts": Timeouts(),
    "heartbeat": 10,
    "failover_only": False,
}


def test_a_leaving_lane_gives_out_no_more_messages() -> None:
    lane = QueueLane("q")
    lane.attach("channel", 1)
    assert lane.add([Delivery(b"", "k", queue="q", tag=1)])
    lane.leaving = True
    assert lane.take() is None
    assert lane.is_idle


DRAIN = {MARKER: "0123456789abcdef", "x-rabbit-chx-queue": "q"}
ANSWERS = {"reply_to": f"amq.gen-{'a' * 22}"}
ASKER = f"{REPLY_TO}.g1h2AA5yZXBseUAzMzIxMjEzNgAAA+YAAAAAawUESQ==.o/4DKGB8PU1y8cr6BoGHWA=="
OF_Q = Hold.of("q", ["p"])


@pytest.mark.parametrize(
    ("headers", "more", "kind"),
    [
        (None, {}, Kind.MESSAGE),
        ({}, {}, Kind.MESSAGE),
        ({"x-other": 1}, {}, Kind.MESSAGE),
        (DRAIN, ANSWERS, Kind.DRAIN),
        (DRAIN, {"reply_to": ASKER}, Kind.DRAIN),
        (DRAIN, ANSWERS | {"exchange": "orders"}, Kind.MESSAGE),
        (DRAIN, {"reply_to": "victim"}, Kind.MESSAGE),
        (DRAIN, {"reply_to": "amq.rabbitmq.reply-to"}, Kind.MESSAGE),
        (DRAIN, {"reply_to": b"\xff"}, Kind.MESSAGE),
        (DRAIN, {}, Kind.MESSAGE),
        (DRAIN | {MARKER: "id"}, ANSWERS, Kind.MESSAGE),
        (DRAIN | {"x-rabbit-chx-queue": "p"}, ANSWERS, Kind.MESSAGE),
        ({HOLD: OF_Q.name}, {"body": OF_Q.record}, Kind.HOLD),
        ({HOLD: OF_Q.name}, {"body": OF_Q.record, "exchange": "orders"}, Kind.MESSAGE),
        ({HOLD: OF_Q.name}, {"body": Hold.of("q", ["p"], ["p"]).record}, Kind.MESSAGE),
        ({HOLD: OF_Q.name}, {"body": OF_Q.record, "queue": "p"}, Kind.MESSAGE),
        ({HOLD: OF_Q.name}, {}, Kind.MESSAGE),
        ({HOLD: "rabbit-chx.hold.1"}, {}, Kind.MESSAGE),
        ({HOLD: 7}, {}, Kind.MESSAGE),
    ],
)
def test_markers_are_known_by_more_than_their_headers(headers, more, kind) -> None:
    properties = encoded_properties(headers=headers, reply_to=more.get("reply_to"))
    body, exchange, queue = (
        more.get(name, other) for name, other in (("body", ""), ("exchange", ""), ("queue", "q"))
    )
    message = Delivery(body.encode(), "q", queue=queue, exchange=exchange, encoded=properties)
    assert kind_of(message) is kind


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"7", b'{"holds": 7}', b'{"holds": {"a": "b"}}', b"[" * 100_000]
)
def test_an_invalid_body_counts_as_a_question_without_holds(body) -> None:
    assert holds_in(body) == []


def test_the_delay_between_attempts_doubles_up_to_a_minute() -> None:
    assert [Settings(**SETTINGS).delay(failures) for failures in (1, 2, 3, 10, 1000)] == [1, 2, 4, 60, 60]
    assert Settings(**SETTINGS | {"backoff": 90.0}).delay(2) == 90


@pytest.mark.parametrize(
    ("most", "too_much"),
    [
        ({"attempts": 35, "consumer_timeout": 1_800.0}, {"attempts": 36, "consumer_timeout": 1_800.0}),
        ({"attempts": 5, "consumer_timeout": 16.0}, {"attempts": 6, "consumer_timeout": 16.0}),
        (
            {"attempts": 1_000, "backoff": 0.0, "consumer_timeout": 1.0},
            {"attempts": 1_000_000, "backoff": 0.01, "consumer_timeout": 1.0},
        ),
        ({"attempts": 1, "consumer_timeout": 1.0}, {"attempts": 2, "consumer_timeout": 1.0}),
    ],
)
def test_the_delays_between_attempts_must_not_exceed_consumer_timeout(most, too_much) -> None:
    Settings(**SETTINGS | most)
    with pytest.raises(InvalidValue, match=r"invalid attempts: got .* less than .* s in total"):
        Settings(**SETTINGS | too_much)


def test_the_delays_are_not_checked_against_a_timeout_that_only_the_broker_knows() -> None:
    Settings(**SETTINGS | {"attempts": 100})


def test_after_a_connection_is_lost_while_a_marker_is_answered_the_lane_accepts_redeliveries() -> None:
    def lose(*_: object, **__: object) -> None:
        raise ConnectionError

    lane, channel = QueueLane("q"), SimpleNamespace(basic_publish=lose)
    interruptions = Interruptions(Settings(**SETTINGS), Workers(print, 1, 10), print, print)
    lane.attach(channel, 1)
    properties = encoded_properties(headers=DRAIN, **ANSWERS)
    message = Delivery(b"", "q", queue="q", tag=1, encoded=properties)
    assert lane.add([message])
    assert lane.take() is message
    with pytest.raises(ConnectionError):
        list(interruptions.deal_with(lane, channel, message, None))
    lane.detach()
    lane.attach(object(), 1)
    assert lane.add([message])


def test_after_a_handler_has_raised_system_exit_no_later_message_of_its_queue_is_handled() -> None:
    """The member stops then, and may get another message at that moment."""

    def handle(message: Delivery) -> None:
        handled.append(message.tag)
        raise SystemExit(1)

    def fail(_: BaseException) -> None:
        begun.append(lane.add([Delivery(b"", "k", queue="q", tag=2)]))

    handled: list[int] = []
    begun: list[int] = []
    lane = QueueLane("q")
    lane.attach(object(), 1)
    workers = Workers(handle, 1, 10)
    workers.heard = monotonic() + 3600
    Progress.start(workers, SimpleNamespace(fail=fail))  # without its threads
    lane.add([Delivery(b"", "k", queue="q", tag=1)])
    workers.submit(lane)
    workers.end()
    workers._work()
    assert (handled, begun) == ([1], [0]), "no other worker has the lane"
    assert lane.is_idle, "the lane is free for redeliveries"
    assert workers.progress() == set()


def test_a_parked_message_stays_in_the_parking_queue() -> None:
    theirs = {"user_id": "publisher", "expiration": "60000", "cluster_id": "c", "delivery_mode": 1}
    kept = {"message_id": "7", "priority": 1, "type": "order", "content_type": "text/plain"}
    headers = {"CC": ["orders.1"], "BCC": ["orders.2"], "n": 7}
    encoded = encoded_properties(headers=headers, **theirs, **kept)
    message = Delivery(b"x", "k", queue="q", encoded=encoded)
    published = next(park("lot", message, {"origin": 1})).arguments
    assert (published["routing_key"], published["body"], published["mandatory"]) == ("lot", b"x", True)
    assert published["properties"] == {**kept, "headers": {"n": 7, "origin": 1}, "delivery_mode": 2}
    assert message.headers == headers


def test_a_lane_is_unsettled_while_its_consumer_may_have_messages(monkeypatch) -> None:
    now = monotonic()
    monkeypatch.setattr("rabbit_chx.consuming.member.lanes.monotonic", lambda: now)
    lane = QueueLane("q")
    lane.attach("channel", 1)
    assert lane.unsettled == "q"  # messages may be in transit
    monkeypatch.setattr("rabbit_chx.consuming.member.lanes.monotonic", lambda: now + 60)
    assert not lane.unsettled
    lane.add([Delivery(b"", "", queue="q", tag=1)])
    lane.acked = 1
    assert lane.unsettled == "q"


def test_a_message_that_waits_to_be_parked_ages_although_no_samples_are_taken() -> None:
    """Under an alarm, the thread that takes the samples waits for the confirm. Once, a health check passed therefore."""
    lane = QueueLane("q")
    lane.attach("channel", 1)
    lane.add([Delivery(b"", "", queue="q", tag=1)])
    assert lane.take()
    assert [status_of([lane], "").oldest, lane.status(monotonic() + 310)["oldest"] > 300] == [0.0, True]
    lane.finish(Delivery(b"", "", queue="q", tag=1), "channel")
    assert status_of([lane], "").oldest is None
