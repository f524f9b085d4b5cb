"""Traces with OpenTelemetry, where the extra ``otel`` is installed; otherwise nothing is imported, and nothing costs time.

A publisher writes the current context into the headers of a message. The handler of a group runs in a span that links to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from rabbit_chx.message import Message

_M = TypeVar("_M", bound=Message)


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.propagate") is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def _traced() -> bool:
    """Whether spans are recorded: without a provider, those of the API would cost more than a message and record nothing."""
    if not _installed():
        return False
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


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
    """Return a function that calls the handler in a consumer span; without anything that records spans, the handler itself."""
    if not _traced():
        return handler
    span = _spans(group)

    def call(message: _M) -> object:
        with span(message):
            return handler(message)

    return call


def in_async_spans(
    handler: Callable[[_M], Awaitable[object]], group: str
) -> Callable[[_M], Awaitable[object]]:
    """Return a coroutine function that awaits the handler in a consumer span; without anything that records spans, the handler itself."""
    if not _traced():
        return handler
    span = _spans(group)

    async def call(message: _M) -> object:
        with span(message):
            return await handler(message)

    return call


def _spans(group: str) -> Callable[[Message], AbstractContextManager[None]]:
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract
    from opentelemetry.trace import Link, SpanKind, get_current_span, get_tracer

    tracer = get_tracer("rabbit_chx")

    @contextmanager
    def span(message: Message) -> Iterator[None]:
        texts = {name: value for name, value in (message.headers or {}).items() if isinstance(value, str)}
        published = get_current_span(extract(texts, Context())).get_span_context()
        with tracer.start_as_current_span(
            f"process {message.queue}",
            Context(),  # a trace of its own, whatever the program was doing when the group began
            SpanKind.CONSUMER,
            _attributes(message, group),
            [Link(published)] if published.is_valid else [],
        ) as own:
            try:
                yield
            except Exception as error:
                own.set_attribute("error.type", type(error).__qualname__)
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
