"""Messages that may have ended processes: each is tried alone, with a note on the broker, and given up after too many."""

from __future__ import annotations

from collections.abc import Generator
from copy import copy
from types import SimpleNamespace

import pytest

from rabbit_chx.base.names import notes_of
from rabbit_chx.broker.commands import NO_ROUTE, Lost, OnChannel, Refused
from rabbit_chx.consuming.member.lanes import QueueLane
from rabbit_chx.working.messages import Delivery
from tests.unit.test_consuming_failures import Scene


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
    assert trial.lane.to_acknowledge() == [(1, True)]
