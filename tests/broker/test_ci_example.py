"""The shell lines of examples/ci run against a broker, and exit with the codes that its page lists."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.broker.test_guides import environment, here  # noqa: F401 - a fixture
from tests.unit.test_docs import ROOT, marked

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


def steps_of(workflow: str) -> dict[str, str]:
    """The shell lines of the named steps of all jobs."""
    jobs = yaml.safe_load((ROOT / "examples/ci" / workflow).read_text())["jobs"]
    return {step["name"]: step["run"] for job in jobs.values() for step in job["steps"] if "name" in step}


STEPS, DEPLOYMENT = steps_of("topology.yml"), steps_of("deploy.yml")


@pytest.fixture
def step(broker, here):  # noqa: F811
    """Run a step of the workflow as GitHub does, and return its exit code and the summary."""
    (here / "topology.yaml").write_text((ROOT / "examples/topology.yaml").read_text())
    summary = here / "summary.md"
    more = {"TOPOLOGY": "topology.yaml", "GITHUB_STEP_SUMMARY": str(summary)}

    def step(run: str) -> tuple[int, str]:
        summary.write_text("")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", run], env=environment(broker) | more, check=False
        )
        return done.returncode, summary.read_text()

    return step


def test_the_plan_is_in_the_summary_until_it_is_applied_and_drift_fails_the_check(broker, step) -> None:
    assert step(STEPS["Lint the file"])[0] == 0
    code, summary = step(STEPS["Plan the change"])
    assert (code, summary.splitlines()[0]) == (0, "Changes pending:")
    assert "exchange 'payments' with key" in summary
    assert step(STEPS["Check for drift"])[0] == 2
    assert step('rabbit-chx apply "$TOPOLOGY" --yes')[0] == 0
    assert step(STEPS["Check for drift"])[0] == 0
    assert step(STEPS["Plan the change"]) == (0, "No changes needed.\n")


def test_the_commands_of_the_page_review_deploy_and_verify(step) -> None:
    block = marked("ci.md", "test_the_commands_of_the_page_review_deploy_and_verify")
    codes = [step(command)[0] for command in block.splitlines()]
    assert codes == [0, 2, 0, 0], block


def test_the_commands_of_the_page_apply_the_plan_that_was_reviewed(step) -> None:
    block = marked("ci.md", "test_the_commands_of_the_page_apply_the_plan_that_was_reviewed")
    assert [step(command)[0] for command in block.splitlines()] == [2, 0], block
    assert step(STEPS["Check for drift"])[0] == 0


def test_the_two_jobs_of_the_deployment_show_and_apply_a_plan(step) -> None:
    code, summary = step(DEPLOYMENT["Save the plan"])
    assert code == 0
    assert "exchange 'payments' with key" in summary
    assert step(DEPLOYMENT["Apply the plan"])[0] == 0
    assert step(STEPS["Check for drift"])[0] == 0
    assert step(f"export AMQP_URL=amqp://127.0.0.1:1\n{DEPLOYMENT['Save the plan']}")[0] == 1


def test_a_broker_that_cannot_be_reached_fails_the_plan(step) -> None:
    assert step(f"export AMQP_URL=amqp://127.0.0.1:1\n{STEPS['Plan the change']}") == (1, "")


def test_the_hook_lints_files_named_topology(step) -> None:
    (repo,) = yaml.safe_load((ROOT / "examples/ci/pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert step(f"{hook['entry']} topology.yaml")[0] == 0
    assert step(f"echo 'schema: 9' > topology.yaml; {hook['entry']} topology.yaml")[0] != 0
