"""The connector's TLS options, against a listener that ends TLS before the broker."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from rabbit_chx import InvalidValue
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.publishing import Publisher
from spark_connector import RabbitMQDataSource
from tests.inbox import Inbox
from tests.patience import wait_until
from tests.programs import stopping
from tests.spark.streams import Streams
from tests.tls import Authority, Listener

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]

SCHEMA = t.StructType([t.StructField("value", t.StringType())])
BATCH = pa.record_batch([pa.array(["x"])], names=["value"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("elsewhere", names="DNS:elsewhere.example")
    authority.issue("client")
    authority.lock("client", "CANARY")
    return authority


@pytest.fixture
def listen(broker, authority):
    listeners = []

    def start(name, url=None):
        listeners.append(Listener(authority.server(name), url or broker.url))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()


def in_folder(authority, options):
    return {name: text.replace("+", f"{authority.folder}/") for name, text in options.items()}


@pytest.fixture
def write(broker, authority):
    def write(listener, **options):
        """Check, write and commit with these options; a ``+`` stands for the folder of the certificates."""
        options = in_folder(authority, options)
        url = f"amqps://{broker.username}:{broker.password}@127.0.0.1:{listener.port}"
        with Inbox(broker.url) as inbox:
            chosen = {"url": url, "exchange": inbox.exchange, "routingKey": "", **options}
            writer = RabbitMQDataSource(chosen).writer(SCHEMA, overwrite=False)
            writer.commit([writer.write(iter([BATCH]))])
            return len(inbox)

    return write


def test_a_row_is_written_with_a_client_certificate_and_another_server_name(listen, write):
    listener = listen("elsewhere")
    named = {"tlsCaFile": "+ca.pem", "tlsServerName": "elsewhere.example"}
    locked = {"tlsCertFile": "+client.pem", "tlsKeyFile": "+locked.key"}
    assert write(listener, **named, **locked, tlsKeyPassword="CANARY") == 1
    assert listener.clients == ["client"] * 2  # one that asks and one that writes
    with pytest.raises(InvalidValue, match="tlsKeyPassword opens an encrypted key"):
        write(listener, **named, **locked)
    with pytest.raises(InvalidValue, match="tlsCaFile"):
        write(listener, tlsCaFile="+client.key")


# ---- reads


@pytest.fixture(scope="module")
def source(broker):
    """A super stream of two partitions with two messages each."""
    with Streams(broker.url) as streams:
        name, partitions = streams.super_stream(2)
        for partition in partitions:
            streams.fill(partition, [b"x", b"y"])
        yield name, partitions


@pytest.fixture
def read(broker, authority):
    def read(listener, **options):
        """The bodies of a batch read over the stream protocol of a listener."""
        url = f"amqps://{broker.username}:{broker.password}@127.0.0.1"
        given = {"url": url, "columns": "value", "reconnectTimeoutMs": "500", **in_folder(authority, options)}
        chosen = RabbitMQDataSource({**given, "streamPort": str(listener.port)})
        reader = chosen.reader(chosen.schema())
        return sorted(bodies(reader, reader.partitions()))

    return read


def bodies(reader, partitions):
    return [
        value.as_py() for one in partitions for batch in reader.read(one) for value in batch.column("value")
    ]


def test_streams_super_streams_and_exchanges_are_read_over_tls(broker, listen, read, source):
    name, (first, _) = source
    streams, api = listen("good", broker.stream_url), listen("good", broker.management_url)
    everything = [b"x", b"x", b"y", b"y"]
    assert read(streams, stream=first, tlsCaFile="+ca.pem") == [b"x", b"y"]
    assert read(streams, superStream=name, tlsCaFile="+ca.pem") == everything
    managed = {"exchange": name, "managementUrl": f"https://127.0.0.1:{api.port}"}
    assert read(streams, tlsCaFile="+ca.pem", **managed) == everything
    for source_of_names in ({"stream": first}, {"superStream": name}, managed):
        with pytest.raises((StreamUnavailable, BrokerUnavailable), match="in Spark, its file as tlsCaFile"):
            read(streams, **source_of_names)
    with pytest.raises(InvalidValue, match="gets the password of an amqps URL"):
        read(streams, exchange=name, managementUrl=broker.management_url, tlsCaFile="+ca.pem")


def test_a_stream_is_read_with_a_client_certificate_and_another_server_name(broker, listen, read, source):
    _, (stream, _) = source
    listener = listen("elsewhere", broker.stream_url)
    named = {"stream": stream, "tlsCaFile": "+ca.pem", "tlsServerName": "elsewhere.example"}
    with pytest.raises(StreamUnavailable, match="TLS with the broker"):
        read(listener, stream=stream, tlsCaFile="+ca.pem")
    locked = {"tlsCertFile": "+client.pem", "tlsKeyFile": "+locked.key"}
    assert read(listener, **named, **locked, tlsKeyPassword="CANARY") == [b"x", b"y"]
    assert set(listener.clients) == {"client"}
    with pytest.raises(InvalidValue, match="tlsKeyPassword opens an encrypted key") as caught:
        read(listener, **named, **locked, tlsKeyPassword="not CANARY")
    assert "CANARY" not in str(caught.value)


@pytest.fixture
def receive(broker, authority):
    def receive(address, queue, **options):
        """The first bodies that a streaming read of a queue returns."""
        scheme, _, where = address.partition("://")
        url = f"{scheme}://{broker.username}:{broker.password}@{where}"
        given = {"url": url, "queue": queue, "reconnectTimeoutMs": "500", **in_folder(authority, options)}
        chosen = RabbitMQDataSource(given)
        with stopping(chosen.streamReader(chosen.schema())) as reader:
            start = reader.initialOffset()
            wait_until(lambda: reader.latestOffset() != start, "a message", pause=0.1)
            return bodies(reader, reader.partitions(start, reader.latestOffset()))

    return receive


def test_a_queue_is_read_over_tls(broker, listen, receive):
    secure, plain = f"127.0.0.1:{listen('good').port}", broker.url.rpartition("@")[2]
    with Inbox(broker.url) as inbox:
        with Publisher(broker.url, inbox.exchange) as publisher:
            publisher.publish(b"x", "k")
        assert receive(f"amqps://{secure}", inbox.queue, tlsCaFile="+ca.pem") == [b"x"]
        for address, words in [
            (f"amqps://{secure}", "in Spark, its file as tlsCaFile"),
            (f"amqps://{plain}", "is this a port without TLS"),
            (f"amqp://{secure}", "is this a port with TLS"),
        ]:
            with pytest.raises(BrokerUnavailable, match=words):
                receive(address, inbox.queue)
