"""The connector's TLS options, against a listener that ends TLS before the broker."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from rabbit_chx import BrokerUnavailable, InvalidValue
from spark_connector import RabbitMQDataSource
from tests.faults.test_tls import Authority
from tests.inbox import Inbox

pytestmark = pytest.mark.broker

SCHEMA = t.StructType([t.StructField("value", t.StringType())])
BATCH = pa.record_batch([pa.array(["x"])], names=["value"])


class Listener:
    """Takes TLS on a port of its own and hands what is inside on to the broker; remembers the clients' names."""

    def __init__(self, context, url):
        parts = urlsplit(url)
        self._broker, self._context = (parts.hostname, parts.port), context
        self.clients = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._socket.close()

    def _serve(self):
        with suppress(OSError):
            while True:
                plain, _ = self._socket.accept()
                threading.Thread(target=self._handle, args=(plain,), daemon=True).start()

    def _handle(self, plain):
        with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as client:
            subject = dict(pair for (pair,) in (client.getpeercert() or {}).get("subject", ()))
            self.clients.append(subject.get("commonName"))
            with socket.create_connection(self._broker) as broker:
                back = threading.Thread(target=_pump, args=(broker, client), daemon=True)
                back.start()
                _pump(client, broker)
                back.join(5)


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("elsewhere", names="DNS:elsewhere.example")
    authority.issue("client")
    command = [
        "openssl",
        "pkey",
        "-in",
        "client.key",
        "-aes128",
        "-passout",
        "pass:CANARY",
        "-out",
        "locked.key",
    ]
    subprocess.run(command, cwd=authority.folder, check=True, capture_output=True)
    return authority


@pytest.fixture
def listen(broker, authority):
    listeners = []

    def start(name):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.folder / "ca.pem")
        context.load_cert_chain(authority.folder / f"{name}.pem", authority.folder / f"{name}.key")
        context.verify_mode = ssl.CERT_OPTIONAL
        listeners.append(Listener(context, broker.url))
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
        with pytest.raises(InvalidValue, match="tlsKeyPassword opens a key") as caught:
            write(listener, **locked, **wrong)
        assert "CANARY" not in str(caught.value)


def test_a_file_that_holds_no_certificate_is_named_by_its_option(listen, write):
    with pytest.raises(InvalidValue, match="tlsCaFile"):
        write(listen("good"), tlsCaFile="+client.key")
