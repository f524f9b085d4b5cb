"""TLS against RabbitMQ's own listener, with a private CA: bad certificates are refused at once, and the error says why.

The listener requires client certificates. It takes the port of the HTTP API, the only one besides AMQP's that is
published by the container; the restart at the end gives it back.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import replace
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx import RabbitChxError
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing import Publisher
from tests.faults.ledger import body
from tests.faults.load import SLACK, within
from tests.faults.proxy import Proxy
from tests.faults.tls_clients import CLIENTS, Access, CommandFailed
from tests.inbox import Inbox
from tests.patience import PATIENCE, wait_until
from tests.proof import SEED

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
    """Access by EXTERNAL: the broker offers it, and the certificate `client` names a user."""
    safe = (
        "[{verify, verify_peer}, {fail_if_no_peer_cert, true}]"  # the plugin reads these, not the listener's
    )
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
def test_a_certificate_replaces_user_and_password(client, external):
    CLIENTS[client](external)


@pytest.mark.parametrize("client", OVER_AMQP)
def test_a_certificate_without_a_user_is_refused(client, external):
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
        within(PATIENCE, lambda: CLIENTS[client](access), "connecting")
    return str(caught.value)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
def test_publishing_over_tls(scene, listener, authority, version):
    context = authority.context()
    context.maximum_version = version
    no_fault = {"faults": 0, "control": None, "start": 20_000}
    with scene(f"none, but {version.name}", url=listener.url, queues=1, tls=context, **no_fault) as it:
        it.load.inject(lambda bulk: [bulk.add(body(row, 1 << 20), "k") for row in range(20)])
    assert it.totals.connections == 1
    assert it.load.ledger.duplicated == 0


def test_a_connection_over_tls_that_is_cut(scene, listener, authority):
    """Connections are also cut in their handshake, and the publisher continues to try."""
    context = authority.context()
    control = {"ssl_options": pika.SSLOptions(context, "127.0.0.1")}
    with (
        Proxy(listener.url, seed=SEED) as proxy,
        scene("proxy: TLS, cut at a random byte", url=proxy.url, control=control, tls=context) as it,
    ):
        it.flow(500)
        proxy.cut_after = (1, 100_000)
        proxy.cut()
        it.control.flow()
        wait_until(lambda: proxy.cuts >= 8 and it.control.broken >= 8, "some connections are cut")
        it.hold()
        proxy.cut_after = (1, 1_500)
        proxy.cut()
        before = proxy.cuts
        wait_until(lambda: proxy.cuts >= before + 4, "four connections are cut in the handshake")
        proxy.cut_after = None
        it.faults = proxy.cuts


def refusal(url, context):
    publisher = Publisher(url, tls=context)
    with pytest.raises(BrokerUnavailable) as caught:
        within(SLACK, publisher.open, "opening")
    return str(caught.value)


def test_no_tls_to_a_port_with(listener, log):
    """A TLS listener answers with an alert, which no starting broker sends: one attempt is enough."""
    text = refusal(listener.url.replace("amqps://", "amqp://"), None)
    assert text.endswith("does not speak AMQP 0-9-1 but TLS: its URL begins with amqps")
    assert log() == []
