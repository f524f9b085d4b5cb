"""What publishes a release: its workflows, and the notes from CHANGELOG.md."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from release_notes import notes, version

from tests.programs import ran

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
CHANGELOG = """
## Unreleased

## 1.2.0 - 2026-01-02

### Added

- More.

## 1.1.0 - 2025-01-02

- Less.
"""


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    return found


def actions(job: dict[str, Any]) -> list[str]:
    """The actions of a job, without their commits."""
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


def run_step(step: dict[str, Any], folder: Path, **variables: str) -> int:
    """Run the commands of a step as the workflow does; return the exit status."""
    return ran(
        ["bash", "-eo", "pipefail", "-c", step["run"]], cwd=folder, env=os.environ | variables
    ).returncode


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_each_action_by_a_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE)
    assert used
    local = "./.github/workflows/test.yml"
    assert [
        one for one in used if one != local and not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[0-9.]+", one)
    ] == []


def test_workflows_agree_on_the_commit_of_each_action() -> None:
    used = {one for path in WORKFLOWS for one in re.findall(r"uses: (\w.*)$", path.read_text(), re.MULTILINE)}
    assert len(used) == len({one.partition("@")[0] for one in used})


def test_the_oldest_and_the_newest_python_are_tested() -> None:
    matrix = jobs("test.yml")["test"]["strategy"]["matrix"]
    assert sorted({*matrix["python"], *(one["python"] for one in matrix["include"])}) == PYTHONS
    assert jobs("release.yml")["install"]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_what_is_published_was_built_once_and_tested() -> None:
    release = jobs("release.yml")
    assert [name for name, job in release.items() if "make dist" in str(job)] == ["build"]
    assert release["publish"]["needs"] == ["tests", "build", "install"]
    assert release["install"]["needs"] == "build"
    assert actions(release["publish"]) == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


def test_the_wheel_and_the_source_archive_are_installed_with_the_extras_of_the_readme(tmp_path) -> None:
    job = jobs("release.yml")["install"]
    matrix, step = job["strategy"]["matrix"], job["steps"][-1]
    (archive,) = matrix["include"]
    assert archive["python"] in PYTHONS
    (install,) = (line for line in step["run"].splitlines() if "pip install" in line)
    (tmp_path / "dist").mkdir()
    for name in ("a.whl", "a.tar.gz"):
        (tmp_path / "dist" / name).touch()
    command = ["bash", "-e", "-c", install.replace("empty/bin/pip", "echo")]
    installed = [
        ran(command, cwd=tmp_path, env=os.environ | {"FILE": file}).stdout.strip()
        for file in (*matrix["file"], archive["file"])
    ]
    (extras,) = re.findall(r"^pip install 'rabbit-chx(.*)'", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert installed == [f"install dist/a.whl{extras}", f"install dist/a.tar.gz{extras}"]


@pytest.mark.parametrize(("job", "folders"), [("publish", ["dist"]), ("notes", ["dist", "notes"])])
@pytest.mark.parametrize("forgery", ["", "dist/extra.whl", "dist/a.whl", "notes/notes.md"])
def test_only_what_the_build_has_made_is_published(job, folders, forgery, tmp_path) -> None:
    """A job that runs code of others can replace the artifacts of its run."""
    release = jobs("release.yml")
    (tmp_path / "dist").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "dist/a.whl").write_bytes(b"built")
    (tmp_path / "notes.md").write_bytes(b"- More.")
    (tmp_path / "notes/notes.md").write_bytes(b"- More.")
    output = tmp_path / "output"
    (made,) = (step for step in release["build"]["steps"] if step.get("id") == "hashes")
    assert run_step(made, tmp_path, GITHUB_OUTPUT=str(output)) == 0
    hashes = dict(line.split("=", 1) for line in output.read_text().splitlines())
    if forgery:
        (tmp_path / forgery).write_bytes(b"forged")
    steps = release[job]["steps"]
    (check,) = (step for step in steps if "sha256sum" in step.get("run", ""))
    assert all("download-artifact" in step["uses"] for step in steps[: steps.index(check)])
    given = {name: hashes[value.split(".")[-1].rstrip(" }")] for name, value in check["env"].items()}
    forged = forgery.partition("/")[0] in folders
    assert (run_step(check, tmp_path, **given) != 0) == forged


def test_only_the_jobs_that_publish_may_write_and_none_has_a_password() -> None:
    writing = {
        (path.stem, name): {key for key, value in job.get("permissions", {}).items() if value == "write"}
        for path in WORKFLOWS
        for name, job in jobs(path.name).items()
    }
    assert {job: may for job, may in writing.items() if may} == {
        ("release", "publish"): {"id-token"},
        ("release", "notes"): {"contents"},
        ("docs", "deploy"): {"pages", "id-token"},
    }
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        assert "secrets." not in path.read_text()


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes("v1.2.0", CHANGELOG, "1.2.0") == "### Added\n\n- More.\n"
    assert notes("v1.1.0", CHANGELOG, "1.1.0") == "- Less.\n"


@pytest.mark.parametrize(
    ("tag", "of", "reason"),
    [
        ("v1.2.0", "1.2.1", "does not match the version of the package, 1.2.1"),
        ("v1.3.0", "1.3.0", "has no section '## 1.3.0 - DATE'"),
    ],
)
def test_a_tag_without_its_version_or_section_is_refused(tag: str, of: str, reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        notes(tag, CHANGELOG, of)


def test_the_version_of_the_package_has_notes_and_is_in_the_readme() -> None:
    assert notes(f"v{version()}", (ROOT / "CHANGELOG.md").read_text(), version())
    assert f"Version {version()}, beta:" in (ROOT / "README.md").read_text()
