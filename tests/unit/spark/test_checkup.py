"""What the check-up of executors makes of texts and answers; nothing is started here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rabbit_chx import __version__
from rabbit_chx.cli import doctor, tables
from rabbit_chx.cli.doctor_spark import Asked, _java, _report
from rabbit_chx.errors import InvalidValue
from spark_connector.checkup import CheckUp, Executor, _why, addresses_of, last_words
from spark_connector.java import Java

FULL = {"rabbit_chx": __version__, "numpy": "2.4.6", "pyarrow": "26.0.1", "pika": "1.4.4"}


def executor(packages=FULL, faults=None, broker=None, seconds=0.0) -> Executor:
    return Executor("node-8", 4711, "3.11.7", packages, faults or {}, broker, seconds)


def report(*executors, there=None, wanted=0, fault="", master="spark://m:7077"):
    asked = Asked("spark://m:7077", {}, {"url": "amqp://etl:sesame@rabbit"})
    found = CheckUp(executors, len(executors) if there is None else there, wanted, "4.3.0", master)
    return list(_report(found, fault, asked))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            (
                "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(C.scala:1)\n"
                "Caused by: java.io.IOException: Connection refused: /127.0.0.1:1\n\tat d.e(F.java:2)\n"
            ),
            "Connection refused: /127.0.0.1:1",
        ),
        (
            (
                'WARNING: Using incubator modules\nException in thread "main" org.apache.spark.SparkException: Master must\n'
                "\tat org.apache.spark.deploy.SparkSubmit$.main(SparkSubmit.scala:1)\n"
            ),
            "Master must",
        ),
        (
            "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'y'\n",
            "No module named 'y'",
        ),
        ("Caused by: java.lang.NullPointerException\n\tat x", "java.lang.NullPointerException"),
        ("Could not find JAVA\nunable to start\n\n", "unable to start"),
        ("", "no reason was given"),
    ],
)
def test_a_long_error_comes_down_to_the_message_of_its_last_cause(text, words):
    assert last_words(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            (
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
                "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
            ),
            "the executors run Python 3.12 and the driver 3.11, and Spark refuses that",
        ),
        (
            'java.io.IOException: Cannot run program "python3.99": error=2',
            "there is no python3.99: PYSPARK_PYTHON",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rabbitmq.", "has no rabbit-chx"),
    ],
)
def test_failures_with_a_known_cause_get_a_sentence(text, words):
    assert words in _why(RuntimeError(text))


def test_the_addresses_are_those_of_the_options():
    urls = "amqp://u:p@a:1,amqps://b"
    assert addresses_of({"url": urls}) == [("a", 1, False), ("b", 5671, True)]
    assert addresses_of({"host": "::1", "tls": "true"}) == [("::1", 5671, True)]
    assert addresses_of({}) == []


def test_each_executor_has_a_row_and_one_for_its_broker():
    rows = report(executor(broker="open", seconds=0.0123))
    assert [(row.name, row.state) for row in rows] == [
        ("Spark", "ok"),
        ('format("rabbitmq")', "ok"),
        ("executors", "ok"),
        ("executor", "ok"),
        ("executor to broker", "ok"),
    ]
    assert rows[-1].found == "node-8, process 4711: rabbit:5672, virtual host '/', user 'etl', in 12 ms"


def test_what_an_executor_lacks_has_a_way_out_that_suits_the_master():
    lacking = executor({}, {"numpy": "missing"})
    here, there = report(lacking, master="local[2]")[-1], report(lacking)[-1]
    assert "numpy: missing" in here.found
    assert here.hint == f"export PYSPARK_PYTHON={sys.executable}"
    assert "docs/spark.md, On a cluster" in there.hint


def test_other_versions_than_the_drivers_are_faults():
    old = report(executor(FULL | {"rabbit_chx": "0.0.1", "pyspark": "3.9.1"}))[-1]
    assert old.state == "failed"
    assert f"rabbit-chx: 0.0.1, and {__version__} here" in old.found
    assert "pyspark: 3.9.1, and " in old.found


@pytest.mark.parametrize(
    ("there", "wanted", "state", "found"),
    [(1, 0, "ok", "1 of 1"), (2, 0, "failed", "1 of 2"), (1, 3, "failed", "1 of 3"), (1, 1, "ok", "1 of 1")],
)
def test_executors_that_did_not_answer_are_counted(there, wanted, state, found):
    row = report(executor(), there=there, wanted=wanted)[2]
    assert (row.state, row.found[:6]) == (state, found)


def test_spark_connect_does_not_tell_how_many_there_are():
    asked = Asked("sc://h:15002/;token=sesame")
    rows = list(_report(CheckUp((executor(),), None, 0, "4.3.0", None), "", asked))
    assert rows[0].found == "4.3.0 at sc://h:15002/"
    assert rows[2].found == "1 answered; Spark Connect does not tell how many there are"
    assert asked.without_secrets("no route for sesame") == "no route for ***"


def test_a_java_that_spark_would_not_take_is_a_fault():
    assert _java(Java(Path("/j"), 17, "JAVA_HOME")).state == "ok"
    row = _java(Java(Path("/j"), 17, "java on the PATH", ("JAVA_HOME (/old) is Java 8, too old",)))
    assert (row.state, row.hint) == ("failed", "export JAVA_HOME=/j")


@pytest.mark.parametrize(
    ("conf", "options", "reason"),
    [
        (["spark.x"], [], "NAME=VALUE"),
        ([], ["=sesame"], "NAME=VALUE"),
        ([], ["passwordEnv=X"], "given by passwordEnv and url"),
        ([], ["hots=x"], "did you mean host?"),
    ],
)
def test_the_command_line_is_checked_before_anything_starts(conf, options, reason):
    with pytest.raises(InvalidValue) as caught:
        Asked.of("", conf, options, "amqp://etl:sesame@rabbit", None)
    assert reason in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_password_file_is_the_executors_too_unless_they_have_another():
    by_file = Asked.of("", [], [], "amqp://etl@rabbit", Path("/run/secret"))
    assert by_file.options["passwordFile"] == "/run/secret"
    by_env = Asked.of("", [], ["passwordEnv=X"], "amqp://etl@rabbit", Path("/run/secret"))
    assert by_env.parsed.password_file is None


def test_brackets_are_shown_as_they_stand_and_a_command_in_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(tables, "console", lambda: Console(width=80, markup=False))
    doctor._print([doctor.Check("pyspark", "missing", "for local[x]", "pip install 'rabbit-chx[spark]'")])
    shown = capsys.readouterr().out
    assert "for local[x]" in shown
    assert "-> pip install 'rabbit-chx[spark]'" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_without_pyspark_there_is_a_line_to_install_it():
    program = "import sys; sys.modules['pyspark'] = None; from rabbit_chx.cli import main; main(['doctor', '--spark'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "PySpark is not installed" in done.stdout
    assert "pip install 'rabbit-chx[spark]'" in done.stdout


def test_the_doctor_alone_loads_nothing_of_spark():
    program = (
        "import sys; from rabbit_chx.cli import _exit_code; _exit_code(['doctor']); "
        "sys.exit(' '.join({'pyspark', 'spark_connector', 'rabbit_chx.cli.doctor_spark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"
