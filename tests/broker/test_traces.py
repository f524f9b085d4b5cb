"""A trace from the call of a publisher to the handler of a group."""

from __future__ import annotations

import asyncio
import sys
import uuid

import pytest
from opentelemetry import trace

from rabbit_chx.consuming import AsyncGroup, Group
from rabbit_chx.publishing import Publisher
from tests.broker.worker_programs import ordered_exchange
from tests.faults.load import within
from tests.patience import PATIENCE, wait_until
from tests.programs import ran
from tests.traces import recorded

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long, pytest.mark.since_4_0]


def spans(name):
    return [span for span in recorded().get_finished_spans() if span.name.startswith(f"process {name}.")]


@pytest.mark.parametrize("kind", [Group, AsyncGroup])
def test_the_span_of_a_handler_links_to_the_span_of_the_publisher(broker, kind):
    exchange = f"traced.{uuid.uuid4().hex[:8]}"
    recorded()

    def handle(_):
        group.stop()

    async def handle_async(_):
        group.stop()

    with ordered_exchange(broker, exchange):
        group = kind(broker.url, exchange=exchange, name=exchange, management=broker.management_url)
        with (
            Publisher(broker.url, exchange) as publisher,
            trace.get_tracer("test").start_as_current_span("a request") as request,
        ):
            publisher.publish(b"body", "k", timeout=PATIENCE)
        if kind is Group:
            within(PATIENCE, lambda: group.run(handle, signals=False), "the group")
        else:
            within(PATIENCE, lambda: asyncio.run(group.run(handle_async, signals=False)), "the group")
        wait_until(lambda: spans(exchange), "the span has ended")
    (span,) = spans(exchange)
    assert [link.context.span_id for link in span.links] == [request.get_span_context().span_id]


FORWARDER = """
import sys
from opentelemetry import context, propagate, trace
from rabbit_chx.consuming import Group
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import StreamGroup, StreamPublisher

url, management, stream_url, exchange, stream = sys.argv[1:]
parent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
token = context.attach(propagate.extract(parent))
with Publisher(url, exchange) as publisher, StreamPublisher(stream_url, stream) as streams:
    publisher.publish(b"body", "k", timeout=120)
    headers = {}
    propagate.inject(headers)
    streams.publish(b"body", headers=headers, timeout=120)
context.detach(token)

def handle(_):
    print(f"{trace.get_current_span().get_span_context().span_id:016x}")
    group.stop()

group = Group(url, exchange=exchange, name=exchange, management=management)
group.run(handle)
group = StreamGroup(stream_url, stream=stream, name=exchange, start="first")
group.run(handle)
"""


def test_a_program_without_a_tracer_provider_continues_the_trace_of_the_publisher(broker, stream_url, stream):
    exchange = f"forwarded.{uuid.uuid4().hex[:8]}"
    with ordered_exchange(broker, exchange):
        given = (broker.url, broker.management_url, broker.stream_url, exchange, stream)
        done = ran([sys.executable, "-c", FORWARDER, *given], timeout=PATIENCE)
    assert (done.stdout.split(), done.returncode) == (["b" * 16] * 2, 0), done.stderr
