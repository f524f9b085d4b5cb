"""Traces with OpenTelemetry, if the extra ``otel`` is installed; otherwise OpenTelemetry is never imported, and tracing costs nothing.

A publisher writes the current context into the headers of a message. The handler of a group runs in a span that links to it,
or, if the program makes no spans, in that context, which a publisher in the handler passes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rabbit_chx.base.text import described, text_of
from rabbit_chx.messages.message import Message

if TYPE_CHECKING:
    from opentelemetry.context import Context

log: Final = logging.getLogger(__name__)
_MOST: Final = 8_192
"""Characters of headers that are searched for a context, as many as W3C lets a context have."""
_M = TypeVar("_M", bound=Message)


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.propagate") is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def context_headers() -> Callable[[], dict[str, str]] | None:
    """Return a function that returns the headers of the current context, none without one; or None without the extra."""
    if not _installed():
        return None
    from opentelemetry.propagate import inject

    def headers() -> dict[str, str]:
        found: dict[str, str] = {}
        inject(found)
        return found

    return headers


def in_spans(handler: Callable[[_M], object], group: str) -> Callable[[_M], object]:
    """Return a function that calls the handler in a consumer span; without the extra, the handler itself.

    Without a tracer provider at this time, the handler runs in the context of the message instead, if the message has one.
    """
    if not _installed():
        return handler
    around = _spans(group) if _recorded() else _contexts()

    def call(message: _M) -> object:
        context = around(message)
        if context is None:
            return handler(message)
        with context:
            return handler(message)

    return call


def in_async_spans(
    handler: Callable[[_M], Awaitable[object]], group: str
) -> Callable[[_M], Awaitable[object]]:
    """Do the same for a handler that is awaited."""
    if not _installed():
        return handler
    around = _spans(group) if _recorded() else _contexts()

    async def within(context: AbstractContextManager[None], message: _M) -> object:
        with context:
            return await handler(message)

    def call(message: _M) -> Awaitable[object]:
        context = around(message)
        return handler(message) if context is None else within(context, message)

    return call


def _recorded() -> bool:
    """Whether the program has set a tracer provider: without one, spans cost more than a message and lead nowhere."""
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


_Around = Callable[[Message], AbstractContextManager[None] | None]


def _contexts() -> _Around:
    """Return a function that returns the context of a message, for the time of its handler; None if it has no context."""
    from opentelemetry.context import attach, detach
    from opentelemetry.propagate import get_global_textmap

    names = [name.encode() for name in get_global_textmap().fields]

    @contextmanager
    def attached(message: Message) -> Iterator[None]:
        token = attach(_published(message))
        try:
            yield
        finally:
            detach(token)

    def context(message: Message) -> AbstractContextManager[None] | None:
        # Most messages have none, which is seen without decoding their properties; a call of `any` takes longer.
        if encoded := getattr(message, "encoded", b""):
            for name in names:
                if name in encoded:
                    break
            else:
                return None
        return attached(message) if message.headers else None

    return context


def _published(message: Message) -> Context:
    """The context in the headers of a message; an empty one if they have none that can be read."""
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract, get_global_textmap

    try:
        return extract(_carrier(message.headers, get_global_textmap().fields), Context())
    except Exception:  # noqa: BLE001 - a propagator may raise anything about the values of a publisher
        return Context()


def _carrier(headers: Mapping[Any, Any], names: Collection[str]) -> dict[str, str]:
    """The headers with a context, which have these names first. OpenTelemetry logs long ones whole, so they are limited."""
    found: dict[str, str] = {}
    left = _MOST
    for name in sorted(headers, key=lambda each: each not in names):
        value = headers[name]
        if isinstance(name, str) and isinstance(value, str) and len(name) + len(value) <= left:
            left -= len(name) + len(value)
            found[name] = value
    return found


def _spans(group: str) -> _Around:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, get_tracer, use_span

    tracer = get_tracer("rabbit_chx")

    def started(message: Message) -> Span | None:
        published = get_current_span(_published(message)).get_span_context()
        try:
            return tracer.start_span(
                f"process {message.queue}",
                Context(),  # a trace of its own, whatever the program was doing when the group began
                SpanKind.CONSUMER,
                _attributes(message, group),
                [Link(published)] if published.is_valid else [],
            )
        except Exception:
            log.warning("%r is handled without a span", message, exc_info=True)
            return None

    @contextmanager
    def span(message: Message) -> Iterator[None]:
        own = started(message)
        if own is None:
            yield
            return
        # Both would raise the error of an error that fails to describe itself.
        with use_span(own, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Exception as error:
                own.set_attribute("error.type", type(error).__qualname__)
                own.set_status(StatusCode.ERROR, described(error))
                with suppress(Exception):
                    own.record_exception(error)
                raise

    return span


def _attributes(message: Message, group: str) -> dict[str, Any]:
    """Describe a message by the semantic conventions for messaging and RabbitMQ."""
    key = text_of(message.routing_key)
    destination = dict.fromkeys([text_of(message.exchange), key, message.queue])
    found = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": group,
        "messaging.destination.name": ":".join(filter(None, destination)),
        "messaging.rabbitmq.destination.routing_key": key,
        "messaging.rabbitmq.message.delivery_tag": getattr(message, "tag", None),
        "messaging.message.id": message.message_id and text_of(message.message_id),
        "messaging.message.conversation_id": message.correlation_id and text_of(message.correlation_id),
        "messaging.message.body.size": len(message.body),
    }
    return {name: value for name, value in found.items() if value is not None}
