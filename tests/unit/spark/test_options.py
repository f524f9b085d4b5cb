"""Options: text becomes values, or an error that uses the documented name and never shows a secret."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.base.urls import BrokerUrl
from spark_connector.connections import credentials_of
from spark_connector.option_table import Option
from spark_connector.queues.options import QUEUE_OPTIONS
from spark_connector.reading.options import READ_OPTIONS
from spark_connector.writing.options import OPTIONS, WriteOptions
from tests.unit.complaints import complaint

URL = "amqp://user:CANARY@host:5673/vh"


def of(**given: str) -> WriteOptions:
    return WriteOptions.of({"url": URL, **given})


def test_names_may_be_in_any_case_and_values_are_text() -> None:
    options = of(EXCHANGE="x", maxinflight="7", PERSISTENT="False", invalidrows="DROP", heartbeatSeconds="5")
    assert (options.exchange, options.max_in_flight, options.persistent) == ("x", 7, False)
    assert (options.invalid_rows, options.heartbeat_seconds) == ("drop", 5)


def test_defaults_are_the_documented_ones() -> None:
    options = of()
    assert (options.max_in_flight, options.blocked_timeout_ms, options.tls_verify) == (5000, 900_000, True)
    assert (options.exchange, options.max_message_bytes, options.invalid_rows) == (None, None, "fail")
    documented = {option.name: option.default for option in OPTIONS}
    assert documented["blockedTimeoutMs"] == "900000"
    assert documented["checkExchange"] == "true"
    assert documented["exchange"] == ""


@pytest.mark.parametrize("options", [OPTIONS, READ_OPTIONS, QUEUE_OPTIONS], ids=["write", "read", "queue"])
def test_every_option_is_documented_under_a_unique_name(options: Sequence[Option]) -> None:
    names = [name.lower() for option in options for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names)) > 20
    assert all(option.doc.endswith(".") for option in options)
    secret = {"url", "password", "tlsKeyPassword", "managementUrl"}
    assert {one.name for one in options if one.secret} == secret & {one.name for one in options}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("exchnge", "Did you mean exchange?"),
        ("max_in_flight", "Did you mean maxInFlight?"),
        ("uri", "Use url"),
        ("onReturned", "retryTimeoutMs"),
        ("path", "without a path"),
        ("queue", "default exchange"),
        ("mandatory", "every message is mandatory"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(name: str, hint: str) -> None:
    error = complaint(lambda: of(**{name: "CANARY-2"}))
    assert hint in error.hint
    assert "CANARY" not in str(error)
    instead, _, names = str(error).partition(" Known names: ")
    assert hint in instead
    assert names.startswith("url, host, port")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("maxInFlight", "0", "from 1"),
        ("maxInFlight", "5.0", "an integer"),
        ("maxInFlight", "", "an integer"),
        ("maxInFlight", "\N{ARABIC-INDIC DIGIT FIVE}", "an integer"),
        ("maxInFlight", "9" * 5000, "an integer"),
        ("port", "65536", "to 65535"),
        ("maxRatePerTask", "-1", "from 0"),
        ("persistent", "yes", "true or false"),
        ("invalidRows", "ignore", "fail or drop"),
        ("nullValue", "skip", "fail or empty"),
        ("exchange", "x" * 256, "255 bytes"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_option(name: str, value: str, allowed: str) -> None:
    error = complaint(
        lambda: of(**{name: value}) if name != "port" else WriteOptions.of({"host": "h", name: value})
    )
    assert name in error.what
    assert allowed in error.expected


def test_contradictory_options_are_an_error() -> None:
    for given, words in [
        ({"vhost": "a"}, "virtualHost"),
        ({"host": "h"}, "host"),
        ({"password": "CANARY"}, "password and url"),
        ({"passwordEnv": "E", "passwordFile": "F"}, "passwordEnv and passwordFile"),
        ({"username": "u"}, "username and url"),
        ({"tls": "true"}, "true"),
        ({"stream": "s", "maxInFlight": "5", "persistent": "true"}, "streams: got 'maxInFlight, persistent'"),
        ({"exchange": "x", "producerName": "p"}, "for a write to exchanges: got 'producerName'"),
    ]:
        error = complaint(lambda given=given: of(**given))
        assert words in str(error)
        assert "CANARY" not in str(error)
    assert "two of its names" in str(
        complaint(lambda: WriteOptions.of({"host": "h", "user": "a", "username": "b"}))
    )


def test_a_producer_name_leaves_room_for_the_number_of_a_partition() -> None:
    for name in ("n", "é" * 125 + "n"):
        assert of(stream="s", producerName=name).producer_name == name
    for name in ("", "é" * 126):
        error = complaint(lambda name=name: of(stream="s", producerName=name))
        assert (error.what, error.got, error.expected) == (
            "option producerName",
            name,
            "text of 1 to 251 bytes in UTF-8",
        )


def test_a_missing_broker_is_an_error_and_an_invalid_url_is_not_quoted() -> None:
    error = complaint(lambda: WriteOptions.of({"exchange": "x"}))
    assert 'option("url"' in error.hint
    assert "INSERT INTO t WITH" in error.hint
    for url in ("amqp://u:CAN/ARY@h", "CANARY", "http://u:CANARY@h"):
        assert "ARY" not in str(complaint(lambda url=url: WriteOptions.of({"url": url})))


def test_host_port_and_virtual_host_make_a_url() -> None:
    options = WriteOptions.of(
        {"host": "h", "port": "5", "virtualHost": "a/b", "username": "u@x", "tls": "true"}
    )
    assert options.urls == [BrokerUrl("h", 5, tls=True, user="u@x", named_vhost="a/b")]
    assert options.where == "h:5, virtual host 'a/b', user 'u@x'"
    assert WriteOptions.of({"host": "::1"}).urls == [BrokerUrl("::1")]


def test_several_urls_are_separated_by_commas_and_get_the_username() -> None:
    options = WriteOptions.of({"url": "amqp://u:a,b@h1, amqp://u:a,b@h2"})
    assert options.urls == [BrokerUrl(host, user="u", password="a,b") for host in ("h1", "h2")]
    (url,) = WriteOptions.of({"url": "amqp://h/v", "username": "me"}).urls
    assert url == BrokerUrl("h", user="me", named_vhost="v")


@pytest.mark.parametrize("option", ["password", "passwordEnv"])
def test_one_password_is_not_for_several_users(option: str) -> None:
    for url in ("amqp://a@h1,amqp://b@h2", "amqp://a@h1,amqp://h2"):  # without a user: guest
        error = complaint(lambda url=url: WriteOptions.of({"url": url, option: "CANARY"}))
        assert error.got == ["a", "b" if "b@" in url else "guest"]
        assert option in error.expected
        assert "CANARY" not in str(error)
    assert WriteOptions.of({"url": "amqp://a@h1,amqp://a@h2", option: "CANARY"}).urls
    two = "amqp://a@h1,amqp://b@h2"
    assert WriteOptions.of({"url": two, "passwordFile": "f"}).where.count("user") == 2  # it is read for a URL
    assert WriteOptions.of({"url": two.replace("@", ":1@")}).urls[1].login == ("b", "1")


def test_tls_options_need_tls() -> None:
    for name in ("tlsCaFile", "tlsServerName", "tlsCertFile"):
        assert name in str(complaint(lambda name=name: of(**{name: "f"})))
    secure = "amqps://h"
    assert WriteOptions.of({"url": secure, "tlsCaFile": "f"}).tls_ca_file == "f"
    complaint(lambda: WriteOptions.of({"url": secure, "tlsKeyFile": "f"}))
    complaint(lambda: WriteOptions.of({"url": secure, "tlsVerify": "false", "tlsCaFile": "f"}))


def test_secrets_are_hidden_in_repr_and_survive_pickling() -> None:
    options = WriteOptions.of(
        {"url": "amqps://h", "password": "CANARY", "tlsCertFile": "f", "tlsKeyPassword": "CANARY"}
    )
    assert "CANARY" not in repr(options) + str(options)
    assert "CANARY" not in repr(of())
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.password == "CANARY"


def test_writes_that_differ_only_in_their_target_share_a_connection() -> None:
    assert of(exchange="a").connection == of(exchange="b", invalidRows="drop").connection
    assert of(maxInFlight="7").connection != of().connection
    assert (
        WriteOptions.of({"host": "h", "password": "a"}).connection
        != WriteOptions.of({"host": "h", "password": "b"}).connection
    )


@pytest.mark.parametrize("host", ["", "a,b", "rabbit..local", ".rabbit", "a" * 64, "a\0b"])
def test_a_host_that_no_connection_can_look_up_is_refused(host: str) -> None:
    complaint(lambda: WriteOptions.of({"host": host, "exchange": "x"}))


@pytest.mark.parametrize("host", ["amqp://u:s3cr3t@h", "u:s3cr3t@h"])
def test_a_url_given_as_another_option_is_not_shown(host: str) -> None:
    with pytest.raises(InvalidValue, match="expected one host name or address") as caught:
        WriteOptions.of({"host": host, "exchange": "x"})
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(InvalidValue, match=r"option exchange: got 'amqp://\*\*\*@h'\.\.\. \(311 bytes\)"):
        of(exchange=f"amqp://u:{'s3cr3t' * 50}@h")
    for option in ("passwordEnv", "passwordFile"):
        with pytest.raises(InvalidValue, match=f"option {option}") as caught:
            credentials_of(WriteOptions.of({"host": "h", "exchange": "x", option: host}))
        assert "s3cr3t" not in str(caught.value)
