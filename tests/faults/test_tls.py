"""TLS against a real listener, with a private CA: what is wrong is refused at once and named.

The listener asks for client certificates. It takes the port of the HTTP API, the one port beside AMQP's that is
reachable from here on every machine; the restart at the end gives it back.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx import RabbitChxError
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing import Publisher
from tests.faults.ledger import body
from tests.faults.load import Control, Load, wait_until, within
from tests.faults.proxy import Proxy
from tests.faults.tls_clients import CLIENTS, Access, CommandFailed
from tests.inbox import Inbox
from tests.proof import SEED
from tests.tls import UNKNOWN_AUTHORITY, Authority

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.proves(
        "TLS",
        "EXTERNAL, versions, certificates of servers and clients",
        "the good cases connect through the same listeners",
    ),
]

MANAGEMENT_PORT = 15672


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


WITHOUT_EXTERNAL = "application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN'])"
WITH_EXTERNAL = "application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'EXTERNAL'])"


@pytest.fixture(scope="module")
def external(broker, authority, listener):
    """EXTERNAL is offered, and the certificate `client` names a user; gives the access of any client."""
    authority.issue("nobody")
    safe = "[{verify, verify_peer}, {fail_if_no_peer_cert, true}]"  # the plugin looks here, whatever the listener has
    broker.eval(
        f"{WITH_EXTERNAL}, application:set_env(rabbit, ssl_cert_login_from, common_name), "
        f"application:set_env(rabbit, ssl_options, {safe})"
    )
    broker.ctl("add_user", "client", secrets.token_hex(12))
    broker.ctl("set_permissions", "client", "^$", "^(inbox-.*|never)$", "^$")
    parts = urlsplit(listener.url)
    url = f"amqps://{parts.hostname}:{parts.port}/%2F?auth_mechanism=external"
    with Inbox(broker.url) as inbox:
        yield Access(url, "https://unused", inbox.exchange, authority.folder, client="client")
    broker.ctl("delete_user", "client")


# The management API takes no certificate for a user.
OVER_AMQP = sorted(set(CLIENTS) - {"Management", "rabbit-chx plan"})


@pytest.mark.parametrize("client", OVER_AMQP)
def test_a_certificate_stands_for_user_and_password(client, external):
    CLIENTS[client](external)


@pytest.mark.parametrize("client", OVER_AMQP)
def test_a_certificate_of_no_user_is_refused_and_named(client, external):
    text = complaint(client, replace(external, client="nobody"))
    assert "rejected the client certificate" in text
    assert "ssl_cert_login_from" in text


def test_a_broker_that_does_not_offer_external_says_so(external, broker):
    broker.eval(WITHOUT_EXTERNAL)
    try:
        texts = [complaint(client, external) for client in OVER_AMQP]
    finally:
        broker.eval(WITH_EXTERNAL)
    for text in texts:
        assert "rabbitmq_auth_mechanism_ssl" in text
        assert "auth_mechanisms.1 = EXTERNAL" in text


def complaint(client, access):
    with pytest.raises((RabbitChxError, CommandFailed)) as caught:
        within(10, lambda: CLIENTS[client](access), "connecting")
    return str(caught.value)


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
    with Proxy(parts.hostname, parts.port, seed=SEED) as proxy:
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
    assert "to trust the CA that issued its certificate, pass --tls-ca-cert-file" in text


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
    assert "is this a port without TLS?" in text


def test_no_tls_to_a_port_with(listener, caplog):
    """What a TLS listener answers is an alert, which no broker that is booting sends: one attempt is enough."""
    caplog.set_level(logging.INFO, "rabbit_chx.publisher")
    text = refusal(listener.url.replace("amqps://", "amqp://"), None)
    assert text.endswith("does not speak AMQP 0-9-1 but TLS: its URL begins with amqps")
    assert not [record for record in caplog.records if record.name == "rabbit_chx.publisher"]
