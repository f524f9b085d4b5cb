"""Why a real broker refuses a connection or a channel, in the words that the command line shows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.amqp import connect
from rabbit_chx.cli import _exit_code
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.publishing import Publisher, Timeouts
from tests.broker.privileges import release_of
from tests.patience import wait_until
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.newest_first]


@contextmanager
def setting(broker, name, value):
    """A setting of rabbitmq.conf that new connections obey."""
    before = broker.eval(f"{{ok, V}} = application:get_env(rabbit, {name}), V.")
    broker.eval(f"application:set_env(rabbit, {name}, {value}).")
    try:
        yield
    finally:
        broker.eval(f"application:set_env(rabbit, {name}, {before}).")


@pytest.fixture
def user(broker):
    with a_user(broker, ".*", ".*", ".*") as user:
        yield BrokerUrl.parse(user.url)


def run(monkeypatch, capsys, url: BrokerUrl, *arguments: str) -> tuple[int, str]:
    address = f"amqp://{url.user}:{url.password}@{url.host}:{url.port}/"
    monkeypatch.setenv("AMQP_URL", address)
    code = _exit_code(list(arguments))
    return code, "".join(capsys.readouterr())


@pytest.mark.long
def test_too_few_channels_are_no_mistake_of_ours(broker, user, monkeypatch, capsys):
    with setting(broker, "channel_max", 1):
        code, said = run(monkeypatch, capsys, user, "parity", "--messages", "50")
    assert (code, "increase channel_max in rabbitmq.conf or in the URL" in said) == (1, True), said
    if release_of(broker) >= (3, 13):  # 3.10 has this limit behind a feature flag
        broker.ctl("set_user_limits", user.user, '{"max-channels": 1}')
        code, said = run(monkeypatch, capsys, user, "parity", "--messages", "50")
        assert (code, "maximum allowed user limit of" in said) == (1, True), said


@pytest.mark.long
def test_a_broker_with_tiny_frames_is_reachable_or_says_where_to_look(broker, user):
    release = release_of(broker)
    with setting(broker, "frame_max", 4096):
        if release < (4, 1):
            with connect(user) as connection:
                assert connection.is_open
            return
        with pytest.raises(BrokerUnavailable, match="frame_max below 8192 does it on RabbitMQ 4"):
            connect(user)

        def refusal() -> str:
            with pytest.raises(BrokerUnavailable) as caught:
                Publisher(user, timeouts=Timeouts(connect=1)).open()
            return str(caught.value)

        # An attempt that takes more than a second has another reason.
        wait_until(lambda: "the broker log says why" in refusal(), "the reason")


def test_a_wrong_password_and_doctor(broker, user, monkeypatch, capsys):
    wrong = replace(user, password="wrong")
    code, said = run(monkeypatch, capsys, wrong, "doctor", "--output", "json")
    assert code == 1
    assert "rejected the user name or password" in said
    assert "is the broker running, and is the URL right?" not in said


@pytest.mark.parametrize(
    ("vhost", "words"),
    [
        ("/", "the user '{user}' has no permission in the virtual host '/'"),
        ("none", "has no such virtual host"),
    ],
)
def test_a_missing_permission_is_told_from_a_missing_virtual_host(broker, user, vhost, words):
    broker.ctl("clear_permissions", user.user)
    with pytest.raises(BrokerUnavailable, match=words.format(user=user.user)) as caught:
        connect(user.with_vhost(vhost))
    assert caught.value.permanent
