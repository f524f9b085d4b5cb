"""Errors that waiting cannot fix are raised at once, with their cause and without a secret."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import closing
from urllib.parse import quote, urlsplit

import pytest

from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from rabbit_chx.publishing import Publisher, Timeouts
from tests.faults.load import within

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.proves(
        "Permissions",
        "users, virtual hosts, hosts and URLs that are refused",
        "each error names its cause, without the password",
    ),
]

CANARY = "geheim-7c2f"
"""Part of every password and every body in this file, and of nothing that is written."""


@pytest.fixture(autouse=True)
def no_secret_is_written(caplog):
    """Nothing that is logged at DEBUG, by pika either, contains a password or a body."""
    caplog.set_level(logging.DEBUG)
    yield
    for record in [*caplog.get_records("setup"), *caplog.get_records("call")]:
        assert CANARY not in caplog.handler.format(record), record.name


@pytest.fixture
def log(caplog):
    """Lines of the publisher's log."""
    return lambda: [record for record in caplog.records if record.name == "rabbit_chx.publisher"]


@pytest.fixture
def user(broker):
    """A user with the canary as password, who may publish to amq.direct and nothing else."""
    name = "little"
    broker.ctl("add_user", name, CANARY)
    broker.ctl("set_permissions", name, "^$", r"^amq\.direct$", "^$")
    yield name
    broker.ctl("delete_user", name)


def url_of(broker, *, user="little", password=CANARY, vhost="/", port=None):
    parts = urlsplit(broker.url)
    host = f"{parts.hostname}:{port or parts.port}"
    return f"amqp://{user}:{quote(password, safe='')}@{host}/{quote(vhost, safe='')}"


def refusal(publisher, *, limit=5.0):
    """Return the error that opening raises, after checking its duration and that it holds no secret."""
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        within(limit + 5, publisher.open, "opening")
    assert time.monotonic() - started < limit
    assert_clean(caught.value, publisher)
    return str(caught.value)


def assert_clean(error, publisher=None):
    seen = [str(error), repr(error), *map(repr, (error.__cause__, error.__context__)), repr(publisher)]
    assert not any(CANARY in text or quote(CANARY) in text for text in seen)


def test_a_wrong_password(broker, user, log):
    publisher = Publisher(url_of(broker, password=f"wrong{CANARY}"))
    assert refusal(publisher).endswith("rejected the user name or password")
    assert publisher.totals.connections == 0
    assert log() == []  # nothing was tried again


def test_an_unknown_user(broker, log):
    assert "rejected the user name or password" in refusal(Publisher(url_of(broker, user="nobody")))
    assert log() == []


@pytest.mark.parametrize("vhost", ["nope", "/nope/ and é"])
def test_an_unknown_virtual_host(broker, user, log, vhost):
    text = refusal(Publisher(url_of(broker, vhost=vhost)))
    assert text.endswith(f"virtual host {vhost!r}, user 'little' has no such virtual host")
    assert log() == []


def test_a_virtual_host_that_the_user_may_not_use(broker, user):
    broker.ctl("add_vhost", "closed")
    try:
        text = refusal(Publisher(url_of(broker, vhost="closed")))
        assert "the user 'little' has no permission in the virtual host 'closed'" in text
        assert "`rabbitmqctl set_permissions -p closed little '^$' '^$' '^$'` lets it connect" in text
    finally:
        broker.ctl("delete_vhost", "closed")


def test_an_exchange_that_the_user_may_not_write_to(broker, user, log):
    started = time.monotonic()
    publisher = Publisher(url_of(broker), "amq.topic")
    with pytest.raises(PublishFailed) as caught:
        within(10, lambda: publish(publisher), "publishing")
    assert time.monotonic() - started < 5
    assert (
        "403 ACCESS_REFUSED, user 'little' has no write permission on exchange 'amq.topic' in virtual host '/'"
        in str(caught.value)
    )
    assert publisher.totals.connections == 1
    assert_clean(caught.value, publisher)
    assert [record.levelname for record in log()] == ["INFO"]  # connected, and no second attempt


def test_publishing_needs_only_write_permission_on_the_exchange(broker, user, connection):
    connection.channel().queue_declare("for.little", exclusive=True)
    connection.channel().queue_bind("for.little", "amq.direct", "k")
    publisher = Publisher(url_of(broker), "amq.direct")
    within(10, lambda: publish(publisher), "publishing")
    assert publisher.totals.confirmed == 1


def publish(publisher):
    with publisher:
        publisher.publish(f"a body with {CANARY}", "k", headers={"token": CANARY})


def test_a_connection_limit_is_retried(broker, user):
    broker.ctl("set_user_limits", user, '{"max-connections": 1}')
    with Publisher(url_of(broker)):
        text = refusal(Publisher(url_of(broker), timeouts=Timeouts(connect=1)), limit=1 + 5)
        assert "limit" in text
        assert "attempts)" in text


def test_a_host_that_is_down(broker, log):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    publisher = Publisher(f"amqp://little:{CANARY}@127.0.0.1:{port}", timeouts=Timeouts(connect=1))
    text = refusal(publisher, limit=1 + 5)
    attempts = int(text.rpartition("(")[2].split()[0])
    assert (
        f"no broker answers at 127.0.0.1:{port}, virtual host '/', user 'little': Connection refused" in text
    )
    assert attempts >= 3
    assert len(log()) == attempts - 1
    assert [record.levelname for record in log()][:2] == ["WARNING", "INFO"]


def test_a_host_that_accepts_connections_and_sends_nothing(broker):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        publisher = Publisher(f"amqp://little:{CANARY}@127.0.0.1:{port}", timeouts=Timeouts(connect=1))
        text = refusal(publisher, limit=1 + 5)
    assert f"127.0.0.1:{port}" in text
    assert "attempt" in text


def test_closing_in_the_middle_of_a_handshake(caplog):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        publisher = Publisher(f"amqp://little:{CANARY}@127.0.0.1:{listener.getsockname()[1]}")
        opening = threading.Thread(target=lambda: refusal(publisher))
        opening.start()
        accepted, _ = listener.accept()
        with closing(accepted):
            assert accepted.recv(8) == b"AMQP\0\0\x09\x01"
            within(10, lambda: publisher.close(timeout=1), "closing")
            opening.join()
            assert accepted.recv(8) == b""  # nothing is left behind
    assert "the publisher's thread failed" not in caplog.text


def test_a_name_that_does_not_resolve(broker):
    text = refusal(
        Publisher(f"amqp://little:{CANARY}@no-such-host.invalid", timeouts=Timeouts(connect=1)), limit=1 + 5
    )
    assert text.startswith("no broker answers at no-such-host.invalid:5672")


def test_a_port_of_another_protocol(broker):
    port = urlsplit(broker.management_url).port
    text = refusal(Publisher(url_of(broker, port=port), timeouts=Timeouts(connect=1)), limit=1 + 5)
    assert f":{port}" in text


def test_a_server_that_speaks_first_and_not_amqp(log):
    """The error is raised at once, although pika would wait for ever."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def greet():
            accepted, _ = listener.accept()
            with closing(accepted):
                accepted.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
                while accepted.recv(100):
                    pass

        greeter = threading.Thread(target=greet)
        greeter.start()
        port = listener.getsockname()[1]
        text = refusal(Publisher(f"amqp://little:{CANARY}@127.0.0.1:{port}"))
        greeter.join()
    assert text == (
        f"the server at 127.0.0.1:{port}, virtual host '/', user 'little' does not speak AMQP 0-9-1"
    )
    assert log() == []  # nothing was tried again


def test_the_first_url_that_answers_is_used(broker, user):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    urls = [url_of(broker, port=port), url_of(broker, password=f"wrong{CANARY}"), url_of(broker)]
    with Publisher(urls, timeouts=Timeouts(connect=5)) as publisher:
        assert publisher.totals.connections == 1


def test_the_error_names_every_url_when_none_answers(broker, user):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    urls = [url_of(broker, port=port), url_of(broker, password=f"wrong{CANARY}")]
    text = refusal(Publisher(urls, timeouts=Timeouts(connect=1)), limit=1 + 5)
    assert "Connection refused" in text
    assert "rejected the user name or password" in text


def test_credentials_are_requested_for_each_connection(broker, user):
    asked = []

    def credentials():
        asked.append(1)
        return user, CANARY

    with Publisher(
        url_of(broker, user="", password="unused"), "amq.direct", credentials=credentials
    ) as publisher:
        broker.ctl("close_all_user_connections", user, "a test")
        within(20, lambda: wait_for_connections(publisher, 2), "connecting again")
    assert len(asked) == publisher.totals.connections == 2


def test_a_password_that_changes_in_its_file(broker, user, tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{CANARY}\n")
    publisher = Publisher(
        url_of(broker, password="unused"), "amq.direct", credentials=file, timeouts=Timeouts(retry=0.1)
    )

    def work():
        with publisher:
            publisher.publish(b"before", "nowhere")
            broker.ctl("change_password", user, f"another {CANARY}")
            file.write_text(f"another {CANARY}\n")
            broker.ctl("close_all_user_connections", user, "a test")
            wait_for_connections(publisher, 2)
            publisher.publish(b"after", "nowhere")

    with pytest.raises(PublishFailed, match="312 NO_ROUTE"):
        within(20, work, "publishing")
    assert publisher.totals.returned == 2


def wait_for_connections(publisher, count):
    while publisher.totals.connections < count:
        time.sleep(0.01)


def test_credentials_that_are_unavailable_are_requested_again(broker, user):
    answers = [OSError("the token service is down")] * 2

    def credentials():
        if answers:
            raise answers.pop()
        return user, CANARY

    with Publisher(url_of(broker), credentials=credentials, timeouts=Timeouts(connect=5)) as publisher:
        assert publisher.totals.connections == 1

    def never():
        raise OSError("the token service is down")

    text = refusal(Publisher(url_of(broker), credentials=never, timeouts=Timeouts(connect=1)), limit=1 + 5)
    assert "the credentials for" in text
    assert "OSError: the token service is down" in text


@pytest.mark.parametrize(
    "url",
    [
        "",
        "rabbit",
        f"http://little:{CANARY}@host",
        f"amqp://little:{CANARY}/slash@host",
        f"amqp://little:{CANARY}#hash@host",
        f"amqp://little:{CANARY}?mark@host",
        f"amqp://little:{CANARY}@host:port",
        f"amqp://little:{CANARY}@host:99999",
        f"amqp://little:{CANARY}@host:0",
        f"amqp://little:{CANARY}@",
        f"amqp://little:{CANARY}@host/a/b",
        f"amqp://little:{CANARY}@host/?heartbeat=often",
        f"amqp://little:{CANARY}@[::1",
        f"amqp://little:{CANARY}\n@host",
    ],
)
def test_a_malformed_url(url):
    with pytest.raises(InvalidValue, match=r"invalid (heartbeat in the )?broker URL") as caught:
        Publisher(url)
    assert_clean(caught.value)


@pytest.mark.parametrize("url", [None, 5, b"amqp://host", [], [None], {"amqp://host": 1}])
def test_a_url_of_another_type(url):
    with pytest.raises(InvalidValue, match="broker URL"):
        Publisher(url)
