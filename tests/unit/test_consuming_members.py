"""What a member does on a connection, with a model of the broker in place of the connection."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from rabbit_chx.broker.applying.pika_driver import at_once
from rabbit_chx.broker.applying.protocol import Command, OnChannel, Refused, carry_out
from rabbit_chx.consuming.interruptions import Interruptions
from rabbit_chx.consuming.member import Member
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.settings import Settings
from rabbit_chx.consuming.workers import Fate
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.releases import Release
from tests.unit.test_consuming_lanes import SETTINGS

QUEUES = ("a", "b")
MESSAGE = Message(b"", "k", queue="a", tag=1)


class Broker:
    """Queues of others, those that a member declares, and what the member publishes on its own connection."""

    def __init__(self, *queues: str) -> None:
        self.queues = {*queues}
        self.locked: set[str] = set()
        self.published: list[OnChannel] = []

    async def carry_out(self, commands: Generator[Command, Any, Any]) -> Any:
        return await carry_out(commands, self._do)

    async def _do(self, command: Command) -> Any:
        assert isinstance(command, OnChannel)
        if command.method == "basic_publish":
            self.published.append(command)
            if command.arguments["routing_key"] not in self.queues | self.locked:
                raise Refused(312, "NO_ROUTE")
            return None
        queue = command.arguments["queue"]
        if queue in self.locked:
            raise Refused(405, "RESOURCE_LOCKED")
        if command.arguments.get("passive") and queue not in self.queues:
            raise Refused(404, "NOT_FOUND")
        self.queues.add(queue)
        return SimpleNamespace(consumer_count=0)


def member(broker: Broker, source: Callable[[], tuple[str, ...]] = lambda: QUEUES) -> Member:
    """A member whose connection delivers nothing and whose broker is a model."""
    made = Member(Settings(**SETTINGS), None, source, print, print)
    made._carry_out = broker.carry_out
    made._release = Release.of_broker("4.3.6")
    made._connection = SimpleNamespace(_impl=SimpleNamespace(bytes_received=5), process_data_events=lambda time_limit: None)
    made._interruptions = Interruptions(made._settings, made.workers, made)
    return made


# ---- the queues at a reconnect


@pytest.mark.parametrize("error", [InvalidValue("exchange", "orders", "bindings"), BrokerUnavailable("no answer")])
def test_a_member_that_reconnects_uses_the_queues_it_knows_if_they_cannot_be_read_again(error, caplog) -> None:
    def fail() -> tuple[str, ...]:
        raise error

    broker = Broker(*QUEUES)
    joined = member(broker)
    assert at_once(joined._find_seat()) == QUEUES
    joined._forget()
    broker.queues.remove("rabbit-chx.seat.billing.0")
    joined._source = fail
    assert at_once(joined._find_seat()) == QUEUES
    assert joined.seat == 0
    assert "the queues could not be read again" in caplog.text
    with pytest.raises(type(error)):
        at_once(member(broker, fail)._find_seat())


# ---- pauses


def test_after_a_pause_only_an_answer_of_the_broker_allows_a_member_to_handle_messages() -> None:
    paused = member(Broker("rabbit-chx.seat.billing.0"))
    paused.workers.heard = monotonic() - 60
    at_once(paused._turn(0.0))
    assert paused.workers.fate(MESSAGE) is Fate.INTERRUPT
    at_once(paused._listen())
    assert paused.workers.fate(MESSAGE) is Fate.HANDLE
