"""Which Java is taken, and what is said where none can be: with shell scripts in the place of Java."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rabbit_chx.errors import MissingDependency
from spark_connector import java
from spark_connector.java import find_java, version_in

OPENJDK = """\
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""
TEMURIN = """\
openjdk version "21.0.4" 2024-07-16 LTS
OpenJDK Runtime Environment Temurin-21.0.4+7 (build 21.0.4+7-LTS)
OpenJDK 64-Bit Server VM Temurin-21.0.4+7 (build 21.0.4+7-LTS, mixed mode, sharing)
"""
GRAALVM = """\
Picked up JAVA_TOOL_OPTIONS: -Xmx1g
java version "23.0.1" 2024-10-15
Java(TM) SE Runtime Environment Oracle GraalVM 23.0.1+11.1 (build 23.0.1+11-jvmci-b01)
Java HotSpot(TM) 64-Bit Server VM Oracle GraalVM 23.0.1+11.1 (build 23.0.1+11-jvmci-b01, mixed mode)
"""
ORACLE = """\
java version "1.8.0_392"
Java(TM) SE Runtime Environment (build 1.8.0_392-b08)
Java HotSpot(TM) 64-Bit Server VM (build 25.392-b08, mixed mode)
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (OPENJDK, 17),
        (TEMURIN, 21),
        (GRAALVM, 23),
        (ORACLE, 8),
        ('openjdk version "25-ea" 2025-09-16\n', 25),
        ('openjdk version "11" 2018-09-25\n', 11),
        ("", None),
        ("Error: Could not create the Java Virtual Machine.\n", None),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.\n", None),
        ('version "next"', None),
        ("\x00\ufffd17", None),
    ],
)
def test_the_version_is_read_from_what_a_java_prints(text, version):
    assert version_in(text) == version


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch, tmp_path):
    """No Java anywhere, and PySpark 4.1."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(metadata, "version", lambda _: "4.1.4")


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
    assert found.passed_over == ()


def test_the_one_on_the_path_tells_its_home_itself(make, monkeypatch, tmp_path):
    home = make("jdk", OPENJDK)
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, 17, "java on the PATH")


def test_the_one_that_make_brought_along_comes_last(make, monkeypatch):
    brought = make("environment/java", TEMURIN)
    assert (find_java().home, find_java().origin) == (brought, "brought along by make")
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    assert find_java().origin == "java on the PATH"


def test_one_that_cannot_be_used_is_passed_over_and_told(make, monkeypatch):
    old = make("old", ORACLE)
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    found = find_java()
    assert found.version == 17
    assert found.passed_over == (f"JAVA_HOME ({old}/bin/java) is Java 8, too old",)


def test_without_any_the_error_says_what_is_allowed_and_the_way_out():
    text = refusal()
    assert text.startswith("there is no Java for Spark: JAVA_HOME is not set, and no java is on the PATH. ")
    assert "Allowed is Java 17 or 21. Install one" in text
    assert "set JAVA_HOME to its folder" in text


@pytest.mark.parametrize(
    ("text", "script", "fault"),
    [
        ('openjdk version "11.0.2" 2019-01-15\n', "", "is Java 11, too old;"),
        ('openjdk version "19.0.2" 2023-01-17\n', "", "is Java 19;"),
        ('openjdk version "25" 2025-09-16\n', "", "is Java 25, too new;"),
        ("", "echo; echo 'libjvm.so: cannot open'; exit 1", "does not run: libjvm.so: cannot open;"),
        ("", f"echo '{OPENJDK.splitlines()[0]}'; exit 1", 'does not run: openjdk version "17.0.15"'),
        ("", "exit 0", "does not run: it prints nothing;"),
        ("", "exec /bin/sleep 60", "does not run: no answer in"),
        (
            "",
            f"case \"$*\" in *--add-modules*) exit 1;; esac; echo '{TEMURIN.splitlines()[0]}'",
            "is a Java 21 without the module jdk.incubator.vector",
        ),
    ],
)
def test_the_error_says_why_each_cannot_be_used(make, monkeypatch, text, script, fault):
    if "sleep" in script:
        monkeypatch.setattr(java, "_PATIENCE", 0.2)
    home = make("jdk", text, script=script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(make("oldest", ORACLE) / "bin"))
    assert f": JAVA_HOME ({home}/bin/java) {fault}" in refusal()
    assert f"java on the PATH ({os.environ['PATH']}/java) is Java 8, too old. Allowed is" in refusal()


def test_a_java_home_without_a_java_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME ({tmp_path}/bin/java) does not run: No such file" in refusal()


@pytest.mark.parametrize(
    ("pyspark", "usable"), [("4.0.0.dev1", False), ("4.1.4", False), ("4.2.0", True), ("5.0.0rc1", True)]
)
def test_java_25_is_usable_from_pyspark_4_2_on(make, monkeypatch, pyspark, usable):
    monkeypatch.setattr(metadata, "version", lambda _: pyspark)
    monkeypatch.setenv("JAVA_HOME", str(make("jdk", 'openjdk version "25.0.3" 2026-04-21\n')))
    if usable:
        assert find_java().version == 25
    else:
        assert "is Java 25, too new" in refusal()


def test_versions_can_be_asked_for(make, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make("new", TEMURIN)))
    monkeypatch.setenv("PATH", str(make("jdk", OPENJDK) / "bin"))
    assert find_java((17,)).passed_over == (
        f"JAVA_HOME ({os.environ['JAVA_HOME']}/bin/java) is Java 21, too new",
    )
    with pytest.raises(MissingDependency, match="Allowed is Java 8 or 11"):
        find_java((8, 11))


def test_without_pyspark_17_and_21_are_allowed(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert java.usable_versions() == (17, 21)
