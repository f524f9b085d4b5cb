"""Options as text become values, or errors that name them as they are documented and never show a secret."""

from __future__ import annotations

import pickle

import pytest

from rabbit_chx.urls import BrokerUrl
from spark_connector.options import OPTIONS, Options, nearest
from tests.unit.complaints import complaint

URL = "amqp://user:CANARY@host:5673/vh"


def of(**given: str) -> Options:
    return Options.of({"url": URL, **given})


def test_names_may_be_in_any_case_and_values_are_text() -> None:
    options = of(EXCHANGE="x", maxinflight="7", PERSISTENT="False", invalidrows="DROP", heartbeatSeconds="5")
    assert (options.exchange, options.max_in_flight, options.persistent) == ("x", 7, False)
    assert (options.invalid_rows, options.heartbeat_seconds) == ("drop", 5)


def test_what_is_not_given_has_the_documented_default() -> None:
    options = of()
    assert (options.max_in_flight, options.blocked_timeout_ms, options.tls_verify) == (5000, 900_000, True)
    assert (options.exchange, options.max_message_bytes, options.invalid_rows) == (None, None, "fail")
    documented = {option.name: option.default for option in OPTIONS}
    assert documented["blockedTimeoutMs"] == "900000"
    assert documented["checkExchange"] == "true"
    assert documented["exchange"] == ""


def test_every_option_is_documented_and_has_a_name_of_its_own() -> None:
    names = [name.lower() for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names)) > 30
    assert all(option.doc.endswith(".") for option in OPTIONS)
    assert {option.name for option in OPTIONS if option.secret} == {"url", "password", "tlsKeyPassword"}


def test_what_spark_itself_takes_by_option_is_no_error() -> None:
    assert of(checkpointLocation="/c", queryName="q") == of()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("exchnge", "did you mean exchange?"),
        ("max_in_flight", "did you mean maxInFlight?"),
        ("virtualhost1", "did you mean virtualHost?"),
        ("uri", "it is called url here"),
        ("orderBy", "order_for"),
        ("onReturned", "retryTimeoutMs"),
        ("messageId", "column message_id"),
        ("path", "no path"),
        ("queue", "default exchange"),
        ("mandatory", "every message is mandatory"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest_name(name: str, hint: str) -> None:
    error = complaint(lambda: of(**{name: "CANARY-2"}))
    assert hint in error.hint
    assert "CANARY" not in str(error)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("maxInFlight", "0", "from 1"),
        ("maxInFlight", "5.0", "whole number"),
        ("maxInFlight", "", "whole number"),
        ("maxInFlight", "\N{ARABIC-INDIC DIGIT FIVE}", "whole number"),
        ("maxInFlight", "9" * 5000, "whole number"),
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
        lambda: of(**{name: value}) if name != "port" else Options.of({"host": "h", name: value})
    )
    assert name in error.what
    assert allowed in error.expected


def test_two_answers_to_one_question_are_an_error() -> None:
    for given, words in [
        ({"vhost": "a"}, "virtualHost"),
        ({"host": "h"}, "host"),
        ({"password": "CANARY"}, "password and url"),
        ({"passwordEnv": "E", "passwordFile": "F"}, "passwordEnv and passwordFile"),
        ({"username": "u"}, "username and url"),
        ({"tls": "true"}, "true"),
    ]:
        error = complaint(lambda given=given: of(**given))
        assert words in str(error)
        assert "CANARY" not in str(error)
    assert "two of its names" in str(
        complaint(lambda: Options.of({"host": "h", "user": "a", "username": "b"}))
    )


def test_there_must_be_a_broker() -> None:
    error = complaint(lambda: Options.of({"exchange": "x"}))
    assert 'option("url"' in error.hint
    assert "INSERT INTO t WITH" in error.hint


def test_a_url_that_is_none_is_refused_without_being_quoted() -> None:
    for url in ("amqp://u:CAN/ARY@h", "CANARY", "http://u:CANARY@h"):
        assert "ARY" not in str(complaint(lambda url=url: Options.of({"url": url})))


def test_host_and_its_kin_make_a_url() -> None:
    options = Options.of({"host": "h", "port": "5", "virtualHost": "a/b", "username": "u@x", "tls": "true"})
    assert options.urls == [BrokerUrl("h", 5, tls=True, user="u@x", named_vhost="a/b")]
    assert options.where == "h:5, virtual host 'a/b', user 'u@x'"
    assert Options.of({"host": "::1"}).urls == [BrokerUrl("::1")]
    complaint(lambda: Options.of({"host": "a,b"}))


def test_several_urls_are_parted_at_commas_that_begin_another() -> None:
    options = Options.of({"url": "amqp://u:a,b@h1, amqp://u:a,b@h2"})
    assert options.urls == [BrokerUrl(host, user="u", password="a,b") for host in ("h1", "h2")]


def test_a_user_goes_into_a_url_that_has_none() -> None:
    assert Options.of({"url": "amqp://h/v", "username": "me"}).urls == [
        BrokerUrl("h", user="me", named_vhost="v")
    ]


def test_options_of_tls_need_tls() -> None:
    for name in ("tlsCaFile", "tlsServerName", "tlsCertFile"):
        assert name in str(complaint(lambda name=name: of(**{name: "f"})))
    secure = "amqps://h"
    assert Options.of({"url": secure, "tlsCaFile": "f"}).tls_ca_file == "f"
    complaint(lambda: Options.of({"url": secure, "tlsKeyFile": "f"}))
    complaint(lambda: Options.of({"url": secure, "tlsVerify": "false", "tlsCaFile": "f"}))


def test_secrets_stand_in_no_repr_and_survive_pickling() -> None:
    options = Options.of(
        {"url": "amqps://h", "password": "CANARY", "tlsCertFile": "f", "tlsKeyPassword": "CANARY"}
    )
    assert "CANARY" not in repr(options) + str(options)
    assert "CANARY" not in repr(of())
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.password == "CANARY"


def test_connections_are_alike_where_only_the_target_differs() -> None:
    assert of(exchange="a").connection == of(exchange="b", invalidRows="drop").connection
    assert of(maxInFlight="7").connection != of().connection
    assert (
        Options.of({"host": "h", "password": "a"}).connection
        != Options.of({"host": "h", "password": "b"}).connection
    )


def test_the_nearest_name_ignores_how_words_are_joined() -> None:
    assert nearest("routing-key", ["routingKey", "exchange"]) == "did you mean routingKey? "
    assert nearest("zzz", ["routingKey"]) == ""
