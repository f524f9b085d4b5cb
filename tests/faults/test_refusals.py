"""Errors that waiting cannot fix are raised at once, with their cause and without a secret (see tests/canary.py)."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import closing
from urllib.parse import quote, urlsplit

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Publisher, Timeouts
from tests.canary import canary, may_hold
from tests.faults.load import SLACK, within
from tests.patience import PATIENCE, wait_until
from tests.users import a_user

pytestmark = [
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.proves(
        "Permissions",
        "users, virtual hosts, hosts and URLs that are refused",
        "each error names its cause, without the password",
    ),
]

CANARY = canary("refusals")
"""Part of every password and every body in this file, and of nothing that is written."""
PATIENCES = (1, 5, 25)
"""Seconds for attempts to connect: more of them if a machine that halts has left too few attempts."""


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
    """By pika, too."""
    caplog.set_level(logging.DEBUG)


@pytest.fixture
def user(broker):
    """A user with the canary as password, who may publish to amq.direct and nothing else."""
    management = Management.of(broker.url, broker.management_url)
    management._request("PUT", ["vhosts", "closed"], body={})
    with a_user(broker, "^$", r"^amq\.direct$", "^$", name="little", password=CANARY) as user:
        yield user.name
    management._request("DELETE", ["vhosts", "closed"])


@pytest.fixture
def url(broker):
    """The URL of the user, with anything else: url(password="wrong")."""

    def url(user="little", password=CANARY, vhost="/", host="", port=None):
        parts = urlsplit(broker.url)
        address = f"{host or parts.hostname}:{port or parts.port}"
        return f"amqp://{user}:{quote(password, safe='')}@{address}/{quote(vhost, safe='')}"

    return url


@pytest.fixture
def free_port():
    """A port on which nothing listens, and which no other program gets."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def refusal(publisher, *, limit=SLACK):
    """Return the error that opening raises within the limit."""
    with pytest.raises(BrokerUnavailable) as caught:
        within(limit, publisher.open, "opening")
    print(repr(publisher))
    return str(caught.value)


@pytest.mark.parametrize(
    ("differing", "words"),
    [
        ({"password": f"wrong{CANARY}"}, "rejected the user name or password"),
        ({"user": "nobody"}, "rejected the user name or password"),
        ({"vhost": "nope"}, "virtual host 'nope', user 'little' has no such virtual host"),
        ({"vhost": "/nope/ and é"}, "virtual host '/nope/ and é', user 'little' has no such virtual host"),
        ({"vhost": "closed"}, "`rabbitmqctl set_permissions -p closed little '^$' '^$' '^$'` lets it connect"),
    ],
)  # fmt: skip
def test_what_the_broker_refuses_is_not_tried_again(user, url, log, differing, words):
    publisher = Publisher(url(**differing))
    assert refusal(publisher).endswith(words)
    assert publisher.totals.connections == 0
    assert log() == []


def test_a_connection_limit_is_retried(broker, user, url):
    with Publisher(url()):
        broker.ctl("set_user_limits", user, '{"max-connections": 1}')
        count = f'rabbit_connection_tracking:count_tracked_items_in({{user, <<"{user}">>}}).'
        wait_until(lambda: broker.eval(count) == "1", "the broker counts the connection")
        for seconds in PATIENCES:
            text = refusal(Publisher(url(), timeouts=Timeouts(connect=seconds)), limit=seconds + SLACK)
            if "attempts)" in text:
                break
    assert "limit" in text
    assert "attempts)" in text


def test_a_host_that_is_down(url, log, free_port):
    refused = (
        f"no broker answers at 127.0.0.1:{free_port}, virtual host '/', user 'little': Connection refused"
    )
    for seconds in PATIENCES:
        before = len(log())
        publisher = Publisher(url(host="127.0.0.1", port=free_port), timeouts=Timeouts(connect=seconds))
        text = refusal(publisher, limit=seconds + SLACK)
        attempts = int(text.rpartition("(")[2].split()[0])
        assert refused in text
        # One line for all attempts but the last, which ends with the error.
        assert len(log()) - before == min(attempts - 1, 1)
        if attempts >= 3:
            break
    assert attempts >= 3
    assert log() == log(level=logging.WARNING)


def test_closing_in_the_middle_of_a_handshake(url, caplog):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        publisher = Publisher(url(host="127.0.0.1", port=listener.getsockname()[1]))
        opening = threading.Thread(target=lambda: refusal(publisher))
        opening.start()
        accepted, _ = listener.accept()
        with closing(accepted):
            assert accepted.recv(8) == b"AMQP\0\0\x09\x01"
            within(1 + SLACK, lambda: publisher.close(timeout=1), "closing")
            opening.join()
            assert accepted.recv(8) == b""  # the connection is closed
    assert "the publisher's thread failed" not in caplog.text


def until_connected(publisher, count):
    wait_until(lambda: publisher.totals.connections >= count, "the publisher connects")


def test_a_password_that_changes_in_its_file(broker, user, url, tmp_path):
    file = may_hold(tmp_path / "password")
    file.write_text(f"{CANARY}\n")
    options = {"credentials": file, "timeouts": Timeouts(retry=0.1)}

    def work():
        with Publisher(url(password="unused"), "amq.direct", **options) as publisher:
            bulk = publisher.bulk()
            bulk.add(CANARY, "nowhere")
            broker.ctl("change_password", user, f"another {CANARY}")
            file.write_text(f"another {CANARY}\n")
            broker.ctl("close_all_user_connections", user, "a test")
            until_connected(publisher, 2)
            bulk.add(CANARY, "nowhere")
            bulk.flush()

    with pytest.raises(PublishFailed, match=r"2 of 2 messages .* 312 NO_ROUTE"):
        within(PATIENCE, work, "publishing")
