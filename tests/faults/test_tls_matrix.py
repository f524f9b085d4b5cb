"""Every client against every bad listener: refused within seconds, with the reason; and good listeners are accepted.

The listener terminates TLS in front of the broker, so that it can show any certificate and speak any version.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
import warnings
from urllib.parse import quote, urlsplit

import pytest

from rabbit_chx import RabbitChxError
from tests.faults.tls_clients import CLIENTS, FROM_FILES, Access, CommandFailed
from tests.inbox import Inbox
from tests.tls import UNKNOWN_AUTHORITY, Listener

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.proves(
        "TLS", "bad TLS by eight clients", "the good cases connect through the same listeners"
    ),
]

LIMIT = 30.0


@pytest.fixture(scope="module")
def inbox(broker):
    with Inbox(broker.url) as inbox:
        yield inbox


@pytest.fixture
def access(broker, authority, inbox):
    """Start a listener: `access(server's context)`, or without a context use the broker's own ports, which lack TLS.

    `access.heard()` has the names in the certificates of all clients that got in.
    """
    listeners = []
    user = f"{quote(broker.username)}:{quote(broker.password)}"

    def access(context=None, **knows):
        if context is None:
            amqp, http = (urlsplit(url).port for url in (broker.url, broker.management_url))
        else:
            listeners[:] = [Listener(context, url) for url in (broker.url, broker.management_url)]
            amqp, http = (listener.port for listener in listeners)
        return Access(
            f"amqps://{user}@127.0.0.1:{amqp}",
            f"https://{user}@127.0.0.1:{http}",
            inbox.exchange,
            authority.folder,
            **knows,
        )

    access.heard = lambda: [name for listener in listeners for name in listener.clients]
    yield access
    for listener in listeners:
        listener.close()


def refusal(client, access):
    started = time.monotonic()
    with pytest.raises((RabbitChxError, CommandFailed)) as caught:
        CLIENTS[client](access)
    assert time.monotonic() - started < LIMIT
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def tls_1_2(context):
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def tls_1_1_only(context):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


BAD = {
    "another authority": (lambda a: a.server(), {"ca": "other-ca"}, UNKNOWN_AUTHORITY),
    "an authority that the system does not know": (lambda a: a.server(), {"ca": None}, UNKNOWN_AUTHORITY),
    "an expired certificate": (lambda a: a.server("expired"), {}, ["certificate has expired"]),
    "a certificate of another host": (lambda a: a.server("elsewhere"), {}, ["not valid for"]),
    "a port without TLS": (lambda _: None, {}, ["is this a port without TLS?"]),
    "no client certificate, TLS 1.3": (lambda a: a.server(clients=ssl.CERT_REQUIRED), {}, ["ALERT_CERTIFICATE_REQUIRED"]),
    "no client certificate, TLS 1.2": (lambda a: tls_1_2(a.server(clients=ssl.CERT_REQUIRED)), {}, ["ALERT_HANDSHAKE_FAILURE"]),
    "a client certificate of another authority": (lambda a: a.server(), {"client": "stranger"}, ["ALERT_UNKNOWN_CA"]),
    "TLS 1.1 only": (lambda a: tls_1_1_only(a.server()), {}, ["UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION"]),
}  # fmt: skip


def tls_log(caplog):
    return [record for record in caplog.records if record.name == "rabbit_chx.tls"]


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("client", CLIENTS)
def test_bad_tls_is_refused_at_once_with_its_reason(client, case, access, authority, broker, caplog):
    server, knows, words = BAD[case]
    text = refusal(client, access(server(authority), **knows))
    assert "TLS with the " in text
    assert any(word in text for word in words), text
    assert access.heard() == []  # no client came as far as to send a password
    assert tls_log(caplog) == []


@pytest.mark.parametrize("client", FROM_FILES)
def test_a_key_of_another_certificate_is_refused_before_connecting(client, access, authority, broker):
    text = refusal(client, access(authority.server(), client="client", key="good"))
    assert "KEY_VALUES_MISMATCH" in text
    assert "tlsCertFile" in text or "--tls-cert-file" in text
    assert access.heard() == []


GOOD = {
    "a private authority": (lambda a: a.server(), {}, {None}),
    "mutual TLS": (lambda a: a.server(clients=ssl.CERT_REQUIRED), {"client": "client"}, {"client"}),
}


@pytest.mark.parametrize("case", GOOD)
@pytest.mark.parametrize("client", CLIENTS)
def test_good_tls_is_accepted_without_a_warning(client, case, access, authority, caplog):
    server, knows, names = GOOD[case]
    CLIENTS[client](access(server(authority), **knows))
    assert set(access.heard()) == names
    assert tls_log(caplog) == []


@pytest.mark.parametrize("shown", ["expired", "elsewhere"])
@pytest.mark.parametrize("client", CLIENTS)
def test_turning_verification_off_is_logged(client, shown, access, authority, broker, caplog):
    CLIENTS[client](access(authority.server(shown), verify=False))
    assert tls_log(caplog)
    for record in tls_log(caplog):
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith("SECURITY: the certificate of ")
        assert "127.0.0.1" in record.getMessage()


def test_the_listener_of_tls_1_1_accepts_such_clients(authority, broker):
    """So it is our clients that refuse it above."""
    client = authority.context(client=None)
    with (
        Listener(tls_1_1_only(authority.server()), broker.url) as listener,
        socket.create_connection(("127.0.0.1", listener.port), timeout=LIMIT) as plain,
        tls_1_1_only(client).wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() == "TLSv1.1"
