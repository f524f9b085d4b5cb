"""Carry out commands with pika, on a separate channel."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ShortStringTooLong,
    StreamLostError,
    UnroutableError,
    UnsupportedAMQPFieldException,
)

from rabbit_chx.base.interruption import uninterrupted
from rabbit_chx.broker.amqp import connect, expecting_refusals
from rabbit_chx.broker.commands import NO_ROUTE, TIMEOUT, Command, Driver, Lost, OnChannel, Refused
from rabbit_chx.broker.deliveries import BEFORE_PROPERTIES
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.properties import Properties
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.broker.receiving import TimedConnection
from rabbit_chx.errors import InvalidValue

_T = TypeVar("_T")
_HEADER_FRAME: Final = BEFORE_PROPERTIES + 1
"""Bytes of the frame of a content header without its properties."""


@contextmanager
def opened(
    given: BlockingConnection | BlockingChannel | str, tls: ssl.SSLContext | None = None
) -> Iterator[BlockingConnection]:
    """The connection that was given, or that of a channel, or a new one to a URL that is closed at the end."""
    if isinstance(given, BlockingChannel):
        yield given.connection
    elif isinstance(given, BlockingConnection):
        yield given
    elif isinstance(given, str):
        with connect(given, tls=tls, connection_name="rabbit-chx topology") as connection:
            yield connection
    else:
        raise InvalidValue(
            "connection",
            type(given).__name__,
            "a BlockingConnection or BlockingChannel of pika, or an AMQP URL",
            "With aio-pika: await apply_async(...)",
        )


class PikaDriver(Driver):
    """The driver for a connection of pika."""

    def __init__(
        self,
        connection: BlockingConnection,
        management: Management | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        parameters = connection._impl.params  # pika shows them nowhere else
        super().__init__(management, timeout, parameters.virtual_host, f"{parameters.host}:{parameters.port}")
        self._connection = connection
        self._channel: BlockingChannel | None = None
        self._torn = False

    def run(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out all commands and return what the generator returns."""
        return at_once(self.carry_out(commands))

    async def _call(self, request: Callable[[], Any]) -> Any:
        return request()

    async def _pause(self, seconds: float) -> None:
        try:
            self._connection.sleep(seconds)
        except (AMQPError, OSError) as error:
            raise Lost(str(why_down(error, self.where))) from None

    async def _ask(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        if self._torn:
            raise Lost(f"an interrupt left an answer of {self.where} unread")
        try:
            with uninterrupted():
                answer = self._answer(commands, seconds)
        except TimeoutError:
            raise
        except (AMQPError, OSError) as error:
            raise Lost(str(why_down(error, self.where))) from None
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _answer(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        """Return the answer, or a refusal: raised, it would hide an interrupt from generators for which it is an ordinary answer."""
        try:
            return self._send_in_time(commands, seconds)
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            refused = Refused(error.reply_code, error.reply_text)
            if isinstance(error, ChannelClosedByBroker) or refused.closed_connection:
                return refused
            raise
        except (UnroutableError, NackError):
            return Refused(NO_ROUTE, "NO_ROUTE")
        except (
            UnsupportedAMQPFieldException,
            ShortStringTooLong,
            struct.error,
            TypeError,
            ValueError,
        ) as error:
            self._channel = None  # it waits for the answer to a command that was never sent
            return Refused(0, f"pika cannot send it ({error!r})")

    def _send_in_time(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        if not self._connection.is_open:  # it may have ended while a channel was closed, which raises nothing
            raise Lost(f"the connection to {self.where} has ended")
        try:
            with _deadline(self._connection, seconds):
                if self._channel is None or self._channel.is_closed:
                    self._channel = self._connection.channel()
                    self._channel.confirm_delivery()
                with expecting_refusals(self._channel):
                    return self._send(self._channel, commands)
        except (KeyboardInterrupt, SystemExit):
            self._torn = True
            raise

    def _send(self, channel: BlockingChannel, commands: Sequence[OnChannel]) -> Any:
        *first, last = commands
        for command in first:
            # Without a callback pika asks for no answer (or, for queue.unbind, waits in line).
            getattr(channel._impl, command.method)(**command.arguments)
        arguments = dict(last.arguments)
        if "properties" in arguments:
            arguments["properties"] = properties = Properties(**arguments["properties"])
            size = _HEADER_FRAME + sum(map(len, properties.encode()))
            most = self._connection._impl.params.frame_max  # as the broker has agreed to it
            if size > most:  # the broker would close the connection
                raise ValueError(f"properties of {size:,} bytes, more than the {most:,} of a frame")
        answer = getattr(channel, last.method)(**arguments)
        if last.method == "basic_get":
            return answer[1]
        return None if answer is None else answer.method

    async def _close_channel(self) -> None:
        if self._channel is not None and self._channel.is_open and not self._torn:
            with uninterrupted(), suppress(AMQPError, OSError), _deadline(self._connection, self._timeout):
                self._channel.close()


def at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """The result of a coroutine that waits for nothing but pika, which blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waited for an event loop")


@contextmanager
def _deadline(connection: BlockingConnection, seconds: float) -> Iterator[None]:
    """Drop the connection if this takes longer: pika itself has no timeout for an answer."""
    impl = connection._impl  # pika has no timers that run while it waits for an answer
    late = False

    def drop() -> None:
        nonlocal late
        late = True
        impl._terminate_stream(StreamLostError("no answer in time"))

    timer = impl._adapter_call_later(seconds, drop)
    patience = 0.0
    if isinstance(connection, TimedConnection):
        patience, connection.patience = connection.patience, seconds + 1  # this deadline comes first
    try:
        yield
    except AMQPError:
        if late:
            raise TimeoutError from None
        raise
    finally:
        impl._adapter_remove_timeout(timer)
        if isinstance(connection, TimedConnection):
            connection.patience = patience
