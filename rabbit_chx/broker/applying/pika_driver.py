"""Carry out commands with pika, on a channel of their own."""

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
    StreamLostError,
    UnsupportedAMQPFieldException,
)

from rabbit_chx.broker.applying.protocol import (
    TIMEOUT,
    Command,
    Lost,
    OnChannel,
    OverHttp,
    Pipelined,
    Refused,
    no_answer,
)
from rabbit_chx.broker.connect import connect
from rabbit_chx.broker.interruption import uninterrupted
from rabbit_chx.broker.reasons import why_down
from rabbit_chx.errors import InvalidValue

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Iterator, Sequence

    from rabbit_chx.broker.management import Management

__all__ = ["PikaDriver", "connection_of", "deadline", "opened"]

_T = TypeVar("_T")

_FOR_EACH: Final = 0.2


@contextmanager
def opened(
    given: BlockingConnection | BlockingChannel | str, tls: ssl.SSLContext | None = None
) -> Iterator[BlockingConnection]:
    """The connection that was given, or that of a channel, or a new one to a URL that is closed at the end."""
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
        "a BlockingConnection or BlockingChannel of pika, or an AMQP URL",
        "With aio-pika: await apply_async(...)",
    )


@contextmanager
def deadline(connection: BlockingConnection, seconds: float) -> Iterator[None]:
    """Drop the connection if this takes longer: pika itself waits for ever for an answer that does not come."""
    impl = connection._impl  # noqa: SLF001 - pika has no timers that run while it waits for an answer
    late = False

    def drop() -> None:
        nonlocal late
        late = True
        impl._terminate_stream(StreamLostError("no answer in time"))  # noqa: SLF001

    timer = impl._adapter_call_later(seconds, drop)  # noqa: SLF001
    try:
        yield
    except AMQPError:
        if late:
            raise TimeoutError(
                f"no answer within {seconds:g} seconds, so the connection was dropped"
            ) from None
        raise
    finally:
        impl._adapter_remove_timeout(timer)  # noqa: SLF001


class PikaDriver:
    """Runs generators of commands on a new channel of a connection.

    Args:
        connection: left open.
        management: for what goes over HTTP.
        timeout: seconds for the answer to a command; a pipeline gets a little more for each of its commands.
    """

    def __init__(
        self,
        connection: BlockingConnection,
        management: Management | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        self._connection = connection
        self._management = management
        self._timeout = timeout
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
                except BaseException as error:  # noqa: BLE001 - the generator decides, whatever it is
                    trouble = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            self._close_channel()

    def _do(self, command: Command) -> Any:
        if isinstance(command, OverHttp):
            return getattr(self._management, command.method)(*command.arguments)
        commands = command.commands if isinstance(command, Pipelined) else (command,)
        try:
            return self._on_channel(commands)
        except ChannelClosedByBroker as error:
            raise Refused(error.reply_code, error.reply_text) from None
        except ConnectionClosedByBroker as error:
            refused = Refused(error.reply_code, error.reply_text)
            raise (
                refused if refused.closed_connection else Lost(str(why_down(error, self._where)))
            ) from None
        except (UnsupportedAMQPFieldException, ShortStringTooLong, TypeError, ValueError) as error:
            self._channel = None  # it waits for the answer to a command that was never sent
            raise Refused(0, f"pika cannot send it ({error!r})") from None
        except TimeoutError:
            raise Lost(no_answer(self._where, commands[-1], self._timeout)) from None
        except (AMQPError, OSError) as error:
            raise Lost(str(why_down(error, self._where))) from None

    def _on_channel(self, commands: Sequence[OnChannel]) -> Any:
        if self._torn:
            raise Lost(f"an interrupt left an answer of {self._where} unread")
        seconds = self._timeout + len(commands) * _FOR_EACH
        with uninterrupted():
            try:
                with deadline(self._connection, seconds):
                    return self._ask(commands)
            except (KeyboardInterrupt, SystemExit):
                self._torn = True
                raise

    def _ask(self, commands: Sequence[OnChannel]) -> Any:
        if self._channel is None or self._channel.is_closed:
            self._channel = self._connection.channel()
        *first, last = commands
        for (
            command
        ) in first:  # without a callback pika asks for no answer (or, for queue.unbind, waits in line)
            getattr(self._channel._impl, command.method)(**command.arguments)  # noqa: SLF001
        return getattr(self._channel, last.method)(**last.arguments).method

    def _close_channel(self) -> None:
        if self._channel is not None and self._channel.is_open and not self._torn:
            with suppress(AMQPError, OSError), uninterrupted(), deadline(self._connection, self._timeout):
                self._channel.close()
