"""docker-compose.yml: the broker starts, a topology is applied, and a restart causes no drift."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from rabbit_chx.streams import connect
from rabbit_chx.testing.node import free_ports
from tests.programs import ran

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


@pytest.fixture
def run():
    """Run a command with a broker of Docker Compose, with a project name, ports and a volume of its own."""
    if ran("docker compose version", shell=True).returncode:  # the shell, in case there is no Docker at all
        pytest.skip("Docker Compose v2 is not installed")
    names = ("AMQP_PORT", "HTTP_PORT", "STREAM_PORT", "METRICS_PORT")
    ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
    where = {
        "AMQP_URL": f"amqp://guest:guest@127.0.0.1:{ports['AMQP_PORT']}",
        "RABBITMQ_MANAGEMENT_URL": f"http://127.0.0.1:{ports['HTTP_PORT']}",
        "COMPOSE_PROJECT_NAME": f"rabbit-chx-test-{secrets.token_hex(3)}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return ran(command.split(), cwd=ROOT, env=os.environ | ports | where)

    run.streams = f"rabbitmq-stream://guest:guest@127.0.0.1:{ports['STREAM_PORT']}"
    yield run
    run("docker compose down --volumes")


def test_a_topology_outlives_a_restart_of_the_broker(run) -> None:
    for command in (
        "docker compose up --wait",
        "rabbit-chx apply examples/topology.yaml --yes",
        "rabbit-chx check examples/topology.yaml",
        "docker compose restart",
        "docker compose up --wait",
        "rabbit-chx check examples/topology.yaml",
        "docker compose down --volumes",
    ):
        done = run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command == "docker compose up --wait":
            with connect(run.streams) as connection:
                assert connection.is_open
