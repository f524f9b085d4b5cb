"""Commands carried out with pika, on a channel of their own. This file talks AMQP and HTTP; it decides nothing."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ShortStringTooLong,
    UnsupportedAMQPFieldException,
)

from rabbit_chx.broker.applying.protocol import Command, Lost, OnChannel, OverHttp, Refused
from rabbit_chx.broker.connect import connect
from rabbit_chx.broker.interruption import uninterrupted
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Iterator

    from rabbit_chx.broker.management import Management

__all__ = ["PikaDriver", "connection_of", "opened"]

_T = TypeVar("_T")

OVER_A_COMMAND: Final = {501, 502, 503, 504, 505, 530, 540, 541}
"""Reply codes with which a connection ends over what a client asked for, not for a reason of the broker's own."""


@contextmanager
def opened(
    given: BlockingConnection | BlockingChannel | str, tls: ssl.SSLContext | None = None
) -> Iterator[BlockingConnection]:
    """The connection that was given, by itself or by a channel; or one for as long as this lasts, to a URL."""
    if not isinstance(given, str):
        yield connection_of(given)
        return
    connection = connect(given, name="rabbit-chx topology", tls=tls)
    try:
        yield connection
    finally:
        if connection.is_open:
            with suppress(AMQPError, OSError):
                connection.close()


def connection_of(given: object) -> BlockingConnection:
    """The connection, or that of a channel."""
    if isinstance(given, BlockingChannel):
        return given.connection
    if isinstance(given, BlockingConnection):
        return given
    raise InvalidValue(
        "connection",
        type(given).__name__,
        "pika's BlockingConnection or BlockingChannel, or an AMQP URL",
        "With aio-pika: await apply_async(...)",
    )


class PikaDriver:
    """Runs generators of commands on a new channel of a connection."""

    def __init__(self, connection: BlockingConnection, management: Management | None = None) -> None:
        self._connection = connection
        self._management = management
        self._channel: BlockingChannel | None = None
        self._torn = False
        parameters = connection._impl.params  # noqa: SLF001 - pika shows them nowhere else
        self.vhost: str = parameters.virtual_host
        self._where = f"{parameters.host}:{parameters.port}"

    def run(self, commands: Generator[Command, Any, _T]) -> _T:
        """Carry out all commands, and return what the generator returns."""
        try:
            answer: Any = None
            trouble: BaseException | None = None
            while True:
                command = commands.send(answer) if trouble is None else commands.throw(trouble)
                answer = trouble = None
                try:
                    answer = self._do(command)
                except BaseException as error:  # noqa: BLE001 - the generator puts things in order, whatever it is
                    trouble = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            self._leave()

    def _do(self, command: Command) -> Any:
        if isinstance(command, OverHttp):
            return getattr(self._management, command.method)(*command.arguments)
        try:
            return self._on_channel(command)
        except ChannelClosedByBroker as error:
            raise Refused(error.reply_code, error.reply_text) from None
        except ConnectionClosedByBroker as error:
            if error.reply_code in OVER_A_COMMAND:
                raise Refused(error.reply_code, error.reply_text) from None
            raise Lost(str(why_down(error, self._where))) from None
        except (UnsupportedAMQPFieldException, ShortStringTooLong, TypeError, ValueError) as error:
            self._channel = None  # it waits for the answer to a command that never left
            raise Refused(0, f"pika cannot send it ({error!r})") from None
        except (AMQPError, OSError) as error:
            raise Lost(str(why_down(error, self._where))) from None

    def _on_channel(self, command: OnChannel) -> Any:
        if self._torn:
            raise Lost(f"an interrupt has torn the conversation with {self._where}")
        with uninterrupted():
            try:
                return self._asked(command)
            except (KeyboardInterrupt, SystemExit):
                self._torn = True
                raise

    def _asked(self, command: OnChannel) -> Any:
        if self._channel is None or self._channel.is_closed:
            self._channel = self._connection.channel()
        return getattr(self._channel, command.method)(**command.arguments).method

    def _leave(self) -> None:
        if self._channel is not None and self._channel.is_open and not self._torn:
            with suppress(AMQPError, OSError), uninterrupted():
                self._channel.close()
