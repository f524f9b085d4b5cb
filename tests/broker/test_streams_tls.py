"""The stream protocol over the broker's own TLS, with client certificates instead of passwords."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.streams import connect
from rabbit_chx.streams.ends import first_chunk
from rabbit_chx.streams.protocol.requests import OffsetSpec
from tests.broker.privileges import release_of
from tests.broker.stream_scene import a_stream, fill, refused
from tests.tls import Authority
from tests.users import a_user

pytestmark = [pytest.mark.newest_first, pytest.mark.broker, pytest.mark.long]

FOLDER = "/tmp/rabbit-chx-streams"
OPTIONS = (
    f'[{{cacertfile, "{FOLDER}/ca.pem"}}, {{certfile, "{FOLDER}/cert.pem"}}, {{keyfile, "{FOLDER}/key.pem"}}, '
    "{verify, verify_peer}, {fail_if_no_peer_cert, true}]"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("ca"), "IP:127.0.0.1")
    for name in ("good", "client", "stranger"):
        authority.issue(name)
    return authority


@pytest.fixture(scope="module")
def secure(broker, authority):
    """The URL of the stream port with TLS, which requires a client certificate."""
    files = {"cert.pem": "good.pem", "key.pem": "good.key", "ca.pem": "ca.pem"}
    writes = [
        f'ok = file:write_file("{FOLDER}/{to}", <<"{(authority.folder / file).read_text()}">>)'
        for to, file in files.items()
    ]
    settings = [
        f"application:set_env(rabbit, ssl_options, {OPTIONS})",
        "application:set_env(rabbit, ssl_cert_login_from, common_name)",
        "application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'EXTERNAL'])",
    ]
    steps = ", ".join([f'filelib:ensure_dir("{FOLDER}/x")', *writes, *settings])
    broker.ctl("eval", f"{steps}.")  # the lines of the files have to stay lines
    listen(broker, tcp="[]", tls="[5552]")
    with a_user(broker, ".*", ".*", ".*", name="client"):
        yield replace(
            BrokerUrl.for_streams(broker.stream_url), tls=True, external=True, user=None, password=None
        )
    broker.eval("application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN'])")
    listen(broker, tcp="[5552]", tls="[]")


def listen(broker, *, tcp, tls):
    """Restart the plugin with other listeners."""
    broker.eval(
        f"application:stop(rabbitmq_stream), application:set_env(rabbitmq_stream, tcp_listeners, {tcp}), "
        f"application:set_env(rabbitmq_stream, ssl_listeners, {tls}), ok = application:start(rabbitmq_stream)"
    )


def test_a_certificate_replaces_user_and_password(broker, secure, authority):
    context = _lenient(authority)
    if release_of(broker) < (3, 11):
        with refused("unsupported", "does not support client certificates"):
            connect(secure, tls=context)
        return
    with connect(secure, tls=context) as connection, a_stream(connection) as stream:
        fill(connection, stream, range(10))
        chunk = first_chunk(connection, stream, OffsetSpec.last())
        assert chunk
        assert chunk.end == 10
    assert "user of the certificate" in repr(connection)


@pytest.mark.parametrize(
    ("client", "problem", "words"),
    [
        ("stranger", "login", "rejected the client certificate: no user matches its name"),
        (None, "tls", "TLS with the broker at .* failed"),
    ],
)
def test_an_unknown_or_missing_certificate_is_refused(broker, secure, authority, client, problem, words):
    context = authority.context(client=client)
    context.check_hostname = False
    if client and release_of(broker) < (3, 11):
        problem, words = "unsupported", "does not support client certificates"
    with refused(problem, words):
        connect(secure, tls=context)


def _lenient(authority):
    context = authority.context()
    context.check_hostname = False  # Docker's host may have another address
    return context
