"""Which broker a publisher tries next, when and why it gives up, and what becomes of its messages then."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from pika import exceptions
from pika.adapters.utils import io_services_utils

from rabbit_chx.broker.amqp import connect, parameters_of
from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Failure, Outcome, Publisher, Timeouts
from rabbit_chx.publishing.attempts import Address, Attempts
from rabbit_chx.publishing.messages import OutgoingMessage, Owner
from rabbit_chx.publishing.outbox import Outbox
from rabbit_chx.publishing.properties import encode_properties
from tests.amqp_server import AmqpServer, confirm
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


def left_alone(timeouts):
    """An open publisher whose server has confirmed a message, and is gone."""
    ended = threading.Event()

    def confirm_one(client):
        client.sendall(confirm(1))
        ended.wait(60)

    with AmqpServer(confirm_one) as server:
        publisher = Publisher(server.url, "x", timeouts=timeouts)
        publisher.open()
        publisher.publish(b"")
    ended.set()
    return publisher


def test_a_publisher_that_gives_up_while_nobody_publishes_says_so_in_the_log(caplog):
    """Otherwise, "trying again" would be its last word."""
    publisher = left_alone(Timeouts(connect=60, reconnect=0.1))
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
            client.sendall(confirm(1))

    with AmqpServer(cut) as server, Publisher(server.url, "x") as publisher:
        publisher.publish(b"1", "k", timeout=60)
    outage = [text for text in caplog.messages if text.startswith("publisher: ")]
    assert len(cuts) >= 4
    assert outage[0].endswith("; trying again")
    assert outage[1].startswith("publisher: connected again after ")


def test_a_message_that_is_withdrawn_says_that_there_is_no_connection(caplog):
    publisher = left_alone(Timeouts(connect=60, reconnect=60))
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
