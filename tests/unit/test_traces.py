"""Traces: the context in the headers of a message, the span of a handler, and neither without the extra."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes import error_attributes

from rabbit_chx.broker.properties import Properties
from rabbit_chx.messages.traces import in_async_spans, in_spans
from rabbit_chx.publishing.encoder import Encoder
from rabbit_chx.streams.messages.stored import StoredMessage
from rabbit_chx.streams.publishing.encoder import StreamEncoder
from rabbit_chx.working.messages import Delivery
from tests.programs import loaded_after
from tests.traces import recorded
from tests.wire import encoded_properties

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

WITHOUT = "import sys; sys.modules['opentelemetry'] = None"
PUBLISHER = "from rabbit_chx.publishing import Publisher"


def published(own: Any = None, column: Any = None, **properties: Any) -> list[dict[str, Any]]:
    """The headers of a message, and of the two rows of a batch."""
    encoder = Encoder("orders", properties, None)
    one = encoder.one(b"", "k", None, own, {})[2]
    rows = encoder.many([b"", b""], "k", None, own if column is None else column, {})[2]
    return [Properties().decode(encoded).headers or {} for encoded in (one, *rows)]


def published_to_stream(own: Any = None, column: Any = None, **properties: Any) -> list[dict[str, Any]]:
    """The same from a stream."""
    encoder = StreamEncoder(properties, by_key=False)
    one = encoder.one(b"", "k", own, None, {})
    rows = encoder.many([b"", b""], "k", own if column is None else column, None, {})
    stored = [*one.messages.take(0, 1), *rows.messages.take(0, 2)]
    return [dict(StoredMessage(each, b"", "k", "", "s", 0, None).headers or {}) for each in stored]


def handled(message: Delivery, *, asynchronous: bool, error: Exception | None = None) -> ReadableSpan:
    """Handle a message, and return the span in which the handler ran."""
    current = []

    def handle(_: object) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        if error is not None:
            raise error

    async def handle_async(_: object) -> None:
        await asyncio.sleep(0)
        handle(_)

    try:
        if asynchronous:
            asyncio.run(in_async_spans(handle_async, "billing")(message))  # type: ignore[arg-type]
        else:
            in_spans(handle, "billing")(message)
    except type(error or ZeroDivisionError()):
        assert error is not None
    (span,) = [each for each in recorded().get_finished_spans() if each.context.span_id == current[0]]
    return span


def test_every_message_gets_the_context_in_which_it_is_published() -> None:
    recorded()
    with trace.get_tracer("test").start_as_current_span("a request") as request:
        context = request.get_span_context()
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert published() == [{"traceparent": parent}] * 3


@pytest.mark.parametrize("publish", [published, published_to_stream])
def test_a_message_with_a_trace_of_its_own_gets_no_part_of_the_current_context(publish: Any) -> None:
    state = trace.TraceState([("vendor", "1")])
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_state=state))
    with trace.use_span(span):
        current = published()[0]
        assert current.keys() == {"traceparent", "tracestate"}
        for own in {"traceparent": "my own"}, {"tracestate": "my own"}:
            assert publish(own) == publish(headers=own) == [own] * 3
            assert publish(own, [own, {"a": 1}]) == [own, own, {**current, "a": 1}]


def test_without_a_span_nothing_is_added() -> None:
    recorded()
    assert published() == [{}] * 3
    assert published({"a": 1}) == [{"a": 1}] * 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_runs_in_a_consumer_span_that_links_to_the_publishers(asynchronous: bool) -> None:
    recorded()
    with trace.get_tracer("test").start_as_current_span("a request") as request:
        headers = published()[0]
        encoded = encoded_properties(headers=headers, message_id="m-1", correlation_id="c-1")
        message = Delivery(b"body", "k", queue="q", exchange="orders", encoded=encoded, tag=7)
        span = handled(message, asynchronous=asynchronous)
    assert (span.name, span.kind, span.parent) == ("process q", trace.SpanKind.CONSUMER, None)
    assert [link.context.span_id for link in span.links] == [request.get_span_context().span_id]
    assert dict(span.attributes or {}) == {
        conventions.MESSAGING_SYSTEM: conventions.MessagingSystemValues.RABBITMQ.value,
        conventions.MESSAGING_OPERATION_TYPE: conventions.MessagingOperationTypeValues.PROCESS.value,
        conventions.MESSAGING_OPERATION_NAME: "process",
        conventions.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        conventions.MESSAGING_DESTINATION_NAME: "orders:k:q",
        conventions.MESSAGING_RABBITMQ_DESTINATION_ROUTING_KEY: "k",
        conventions.MESSAGING_RABBITMQ_MESSAGE_DELIVERY_TAG: 7,
        conventions.MESSAGING_MESSAGE_ID: "m-1",
        conventions.MESSAGING_MESSAGE_CONVERSATION_ID: "c-1",
        conventions.MESSAGING_MESSAGE_BODY_SIZE: 4,
    }


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "said"),
    [(ZeroDivisionError("x"), "ZeroDivisionError: x"), (Unspeakable(), "Unspeakable")],
    ids=["with a text", "that cannot describe itself"],
)
def test_the_error_of_a_handler_is_that_of_its_span(asynchronous: bool, error: Exception, said: str) -> None:
    recorded()
    span = handled(Delivery(b"", "q", queue="q"), asynchronous=asynchronous, error=error)
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, said)
    assert [event.name for event in span.events] == ["exception"] * (type(error) is ZeroDivisionError)
    assert (span.attributes or {})[error_attributes.ERROR_TYPE] == type(error).__name__
    assert (span.attributes or {})[conventions.MESSAGING_DESTINATION_NAME] == "q"


@pytest.mark.parametrize("value", ["", "00-0-0-0", "x" * 10_000, b"\xff", 5, None])
def test_a_message_with_an_invalid_context_is_handled_without_a_link(value: object) -> None:
    recorded()
    headers = {"traceparent": value, "tracestate": value, "baggage": value}
    message = Delivery(b"", "k", queue="q", encoded=encoded_properties(headers=headers))
    span = handled(message, asynchronous=False)
    assert not span.links


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_key_that_is_not_utf_8_keeps_no_message_from_its_handler(asynchronous: bool) -> None:
    """Once, such a routing key of a publisher ended every member, before the handler."""
    recorded()
    encoded = encoded_properties(headers={b"\xff": b"\xff"}, message_id=b"\xfe", correlation_id=b"\xfd")
    message: Any = Delivery(b"", b"\xff\xfe", queue="q", exchange=b"\xfc", encoded=encoded)  # type: ignore[arg-type]
    span = handled(message, asynchronous=asynchronous)
    assert span.attributes is not None
    assert span.attributes[conventions.MESSAGING_DESTINATION_NAME] == r"\xfc:\xff\xfe:q"
    assert span.attributes[conventions.MESSAGING_RABBITMQ_DESTINATION_ROUTING_KEY] == r"\xff\xfe"
    assert span.attributes[conventions.MESSAGING_MESSAGE_ID] == r"\xfe"
    assert span.attributes[conventions.MESSAGING_MESSAGE_CONVERSATION_ID] == r"\xfd"


@pytest.mark.parametrize(
    "failing", ["rabbit_chx.messages.traces._attributes", "opentelemetry.propagate.extract"]
)
def test_a_message_without_a_span_or_a_context_is_handled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    """A propagator or an exporter of the program may raise anything about the values of a publisher."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    recorded()
    monkeypatch.setattr(failing, fail)
    given: list[object] = []
    message = Delivery(b"", "k", queue="q", encoded=encoded_properties(headers={"baggage": "a=b"}))
    in_spans(given.append, "billing")(message)
    assert given == [message]
    assert ("is handled without a span" in caplog.text) == (
        failing == "rabbit_chx.messages.traces._attributes"
    )


def test_opentelemetry_reads_and_logs_at_most_8_kb_of_headers(caplog: pytest.LogCaptureFixture) -> None:
    recorded()
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {
        "note": "n" * 8_000,
        "baggage": "b" * 2_000_000,
        "tracestate": "s" * 9_000,
        "traceparent": parent,
    }
    span = handled(
        Delivery(b"", "k", queue="q", encoded=encoded_properties(headers=headers)), asynchronous=False
    )
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b" * 16]
    assert len(caplog.text) < 8_192


@pytest.mark.parametrize("handler", [print, asyncio.sleep])
def test_without_the_extra_handlers_stay_what_they_are(monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    assert in_spans(handler, "billing") is handler
    assert in_async_spans(handler, "billing") is handler


WITHOUT_PROVIDER = """
import asyncio
from opentelemetry.trace import get_current_span
from rabbit_chx.working.messages import Delivery
from rabbit_chx.publishing.encoder import Encoder
from rabbit_chx.streams.messages.encode import encode_messages
from rabbit_chx.streams.messages.stored import StoredMessage
from rabbit_chx.messages.traces import in_async_spans, in_spans

def current(_):
    print(f"{get_current_span().get_span_context().span_id:016x}", end=" ")

async def current_async(message):
    await asyncio.sleep(0)
    current(message)

async def main():
    for headers in {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, {"other": "1"}, None:
        encoded = Encoder("orders", {}, None).one(b"", "k", None, headers, {})[2]
        (stored,) = encode_messages([b""], headers=headers)
        for message in Delivery(b"", "k", queue="q", encoded=encoded), StoredMessage(stored, b"", "k", "", "s", 0, None):
            in_spans(current, "billing")(message)
            await in_async_spans(current_async, "billing")(message)
            current(message)

asyncio.run(main())
"""


def test_without_a_tracer_provider_handlers_run_in_the_context_of_the_message() -> None:
    """In a process of its own, because a provider cannot be taken back."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_PROVIDER], capture_output=True, text=True, check=True)
    published, none = "b" * 16, "0" * 16
    assert ran.stdout.split() == [published, published, none] * 2 + [none] * 12


def test_nothing_is_imported_without_the_extra_or_before_a_publisher_is_made() -> None:
    made = "publisher = Publisher('amqp://localhost')"
    assert not any(name.startswith("opentelemetry.") for name in loaded_after(WITHOUT, PUBLISHER, made))
    assert not any(name.startswith("opentelemetry") for name in loaded_after(PUBLISHER))
    assert "opentelemetry.propagate" in loaded_after(PUBLISHER, made)
