"""The commands of a plan as values, and the errors that a driver raises for them.

A driver runs a generator of commands to its end: it carries out each command that the generator yields and sends the
answer back, or throws what went wrong. It also throws whatever ends its own work (an interrupt, a cancelled task), so
that the generator can still release the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "TIMEOUT",
    "Command",
    "Lost",
    "OnChannel",
    "OverHttp",
    "Pipelined",
    "Refused",
    "Surprise",
    "no_answer",
]

TIMEOUT: Final = 60.0
"""Seconds for the answer to a command: on a busy cluster, declaring a quorum queue takes some."""


@dataclass(frozen=True, slots=True)
class OnChannel:
    """An AMQP command, by the name of the method that channels of pika and aiormq both have for it.

    The answer is the method that the broker answers with. The driver replaces a channel that an error has closed.
    """

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipelined:
    """AMQP commands that may be sent without waiting for each answer; the answer is that of the last one.

    If one is refused, the broker has carried out those before it and ignores those after it.
    """

    commands: tuple[OnChannel, ...]


@dataclass(frozen=True, slots=True)
class OverHttp:
    """A call of :class:`~rabbit_chx.broker.management.Management`, by its name; the answer is what it returns."""

    method: str
    arguments: tuple[Any, ...] = ()


Command: TypeAlias = OnChannel | Pipelined | OverHttp


class Refused(Exception):
    """The broker closed the channel or the connection because of a command; code 0: the client could not send it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def closed_connection(self) -> bool:
        """Whether the whole connection was closed (a hard error of AMQP 0-9-1) and not only the channel."""
        return self.code in {501, 502, 503, 504, 505, 530, 540, 541}


class Lost(Exception):
    """The connection is gone; the text says why."""


class Surprise(Exception):
    """The broker is not in the expected state; the text says how, and what to do."""


def no_answer(where: str, command: OnChannel, seconds: float) -> str:
    """What to say of a command that the broker did not answer in time."""
    name = command.arguments.get("queue", command.arguments.get("exchange", ""))
    return (
        f"the broker at {where} did not answer {command.method} of {name!r} within {seconds:g} seconds, so the "
        "connection was dropped; the broker releases the lock when it notices"
    )
