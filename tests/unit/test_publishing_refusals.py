"""What a publisher refuses, and what it gives up at once for: options, replies of a broker, credentials and permissions."""

from __future__ import annotations

import os
import ssl

import pytest
from pika import exceptions, frame, spec

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.reasons import NotAmqp, why_down
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.publishing import Publisher, Timeouts, check_access
from rabbit_chx.publishing.window import refused_messages
from tests.amqp_server import AmqpServer, confirm_all, received
from tests.unit.test_publishing_window import message
from tests.wire import refusal

# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, None, "5", True, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["connect", "reconnect", "retry", "confirm", "blocked", "close"])
def test_an_invalid_timeout_is_refused(name, value):
    with pytest.raises(InvalidValue, match=f"^invalid {name} timeout"):
        Timeouts(**{name: value})


@pytest.mark.parametrize(
    "option",
    [
        *({"max_in_flight": value} for value in (0, 1.5, None)),
        {"max_message_bytes": -1},
        {"properties": {"mesage_id": "a"}},
        {"exchange": 5},
    ],
)
def test_an_invalid_option_is_refused_before_connecting(option):
    with pytest.raises(InvalidValue):
        Publisher("amqp://h", **option)


# -- reasons -------------------------------------------------------------------------------------------------

CLOSED = exceptions.ConnectionClosedByBroker
AUTHENTICATION, ACCESS = exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError
EXPIRED = (
    "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u', "
    'backend rabbit_auth_backend_oauth2 returned an error: "Provided JWT token has expired"'
)
CUT = EXPIRED.replace("'u'", f"'{'u' * 140}'")[:252] + "..."
LOGIN = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


@pytest.mark.parametrize(
    ("error", "permanent", "words"),
    [
        (AUTHENTICATION(repr(CLOSED(403, LOGIN))), True, "rejected the user name or password"),
        (AUTHENTICATION(repr(exceptions.StreamLostError("reset"))), False, "was lost during authentication"),
        (ACCESS(repr(CLOSED(530, "NOT_ALLOWED - vhost it's not found"))), True, "no such virtual host"),
        (ACCESS(repr(CLOSED(530, "NOT_ALLOWED - access: connection limit (1) is reached"))), False, "limit (1)"),
        (ACCESS(repr(CLOSED(541, "INTERNAL_ERROR - vhost '/' is down"))), False, "541 INTERNAL_ERROR - vhost '/'"),
        (ACCESS(repr(exceptions.StreamLostError("reset"))), False, "was lost after authentication"),
        (exceptions.NoFreeChannels(), True, "increase channel_max in rabbitmq.conf"),
        (exceptions.IncompatibleProtocolError(repr(exceptions.StreamLostError("EOF"))), False, "with TLS?"),
        (
            exceptions.IncompatibleProtocolError("SSLError(1, '[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tls')"), True,
            "TLS with the broker at h failed: TLSV13_ALERT_CERTIFICATE_REQUIRED",
        ),
        (exceptions.InvalidFrameError("x"), True, "does not speak AMQP 0-9-1"),
        (exceptions.AuthenticationError("EXTERNAL"), True, "still requires a password"),
        (exceptions.AuthenticationError("PLAIN"), True, "does not accept passwords"),
        (NotAmqp(b"S"), True, "the server at h does not speak AMQP 0-9-1"),
        (NotAmqp(b"\x15"), True, "does not speak AMQP 0-9-1 but TLS: its URL begins with amqps"),
        (CLOSED(320, "CONNECTION_FORCED - closed"), False, "320 CONNECTION_FORCED"),
        (exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no exchange"), True, "404 NOT_FOUND"),
        (exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED - write access to exchange 'login'"), True, "'login'"),
        (exceptions.ChannelClosedByBroker(403, EXPIRED), False, f"403 {EXPIRED}"),
        (exceptions.ChannelClosedByBroker(403, CUT), False, f"403 {CUT}"),
        (exceptions.ChannelClosedByBroker(405, "RESOURCE_LOCKED"), False, "405"),
        (exceptions.ConnectionBlockedTimeout("x"), True, "memory or disk alarm"),
        (ssl.SSLEOFError(8, "EOF occurred"), False, "was lost during the TLS handshake"),
        (ConnectionRefusedError(111, "Connection refused"), False, "no broker answers at h: Connection refused"),
        (BrokerUnavailable("no credentials"), False, "no credentials"),
    ],
)  # fmt: skip
def test_the_brokers_reply_decides_whether_a_failure_is_permanent(error, permanent, words):
    reason = why_down(error, "h")
    assert reason.permanent is permanent
    assert words in str(reason)
    assert "\n" not in str(reason)


def test_a_reply_in_latin_1_names_what_is_missing():
    """RabbitMQ 4.0.4 sends it if a name has a letter such as ä."""
    error = refusal(
        403, f"ACCESS_REFUSED - write access to exchange 'ä' in vhost '/' {USER}".encode("latin-1")
    )
    assert "no write permission on exchange 'ä' in virtual host '/'" in str(why_down(error, "h"))
    vhost = CLOSED(530, "NOT_ALLOWED - access to vhost 'ä' refused for user 'u'".encode("latin-1"))
    assert "`rabbitmqctl set_permissions -p 'ä' u " in str(why_down(ACCESS(repr(vhost)), "h"))


def test_a_reply_in_latin_1_tells_which_messages_were_refused():
    error = refusal(404, "NOT_FOUND - no exchange 'ä' in vhost '/'".encode("latin-1"))
    refused, other = message(1, exchange="ä".encode()), message(2, exchange=b"a")
    assert refused_messages(error.reply_text, [refused, other]) == [refused]


def test_a_missing_permission_names_user_and_virtual_host_once():
    refused = ACCESS(repr(CLOSED(530, "NOT_ALLOWED - access to vhost 'v' refused for user 'u'")))
    reason = why_down(refused, str(BrokerUrl.parse("amqp://u@h:1/v")))
    assert reason.permanent
    line = "`rabbitmqctl set_permissions -p v u "
    assert f"the user 'u' has no permission in the virtual host 'v' of the broker at h:1: {line}" in str(
        reason
    )


def test_an_expired_token_is_replaced_and_its_messages_are_sent_again():
    def behave(client):
        if server.connections == 1:
            client.sendall(frame.Method(1, spec.Channel.Close(403, EXPIRED, 60, 40)).marshal())
            list(received(client))
        else:
            confirm_all(client)

    def token():
        tokens.append(f"token {len(tokens)}")
        return "u", tokens[-1]

    tokens = []
    with AmqpServer(behave) as server, Publisher(server.url, "x", credentials=token) as publisher:
        publisher.publish(b"m", "k", timeout=60)
        assert (publisher.totals.resent, server.connections) == (1, 2)
    assert tokens == ["token 0", "token 1"]


def test_the_credentials_of_a_callable_are_checked():
    assert parameters_of("amqp://h", credentials=lambda: ("u", "p")).credentials.username == "u"
    for bad in (lambda: "secret", lambda: ("u", None), lambda: 1 / 0):
        with pytest.raises(BrokerUnavailable, match="credentials for h:5672") as caught:
            parameters_of("amqp://h", credentials=bad)
        assert "secret" not in str(caught.value)
        assert not caught.value.permanent


def test_a_password_file_is_read_on_each_connect(tmp_path):
    file = tmp_path / "password"
    for written, password in (("old\n", "old"), ("new", "new"), (" é \n", " é ")):
        file.write_text(written)
        credentials = parameters_of("amqp://u:unused@h", credentials=file).credentials
        assert (credentials.username, credentials.password) == ("u", password)


BAD_PASSWORD_FILES = {
    "missing": (lambda file: None, "No such file or directory"),
    "directory": (lambda file: file.mkdir(), "must be a regular file"),
    "pipe": (os.mkfifo, "must be a regular file"),
    "unreadable": (lambda file: file.symlink_to(file), "Too many levels of symbolic links"),
    "empty": (lambda file: file.write_text("\n"), "The file is empty"),
    "two lines": (lambda file: file.write_text("user\ngeheim\n"), "The file has several lines"),
    "no text": (lambda file: file.write_bytes(b"geheim\xff"), "The file is not UTF-8"),
}


@pytest.mark.parametrize(("make", "words"), BAD_PASSWORD_FILES.values(), ids=BAD_PASSWORD_FILES)
def test_an_invalid_password_file_is_named_and_never_quoted(tmp_path, make, words):
    file = tmp_path / "the file"
    make(file)
    with pytest.raises(InvalidValue) as at_once:
        Publisher("amqp://u@h", credentials=file)
    with pytest.raises(BrokerUnavailable) as later:
        parameters_of("amqp://u@h", credentials=file)
    for error in (at_once.value, later.value, later.value.__cause__):
        assert repr(str(file)) in str(error)
        assert words in str(error)
    assert at_once.value.__context__ is later.value.__cause__.__context__ is None
    assert "geheim" not in f"{at_once.value!r} {later.value!r}"


# -- access --------------------------------------------------------------------------------------------------

USER = "refused for user 'me'"
CONNECTION_CLOSE = spec.Connection.Close.INDEX.to_bytes(4, "big")


def check(text):
    """Check the access to an exchange of a server that closes the channel with this reply."""

    def behave(client):
        client.sendall(frame.Method(1, spec.Channel.Close(403, text, 60, 40)).marshal())
        while CONNECTION_CLOSE not in client.recv(1 << 16):
            pass
        client.sendall(frame.Method(0, spec.Connection.CloseOk()).marshal())

    with AmqpServer(behave) as server:
        check_access(server.url, ["x"])


@pytest.mark.parametrize("operation", ["", "write "], ids=["3.10", "4.3"])
def test_a_refused_topic_is_no_refusal_of_the_exchange(operation):
    text = f"ACCESS_REFUSED - {operation}access to topic '' in exchange 'ä' in vhost '/' {USER}"
    check(text)
    check(text.encode("latin-1"))  # 4.0.4


@pytest.mark.parametrize("operation", ["", "write "], ids=["3.10", "4.3"])
@pytest.mark.parametrize("name", ["amq.topic", "access to topic 'a'"])
def test_a_refused_exchange_whose_name_speaks_of_topics_is_reported(operation, name):
    with pytest.raises(InvalidValue, match="no write permission on exchange"):
        check(f"ACCESS_REFUSED - {operation}access to exchange '{name}' in vhost '/' {USER}")
