"""Carry out commands with aio-pika, on a separate channel.

The channel is one of aiormq, below aio-pika: a robust channel would reopen after an error and hide it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from rabbit_chx.base.timeouts import CONNECT, HEARTBEAT_OF_CALLER
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.commands import NO_ROUTE, TIMEOUT, Driver, Lost, OnChannel, Refused
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reasons import why_down, why_not_offered, why_rejected, why_unreachable
from rabbit_chx.broker.tls import default_context, warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, MissingDependency

try:
    import aio_pika
    from aiormq.abc import AbstractChannel, AbstractConnection, ChannelFrame, DeliveredMessage
    from aiormq.exceptions import (
        AMQPError,
        AuthenticationError,
        ChannelClosed,
        ChannelInvalidStateError,
        ConnectionClosed,
        DeliveryError,
        InvalidFrameError,
        ProbableAuthenticationError,
    )
    from pamqp import commands as spec
    from pamqp.base import Frame
    from pamqp.exceptions import CLASS_MAPPING
except ImportError as missing:
    raise MissingDependency("this needs aio-pika: `pip install 'rabbit-chx[aio]'`") from missing

_T = TypeVar("_T")

# aiormq drops the reply code, but the reply text begins with its name. Codes up to 400 are not errors of the client.
_CODES: Final = {
    error.name.replace("-", "_"): code  # type: ignore[attr-defined]
    for code, error in CLASS_MAPPING.items()
    if code > 400
}
_NO_WAIT: Final[dict[str, Any]] = {
    "exchange_declare": spec.Exchange.Declare,
    "exchange_bind": spec.Exchange.Bind,
    "exchange_unbind": spec.Exchange.Unbind,
    "queue_declare": spec.Queue.Declare,
    "queue_bind": spec.Queue.Bind,
}
"""The commands to which a broker need not answer: `queue.unbind` is not among them."""


@asynccontextmanager
async def opened(given: object, tls: ssl.SSLContext | None = None) -> AsyncIterator[AbstractConnection]:
    """The connection that was given, or that of a channel, or a new one to a URL that is closed at the end."""
    if isinstance(given, aio_pika.abc.AbstractConnection) and given.transport is not None:
        yield given.transport.connection
    elif isinstance(given, aio_pika.abc.AbstractChannel) and (channel := await _underlay(given)) is not None:
        yield channel.connection
    elif isinstance(given, str):
        async with await _connect(BrokerUrl.parse(given), tls) as connection:
            assert connection.transport is not None  # it has just connected
            yield connection.transport.connection
    else:
        raise InvalidValue(
            "connection",
            type(given).__name__,
            "an open connection or channel of aio-pika, or an AMQP URL",
            "With pika: apply(...)",
        )


async def _connect(url: BrokerUrl, tls: ssl.SSLContext | None) -> aio_pika.abc.AbstractConnection:
    """Open a connection as `rabbit_chx.broker.amqp.connect` does, or raise the same error."""
    if url.tls:
        warn_if_unchecked(tls, str(url))
    user, password = url.login
    query: dict[str, Any] = {"auth": "external"} if url.external else {}
    try:
        connection: aio_pika.abc.AbstractConnection = await aio_pika.connect(
            host=url.host,
            port=url.port,
            login=user,
            password=password,
            virtualhost=url.vhost,
            ssl=url.tls,
            ssl_context=(tls or default_context()) if url.tls else None,
            timeout=url.parameters.get("socket_timeout", CONNECT),
            heartbeat=str(url.parameters.get("heartbeat", HEARTBEAT_OF_CALLER)),
            client_properties={"connection_name": "rabbit-chx topology", "product": "rabbit-chx"},
            **query,
        )
    except (AMQPError, OSError) as error:
        raise _why_not_open(error, url) from None
    return connection


def _why_not_open(error: Exception, url: BrokerUrl) -> BrokerUnavailable:
    where = str(url)
    match error:
        case ProbableAuthenticationError():
            return why_rejected(403, str(error), where)
        case AuthenticationError():
            return why_not_offered(where, external=url.external)
        case ConnectionClosed():
            return why_rejected(int(error.args[0]), str(error.args[-1]), where)
        case InvalidFrameError() if "Connection.OpenOk" in str(error):
            return why_rejected(530, "", where)  # aiormq discards the broker's answer to Connection.Open
        case AMQPError() if not isinstance(error, InvalidFrameError):
            return why_unreachable(error.__cause__ or error, where)
        case _:
            return why_unreachable(error, where)


async def _underlay(channel: aio_pika.abc.AbstractChannel) -> AbstractChannel | None:
    """The channel of aiormq; None if it was not opened, or if a robust connection, which may be closed, is not connected in time."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await channel.get_underlay_channel()
    except (TimeoutError, ChannelInvalidStateError):
        return None


class AioDriver(Driver):
    """The driver for a connection of aiormq."""

    def __init__(
        self,
        connection: AbstractConnection,
        management: Management | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        vhost: str = connection.vhost  # type: ignore[attr-defined]
        super().__init__(management, timeout, vhost, f"{connection.url.host}:{connection.url.port}")
        self._connection = connection
        self._channel: AbstractChannel | None = None

    async def _call(self, request: Callable[[], Any]) -> Any:
        return await _to_its_end(asyncio.to_thread(request))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _ask(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        # aiormq closes the channel of a command that is cancelled, and the connection ends if it does so twice.
        return await _to_its_end(self._send_in_time(commands, seconds))

    async def _send_in_time(self, commands: Sequence[OnChannel], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._send(commands)
        except asyncio.CancelledError:
            self._channel = None  # aiormq is closing it, so later commands need another
            raise
        except DeliveryError:
            raise Refused(NO_ROUTE, "NO_ROUTE") from None
        except (AMQPError, OSError, ChannelInvalidStateError) as error:
            if limit.expired():
                await self._drop()
                raise TimeoutError from None
            raise self._why_closed(error) from None
        except (TypeError, ValueError) as error:
            raise Refused(
                0,
                f"aio-pika cannot send it ({error}): it supports fewer names and values than pika, so use apply()",
            ) from None
        except RuntimeError as error:  # what aiormq raises of a connection that is closed
            raise Lost(f"the connection to {self.where} is closed: {error}") from None

    def _why_closed(self, error: BaseException) -> Refused | Lost:
        """Translate an exception of aiormq into a refused command or a lost connection."""
        closing = self._channel.closing if self._channel is not None else None
        if isinstance(error, ChannelInvalidStateError) and closing is not None and closing.done():
            error = closing.exception() or error  # why the channel was closed before this command was sent
        if not isinstance(error, (ChannelClosed, ConnectionClosed)):
            return Lost(str(why_down(error, self.where)))
        text = str(error.args[-1])
        if code := _CODES.get(text.partition(" ")[0]):
            return Refused(code, text)
        return Lost(f"the broker at {self.where} closed it: {' '.join(map(str, error.args))}")

    async def _drop(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(1):
                await self._connection.close(ConnectionError("no answer in time"))

    async def _send(self, commands: Sequence[OnChannel]) -> Any:
        if self._channel is None or self._channel.is_closed:
            self._channel = await self._connection.channel()
        ahead: list[Frame] = []
        for command in commands:
            arguments = dict(command.arguments)
            if "arguments" in arguments:
                arguments["arguments"] = as_pika_writes(arguments["arguments"])
            if "properties" in arguments:
                properties = dict(arguments["properties"])
                kind = properties.pop("type", None)
                arguments["properties"] = spec.Basic.Properties(**properties, message_type=kind)
            frame = _NO_WAIT.get(command.method)
            if frame is not None and command is not commands[-1]:
                ahead.append(frame(**arguments, nowait=True))
                continue
            # aiormq itself waits for an answer to each command, in old releases even where none is to come. All is put
            # into the queue at once: the broker ends the connection over a command on a channel that it has closed.
            if ahead:
                written = ChannelFrame.marshall(channel_number=self._channel.number, frames=ahead)
                await self._channel.write_queue.put(written)  # type: ignore[attr-defined]
                ahead = []
            answer = await getattr(self._channel, command.method)(**arguments)
        if isinstance(answer, DeliveredMessage):
            return answer.header.properties if isinstance(answer.delivery, spec.Basic.GetOk) else None
        return answer

    async def _close_channel(self) -> None:
        if self._channel is not None and not self._channel.is_closed:
            await _to_its_end(self._close(self._channel))

    async def _close(self, channel: AbstractChannel) -> None:
        with suppress(TimeoutError, AMQPError, OSError):
            async with asyncio.timeout(self._timeout):
                await channel.close()


async def _to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work that must not be cancelled in the middle. A cancellation takes effect when it has ended, a second one at once."""
    working = asyncio.create_task(work)
    # Without this, asyncio may log the error.
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


class _FourBytesOrEight(int):
    """An integer that pamqp writes as pika does: tag ``I`` up to 32 bits with a sign, else ``l``.

    pamqp takes the smallest tag whose range holds the value, comparing range by range; these integers fit only those two.
    """

    __slots__ = ()

    def __le__(self, bound: int) -> bool:
        return bound in {2**31 - 1, 2**63 - 1} and int(self) <= bound


def as_pika_writes(value: Any) -> Any:
    """The arguments of a command, or a value in them, with all integers written with the tags that pika uses.

    The broker distinguishes bindings by their arguments, types included: a client that sends 1 in four bytes does not
    unbind what another bound with 1 in one byte, and gets no error.
    """
    match value:
        case bool():
            return value
        case int():
            return _FourBytesOrEight(value)
        case Mapping():
            return {name: as_pika_writes(each) for name, each in value.items()}
        case list():
            return [as_pika_writes(each) for each in value]
        case _:
            return value
