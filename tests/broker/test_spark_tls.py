"""The connector's TLS options, against a listener that ends TLS before the broker."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from rabbit_chx import InvalidValue
from rabbit_chx.errors import BrokerUnavailable
from spark_connector import RabbitMQDataSource
from tests.inbox import Inbox
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

    def start(name):
        listeners.append(Listener(authority.server(name), broker.url))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()


@pytest.fixture
def write(broker, authority):
    def write(listener, **options):
        """Check, write and commit with these options; a ``+`` stands for the folder of the certificates."""
        options = {name: text.replace("+", f"{authority.folder}/") for name, text in options.items()}
        url = f"amqps://{broker.username}:{broker.password}@127.0.0.1:{listener.port}"
        with Inbox(broker.url) as inbox:
            chosen = {"url": url, "exchange": inbox.exchange, "routingKey": "", **options}
            writer = RabbitMQDataSource(chosen).writer(SCHEMA, overwrite=False)
            writer.commit([writer.write(iter([BATCH]))])
            return len(inbox)

    return write


def test_the_authority_of_a_file_vouches_for_the_broker(listen, write):
    assert write(listen("good"), tlsCaFile="+ca.pem") == 1


def test_a_broker_for_whom_nobody_vouches_is_refused(listen, write):
    for options in ({}, {"tlsCaFile": "+other-ca.pem"}):
        with pytest.raises(BrokerUnavailable, match="TLS with the broker"):
            write(listen("good"), **options)


def test_the_name_in_the_certificate_counts_and_can_be_given(listen, write):
    listener = listen("elsewhere")
    with pytest.raises(BrokerUnavailable, match="TLS with the broker"):
        write(listener, tlsCaFile="+ca.pem")
    assert write(listener, tlsCaFile="+ca.pem", tlsServerName="elsewhere.example") == 1
    assert write(listener, tlsVerify="false") == 1


def test_a_client_shows_its_certificate_and_opens_its_key(listen, write):
    listener = listen("good")
    assert write(listener, tlsCaFile="+ca.pem", tlsCertFile="+client.pem", tlsKeyFile="+client.key") == 1
    locked = {"tlsCaFile": "+ca.pem", "tlsCertFile": "+client.pem", "tlsKeyFile": "+locked.key"}
    assert write(listener, tlsKeyPassword="CANARY", **locked) == 1
    assert listener.clients == ["client"] * 4  # each write asks once and writes once
    for wrong in ({}, {"tlsKeyPassword": "not CANARY"}):
        with pytest.raises(InvalidValue, match="tlsKeyPassword opens an encrypted key") as caught:
            write(listener, **locked, **wrong)
        assert "CANARY" not in str(caught.value)


def test_a_file_that_holds_no_certificate_is_named_by_its_option(listen, write):
    with pytest.raises(InvalidValue, match="tlsCaFile"):
        write(listen("good"), tlsCaFile="+client.key")
