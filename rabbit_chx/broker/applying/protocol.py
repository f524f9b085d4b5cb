"""What the commands of a plan and the drivers that carry them out say to each other. Values only.

A driver runs a generator of commands to its end: it does what is yielded and sends the answer in, or throws in
what went wrong. Whatever ends its own work (an interrupt, a cancelled task) it throws in too, so that
the generator can put things in order with a last command or two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Command", "Lost", "OnChannel", "OverHttp", "Refused", "Surprise"]


@dataclass(frozen=True, slots=True)
class OnChannel:
    """An AMQP command, by the name of the method that channels of pika and aiormq both have for it.

    The answer is the method that the broker answers with. A channel closed by an error is replaced by the driver.
    """

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OverHttp:
    """A call of :class:`~rabbit_chx.broker.management.Management`, by its name; the answer is what it returns."""

    method: str
    arguments: tuple[Any, ...] = ()


Command: TypeAlias = OnChannel | OverHttp


class Refused(Exception):
    """The broker closed the channel, or the connection, over a command; code 0: the client did not even send it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Lost(Exception):
    """The connection is gone, whatever for: the text says."""


class Surprise(Exception):
    """The broker is not as it should be: the text says how, and what to do."""
