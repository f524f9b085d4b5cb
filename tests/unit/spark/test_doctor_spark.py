"""What ``doctor --spark`` makes of the command line, of errors and of the executors' answers; no Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rabbit_chx import InvalidValue, __version__
from rabbit_chx.cli.ask.options import pairs
from rabbit_chx.cli.show.output import Check
from rabbit_chx.cli.spark import (
    connector_options,
    executor_check,
    executors_check,
    java_check,
    reason_in,
    without_token,
)
from spark_connector.java import Java
from tests.programs import loaded_after

PACKAGES = {"rabbit-chx": __version__, "numpy": "2.4.6", "pyarrow": "26.0.1", "pika": "1.4.4"}


def executor(packages=PACKAGES, faults=(), broker="", refused="", seconds=0.0) -> Check:
    answer = {"host": "node-8", "process": 4711, "python": "3.11.7", "packages": packages}
    answer |= {"faults": dict(faults), "broker": broker, "refused": refused, "seconds": seconds}
    return executor_check(answer, "install it")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            ": org.apache.spark.SparkException: Job\n\tat a.b(C:1)\nCaused by: java.io.IOException: Refused\n\tat d\n",
            "java.io.IOException: Refused",
        ),
        (
            'WARNING: Using\nException in thread "main" org.apache.spark.SparkException: Master must\n\tat org.a(B:1)\n',
            "org.apache.spark.SparkException: Master must",
        ),
        (
            "Traceback:\n  File x\nModuleNotFoundError: No module named 'y'\n",
            "ModuleNotFoundError: No module named 'y'",
        ),
        ("Could not find JAVA\nunable to start\n\n", "unable to start"),
        ("", "no reason given"),
        (
            "a.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.12\nCaused by: EOFException",
            "[PYTHON_VERSION_MISMATCH] Python in worker has 3.12",
        ),
        (
            'java.io.IOException: Cannot run program "python3.99"\nCaused by: java.io.IOException: error=2',
            'Cannot run program "python3.99"',
        ),
    ],
)
def test_a_long_error_is_reduced_to_its_reason(text, reason):
    assert reason_in(text) == reason


def test_an_executor_that_reaches_the_broker_is_fine():
    check = executor(broker="rabbit:5672", seconds=0.0123)
    assert check.state == "ok"
    assert check.found.startswith(
        f"node-8, process 4711: Python 3.11.7, rabbit-chx {__version__}, numpy 2.4.6"
    )
    assert check.found.endswith("; rabbit:5672 in 12 ms")
    assert executor().state == "ok"


@pytest.mark.parametrize(
    ("answer", "fault", "hint"),
    [
        ({"faults": {"numpy": "missing"}}, "numpy: missing", "install it"),
        ({"packages": {"rabbit-chx": "0.0.1"}}, f"rabbit-chx: 0.0.1, but {__version__} on", "install it"),
        ({"packages": {"pyspark": "3.9.1"}}, "pyspark: 3.9.1, but ", "install it"),
        ({"refused": "Connection refused"}, "Connection refused", "can that machine reach the broker"),
    ],
)
def test_the_fault_of_an_executor_is_shown_with_a_hint(answer, fault, hint):
    check = executor(**answer)
    assert check.state == "failed"
    assert fault in check.found
    assert check.hint.startswith(hint)


def test_executors_without_an_answer_are_counted():
    assert (executors_check(2, 2).state, executors_check(2, 2).found) == ("ok", "2 of 2 answered")
    assert (executors_check(1, 3).state, executors_check(1, 3).found) == ("failed", "1 of 3 answered")
    assert executors_check(1, None).state == "ok"


def test_a_token_of_spark_connect_is_not_shown():
    assert without_token("no route for sesame", "sc://h:15002/;token=sesame;user_id=me") == "no route for ***"
    assert without_token("no route", "sc://h") == "no route"


def test_a_java_that_spark_does_not_find_is_a_fault():
    assert java_check(Java(Path("/j"), 17, "JAVA_HOME")).state == "ok"
    check = java_check(Java(Path("/j"), 17, "java on the PATH", "JAVA_HOME (/old) is Java 8"))
    assert (check.state, check.hint) == ("failed", "export JAVA_HOME=/j")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("=sesame", "NAME=VALUE"),
        ("sesame", "NAME=VALUE"),
        ("passwordEnv=X", "passwordEnv and url"),
        ("hots=x", "id you mean host?"),
        ("Queue=q", "got 'queue', expected an option of a write or of a read of streams"),
    ],
)
def test_the_command_line_is_checked_before_anything_starts(option, reason):
    with pytest.raises(InvalidValue) as caught:
        connector_options("amqp://etl:sesame@rabbit", {}, [option])
    assert reason in str(caught.value)
    with pytest.raises(InvalidValue, match="NAME=VALUE"):
        pairs("--conf", ["spark.x"], "NAME=VALUE")


def test_the_password_file_is_passed_to_executors_unless_an_option_names_a_password():
    url, secret = "amqp://etl@rabbit", {"password_file": Path("/run/secret")}
    assert connector_options(url, secret, []) == {"url": url, "passwordFile": "/run/secret"}
    assert connector_options(url, secret, ["passwordEnv=X"]) == {"url": url, "passwordEnv": "X"}
    assert connector_options(None, secret, []) == {}
    for options in ({"stream": "s", "streamPort": "5"}, {"stream": "s", "producerName": "p"}):
        assert connector_options(url, {}, map("=".join, options.items())) == {"url": url, **options}


def test_the_tls_options_are_passed_to_executors_unless_an_option_says_otherwise():
    url, files = (
        "amqps://etl@rabbit",
        {"tls_ca_cert_file": "ca", "tls_cert_file": "cert", "tls_key_file": "key"},
    )
    passed = {"url": url, "tlsCaFile": "ca", "tlsCertFile": "cert", "tlsKeyFile": "key"}
    assert connector_options(url, files, []) == passed
    assert connector_options(url, files, ["tlscafile=/there/ca"]) == {
        **{name: value for name, value in passed.items() if name != "tlsCaFile"},
        "tlscafile": "/there/ca",
    }
    insecure = {"insecure": True}
    assert connector_options(url, insecure, []) == {"url": url, "tlsVerify": "false"}
    assert connector_options(url, insecure, ["tlsVerify=true"]) == {"url": url, "tlsVerify": "true"}
    plain = "amqp://etl@rabbit"  # they are for the URL of the management API
    assert connector_options(plain, files | insecure, []) == {"url": plain}


def test_without_pyspark_the_install_command_is_shown(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = run("doctor", "--spark")
    assert found.code == 1
    assert "pyspark is not installed" in found.out
    assert "pip install 'rabbit-chx[spark]'" in found.out


def test_doctor_without_spark_loads_no_part_of_it():
    loaded = loaded_after("from rabbit_chx.cli import _exit_code", "_exit_code(['doctor'])")
    assert not {"pyspark", "spark_connector", "rabbit_chx.cli.spark"} & loaded
