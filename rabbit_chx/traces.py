"""Traces with OpenTelemetry, where the extra ``otel`` is installed; otherwise nothing is imported, and nothing costs time.

A publisher writes the current context into the headers of a message. The handler of a group runs in a span that links to it,
or, if the program makes no spans, in that context, which a publisher in the handler passes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from rabbit_chx.message import Message
from rabbit_chx.text import described

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
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.propagate import extract, get_global_textmap

    names = [name.encode() for name in get_global_textmap().fields]

    @contextmanager
    def attached(message: Message) -> Iterator[None]:
        token = attach(extract(_texts(message), Context()))
        try:
            yield
        finally:
            detach(token)

    def context(message: Message) -> AbstractContextManager[None] | None:
        # Most messages have none, which is seen without decoding their properties.
        encoded = getattr(message, "encoded", b"")
        if encoded and not any(name in encoded for name in names):
            return None
        return attached(message) if message.headers else None

    return context


def _texts(message: Message) -> dict[str, str]:
    return {name: value for name, value in message.headers.items() if isinstance(value, str)}


def _spans(group: str) -> _Around:
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract
    from opentelemetry.trace import Link, SpanKind, StatusCode, get_current_span, get_tracer

    tracer = get_tracer("rabbit_chx")

    @contextmanager
    def span(message: Message) -> Iterator[None]:
        published = get_current_span(extract(_texts(message), Context())).get_span_context()
        with tracer.start_as_current_span(
            f"process {message.queue}",
            Context(),  # a trace of its own, whatever the program was doing when the group began
            SpanKind.CONSUMER,
            _attributes(message, group),
            [Link(published)] if published.is_valid else [],
            # Both would raise the error of an error that fails to describe itself.
            record_exception=False,
            set_status_on_exception=False,
        ) as own:
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
    destination = dict.fromkeys([message.exchange, message.routing_key, message.queue])
    found = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": group,
        "messaging.destination.name": ":".join(filter(None, destination)),
        "messaging.rabbitmq.destination.routing_key": message.routing_key,
        "messaging.rabbitmq.message.delivery_tag": getattr(message, "tag", None),
        "messaging.message.id": message.message_id,
        "messaging.message.conversation_id": message.correlation_id,
        "messaging.message.body.size": len(message.body),
    }
    return {name: value for name, value in found.items() if value is not None}
