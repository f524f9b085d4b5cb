"""What TLS options and URLs make of a connection, the warning where nothing is checked, and streams whose TLS handshake fails."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pika
import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, parameters_of
from rabbit_chx.broker.applying.apply import apply_async
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.tls import context, default_context, warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, StreamUnavailable
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import connect as connect_to_streams
from rabbit_chx.streams.protocol.handshake import _log_in
from rabbit_chx.streams.protocol.wire import Wire
from rabbit_chx.topology.planning.steps import Plan
from tests.amqp_server import AmqpServer

EXTERNAL = "amqps://host/v?auth_mechanism=external"
OPTIONS = {"options": ("--ca", "--cert"), "hint": "mend it"}


# -- contexts ------------------------------------------------------------------------------------------------


def test_tls_1_2_is_the_oldest_version_wherever_python_leaves_that_to_openssl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = ssl.create_default_context()
    made.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    monkeypatch.setattr(ssl, "create_default_context", lambda: made)
    assert default_context().minimum_version == ssl.TLSVersion.TLSv1_2
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    assert default_context().minimum_version == ssl.TLSVersion.TLSv1_3
    assert context(**OPTIONS).minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(("option", "file"), [("--ca", "ca_file"), ("--cert", "cert_file")])
def test_a_file_that_cannot_be_loaded_is_named_with_its_option(
    tmp_path: Path, option: str, file: str
) -> None:
    path = tmp_path / "x.pem"
    for text, reason in ((None, "No such file"), ("nonsense", "x.pem")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidValue, match=f"invalid {option}.*x.pem.*mend it") as caught:
            context(**OPTIONS, **{file: path})
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "name", "words"),
    [
        (None, None, None),
        (ssl.CERT_REQUIRED, True, None),
        (ssl.CERT_REQUIRED, False, "the host name of there is not verified"),
        (ssl.CERT_OPTIONAL, True, "the certificate of there is not verified"),
        (ssl.CERT_NONE, False, "the certificate of there is not verified"),
    ],
)
def test_a_context_that_checks_less_is_warned_of(caplog, mode, name, words) -> None:
    tls = None
    if mode is not None:
        tls = ssl.create_default_context()
        tls.check_hostname = name
        tls.verify_mode = mode
    warn_if_unchecked(tls, "there")
    said = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    if words is None:
        assert said == []
    else:
        ((logger, level, text),) = said
        assert (logger, level) == ("rabbit_chx.tls", logging.WARNING)
        assert text.startswith(f"SECURITY: {words}")


# -- EXTERNAL ------------------------------------------------------------------------------------------------


def test_a_certificate_may_replace_user_and_password() -> None:
    found = parameters_of(EXTERNAL)
    assert isinstance(found.credentials, pika.credentials.ExternalCredentials)
    assert found.virtual_host == "v"
    assert "user of the certificate" in str(BrokerUrl.parse(EXTERNAL))
    assert isinstance(
        parameters_of(EXTERNAL.upper().replace("AMQPS://HOST/V", "amqps://h/v")).credentials,
        type(found.credentials),
    )


@pytest.mark.parametrize(
    "url",
    [
        "amqp://host/?auth_mechanism=external",
        "amqps://me:sesame@host/?auth_mechanism=external",
        "amqps://me@host/?auth_mechanism=external",
        "amqps://host/?auth_mechanism=plain",
        "amqps://host/?auth_mechanism=external&verify=verify_none",
        "amqps://host/?no_verify_ssl=1",
    ],
)
def test_unknown_query_parameters_are_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match="broker URL") as caught:
        Publisher(url)
    assert "sesame" not in str(caught.value)


def test_a_password_with_a_certificate_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("sesame\n")
    for credentials in (file, lambda: ("me", "sesame")):
        with pytest.raises(InvalidValue, match="and auth_mechanism=external"):
            Publisher(EXTERNAL, credentials=credentials)
        with pytest.raises(InvalidValue, match="and auth_mechanism=external"):
            connect(EXTERNAL, credentials=credentials)


def apply_with_aio_pika(url: str) -> None:
    asyncio.run(apply_async(url, Plan("/")))


def open_stream_port(url: str) -> None:
    offers = SimpleNamespace(strings=lambda: ["EXTERNAL"])
    calls: Any = SimpleNamespace(wire=SimpleNamespace(where="h"), call=lambda _: offers)
    _log_in(calls, BrokerUrl.parse(url), None)


@pytest.mark.parametrize("log_in", [connect, apply_with_aio_pika, open_stream_port])
def test_a_broker_that_accepts_only_certificates_is_not_said_to_require_a_password(log_in) -> None:
    expected = r"does not accept passwords: .*auth_mechanisms\.2 = PLAIN"
    with (
        AmqpServer(lambda _: None, mechanisms="EXTERNAL") as server,
        pytest.raises(BrokerUnavailable, match=expected) as caught,
    ):
        log_in(server.url)
    assert caught.value.permanent


def test_the_management_api_needs_a_password_all_the_same() -> None:
    with pytest.raises(InvalidValue, match="Write both into the management URL"):
        Management.of(EXTERNAL).overview()


# -- the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-U", "amqp://host", "--insecure"], "--insecure needs an amqps:// or https:// URL"),
        (["-U", "amqp://host", "--tls-ca-cert-file", "x"], "--tls-ca-cert-file needs an amqps://"),
        (
            ["-U", "amqps://host", "--insecure", "--tls-ca-cert-file", "x"],
            "--insecure and --tls-ca-cert-file cannot be combined",
        ),
        (["-U", "amqps://host", "--tls-key-file", "x"], "--tls-key-file needs --tls-cert-file"),
        (
            ["-U", "amqps://host", "--tls-cert-file", "/does/not/exist"],
            "/does/not/exist (No such file or directory)",
        ),
        (["-U", EXTERNAL, "--password-file", "x"], "and auth_mechanism=external"),
    ],
)
@pytest.mark.parametrize(
    "verb", [["publish", "rows.csv", "-x", "orders"], ["parity"], ["check", "x.yaml", "--amqp-only"]]
)
def test_options_that_contradict_each_other_are_refused(
    run, write, tmp_path, monkeypatch, verb, options, words
) -> None:
    monkeypatch.chdir(tmp_path)
    write("k\nx\n", "rows.csv")
    write("schema: 1\nvhost: v\nqueues: {q: {}}\n", "x.yaml")
    assert words in run.refused(*verb, *options)


# -- connections of the stream protocol that fail -------------------------------------------------------------


def ends_at_once(connection: socket.socket) -> None:
    connection.recv(1 << 16)


def resets(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def refuses_tls(connection: socket.socket) -> None:
    connection.sendall(b"\x15\x03\x03\0\x02\x02\x28")  # the alert "handshake failure"
    is_silent(connection)


def speaks_amqp(connection: socket.socket) -> None:
    connection.sendall(b"AMQP\0\0\x09\x01")
    is_silent(connection)


@pytest.mark.parametrize(
    ("handles", "problem", "words"),
    [
        (ends_at_once, "lost", "was lost during the TLS handshake; is this a port without TLS"),
        (resets, "lost", "Connection reset by peer; is this a port without TLS"),
        (is_silent, "lost", "timed out; is this a port without TLS"),
        (refuses_tls, "tls", "ALERT_HANDSHAKE_FAILURE"),
        (speaks_amqp, "tls", "is this a port without TLS"),
    ],
)
def test_only_an_ended_tls_handshake_may_succeed_later(
    handles: Callable[[socket.socket], object], problem: str, words: str
) -> None:
    seconds = 0.5 if handles is is_silent else 60
    with AmqpServer(handles, handshake=False) as server:
        url = server.url.replace("amqp", "rabbitmq-stream+tls")
        with pytest.raises(StreamUnavailable, match=words) as caught:
            connect_to_streams(url, timeout=seconds)
    assert (caught.value.problem, caught.value.permanent) == (problem, problem == "tls")


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError])
def test_an_open_connection_that_ends_within_tls_is_lost(kind: type[ssl.SSLError]) -> None:
    ended = Mock(sendall=Mock(side_effect=kind("TLS/SSL connection has been closed (EOF)")))
    with pytest.raises(StreamUnavailable, match="the connection to broker was lost: ") as caught:
        Wire(ended, "broker").send(b"", 1)
    assert caught.value.problem == "lost"
