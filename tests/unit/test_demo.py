"""What `rabbit-chx demo` prints when a part cannot run, and its exit code; no broker or Spark is started."""

from __future__ import annotations

import sys

import pytest

from rabbit_chx import Ring
from rabbit_chx.cli import demo
from rabbit_chx.errors import MissingDependency
from rabbit_chx.testing.node import CannotSupply


@pytest.fixture(autouse=True)
def no_broker(monkeypatch):
    def available(release):
        raise CannotSupply("no broker can be had")

    monkeypatch.setattr(demo, "available", available)


def test_without_pyspark_a_line_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run("demo", "--part", "spark")
    assert done.code == 0
    (line,) = done.out.splitlines()[1:]
    assert line.startswith("Skipped: pyspark is not installed: pip install 'rabbit-chx[spark]'")


def test_without_a_java_a_line_says_what_is_missing(run, monkeypatch):
    def absent():
        raise MissingDependency("there is no Java")

    monkeypatch.setattr(demo, "checked_java", absent)
    done = run("demo", "--part", "spark")
    assert done.code == 0
    assert done.out.splitlines()[1:] == ["Skipped: there is no Java"]


def test_without_a_broker_the_prediction_is_shown_and_the_exit_code_says_that_nothing_was_compared(
    run, monkeypatch
):
    monkeypatch.setattr(demo, "checked_java", lambda: None)
    done = run("demo")
    assert done.code == 1
    assert "Predicted: 10,000 keys over 4 weighted queues" in done.out
    assert done.out.count("Skipped: no broker can be had") == 2
    assert run("demo", "--part", "spark").code == 1


def test_a_part_that_fails_makes_the_exit_code(run, monkeypatch):
    monkeypatch.setattr(demo, "_spark_part", lambda release: 1)
    assert run("demo", "--part", "spark").code == 1
    monkeypatch.setattr(demo, "_broker_part", lambda keys, release: 0)
    assert run("demo").code == 1
    assert run("demo", "--part", "broker").code == 0


def test_differences_are_counted_message_by_message(capsys):
    ring = Ring.of(["a", "b"])
    assert demo._compare("title", ring, ["a", "b", "a"], ["b", "a", "a"]) == 2
    shown = capsys.readouterr().out
    assert "2 differences" in shown
    assert demo._compare("title", ring, ["a", "b"], ["a", "b"]) == 0
