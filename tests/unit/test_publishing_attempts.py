"""Which broker a publisher tries next, when and why it gives up, and what makes it refuse."""

from __future__ import annotations

import os
import ssl
import threading
from contextlib import suppress

import pytest
from pika import exceptions, frame, spec
from pika.adapters.utils import io_services_utils

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect, parameters_of
from rabbit_chx.broker.reasons import NotAmqp, why_down
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from rabbit_chx.publishing import Failure, Outcome, Publisher, Timeouts, check_access
from rabbit_chx.publishing.attempts import Address, Attempts
from rabbit_chx.publishing.messages import OutgoingMessage, Owner
from rabbit_chx.publishing.outbox import Outbox
from rabbit_chx.publishing.properties import encode_properties
from tests.amqp_server import AmqpServer, confirm_all, received
from tests.patience import wait_until

TIMEOUTS = Timeouts(connect=10, reconnect=100, retry=1, confirm=1, blocked=1)
A, B = Address("a", parameters_of), Address("b", parameters_of)
LOST = BrokerUnavailable("lost")
REFUSED = BrokerUnavailable("refused", permanent=True)


# -- attempts ------------------------------------------------------------------------------------------------


def attempts(*addresses):
    return Attempts(addresses, TIMEOUTS, 0)


@pytest.mark.parametrize(("reason", "refused"), [(REFUSED, True), (LOST, False)])
def test_a_refusal_is_distinguished_from_a_lost_connection(reason, refused):
    tried = attempts(A)
    assert tried.failed(A, reason, was_up=False, now=11)  # after its timeout either way
    assert tried.refused is refused


@pytest.mark.parametrize(("was_up", "limit"), [(False, 10), (True, 100)])
def test_the_first_connection_has_the_connect_timeout_and_a_later_one_the_reconnect_timeout(was_up, limit):
    tried = attempts(A)
    assert tried.failed(A, LOST, was_up=was_up, now=limit) is None
    assert tried.failed(A, LOST, was_up=False, now=limit + 0.1) == "lost (2 attempts)"


def test_the_addresses_share_the_remaining_time():
    tried, now, order = attempts(A, B), 0, []
    for _ in range(3):
        address, timeout = tried.next(now)
        order.append((address.where, timeout))
        now += timeout - 1  # an attempt may end early
        assert tried.failed(address, LOST, was_up=False, now=now) is None
    assert order == [("a", 5), ("b", 6), ("a", 1)]


@pytest.mark.parametrize("was_up", [False, True])
def test_each_address_is_tried_before_the_time_counts(was_up):
    tried = attempts(A, B)
    assert tried.failed(A, BrokerUnavailable("slow"), was_up=was_up, now=101) is None
    assert tried.next(101) == (B, 1)
    assert tried.failed(B, LOST, was_up=False, now=102) == "slow; lost (2 attempts)"


@pytest.mark.parametrize("lost", [A, B], ids=["first", "second"])
def test_after_a_connection_that_worked_the_other_address_is_tried_too(lost):
    tried = attempts(A, B)
    tried.succeeded(1000)
    assert tried.failed(lost, LOST, was_up=True, now=1000) is None
    assert tried.next(1000)[0] is (B if lost is A else A)


def test_a_first_broker_that_is_silent_leaves_time_for_the_second(monkeypatch):
    chosen = Attempts.next

    def choose(self, now):
        address, seconds = chosen(self, now)
        return address, 60 if self.count else seconds  # the second one has a second left, and may need longer

    monkeypatch.setattr(Attempts, "next", choose)
    with (
        AmqpServer(lambda client: client.recv(1), handshake=False) as silent,
        AmqpServer(lambda client: client.recv(1)) as second,
        Publisher([silent.url, second.url], "x", timeouts=Timeouts(connect=2)) as publisher,
    ):
        assert publisher.totals.connections == 1
    assert (silent.connections, second.connections) == (1, 1)


@pytest.fixture
def reset_once(monkeypatch):
    """The first connection is reset as soon as it is accepted, as by a proxy whose broker is down."""
    opening, resets = io_services_utils._AsyncStreamConnector.__init__, iter([True])

    def reset(self, **given):
        if next(resets, False):
            given["sock"].close()
            raise ValueError("Expected connected socket, but getpeername() failed: ...")
        opening(self, **given)

    monkeypatch.setattr(io_services_utils._AsyncStreamConnector, "__init__", reset)


def test_a_publisher_tries_again_after_a_reset_connection(reset_once):
    with AmqpServer(lambda client: client.recv(1)) as server, Publisher(server.url, "x") as publisher:
        assert publisher.totals.connections == 1


def test_a_reset_connection_is_a_broker_that_may_come_back(reset_once):
    with AmqpServer(lambda client: client.recv(1)) as server:
        with pytest.raises(BrokerUnavailable, match="closed it at once") as error:
            connect(server.url)
        assert not error.value.permanent


def test_a_server_that_does_not_speak_amqp_is_an_error_at_once():
    """Although pika would wait for ever."""

    def greet(client):
        client.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        client.recv(1)

    with AmqpServer(greet, handshake=False) as server:
        with pytest.raises(BrokerUnavailable, match=r"'guest' does not speak AMQP 0-9-1$"):
            Publisher(server.url, timeouts=Timeouts(connect=60)).open()
        assert server.connections == 1


def test_events_of_a_connection_that_has_ended_are_an_error_of_amqp():
    with AmqpServer(lambda client: client.recv(1)) as server:
        connection = connect(server.url)
        connection.patience = 0.1
        with suppress(exceptions.AMQPError):
            connection.close()
    with pytest.raises(exceptions.ConnectionWrongStateError):
        connection.process_data_events(0)


def test_a_publisher_that_gives_up_while_nobody_publishes_says_so_in_the_log(caplog):
    """Otherwise, "trying again" would be its last word."""
    ended = threading.Event()

    def confirm(client):
        client.sendall(frame.Method(1, spec.Basic.Ack(1)).marshal())
        ended.wait(60)

    with AmqpServer(confirm) as server:
        publisher = Publisher(server.url, "x", timeouts=Timeouts(connect=60, reconnect=0.1))
        publisher.open()
        publisher.publish(b"")
    ended.set()
    wait_until(lambda: publisher.error, "the publisher gives up")
    publisher.close()
    assert caplog.messages[-1] == f"{publisher.error}; the next call tries again"


def test_the_attempts_to_connect_are_one_line_in_the_log(caplog):
    """Without those of pika."""
    with pytest.raises(BrokerUnavailable, match=r"\(([3-9]|\d\d+) attempts\)"):
        Publisher("amqp://127.0.0.1:1", timeouts=Timeouts(connect=3)).open()
    (line,) = caplog.messages
    assert line.startswith("publisher: no broker answers at 127.0.0.1:1")


def test_an_outage_is_logged_once_and_when_it_is_over_and_not_at_each_attempt(caplog):
    """As in the reads of Spark, where a task can run for hours. Connections that open and are cut again are one outage."""
    cuts = []

    def cut(client):
        cuts.append(client)
        if len(cuts) == 4:
            client.sendall(frame.Method(1, spec.Basic.Ack(1)).marshal())

    with AmqpServer(cut) as server, Publisher(server.url, "x") as publisher:
        publisher.publish(b"1", "k", timeout=60)
    outage = [text for text in caplog.messages if text.startswith("publisher: ")]
    assert len(cuts) >= 4
    assert outage[0].endswith("; trying again")
    assert outage[1].startswith("publisher: connected again after ")


def test_a_message_that_is_withdrawn_says_that_there_is_no_connection(caplog):
    ended = threading.Event()

    def confirm(client):
        client.sendall(frame.Method(1, spec.Basic.Ack(1)).marshal())
        ended.wait(60)

    with AmqpServer(confirm) as server:
        publisher = Publisher(server.url, "x", timeouts=Timeouts(connect=60, reconnect=60))
        publisher.open()
        publisher.publish(b"")
    ended.set()
    wait_until(lambda: "trying again" in caplog.text, "an attempt fails")
    with pytest.raises(
        PublishFailed, match=r"withdrawn after 0\.1 seconds without a connection: .*127\.0\.0\.1"
    ):
        publisher.publish(b"", timeout=0.1)
    publisher.close(0)


def test_connections_that_open_and_confirm_nothing_are_failures():
    tried = attempts(A)
    assert all(tried.failed(A, LOST, was_up=True, now=now) is None for now in range(0, 101, 10))
    assert tried.failed(A, LOST, was_up=True, now=101) == "lost (12 attempts)"


def test_a_connection_that_worked_resets_everything():
    tried = attempts(A, B)
    tried.failed(A, REFUSED, was_up=False, now=99)
    tried.succeeded(1_000)
    assert tried.count == 0
    assert tried.next(1_000) == (A, 5)
    assert tried.failed(A, LOST, was_up=True, now=1_000) is None


def test_an_address_that_refuses_is_not_tried_again_and_the_others_are():
    tried = attempts(A, B)
    assert tried.failed(A, REFUSED, was_up=False, now=0) is None
    assert [tried.next(now)[0] for now in range(3)] == [B, B, B]
    assert tried.failed(B, LOST, was_up=False, now=11) == "refused; lost (2 attempts)"


@pytest.mark.parametrize(("addresses", "was_up"), [([A], False), ([A, B], True)])
def test_a_refusal_by_the_only_address_or_after_the_connection_was_up_is_final(addresses, was_up):
    assert attempts(*addresses).failed(A, REFUSED, was_up=was_up, now=0) == "refused"


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
    check(f"ACCESS_REFUSED - {operation}access to topic '' in exchange 'x' in vhost '/' {USER}")


@pytest.mark.parametrize("operation", ["", "write "], ids=["3.10", "4.3"])
@pytest.mark.parametrize("name", ["amq.topic", "access to topic 'a'"])
def test_a_refused_exchange_whose_name_speaks_of_topics_is_reported(operation, name):
    with pytest.raises(InvalidValue, match="no write permission on exchange"):
        check(f"ACCESS_REFUSED - {operation}access to exchange '{name}' in vhost '/' {USER}")


# -- the outbox -----------------------------------------------------------------------------------------------


class Recorder(Owner):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []

    def settled(self, messages, outcome, reply):
        self.failures += [message.failure(outcome, reply) for message in messages]


def outgoing(row, owner=None):
    encoded = encode_properties({}, frame_max=131_072)
    return OutgoingMessage(row, b"x", b"k", encoded, b"", owner or Recorder())


def test_giving_up_gives_each_message_its_outcome():
    outbox, owner = Outbox(max_messages=10, max_bytes=100), Recorder()
    messages = [outgoing(row, owner) for row in range(6)]
    outbox.add(messages, lambda: None)
    outbox.take(4, 100)
    in_flight, came_back, refused, lost = messages[:4]
    in_flight.doubtful = True
    came_back.verdict, came_back.reply = Outcome.RETURNED, "312 NO_ROUTE"
    refused.verdict, refused.reply = Outcome.REJECTED, "nack"
    lost.doubtful, lost.verdict, lost.reply = True, Outcome.REJECTED, "nack"
    outbox.put_back(messages[:4], first=False)
    outbox.give_up(BrokerUnavailable("over"))
    assert {
        failure.row: (failure.outcome, failure.reply, failure.may_have_arrived) for failure in owner.failures
    } == {
        0: (Outcome.UNKNOWN, "over", True),
        1: (Outcome.RETURNED, "312 NO_ROUTE", False),
        2: (Outcome.REJECTED, "nack", True),
        3: (Outcome.UNKNOWN, "over", True),
        4: (Outcome.UNSENT, "over", False),
        5: (Outcome.UNSENT, "over", False),
    }
    assert outbox.totals().pending == 0


def test_a_full_outbox_can_stop_accepting():
    outbox = Outbox(max_messages=2, max_bytes=100)
    outbox.add([outgoing(row) for row in range(2)], lambda: None)
    threading.Timer(0.05, outbox.stop_accepting).start()
    with pytest.raises(BrokerUnavailable, match="accepts no more messages"):
        outbox.add([outgoing(2)], lambda: None)
    assert outbox.totals().published == 2
