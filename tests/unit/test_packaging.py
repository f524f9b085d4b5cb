"""The project's own papers: one version, all dependencies pinned, no trace of any one machine.

This file opens no socket; it reads the checkout and the metadata of what is installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]

# Hosts and paths that would tie the checkout to one registry or one machine, in pieces, so as not to find this file.
FOREIGN = [
    "pypi" + ".org",
    "python" + "hosted",
    "index" + "-url",
    "find" + "-links",
    "/" + "work/",
    "/tmp/" + "bash_jobs",
]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [
        re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;@]+)", line) for line in lines if line[:1] not in ("#", "")
    ]
    assert all(matches), "constraints.txt holds lines that are no plain pins"
    return {canonicalize_name(match[1]): match[2] for match in matches if match}


def committed_files() -> list[Path]:
    skipped = {".git", ".venv", "__pycache__", "build", "dist"}
    kept = {".ci", ".github"}
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(
            part in skipped or (part.startswith(".") and part not in kept)
            for part in path.relative_to(ROOT).parts[:-1]
        )
    ]


def needed(requirements: list[str]) -> set[str]:
    """Return every distribution that the requirements bring, as the metadata of the installed ones tells."""
    found: set[str] = set()
    todo = [(Requirement(line), "") for line in requirements]
    seen = set()
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        if (requirement.marker and not requirement.marker.evaluate({"extra": extra})) or name == "rabbit-chx":
            continue
        found.add(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                todo += [(Requirement(line), wanted) for line in importlib.metadata.requires(name) or ()]
    return found


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"]
    source = (ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"]).read_text()
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert str(Version(version)) == version


def test_constraints_pin_everything_that_is_installed_for_the_tests():
    everything = [*RANGES, *PYPROJECT["dependency-groups"]["dev"]]
    assert needed(everything) - pins().keys() == set()


def test_constraints_pin_what_builds_the_package():
    for line in PYPROJECT["build-system"]["requires"]:
        requirement = Requirement(line)
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_constraints_agree_with_the_ranges_that_users_get():
    for line in RANGES:
        requirement = Requirement(line)
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier, line


def test_the_tests_run_with_every_extra():
    bootstrap = runpy.run_path(str(ROOT / "scripts/bootstrap.py"))
    option, project, *tools = bootstrap["dev_requirements"]()
    assert (option, Requirement("rabbit-chx" + project.removeprefix(".")).extras) == (
        "--editable",
        set(EXTRAS),
    )
    assert tools


def test_the_package_says_that_it_is_typed():
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file(), package


def test_the_command_line_starts_without_any_extra():
    extras = sorted({"aio_pika", "aiormq", "amqp", "mmh3", "pyarrow", "pytest", "testcontainers"})
    module, _, function = PROJECT["scripts"]["rabbit-chx"].partition(":")
    program = f"import sys; sys.modules.update(dict.fromkeys({extras})); from {module} import {function}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_names_a_registry_or_a_machine():
    texts = {str(path.relative_to(ROOT)): path.read_bytes() for path in committed_files()}
    assert [(name, word) for name, text in texts.items() for word in FOREIGN if word.encode() in text] == []


def test_the_compose_file_opens_ports_on_this_machine_only_and_checks_health_without_a_rabbitmq_command():
    text = (ROOT / "docker-compose.yml").read_text()
    ports = re.findall(r'^ +- "(.*:[0-9]+)"$', text, re.MULTILINE)
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
    (check,) = re.findall(r"^ +test: (.*)$", text, re.MULTILINE)
    assert "rabbitmq" not in check
