"""What TLS options and URLs make of a connection before there is one, and the warning where nothing is checked."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pika
import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.broker.amqp import connect, parameters_of
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.tls import context, warn_if_unchecked
from rabbit_chx.publishing import Publisher
from rabbit_chx.urls import BrokerUrl

EXTERNAL = "amqps://host/v?auth_mechanism=external"
OPTIONS = {"options": ("--ca", "--cert"), "hint": "mend it"}


# -- contexts ------------------------------------------------------------------------------------------------


def test_a_context_checks_certificate_and_name_by_default() -> None:
    checked, unchecked = context(**OPTIONS), context(**OPTIONS, verify=False)
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)
    assert checked.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(("option", "file"), [("--ca", "ca_file"), ("--cert", "cert_file")])
def test_a_file_that_cannot_be_loaded_is_named_with_its_option(
    tmp_path: Path, option: str, file: str
) -> None:
    path = tmp_path / "x.pem"
    for text, reason in ((None, "No such file"), ("nonsense", "x.pem")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidValue, match=f"invalid {option}.*x.pem.*mend it") as caught:
            context(**OPTIONS, **{file: path})
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "name", "words"),
    [
        (ssl.CERT_REQUIRED, True, None),
        (ssl.CERT_REQUIRED, False, "the host name of there is not verified"),
        (ssl.CERT_OPTIONAL, True, "the certificate of there is not verified"),
        (ssl.CERT_NONE, False, "the certificate of there is not verified"),
    ],
)
def test_a_context_that_checks_less_is_warned_of(caplog, mode, name, words) -> None:
    tls = ssl.create_default_context()
    tls.check_hostname = name
    tls.verify_mode = mode
    warn_if_unchecked(tls, "there")
    said = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    if words is None:
        assert said == []
    else:
        ((logger, level, text),) = said
        assert (logger, level) == ("rabbit_chx.tls", logging.WARNING)
        assert text.startswith(f"SECURITY: {words}")


def test_the_default_is_nothing_to_warn_of(caplog) -> None:
    warn_if_unchecked(None, "there")
    assert caplog.records == []


# -- EXTERNAL ------------------------------------------------------------------------------------------------


def test_a_certificate_may_replace_user_and_password() -> None:
    found = parameters_of(EXTERNAL)
    assert isinstance(found.credentials, pika.credentials.ExternalCredentials)
    assert found.virtual_host == "v"
    assert "user of the certificate" in str(BrokerUrl.parse(EXTERNAL))
    assert isinstance(
        parameters_of(EXTERNAL.upper().replace("AMQPS://HOST/V", "amqps://h/v")).credentials,
        type(found.credentials),
    )


@pytest.mark.parametrize(
    "url",
    [
        "amqp://host/?auth_mechanism=external",
        "amqps://me:sesame@host/?auth_mechanism=external",
        "amqps://me@host/?auth_mechanism=external",
        "amqps://host/?auth_mechanism=plain",
        "amqps://host/?auth_mechanism=external&verify=verify_none",
        "amqps://host/?verify=verify_none",
        "amqps://host/?no_verify_ssl=1",
    ],
)
def test_unknown_query_parameters_are_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match="broker URL") as caught:
        Publisher(url)
    assert "sesame" not in str(caught.value)


def test_a_password_with_a_certificate_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("sesame\n")
    for credentials in (file, lambda: ("me", "sesame")):
        with pytest.raises(InvalidValue, match="and auth_mechanism=external"):
            Publisher(EXTERNAL, credentials=credentials)
        with pytest.raises(InvalidValue, match="and auth_mechanism=external"):
            connect(EXTERNAL, credentials=credentials)


def test_the_management_api_needs_a_password_all_the_same() -> None:
    with pytest.raises(InvalidValue, match="Write both into the management URL"):
        Management.of(EXTERNAL).overview()


# -- the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-U", "amqp://host", "--insecure"], "--insecure needs an amqps:// or https:// URL"),
        (["-U", "amqp://host", "--tls-ca-cert-file", "x"], "--tls-ca-cert-file needs an amqps://"),
        (
            ["-U", "amqps://host", "--insecure", "--tls-ca-cert-file", "x"],
            "--insecure and --tls-ca-cert-file exclude each other",
        ),
        (["-U", "amqps://host", "--tls-key-file", "x"], "--tls-key-file needs --tls-cert-file"),
        (
            ["-U", "amqps://host", "--tls-cert-file", "/does/not/exist"],
            "/does/not/exist (No such file or directory)",
        ),
        (["-U", EXTERNAL, "--password-file", "x"], "and auth_mechanism=external"),
    ],
)
@pytest.mark.parametrize(
    "verb", [["publish", "rows.csv", "-x", "orders"], ["parity"], ["check", "x.yaml", "--amqp-only"]]
)
def test_options_that_contradict_each_other_are_refused(
    run, write, tmp_path, monkeypatch, verb, options, words
) -> None:
    monkeypatch.chdir(tmp_path)
    write("k\nx\n", "rows.csv")
    write("schema: 1\nvhost: v\nqueues: {q: {}}\n", "x.yaml")
    assert words in run.refused(*verb, *options)
