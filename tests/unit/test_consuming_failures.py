"""What follows when a handler fails: the next attempt and its delay, the log, and the headers of a parked message."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import suppress
from copy import copy
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
from rabbit_chx.working.trials import is_suspect, notes_of
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
def test_a_handler_may_say_when_the_next_attempt_follows_up_to_a_limit(error, settings, seconds) -> None:
    scene = Scene(**settings)
    began = monotonic()
    assert scene.fail(error) == []
    left = scene.delay
    assert seconds - (monotonic() - began) - 0.001 <= left <= seconds
    assert scene.message.attempt == 2


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
    assert [record.message for record in caplog.records] == [f"group 'billing': {described}"]


@pytest.mark.parametrize(
    ("settings", "redelivered", "count", "suspect"),
    [
        ({}, True, 5, True),
        ({}, True, 4, False),
        ({}, True, "5", False),
        ({}, True, None, False),
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


class Trial(Scene):
    """A suspect message that has been taken, and what the member sends while other processes have left notes about it."""

    def __init__(self, notes: int = 0) -> None:
        super().__init__(crashes=5)
        self.notes = notes
        self.interruptions._owner = SimpleNamespace(acknowledge=lambda _: None)
        self.message.suspect = True

    def go_on(self, error: Exception | None = None) -> list[str]:
        """The names of the commands that follow, and where messages are published to."""
        return self.sent_of(self.interruptions.deal_with(self.lane, self.channel, self.message, error))

    def sent_of(self, commands: Generator[OnChannel, object, None]) -> list[str]:
        sent, answer = [], None
        try:
            while True:
                command = commands.send(answer)
                sent.append(command.arguments.get("routing_key", command.method))
                answer = SimpleNamespace(message_count=self.notes)
        except StopIteration:
            return sent

    def begin(self) -> None:
        self.go_on()
        assert self.workers.noted is self.message
        assert self.lane.take() is self.message

    def begin_other(self) -> QueueLane:
        """A lane whose suspect message waits until this one has been tried."""
        other = QueueLane("other")
        other.attach(self.channel, 1)
        waiting = Delivery(b"", "k", queue="other", tag=1)
        waiting.suspect = True
        other.add([waiting])
        other.take()
        assert list(self.interruptions.deal_with(other, self.channel, waiting, None)) == []
        assert other.paused
        return other


NOTES = notes_of("billing", "q")


def test_a_suspect_message_is_acknowledged_after_its_note_is_taken_back() -> None:
    trial = Trial(notes=4)
    assert trial.go_on() == ["queue_declare", NOTES]
    assert trial.lane.take() is trial.message
    assert trial.workers.was_trial(trial.lane, trial.channel, trial.message)
    assert trial.lane.to_acknowledge() == []
    assert trial.go_on() == ["queue_purge"]
    assert trial.lane.to_acknowledge() == [(1, True)]


def test_a_suspect_message_that_fails_is_tried_again_with_another_note() -> None:
    trial = Trial()
    trial.begin()
    assert trial.go_on(ValueError("out of stock")) == ["queue_purge"]
    assert trial.workers.noted is None
    assert trial.lane.resume(trial.message, trial.channel)
    assert trial.lane.take() is trial.message
    assert trial.go_on() == ["queue_declare", NOTES]


def test_a_suspect_message_is_given_up_once_it_has_ended_too_many_processes() -> None:
    trial = Trial(notes=5)
    assert trial.go_on() == ["queue_declare", "queue_purge", "parked"]
    assert trial.lane.to_acknowledge() == [(1, True)]


def test_a_suspect_message_counts_as_handled_only_when_its_handler_has_returned() -> None:
    """Not when the broker was silent before the handler got it: the member asks the broker, and the message waits."""
    trial = Trial()
    trial.begin()
    assert trial.go_on() == ["queue_declare"]
    assert trial.lane.to_acknowledge() == []
    assert trial.lane.take() is trial.message


def test_one_suspect_message_is_tried_at_a_time() -> None:
    trial = Trial()
    trial.begin()
    other = trial.begin_other()
    trial.workers.was_trial(trial.lane, trial.channel, trial.message)
    trial.go_on()
    assert not other.paused


def test_a_suspect_message_that_leaves_before_its_handler_had_it_leaves_no_note_and_keeps_no_other_waiting() -> (
    None
):
    """Its lane has lost the channel while all workers were busy. Only the own note is taken back: others count ended processes."""
    trial = Trial(notes=3)
    assert trial.go_on() == ["queue_declare", NOTES]
    other = trial.begin_other()
    assert trial.sent_of(trial.interruptions.end_dropped_trial()) == []
    trial.lane.detach()
    assert trial.sent_of(trial.interruptions.end_dropped_trial()) == ["basic_get"]
    assert trial.workers.noted is None
    assert not other.paused


def test_a_trial_goes_on_while_its_handler_runs_on_after_a_lost_connection() -> None:
    trial = Trial()
    trial.begin()
    trial.lane.detach()
    assert trial.sent_of(trial.interruptions.end_dropped_trial()) == []
    assert trial.workers.noted is trial.message


@pytest.mark.parametrize("command", ["basic_publish", "queue_purge"])
def test_a_note_is_taken_back_before_the_next_one_if_the_connection_was_lost_with_it(command) -> None:
    """Under an alarm, for example, the broker takes the note, and nothing after it."""
    trial = Trial()
    commands = trial.interruptions.deal_with(trial.lane, trial.channel, trial.message, None)
    if command == "queue_purge":
        trial.begin()
        commands = trial.interruptions.deal_with(trial.lane, trial.channel, trial.message, ValueError())
    step = commands.send(None)
    while step.method != command:
        step = commands.send(SimpleNamespace(message_count=0))
    with pytest.raises(Lost):
        commands.throw(Lost("no answer in time"))
    trial.lane.detach()
    trial.lane.attach(trial.channel, 1)
    trial.message = copy(trial.message)  # redelivered
    trial.message.suspect = True
    trial.lane.add([trial.message])
    trial.lane.take()
    assert trial.go_on() == ["basic_get", "queue_declare", NOTES]


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
    ("attempts", "then"), [(2, "the next attempt follows in 1 s"), (1, "on_failure='park'")]
)
def test_a_failure_is_logged_once_with_its_traceback_and_what_names_the_message(
    attempts, then, caplog
) -> None:
    scene = Scene(attempts=attempts)
    with caplog.at_level(logging.WARNING, "rabbit_chx.consuming"):
        scene.fail(ValueError("out of stock"))
    (record,) = caplog.records
    assert record.getMessage() == (
        f"group 'billing': attempt 1 of {attempts} failed: queue 'q', key 'k', message_id 'm-1'; {then}"
    )
    assert "ValueError: out of stock" in caplog.text


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


@pytest.mark.parametrize("kind", ["without a key", "suspect"])
def test_a_message_that_no_handler_had_is_parked_with_no_attempts(kind) -> None:
    trial = Trial()
    error = None
    if kind == "without a key":
        trial.message.suspect = False
        trial.message.key_error = error = KeyError("tenant")
    commands = trial.interruptions.deal_with(trial.lane, trial.channel, trial.message, error)
    command = next(commands)
    while command.method != "basic_publish":
        command = commands.send(SimpleNamespace(message_count=5))
    assert command.arguments["properties"]["headers"]["x-rabbit-chx-parked-attempts"] == 0
    assert trial.lane.status(0.0)["failures"] == 0


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


def test_a_message_that_has_ended_too_many_processes_waits_for_room_in_the_parking_queue() -> None:
    trial = Trial(notes=5)
    commands = trial.interruptions.deal_with(trial.lane, trial.channel, trial.message, None)
    for answer in (None, SimpleNamespace(message_count=5), None):
        parks = commands.send(answer)
    assert parks.arguments["routing_key"] == "parked"
    commands.throw(Refused(NO_ROUTE, "NO_ROUTE"))
    with pytest.raises(StopIteration):
        commands.send(None)
    assert trial.lane.paused
    trial.lane.resume(trial.message, trial.channel)
    trial.lane.take()
    assert trial.go_on() == ["parked"]


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
