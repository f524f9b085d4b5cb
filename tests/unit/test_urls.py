"""Broker and management URLs: what is parsed, what is derived, and that no password is shown."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.urls import BrokerUrl, ManagementUrl
from rabbit_chx.broker.amqp import parameters_of


@pytest.mark.parametrize(
    ("text", "expected", "vhost", "management"),
    [
        ("amqp://h", BrokerUrl("h", 5672), "/", "http://h:15672"),
        ("amqp://h/", BrokerUrl("h", 5672), "/", "http://h:15672"),
        (
            "amqps://u%40x:p%2Fw@[::1]/a%2Fb",
            BrokerUrl("::1", 5671, tls=True, user="u@x", password="p/w", named_vhost="a/b"),
            "a/b",
            "https://[::1]:15671",
        ),
        ("amqp://u@h:99/%2F", BrokerUrl("h", 99, user="u", named_vhost="/"), "/", "http://h:15672"),
    ],
)
def test_a_url_is_taken_apart_once(text, expected, vhost, management) -> None:
    found = BrokerUrl.parse(text)
    assert found == expected
    assert BrokerUrl.parse(found) is found
    assert (found.vhost, found.management_url) == (vhost, management)


def test_a_virtual_host_may_be_omitted_but_not_contradicted() -> None:
    assert BrokerUrl.parse("amqp://h/")._at_vhost("v").vhost == "v"
    assert BrokerUrl.parse("amqp://h/v")._at_vhost("v").vhost == "v"
    assert BrokerUrl.parse("amqp://h/v").with_vhost("w").vhost == "w"
    with pytest.raises(InvalidValue, match="virtual host in the broker URL: got 'v', expected 'w'"):
        BrokerUrl.parse("amqp://h/v")._at_vhost("w")


def test_query_parameters_reach_pika_and_override_the_defaults() -> None:
    query = (
        "heartbeat=7&connection_attempts=3&retry_delay=0.5&socket_timeout=2&stack_timeout=4&frame_max=8192"
    )
    found = parameters_of(f"amqp://h?{query}&channel_max=9&blocked_connection_timeout=11", heartbeat=60)
    assert (found.heartbeat, found.connection_attempts, found.retry_delay) == (7, 3, 0.5)
    assert (found.socket_timeout, found.stack_timeout, found.blocked_connection_timeout) == (2, 4, 11)
    assert (found.frame_max, found.channel_max) == (8192, 9)
    assert parameters_of("amqp://h", heartbeat=60).heartbeat == 60


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "heartbeat=abc",
            "invalid heartbeat in the broker URL: got 'abc', expected an integer from 0 to 65535",
        ),
        ("heartbeat=65536", "an integer from 0 to 65535"),
        ("frame_max=1", "an integer from 4096 to 131072"),
        ("socket_timeout=0", "seconds, more than 0"),
        ("socket_timeout=nan", "seconds, more than 0"),
        ("sesame=1", r"invalid query of the broker URL: got '\(not shown.*expected .*heartbeat"),
        ("verify=verify_none", "expected .*heartbeat"),
    ],
)
def test_other_query_parameters_and_values_are_refused(query, words) -> None:
    with pytest.raises(InvalidValue, match=words) as caught:
        BrokerUrl.parse(f"amqp://h?{query}")
    assert "sesame" not in str(caught.value)


def test_passwords_are_in_no_text() -> None:
    for url in (BrokerUrl.parse("amqp://me:sesame@h/v"), ManagementUrl.parse("http://me:sesame@h:1/api/")):
        assert "sesame" not in f"{url} {url!r}"
    assert str(BrokerUrl.parse("amqp://me:sesame@h/v")) == "h:5672, virtual host 'v', user 'me'"


@pytest.mark.parametrize(
    "text",
    [None, b"amqp://h", "", "h", "http://h", "amqp://", "amqp://h:0", "amqp://h:x", "amqp://u:sesame/w@h", "amqp://u:ses?ame@h",
     "amqp://u:5?sesame@h", "amqp://u:ses#ame@h", "amqp://h/a/b", "amqp://h /v", "amqp://h\n/v",
     "amqp://h:99999", "amqp://u:sesame@a..b", "amqp://u:sesame@" + 64 * "h", "amqp://u:sesame@", "amqp://u:sesame@[::1", "amqp://u:sesame\n@h"],
)  # fmt: skip
def test_invalid_urls_are_refused_and_not_shown(text) -> None:
    with pytest.raises(InvalidValue, match=r"invalid broker URL: got .*not shown") as caught:
        BrokerUrl.parse(text)
    assert "ses" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_management_url_is_split_into_its_base_and_its_user() -> None:
    found = ManagementUrl.parse("https://me%40home:pa%3Ass@h:15671/rabbit/api/")
    assert (found.base, found.host, found.tls) == ("https://h:15671/rabbit", "h", True)
    assert (found.user, found.password) == ("me@home", "pa:ss")
