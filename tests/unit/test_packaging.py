"""The project's own papers and what is built from them: one version, all pinned, no trace of any one machine.

This file opens no socket; it reads the checkout and the metadata of what is installed, builds the package in copies of the
checkout, and installs the wheel into an empty environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pins import lists_of, read_constraints

from tests.programs import ran
from tests.wheels import outside

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
LISTS = lists_of(PYPROJECT)
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


def asked_for() -> dict[str, tuple[str, set[str]]]:
    """Of each pin its version, and who asks for it."""
    text = (ROOT / "constraints.txt").read_text()
    found = read_constraints(text)
    assert len(found) == sum(line[:1] not in ("#", "") for line in text.splitlines())
    return {canonicalize_name(name): pin for name, pin in found.items()}


def pins() -> dict[str, str]:
    return {name: version for name, (version, _) in asked_for().items()}


def tracked(*folders: str) -> set[str]:
    """What git has of these; a checkout without git, such as the unpacked archive, cannot tell."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    done = ran(command, cwd=ROOT)
    if done.returncode:
        pytest.skip("this checkout has no git, which alone knows what is ignored")
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.mark.parametrize("asker", LISTS)
def test_constraints_know_what_each_list_of_the_project_asks_for(asker):
    """The first installation follows these remarks: what one forgets is not installed."""
    wanted = {canonicalize_name(Requirement(line).name) for line in LISTS[asker]}
    assert {name for name, (_, askers) in asked_for().items() if asker in askers} == wanted - {"rabbit-chx"}


def test_every_pin_has_the_hashes_of_its_files():
    releases = re.split(r"^(?=[^\s#])", (ROOT / "hashes.txt").read_text(), flags=re.MULTILINE)[1:]
    files = {release.split()[0]: release.split()[2:] for release in releases}
    assert len(files) == len(releases), "a release stands there twice"
    known = {(canonicalize_name(one.partition("==")[0]), one.partition("==")[2]) for one in files}
    assert pins().items() <= known
    for release, words in files.items():
        hashes = [word for word in words if word != "\\"]
        assert hashes, release
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), release
        assert len(set(hashes)) == len(hashes), release


def test_constraints_agree_with_the_ranges_that_users_get_and_with_what_builds_the_package():
    for line in [*RANGES, *PYPROJECT["build-system"]["requires"]]:
        requirement = Requirement(line)
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier, line


def test_the_tests_run_with_every_extra():
    own, *tools = PYPROJECT["dependency-groups"]["dev"]
    assert Requirement(own).extras == set(EXTRAS)
    assert tools


def test_no_file_names_a_registry_or_a_machine():
    texts = {name: (ROOT / name).read_bytes() for name in tracked(".")}
    assert [(name, word) for name, text in texts.items() for word in FOREIGN if word.encode() in text] == []


def test_the_compose_file_opens_ports_on_this_machine_only_and_checks_health_without_a_rabbitmq_command():
    text = (ROOT / "docker-compose.yml").read_text()
    ports = re.findall(r'^ +- "(.*:[0-9]+)"$', text, re.MULTILINE)
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)
    (check,) = re.findall(r"^ +test: (.*)$", text, re.MULTILINE)
    assert "rabbitmq" not in check


# --- what is built -----------------------------------------------------------------------------------------


KEPT = {".gitignore", ".github"}


def copy_of(sources: Path, folder: Path, *, mode: int, time: int) -> Path:
    """A copy whose files have another age, and permissions as another umask leaves them."""
    hidden = [path.name for path in sources.iterdir() if path.name[0] == "." and path.name not in KEPT]
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns(*hidden, "__pycache__", "build", "dist"))
    for path in folder.rglob("*"):
        os.utime(path, (time, time))
        if path.is_file():
            path.chmod(mode)
    return folder


def build(folder: Path, *targets: str, umask: int = 0o022, **settings: str) -> dict[str, bytes]:
    kept = {name: value for name, value in os.environ.items() if name not in {"SOURCE_DATE_EPOCH", "LANG"}}
    command = [sys.executable, "-m", "hatchling", "build", *targets]
    subprocess.run(command, cwd=folder, env=kept | settings, umask=umask, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source archive, built as `make dist` does; the sources are in its parent."""
    folder = tmp_path_factory.mktemp("built")
    copy = copy_of(ROOT, folder / "checkout", mode=0o644, time=1_700_000_000)
    build(copy, LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="1")
    return copy / "dist"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_sources_give_the_same_bytes_wherever_and_whenever_they_are_built(built, tmp_path):
    copy = copy_of(built.parent, tmp_path / "another folder", mode=0o600, time=1_000_000_000)
    again = build(copy, umask=0o077, LC_ALL="C", TZ="Asia/Tokyo", PYTHONHASHSEED="2")
    assert len(again) == 2
    assert again == contents(built)
    (copy / "README.md").write_text("changed")
    assert build(copy).items() & contents(built).items() == set(), "neither file would tell of a change"


def test_another_date_is_in_every_file_and_still_gives_the_same_bytes_twice(built, tmp_path):
    times = {"a": 1_000_000_000, "b": 2_000_000_000}
    copies = [copy_of(built.parent, tmp_path / name, mode=0o644, time=time) for name, time in times.items()]
    first, second = (build(copy, SOURCE_DATE_EPOCH="1800000000") for copy in copies)
    assert first == second
    assert first.keys() == contents(built).keys()
    assert first.items() & contents(built).items() == set()


def test_the_source_archive_builds_the_same_wheel(built, tmp_path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    wheels = build(folder, "-t", "wheel")
    assert wheels == {name: data for name, data in contents(built).items() if name in wheels}


def test_the_wheel_has_a_bill_of_what_the_package_needs(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if "/sboms/" in name]
        bill = json.loads(files.read(name))
    assert re.fullmatch(r"rabbit_chx-[^/]+\.dist-info/sboms/rabbit_chx\.cdx\.json", name)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    package = bill["metadata"]["component"]
    assert (package["name"], package["licenses"]) == ("rabbit-chx", [{"expression": "Apache-2.0"}])
    assert package["version"] == wheel.name.split("-")[1]
    declared = {
        (canonicalize_name(requirement.name), extra, str(requirement.specifier))
        for extra, lines in {"": PROJECT["dependencies"], **EXTRAS}.items()
        for requirement in map(Requirement, lines)
    }
    listed = {
        (
            one["name"],
            *re.fullmatch(r"rabbit-chx:requires(?:\[(.+)\])?", own["name"]).groups(""),
            own["value"],
        )
        for one in bill["components"]
        for own in one["properties"]
    }
    assert {(name, extra, str(Requirement(line).specifier)) for name, extra, line in listed} == declared
    required = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert {one["name"] for one in bill["components"] if one["scope"] == "required"} == required
    (root, *_) = bill["dependencies"]
    assert root["ref"] == package["bom-ref"]
    assert root["dependsOn"] == [one["bom-ref"] for one in bill["components"]]


def test_the_wheel_contains_only_the_packages_and_its_metadata(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    papers = {name for name in names if ".dist-info/" in name}
    assert {name.partition("/")[2] for name in papers} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt"),
        *("licenses/LICENSE", "sboms/rabbit_chx.cdx.json"),
    }
    assert names - papers == tracked(*PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert sorted(name for name in names - papers if not name.endswith(".py")) == [
        "pyspark_rabbitmq/py.typed",
        "rabbit_chx/py.typed",
        "rabbit_chx/report/page.css",
        "rabbit_chx/topology/file/topology.schema.json",
        "rabbit_chx/watch/page.css",
        "rabbit_chx/watch/page.html",
        "rabbit_chx/watch/page.js",
        "spark_connector/py.typed",
    ]


def test_the_source_archive_holds_what_pyproject_names_and_git_knows(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {member.name.partition("/")[2] for member in files if member.isfile()}
    wanted = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    own = {"PKG-INFO", "pyproject.toml", ".gitignore"}  # what hatchling adds
    assert names - own == tracked(*(name.removeprefix("/") for name in wanted))
    assert own <= names


# Without any extra: what the package is for, on the command line and from Python, and what an extra is needed for.
IN_AN_EMPTY_ENVIRONMENT = """
import importlib.metadata, sys
import rabbit_chx, rabbit_chx.cli, rabbit_chx.report, rabbit_chx.topology, spark_connector, pyspark_rabbitmq
exchange = rabbit_chx.ConsistentHashExchange({"q0": 1, "q1": 1})
assert exchange.route("customer-42") in {"q0", "q1"}
print(*sorted(one.name for one in importlib.metadata.distributions()))
"""


@pytest.fixture(scope="module")
def bare(install):
    return install("rabbit-chx")


def in_the_bare(programs: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return ran([programs / command[0], *command[1:]], cwd=programs.parent, env=outside(programs))


def test_the_wheel_works_in_an_environment_without_any_extra(bare):
    done = in_the_bare(bare, "python", "-W", "error", "-c", IN_AN_EMPTY_ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    there = {canonicalize_name(name) for name in done.stdout.split()}
    assert "rabbit-chx" in there
    assert (
        there & {canonicalize_name(Requirement(line).name) for lines in EXTRAS.values() for line in lines}
        == set()
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rabbit-chx --help", "parity"),
        ("rabbit-chx route customer-42 --queue q0 --queue q1 --queue q2=2 --explain", "customer-42"),
        ("rabbit-chx demo --part offline", "orders.3"),
        ("rabbit-chx publish --help", "--resume"),
        ("rabbit-chx apply --help", "FILE"),
    ],
)
def test_its_command_line_works_there(bare, line, said):
    done = in_the_bare(bare, *line.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
