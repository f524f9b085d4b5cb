"""TLS against a real listener, with a private CA: what is wrong is refused at once and named.

The listener asks for client certificates. It takes the port of the HTTP API, the one port beside AMQP's that is
reachable from here on every machine; the restart at the end gives it back.
"""

from __future__ import annotations

import logging
import ssl
import subprocess
import time
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx import Publisher
from rabbit_chx.errors import BrokerUnavailable
from tests.faults.ledger import body
from tests.faults.load import Control, Load, wait_until, within
from tests.faults.proxy import Proxy

pytestmark = pytest.mark.broker

MANAGEMENT_PORT = 15672
# Which of the two depends on whether the server sends its CA along.
UNKNOWN_AUTHORITY = ("unable to get local issuer certificate", "self-signed certificate in certificate chain")


class Authority:
    """A folder with a CA and the certificates it has signed, each as NAME.pem and NAME.key."""

    def __init__(self, folder, hosts):
        self.folder = folder
        self._hosts = hosts
        for ca in ("ca", "other-ca"):
            self._openssl(
                "req", "-x509", "-days", "2", "-subj", f"/CN={ca}", *self._new_key(ca), "-out", f"{ca}.pem"
            )

    def issue(self, name, *, names=None, dates=("-days", "2")):
        self._openssl("req", "-subj", f"/CN={name}", *self._new_key(name), "-out", f"{name}.csr")
        (self.folder / "ext").write_text(f"subjectAltName={names or self._hosts}\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, *dates, "-out", f"{name}.pem")

    def context(self, *, ca="ca", client="client"):
        context = ssl.create_default_context(cafile=self.folder / f"{ca}.pem")
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context

    def _new_key(self, name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")

    def _openssl(self, *arguments):
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def authority(broker, tmp_path_factory):
    host = urlsplit(broker.management_url).hostname
    kind = "IP" if host.replace(".", "").isdigit() else "DNS"
    authority = Authority(tmp_path_factory.mktemp("tls"), f"{kind}:{host},IP:127.0.0.1,DNS:localhost")
    authority.issue("good")
    authority.issue("client")
    authority.issue("wrong-host", names="DNS:elsewhere.example")
    authority.issue("expired", dates=("-days", "-1"))
    return authority


@pytest.fixture(scope="module")
def listener(broker, authority):
    """The URL of the TLS port; `listener.serve(name)` makes the server show another certificate."""
    folder = "/tmp/rabbit-chx-tls"

    class Listener:
        url = broker.url.replace("amqp://", "amqps://").replace(
            f":{urlsplit(broker.url).port}/", f":{urlsplit(broker.management_url).port}/"
        )

        def serve(self, name, *then):
            files = {"cert.pem": f"{name}.pem", "key.pem": f"{name}.key", "ca.pem": "ca.pem"}
            writes = [
                f'ok = file:write_file("{folder}/{to}", <<"{(authority.folder / file).read_text()}">>)'
                for to, file in files.items()
            ]
            broker.eval(
                ", ".join([f'filelib:ensure_dir("{folder}/x")', *writes, "ssl:clear_pem_cache()", *then])
            )

    options = (
        f'{{cacertfile, "{folder}/ca.pem"}}, {{certfile, "{folder}/cert.pem"}}, {{keyfile, "{folder}/key.pem"}}, '
        "{verify, verify_peer}, {fail_if_no_peer_cert, true}"
    )
    listener = Listener()
    listener.serve(
        "good",
        "application:stop(rabbitmq_management)",
        f"ok = rabbit_networking:start_ssl_listener({MANAGEMENT_PORT}, [{options}], 10)",
    )
    yield listener
    broker.restart()


def refusal(url, context, *, limit=5.0, **options):
    publisher = Publisher(url, tls=context, **options)
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        within(limit + 5, publisher.open, "opening")
    assert time.monotonic() - started < limit
    return str(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_publishing_over_tls(broker, topology, judge, listener, authority, version):
    used = topology(queues=1)
    context = authority.context()
    context.maximum_version = version
    load = Load(listener.url, used.exchange, tls=context).start(20_000)
    load.inject(lambda publisher: [publisher.publish(body(row, 1 << 20), "k") for row in range(20)])
    load.finish(60)
    load.drain(broker.url, used.queues)
    assert load.error is None
    assert load.ledger.outcomes == {}
    assert load.publisher.totals.connections == 1
    assert judge(f"none, but {version.name}", load, faults=0).duplicated == 0


def test_a_connection_over_tls_that_is_cut(broker, topology, judge, listener, authority):
    """In its handshake too, which is no reason to give up."""
    used, other = topology(), topology()
    parts = urlsplit(listener.url)
    with Proxy(parts.hostname, parts.port, seed=2) as proxy:
        url = listener.url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{proxy.port}")
        control = Control(url, other.exchange, ssl_options=pika.SSLOptions(authority.context(), "127.0.0.1"))
        load = Load(url, used.exchange, tls=authority.context()).start()
        load.more(500)
        load.until_confirmed(500)
        proxy.cut_after = (1, 100_000)
        proxy.cut()
        control.start()
        load.flow()
        wait_until(lambda: proxy.cuts >= 8, "some connections are cut")
        load.hold()
        control.hold()
        proxy.cut_after = (1, 1_500)
        proxy.cut()
        before = proxy.cuts
        wait_until(lambda: proxy.cuts >= before + 4, "four connections are cut in the handshake")
        proxy.cut_after = None
        load.finish(60)
        load.drain(broker.url, used.queues, quiet=1)
        loss = control.finish(broker.url, other.queues)
    assert load.error is None
    assert load.ledger.outcomes == {}
    judge("proxy: TLS, cut at a random byte", load, faults=proxy.cuts, control=loss)


def test_a_certificate_of_another_authority(listener, authority):
    text = refusal(listener.url, authority.context(ca="other-ca"))
    assert "TLS with the broker at" in text
    assert any(words in text for words in UNKNOWN_AUTHORITY)


def test_the_systems_authorities_do_not_know_it(listener):
    text = refusal(listener.url, None)
    assert any(words in text for words in UNKNOWN_AUTHORITY)


@pytest.mark.parametrize(
    ("shown", "words"), [("expired", "certificate has expired"), ("wrong-host", "not valid for")]
)
def test_a_bad_certificate(listener, authority, shown, words):
    listener.serve(shown)
    try:
        text = refusal(listener.url, authority.context())
    finally:
        listener.serve("good")
    assert "TLS with the broker at" in text
    assert words in text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_missing_client_certificate(listener, authority, version):
    context = authority.context(client=None)
    context.maximum_version = version
    text = refusal(listener.url, context)
    assert "TLS with the broker at" in text
    assert "CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text


def test_tls_to_a_port_without(broker, authority):
    text = refusal(broker.url.replace("amqp://", "amqps://"), authority.context())
    assert "TLS with the broker at" in text
    assert "is that a port without TLS?" in text


def test_no_tls_to_a_port_with(listener, caplog):
    """What a TLS listener answers is an alert, which no broker that is booting sends: one attempt is enough."""
    caplog.set_level(logging.INFO, "rabbit_chx.publisher")
    text = refusal(listener.url.replace("amqps://", "amqp://"), None)
    assert text.endswith("does not speak AMQP 0-9-1, but TLS: its URL begins with amqps")
    assert not [record for record in caplog.records if record.name == "rabbit_chx.publisher"]
