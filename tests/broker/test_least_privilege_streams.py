"""Reading and publishing streams with the permissions of docs/permissions.md, and without each of them."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import pytest
from pyspark.sql.types import StructType

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.streams import StreamGroup, StreamPublisher, StreamReader, connect
from spark_connector import RabbitMQDataSource
from tests.broker.privileges import (
    OF_STREAMS,
    PASSWORD,
    Grant,
    Shop,
    check_complaint,
    complaint_of,
    line_of_proof,
    release_of,
    sections,
)
from tests.queues import a_channel, delete_exchange

pytestmark = [pytest.mark.newest_first, pytest.mark.long, pytest.mark.broker, line_of_proof("streams")]

WORK = {what: grant for what, grant in sections().items() if OF_STREAMS.search(what)}
PARTITIONS = {"tenants-0": "0", "tenants-1": "1"}


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    """An exchange that is bound to the stream events, and a super stream."""
    with Shop(broker, tmp_path_factory.mktemp("shop")) as shop:
        with a_channel(shop) as channel:
            channel.exchange_declare("orders", "fanout", durable=True)
            channel.exchange_declare("tenants", "direct", durable=True, arguments={"x-super-stream": True})
            bindings = {
                "events": ("orders", ""),
                **{name: ("tenants", key) for name, key in PARTITIONS.items()},
            }
            for number, (stream, (exchange, key)) in enumerate(bindings.items()):
                channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
                channel.queue_bind(stream, exchange, key, {"x-stream-partition-order": number})
        yield shop


def address(shop, user, password):
    url = BrokerUrl.for_streams(shop.broker.stream_url)
    return replace(url, named_vhost=shop.vhost, user=user, password=password)


def group(*given, **more):
    """A group whose member stops as soon as it has a stream."""
    found = StreamGroup(*given, **more, on_assigned=lambda _: found.stop())
    return found


def python(shop, what):
    """Evaluate a call from the page."""
    with ExitStack() as stack:
        url = address(shop, shop.user, PASSWORD)
        opened = {
            "connect": lambda url: stack.enter_context(connect(url)),
            "StreamReader": lambda *given, **more: stack.enter_context(StreamReader(*given, **more)),
            "StreamPublisher": lambda *given, **more: stack.enter_context(StreamPublisher(*given, **more)),
        }
        made = eval(what, {"url": url, "StreamGroup": group, **opened})
        if isinstance(made, StreamGroup):
            made.run(lambda _: None)
        if isinstance(made, StreamPublisher):
            made.publish(b"body", "0")
        if isinstance(made, StreamReader):
            found = made.bounds()
            list(made.read(found.first, found.end))


def spark(shop, what):
    url = address(shop, shop.user, PASSWORD)
    text = f"rabbitmq-stream://{url.user}:{url.password}@{url.host}:{url.port}/{quote(shop.vhost, safe='')}"
    options = dict(re.findall(r'\.option\("(\w+)", "(\w+)"\)', what))
    if "exchange" in options:
        options["managementUrl"] = shop.broker.management_url
    source = RabbitMQDataSource({"url": text, **options})
    if what.startswith("spark.write"):
        source.writer(StructType().add("value", "binary").add("routing_key", "string"), overwrite=False)
        return
    reader = source.reader(source.schema())
    for part in reader.partitions():
        list(reader.read(part))


def attempt(shop, what):
    """Run a call from the page, and return the text of its error, or an empty text."""
    return complaint_of(partial(spark if what.startswith("spark.") else python, shop, what))


def created(shop):
    """Delete what a call created, and return the names."""
    with a_channel(shop) as channel:
        names = [name for name in shop.queue_names("") if name not in {"events", *PARTITIONS}]
        delete_exchange(channel, "logs", names)
    return names


TO_ALL = "^(tenants$|tenants-)"
MORE = {
    'StreamPublisher(url, super_stream="tenants")': Grant("^$", TO_ALL, "^$"),
    'StreamPublisher(url, exchange="orders")': Grant("^$", "^(events|orders)$", "^$"),
    'StreamPublisher(url, super_stream="tenants", name="job")': Grant("^$", TO_ALL, "^tenants-"),
    'spark.write.option("superStream", "tenants")': Grant("^$", TO_ALL, "^tenants-"),
    'spark.write.option("superStream", "tenants").option("exactlyOnce", "false")': Grant("^$", TO_ALL, "^$"),
}


@pytest.mark.since_4_0
@pytest.mark.parametrize("what", MORE)
def test_a_publisher_to_several_streams_needs_the_permissions_of_the_page(what, shop, broker):
    """The write permission on the exchange from 4.3 on, and on its streams; with a name, the read permission on the streams as well."""
    shop.allow(MORE[what])
    assert attempt(shop, what) == ""
    for less in MORE[what].weaker():
        shop.allow(less.left)
        text = attempt(shop, what)
        if less.name in {"tenants$", "orders"} and release_of(broker) < (4, 3):
            assert text == "", less
        else:
            assert "permission on" in text, less
        # For a list of streams, the broker accepts the read permission as well.
        if text and less.name in {"tenants$", "orders"}:
            assert "has no write permission on" in text, less
            grant = replace(MORE[what], write=MORE[what].write.replace("events|orders", "STREAMS|orders"))
            assert f"`{grant.line(shop.vhost, shop.user)}` grants all that" in text


@pytest.mark.since_4_0
def test_deleting_needs_what_creating_needs(shop):
    create = 'connect(url).create_super_stream("logs", {"logs-0": "0", "logs-1": "1"})'
    for made, deleted, grant in [
        (
            'connect(url).create("audit")',
            'connect(url).delete("audit")',
            WORK['connect(url).create("audit")'],
        ),
        (create, 'connect(url).delete_super_stream("logs")', WORK[create]),
    ]:
        for less in grant.weaker():
            shop.allow(grant)
            assert attempt(shop, made) == ""
            shop.allow(less.left)
            assert "permission on" in attempt(shop, deleted), less
            created(shop)
        shop.allow(grant)
        assert [attempt(shop, made), attempt(shop, deleted)] == ["", ""]
        assert created(shop) == []


def needs_nothing(what, release):
    """Whether every user may make this call on the release."""
    return release < (4, 3) and re.search(r"\.(partitions|route)\(", what)


@pytest.mark.parametrize("what", WORK)
def test_streams_need_exactly_the_permissions_of_the_page(what, shop, broker):
    grant, release = WORK[what], release_of(broker)
    shop.allow(grant)
    if re.search("create_super_stream|StreamGroup", what) and release < (3, 13):
        assert re.search(r"requires 3\.13|3\.13 or later", attempt(shop, what))
        return
    reads_super_stream = re.search("superStream|StreamGroup.*super_stream", what)
    assert attempt(shop, what) == ""
    assert bool(created(shop)) == ("create" in what)
    for less in grant.weaker():
        shop.allow(less.left)
        text = attempt(shop, what)
        if needs_nothing(what, release) or (
            reads_super_stream and less.name == "tenants$" and release < (4, 3)
        ):
            assert text == "", less
            continue
        if reads_super_stream and release < (4, 3):  # the refusal is about one of the streams
            assert re.search(r"has no read permission on stream 'tenants-[01]' in virtual host", text), text
            continue
        if "tenants" in what or "logs" in what:
            assert (
                f"permission on super stream '{re.findall('tenants|logs', what)[0]}' or its streams" in text
            ), text
            assert f"`{grant.line(shop.vhost, shop.user)}` grants all that" in text
        else:
            check_complaint(text, less, shop, grant)
        assert created(shop) == []
