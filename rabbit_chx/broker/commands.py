"""Commands as values, the errors that a driver raises for them, and what the drivers of pika and aio-pika share.

A driver runs a generator of commands to its end: it carries out each command that the generator yields and sends the
answer back, or throws what went wrong. It also throws what ends the driver itself (an interrupt, a cancelled task), so
that the generator can still release the lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from pika.exceptions import ChannelClosedByBroker
from pika.spec import ACCESS_REFUSED

from rabbit_chx.base.text import text_of_reply
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.permissions import Needs, backend_failed, why_denied
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import BrokerUnavailable

_T = TypeVar("_T")

NO_ROUTE: Final = 312
NOT_FOUND: Final = 404
INTERNAL_ERROR: Final = 541
TIMEOUT: Final = 60.0
"""Seconds for the answer to a command: on a busy cluster, declaring a quorum queue takes some."""


@dataclass(frozen=True, slots=True)
class OnChannel:
    """An AMQP command, by the name of the method that channels of pika and aiormq both have for it.

    The answer is the method that the broker answers with, and of ``basic_get`` the properties of the message, if there
    is one. The driver replaces a channel that an error has closed.
    """

    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> tuple[object, ...]:
        """What the command names; a bind and its unbind name the same."""
        return tuple(value for name, value in self.arguments.items() if name != "arguments")


@dataclass(frozen=True, slots=True)
class Pipelined:
    """AMQP commands that may be sent without waiting for each answer; the answer is that of the last one.

    If one is refused, the broker has carried out those before it and ignores those after it.
    """

    commands: tuple[OnChannel, ...]


def without_repeats(commands: Iterable[Sequence[OnChannel]]) -> Iterator[list[Sequence[OnChannel]]]:
    """The commands of steps, in parts of which none names a binding twice.

    An unbind and the later bind of the same binding change a ring each time they are sent: the binding moves to its end.
    """
    part: list[Sequence[OnChannel]] = []
    named: set[tuple[object, ...]] = set()
    for of_step in commands:
        names = {command.subject for command in of_step}
        if names & named:
            yield part
            part, named = [], set()
        part.append(of_step)
        named |= names
    yield part


@dataclass(frozen=True, slots=True)
class OverHttp:
    """A call of :class:`~rabbit_chx.broker.management.Management`, by its name; the answer is the returned value."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait and keep the connection alive."""

    seconds: float


Command: TypeAlias = OnChannel | Pipelined | OverHttp | Pause


class Refused(Exception):
    """The broker closed the channel or the connection because of a command, or returned a message (312).

    Code 0: the client could not send the command.
    """

    def __init__(self, code: int, text: str) -> None:
        text = text_of_reply(text)
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def closed_connection(self) -> bool:
        """Whether the whole connection was closed (a hard error of AMQP 0-9-1) and not only the channel."""
        return self.code in {501, 502, 503, 504, 505, 530, 540, 541}


class Lost(Exception):
    """The connection is lost; the text gives the reason."""


class Surprise(Exception):
    """The broker is not in the expected state; the text describes the difference, and what to do."""


def routed(
    queue: str | bytes, body: bytes, properties: Mapping[str, Any], *, exchange: str = ""
) -> Generator[Command, Any, bool]:
    """Publish a message to a queue, or with a routing key to an exchange, and return whether the broker accepted it; False if it returned or rejected it."""
    message = {
        "exchange": exchange,
        "routing_key": queue,
        "body": body,
        "mandatory": True,
        "properties": properties,
    }
    try:
        yield OnChannel("basic_publish", message)
    except Refused as refused:
        if refused.code != NO_ROUTE:
            raise
        return False
    return True


def unless_missing(command: OnChannel) -> Generator[Command, Any, Any]:
    """The answer to a command about a queue; None if the broker does not find the queue."""
    try:
        return (yield command)
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
        return None


_FOR_EACH: Final = 0.2
"""Seconds that a pipeline may take longer for each of its commands."""


async def carry_out(commands: Generator[Command, Any, _T], do: Callable[[Command], Awaitable[Any]]) -> _T:
    """Do each command of the generator and return what it returns."""
    step: Callable[[Any], Command] = commands.send
    given: Any = None
    try:
        while True:
            command = step(given)
            try:
                step, given = commands.send, await do(command)
            except BaseException as error:  # noqa: BLE001 - the generator decides about any error
                step, given = commands.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Driver(ABC):
    """Runs generators of commands on a new channel of a connection, which is left open.

    If a command is not answered within ``timeout`` seconds, the driver drops the connection.
    """

    def __init__(self, management: Management | None, timeout: float, vhost: str, where: str) -> None:
        self.vhost = vhost
        self.has_management: bool = management is not None
        self._management = management
        self._timeout = timeout
        self.where = where

    async def carry_out(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out all commands and return what the generator returns."""
        try:
            return await carry_out(commands, self._do)
        finally:
            await self._close_channel()

    async def _do(self, command: Command) -> Any:
        match command:
            case OverHttp():
                return await self._call(
                    partial(getattr(self._management, command.method), *command.arguments)
                )
            case Pause():
                return await self._pause(command.seconds)
        commands = command.commands if isinstance(command, Pipelined) else (command,)
        try:
            return await self._ask(commands, self._timeout + len(commands) * _FOR_EACH)
        except TimeoutError:
            last = commands[-1]
            name = last.arguments.get("queue", last.arguments.get("exchange", ""))
            raise Lost(
                f"the broker at {self.where} did not answer {last.method} of {name!r} within {self._timeout:g} "
                "seconds, so the connection was dropped; the broker releases the lock when it notices"
            ) from None

    @abstractmethod
    async def _call(self, request: Callable[[], Any]) -> Any:
        """The answer to a request over HTTP."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _ask(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        """Send commands without waiting in between and return the answer to the last one.

        Raises:
            TimeoutError: the broker did not answer in time, and the connection is dropped.
        """

    @abstractmethod
    async def _close_channel(self) -> None: ...


def exists(queue: str) -> Generator[Command, Any, bool]:
    """Whether a queue exists."""
    try:
        yield OnChannel("queue_declare", {"queue": queue, "passive": True})
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
        return not is_missing(refused.text)
    return True


def is_missing(text: str) -> bool:
    """Whether the text of a refusal says that a queue does not exist.

    The code does not tell: the broker answers 404 for a classic queue on a stopped node, too.
    """
    return text_of_reply(text).startswith("NOT_FOUND - no queue ")


def why_ended(
    error: Exception, needs: Needs | None = None, what: str = "this", where: str = "the broker"
) -> BrokerUnavailable:
    """Explain why a connection ended; the error is permanent if another connection would end the same way.

    ``needs`` are all permissions of the user; without them, the text names no command, which would take the others away.
    """
    if isinstance(error, BrokerUnavailable):
        return error
    if isinstance(error, (Refused, ChannelClosedByBroker)):
        code, words = error.args[0], text_of_reply(error.args[1])
        denied = needs and why_denied(words, needs, what=what)
        text = denied or f"the broker refused it: {code} {words}"
        return BrokerUnavailable(text, permanent=code == ACCESS_REFUSED and not backend_failed(words))
    return BrokerUnavailable(str(error) if isinstance(error, Lost) else str(why_down(error, where)))
