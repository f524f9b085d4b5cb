"""What follows when a handler fails: the next attempt and its delay, the log, and the headers of a parked message."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from time import monotonic
from types import SimpleNamespace

import pytest

from rabbit_chx.broker.commands import NO_ROUTE, Lost, OnChannel, Refused
from rabbit_chx.consuming import Reject, RetryAfter
from rabbit_chx.consuming.member.interruptions import Interruptions
from rabbit_chx.consuming.member.key_lanes import KeyLane
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message import Message
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.parking import OFFSET, origin_of
from rabbit_chx.working.settings import Settings
from rabbit_chx.working.trials import is_suspect
from rabbit_chx.working.workers import Progress, Workers
from tests.unit.test_consuming_lanes import SETTINGS
from tests.wire import encoded_properties


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Scene:
    """A lane with one message that has been taken, and what the member does when its handler fails."""

    def __init__(self, **settings: object) -> None:
        self.settings = Settings(**SETTINGS | {"on_failure": "park", "parking_queue": "parked"} | settings)
        self.workers = Workers(print, 1, 10)
        owner = SimpleNamespace(on_progress=lambda: None, on_interruption=lambda *_: None)
        Progress.start(self.workers, owner)  # without its threads
        self.interruptions = Interruptions(self.settings, self.workers, print, print)
        self.lane, self.channel = QueueLane("q"), object()
        self.lane.attach(self.channel, 1)
        self.message = Delivery(
            *(b"body", "k"), queue="q", exchange="orders", encoded=encoded_properties(message_id="m-1"), tag=1
        )
        self.lane.add([self.message])
        self.lane.take()

    def fail(self, error: Exception) -> list[OnChannel]:
        """The commands that follow a failure."""
        return list(self.interruptions.deal_with(self.lane, self.channel, self.message, error))

    @property
    def delay(self) -> float:
        return self.interruptions.until_retry(1e9)


def test_a_message_that_is_rejected_gets_no_further_attempt() -> None:
    scene = Scene(attempts=5)
    (parked,) = scene.fail(Reject("no such customer"))
    assert parked.arguments["routing_key"] == "parked"
    headers = parked.arguments["properties"]["headers"]
    at = datetime.fromisoformat(headers.pop("x-rabbit-chx-parked-time"))
    assert at.tzinfo is not None
    assert headers == {
        "x-rabbit-chx-parked-exchange": "orders",
        "x-rabbit-chx-parked-routing-key": "k",
        "x-rabbit-chx-parked-queue": "q",
        "x-rabbit-chx-parked-group": "billing",
        "x-rabbit-chx-parked-attempts": 1,
        "x-rabbit-chx-parked-error": "Reject: no such customer",
    }
    assert scene.lane.to_acknowledge() == [(1, True)]


@pytest.mark.parametrize(
    ("error", "settings", "seconds"),
    [
        (ValueError("out of stock"), {}, 1.0),
        (RetryAfter(7), {}, 7.0),
        (RetryAfter(0), {}, 0.0),
        (RetryAfter(3_600), {}, 60.0),
        (RetryAfter(3_600), {"backoff": 90.0}, 90.0),
    ],
)
def test_a_handler_may_say_when_the_next_attempt_follows_up_to_a_limit(
    error, settings, seconds, caplog
) -> None:
    scene = Scene(**settings)
    began = monotonic()
    assert scene.fail(error) == []
    left = scene.delay
    assert seconds - (monotonic() - began) - 0.001 <= left <= seconds
    assert scene.message.attempt == 2
    assert caplog.messages[0].endswith(f"; the next attempt follows in {seconds:g} s")


@pytest.mark.parametrize(
    ("attempts", "note"),
    [
        (1, "The handler failed 1 time with <"),
        (2, "The handler failed 2 times with <"),
        (None, "The key function failed with <"),
    ],
)
def test_the_log_and_a_note_say_what_has_failed(caplog, attempts, note) -> None:
    scene = Scene(attempts=attempts or 5, on_failure="stop", parking_queue=None)
    scene.interruptions._owner = SimpleNamespace(fail=lambda _: None)
    error = ValueError("x")
    scene.message.attempt = attempts or 1
    scene.message.key_error = None if attempts else error
    assert scene.fail(error) == []
    (found,) = error.__notes__
    assert found.startswith(note)
    assert found.endswith(", which stays in its queue.")
    what = f"attempt {attempts} of {attempts}" if attempts else "the key function"
    described = f"{what} failed: queue 'q', key 'k', message_id 'm-1'; on_failure='stop'"
    assert caplog.messages == [f"group 'billing': {described}"]
    assert "ValueError: x" in caplog.text, "the traceback"


@pytest.mark.parametrize(
    ("settings", "redelivered", "count", "suspect"),
    [
        ({}, True, 5, True),
        ({}, True, 4, False),
        ({}, True, "5", False),
        ({}, False, 5, False),  # the publisher's header
        ({"crashes": None}, True, 500, False),
        ({"on_failure": "stop", "parking_queue": None}, True, 500, False),
    ],
)
def test_a_message_is_suspect_once_the_broker_has_taken_it_back_too_often(
    settings, redelivered, count, suspect
) -> None:
    properties = encoded_properties(headers={"x-delivery-count": count})
    message = Delivery(b"", "k", queue="q", redelivered=redelivered, encoded=properties)
    assert is_suspect(message, Scene(**{"crashes": 5} | settings).settings) is suspect


@pytest.mark.parametrize(
    ("redelivered", "headers", "count"),
    [
        (False, {"x-delivery-count": 7}, 0),
        (True, {"x-delivery-count": 7}, 7),
        (True, {"x-delivery-count": "7"}, None),
        (True, None, None),
    ],
)
def test_deliveries_are_what_the_broker_has_counted_and_not_what_a_publisher_says(
    redelivered, headers, count
) -> None:
    assert Message(b"", redelivered=redelivered, headers=headers).deliveries == count


def test_an_attempt_that_asks_for_another_one_counts() -> None:
    scene = Scene(attempts=1)
    assert len(scene.fail(RetryAfter(1))) == 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_the_seconds_until_the_next_attempt_are_checked_where_they_are_raised(seconds) -> None:
    with pytest.raises(InvalidValue, match="invalid seconds: got"):
        RetryAfter(seconds)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("out of stock"), "ValueError: out of stock"),
        (ValueError("x" * 5_000), f"ValueError: {'x' * 988}"),
        (ValueError("\ud800"), "ValueError: ?"),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_any_error_fits_into_a_header(error, text) -> None:
    message = Delivery(b"", "k", queue="q")
    assert origin_of(message, "billing", error)["x-rabbit-chx-parked-error"] == text


def test_a_message_that_is_parked_again_has_only_the_headers_of_the_last_time() -> None:
    scene = Scene()
    encoded = encoded_properties(headers={OFFSET: 7, "n": 1})
    scene.message = Delivery(b"", "k", queue="q", encoded=encoded, tag=1)
    (parked,) = scene.fail(Reject("no"))
    headers = parked.arguments["properties"]["headers"]
    assert headers["n"] == 1
    assert OFFSET not in headers


# ---- a full parking queue


class Full(Scene):
    """The parking queue rejects messages."""

    def fail(self, error: Exception | None) -> list[str]:
        commands = self.interruptions.deal_with(self.lane, self.channel, self.message, error)
        sent = [next(commands).method]
        with suppress(StopIteration):
            sent.append(commands.throw(Refused(NO_ROUTE, "NO_ROUTE")).method)
            commands.send(None)
        return sent


@pytest.mark.parametrize("order", ["queue", "key"])
def test_a_message_waits_for_room_in_the_parking_queue_and_its_handler_no_longer_gets_it(
    order, caplog
) -> None:
    scene = Full(attempts=1)
    if order == "key":
        scene.lane = KeyLane("q", lambda message: message.routing_key, 1, None)
        scene.lane.attach(scene.channel, 1)
        scene.lane.add([scene.message])
        scene.lane.take()
    asked: list[object] = []
    scene.workers._owner.on_interruption = lambda *asking: asked.append(asking)
    scene.workers.heard = monotonic() + 3_600
    error: Exception | None = ValueError("out of stock")
    for _ in range(2):
        assert scene.fail(error) == ["basic_publish", "queue_declare"]
        assert 0 < scene.delay < 30
        assert scene.lane.is_idle
        assert scene.lane.to_acknowledge() == []
        scene.lane.resume(scene.message, scene.channel)
        assert scene.workers.next_of(scene.lane) is None
        error = None
    assert asked == [(scene.lane, scene.channel, scene.message, None)] * 2
    (warning,) = (each for each in caplog.messages if "it is full" in each)
    assert warning.startswith("group 'billing': the parking queue 'parked' rejected a message")
    assert warning.endswith("; trying again")
    (parked,) = Scene.fail(scene, None)
    headers = parked.arguments["properties"]["headers"]
    assert headers["x-rabbit-chx-parked-error"] == "ValueError: out of stock"
    assert headers["x-rabbit-chx-parked-attempts"] == 1
    assert scene.lane.failed == 1
    assert scene.lane.to_acknowledge() == [(1, True)]


# ---- errors of the package itself


def test_a_message_that_makes_the_package_fail_has_failed_and_ends_no_member(monkeypatch, caplog) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RecursionError("deep")

    monkeypatch.setattr("rabbit_chx.working.parking.copied_properties", broken)
    scene = Scene()
    (parked,) = scene.fail(Reject("no such customer"))
    assert parked.arguments["routing_key"] == "parked"
    assert parked.arguments["body"] == b"body"
    headers = parked.arguments["properties"]["headers"]
    assert headers["x-rabbit-chx-parked-error"] == "RecursionError: deep"
    assert headers["x-rabbit-chx-parked-left-out"] == "its properties and headers"
    assert scene.lane.to_acknowledge() == [(1, True)]
    (_, own) = (record.message for record in caplog.records)
    assert own == "group 'billing': a message of queue 'q' made rabbit-chx fail; on_failure='park'"


def test_with_stop_an_error_of_the_package_is_what_ends_the_member(monkeypatch) -> None:
    ended: list[BaseException] = []
    scene = Scene(on_failure="stop", parking_queue=None)
    scene.interruptions._fail = ended.append
    monkeypatch.setattr(scene.interruptions, "planned", lambda *_, **__: 1 / 0)
    assert scene.fail(ValueError("x")) == []
    assert [type(error) for error in ended] == [ZeroDivisionError]
    assert scene.lane.to_acknowledge() == []


def test_a_lost_connection_is_no_failure_of_the_message() -> None:
    scene = Scene()
    commands = scene.interruptions.deal_with(scene.lane, scene.channel, scene.message, Reject("x"))
    next(commands)
    with pytest.raises(Lost):
        commands.throw(Lost("gone"))
    assert scene.lane.paused
