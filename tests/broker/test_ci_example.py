"""The shell lines of examples/ci run against a broker, with the wheel, and exit with the codes that its page lists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.broker.erlang import container_of
from tests.broker.test_guides import answered, here  # noqa: F401 - a fixture
from tests.queues import bind_ring
from tests.unit.test_docs import ROOT, marked
from tests.wheels import outside

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]


INSTALLED = "rabbit-chx[topology]"


def steps_of(workflow: str) -> dict[str, str]:
    """The shell lines of the named steps of all jobs."""
    jobs = yaml.safe_load((ROOT / "examples/ci" / workflow).read_text())["jobs"]
    assert all({"run": f"pip install '{INSTALLED}'"} in job["steps"] for job in jobs.values())
    return {step["name"]: step["run"] for job in jobs.values() for step in job["steps"] if "name" in step}


STEPS, DEPLOYMENT = steps_of("topology.yml"), steps_of("deploy.yml")


@pytest.fixture
def shell(broker, install):
    """The environment of the workflow."""
    return outside(install(INSTALLED), AMQP_URL=broker.url, RABBITMQ_MANAGEMENT_URL=broker.management_url)


@pytest.fixture
def step(shell, here):  # noqa: F811
    """Run a step of the workflow as GitHub does, and return its exit code and the summary."""
    (here / "topology.yaml").write_text((ROOT / "examples/topology.yaml").read_text())
    summary = here / "summary.md"
    env = shell | {"TOPOLOGY": "topology.yaml", "GITHUB_STEP_SUMMARY": str(summary)}

    def step(run: str, **more: str) -> tuple[int, str]:
        summary.write_text("")
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", run], env=env | more, check=False)
        return done.returncode, summary.read_text()

    return step


def block_in(summary: str) -> str:
    """The one block of code in a summary, up to its end."""
    (block,) = re.findall(r"^```\n(.*?)^```\n\Z", summary, re.DOTALL | re.MULTILINE)
    return str(block)


def test_the_plan_is_in_the_summary_until_it_is_applied_and_drift_fails_the_check(broker, step) -> None:
    assert step(STEPS["Lint the file"])[0] == 0
    code, summary = step(STEPS["Plan the change"])
    assert code == 0
    assert summary.startswith("Changes pending:\n")
    assert "exchange 'payments' with key" in block_in(summary)
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
    assert "exchange 'payments' with key" in block_in(summary)
    assert step(DEPLOYMENT["Apply the plan"])[0] == 0
    assert step(STEPS["Check for drift"])[0] == 0
    assert step(f"export AMQP_URL=amqp://127.0.0.1:1\n{DEPLOYMENT['Save the plan']}")[0] == 1


def test_a_foreign_exchange_is_adopted_deployed_and_checked(site, shell, step) -> None:
    """Only the adoption has access to the node."""

    def start_application() -> None:
        with site.connection() as connection:
            bind_ring(connection.channel(), "orders", ["c", "a", "d", "b"])

    def in_ci(run: str) -> tuple[int, str]:
        return step(run, AMQP_URL=site.url())

    start_application()
    file = Path("topology.yaml")
    file.unlink()
    block = marked("existing-exchange.md", "test_a_foreign_exchange_is_adopted_deployed_and_checked")
    block = block.replace("amqp://user:password@localhost", site.url())
    block = block.replace("docker exec NAME", f"docker exec {container_of(site.broker)}")
    done = answered(["set -e", *block.splitlines()], shell)
    assert done.returncode == 0, done.stdout + done.stderr
    start_application()
    assert in_ci(STEPS["Check for drift"])[0] == 0
    assert in_ci(STEPS["Plan the change"]) == (0, "No changes needed.\n")
    file.write_text(file.read_text().replace("b: 1}", "b: 1, e: 1}") + "  e: {type: classic}\n")
    assert in_ci(STEPS["Lint the file"])[0] == 0
    assert "bind queue 'e'" in in_ci(STEPS["Plan the change"])[1]
    assert "bind queue 'e'" in in_ci(DEPLOYMENT["Save the plan"])[1]
    assert in_ci(DEPLOYMENT["Apply the plan"])[0] == 0
    assert in_ci(STEPS["Check for drift"])[0] == 0
    assert site.broker.ring("orders", site.vhost) == ["c", "a", "d", "b", "e"]
    with site.connection() as connection:
        connection.channel().queue_unbind("a", "orders", "1")
    assert in_ci(STEPS["Check for drift"])[0] == 2


def test_a_broker_that_cannot_be_reached_fails_the_plan(step) -> None:
    assert step(f"export AMQP_URL=amqp://127.0.0.1:1\n{STEPS['Plan the change']}") == (1, "")


def test_the_hook_lints_files_named_topology(step) -> None:
    (repo,) = yaml.safe_load((ROOT / "examples/ci/pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert step(f"{hook['entry']} topology.yaml")[0] == 0
    assert step(f"echo 'schema: 9' > topology.yaml; {hook['entry']} topology.yaml")[0] != 0
