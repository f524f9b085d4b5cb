"""Which Java is chosen, and why others are not; shell scripts stand in for Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rabbit_chx.errors import MissingDependency
from spark_connector import java
from spark_connector.java import find_java

OPENJDK = (
    'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n'
)
TEMURIN = 'openjdk version "21.0.4" 2024-07-16 LTS\nOpenJDK Runtime Environment Temurin-21.0.4+7 (build 21.0.4+7-LTS)\n'
ORACLE = 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)\n'


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch, tmp_path):
    """No Java anywhere, and PySpark 4.1."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr("pyspark.__version__", "4.1.4")


@pytest.fixture
def make(tmp_path):
    """Puts a Java into a folder: make("jdk", OPENJDK), or one that runs other lines of shell."""

    def make(folder: str, text: str = "", *, script: str = "") -> Path:
        program = tmp_path / folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        script = script or f"/bin/cat >&2 <<'end'\n    java.home = {tmp_path / folder}\n{text}end"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return tmp_path / folder

    return make


def refusal() -> str:
    with pytest.raises(MissingDependency) as caught:
        find_java()
    return str(caught.value)


def test_java_home_comes_before_the_path(make, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make("old", TEMURIN)))
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    found = find_java()
    assert (found.home.name, found.version, found.origin) == ("old", 21, "JAVA_HOME")
    assert not found.skipped


def test_the_home_of_a_shim_on_the_path_is_that_of_its_java(make, monkeypatch, tmp_path):
    home = make("jdk", OPENJDK)
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, 17, "java on the PATH")


def test_the_java_that_make_installed_comes_last(make, monkeypatch):
    own = make("environment/java", TEMURIN)
    found = find_java()
    assert (found.home, found.origin) == (own, "installed by make")
    assert found.skipped == "JAVA_HOME is not set, and no java is on the PATH"
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    assert find_java().origin == "java on the PATH"


def test_without_a_java_the_error_says_which_to_install():
    text = refusal()
    assert text.startswith("no usable Java for Spark: JAVA_HOME is not set, and no java is on the PATH. ")
    assert "Install Java 17 or 21 (" in text
    assert "set JAVA_HOME to its folder" in text


@pytest.mark.parametrize(
    ("text", "script", "fault"),
    [
        ('openjdk version "11.0.2" 2019-01-15\n', "", "is Java 11;"),
        ("", "echo; echo 'libjvm.so: cannot open'; exit 1", "does not run: libjvm.so: cannot open;"),
        ("", f"echo '{OPENJDK.splitlines()[0]}'; exit 1", 'does not run: openjdk version "17.0.15"'),
        ("", "/bin/rm $0; exec $0", "does not run:"),
        ("", "exit 0", "does not run: it prints no version;"),
        ("", "exec /bin/sleep 60", "does not run: Command"),
        (
            "",
            f"case \"$*\" in *--add-modules*) echo Module jdk.incubator.vector not found; exit 1;; esac; echo '{TEMURIN.splitlines()[0]}'",
            "does not run: Module jdk.incubator.vector not found;",
        ),
    ],
)
def test_the_error_says_why_each_java_is_unusable(make, monkeypatch, text, script, fault):
    home = make("jdk", text, script=script)
    if "sleep" in script:  # only this one has so little time
        run = subprocess.check_output

        def run_briefly(command, *, timeout, **options):
            sleeps = command[0] == f"{home}/bin/java"
            return run(command, timeout=0.2 if sleeps else timeout, **options)

        monkeypatch.setattr(java.subprocess, "check_output", run_briefly)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(make("oldest", ORACLE) / "bin"))
    assert f": JAVA_HOME ({home}/bin/java) {fault}" in refusal()
    assert f"java on the PATH ({os.environ['PATH']}/java) is Java 8. Install Java 17" in refusal()


@pytest.mark.parametrize(
    ("pyspark", "usable"), [("4.0.0.dev1", False), ("4.1.4", False), ("4.2.0", True), ("5.0.0rc1", True)]
)
def test_java_25_is_usable_from_pyspark_4_2_on(make, monkeypatch, pyspark, usable):
    monkeypatch.setattr("pyspark.__version__", pyspark)
    monkeypatch.setenv("JAVA_HOME", str(make("jdk", 'openjdk version "25.0.3" 2026-04-21\n')))
    if usable:
        assert find_java().version == 25
    else:
        assert "is Java 25" in refusal()


def test_the_caller_can_ask_for_versions(make, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make("new", TEMURIN)))
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    assert find_java((17,)).skipped == f"JAVA_HOME ({os.environ['JAVA_HOME']}/bin/java) is Java 21"
    with pytest.raises(MissingDependency, match="Install Java 8 or 11"):
        find_java((8, 11))


def test_without_pyspark_java_17_and_21_are_usable(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "Install Java 17 or 21 (" in refusal()
