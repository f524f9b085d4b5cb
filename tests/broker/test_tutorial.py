"""Work through docs/tutorial.md: each file is written, each command is run in one shell, and each output is compared.

The page's broker in Docker is replaced by one that the test starts, on ports of its own; another test starts it as the page does.
"""

from __future__ import annotations

import doctest
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from rabbit_chx.broker import drain
from rabbit_chx.testing import Broker
from rabbit_chx.testing.node import free_ports
from tests.broker.erlang import node_command
from tests.faults.load import wait_until
from tests.patience import PATIENCE
from tests.programs import ran
from tests.unit.test_docs import PAGES, fenced

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]

PAGE = PAGES["tutorial.md"]
WAITS = ("rabbit-chx group ", "cat ")
"""What shows how far the workers are; a reader tries again until it is as the page says."""
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Shell:
    """One bash for all commands, so that its jobs have the numbers that the page uses."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """What a command prints."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho; echo end of the command\n")
        self._bash.stdin.flush()
        lines = iter(self._bash.stdout.readline, "end of the command\n")
        return "".join(lines).removesuffix("\n")

    def stop(self) -> None:
        self.run("kill -9 $(jobs -p); wait")
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


@pytest.fixture
def broker():
    with Broker(release="4.3") as started:
        yield started


@pytest.fixture
def shell(broker, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    urls = {"AMQP_URL": broker.url, "RABBITMQ_MANAGEMENT_URL": broker.management_url}
    found = Shell(tmp_path, os.environ | urls | {"PATH": path, "COLUMNS": "160"})
    yield found
    found.stop()


def files() -> dict[str, str]:
    """The files of the page, by the names before them; workers are told where the management API is."""
    named = dict(re.findall(r"Save this as `([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    other = 'exchange="orders", management=os.environ["RABBITMQ_MANAGEMENT_URL"],'
    return named | {"worker.py": named["worker.py"].replace('exchange="orders",', other)}


def same(shown: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(shown, printed, SAME)


def printed_by(shell: Shell, command: str, shown: str) -> str:
    """What a command prints, at the end what the page shows if only the workers have to get there."""
    printed = [shell.run(command)]
    if command.startswith(WAITS):
        wait_until(
            lambda: same(shown, printed[-1]) or printed.append(shell.run(command)),
            lambda: f"{command}\n{printed[-1]}",
            2 * PATIENCE,
        )
    return printed[-1]


def test_the_tutorial_does_what_it_shows(broker, shell, tmp_path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    sessions = "".join(block for _, block in fenced(PAGE, "console"))
    commands = re.split(r"^\$ ", sessions, flags=re.MULTILINE)[1:]
    assert len(commands) >= 20
    for each in commands:
        command, _, shown = each.partition("\n")
        command = command.replace("docker exec tutorial rabbitmqctl eval", node_command(broker))
        if command.startswith("kill "):
            # Otherwise, a message that is not acknowledged yet may be in both logs.
            drain(broker.url, [f"orders.{number}" for number in range(4)], settle=0.0)
        printed = printed_by(shell, command, shown)
        if not (command.endswith("&") or command.startswith("kill ")):  # of jobs, bash prints what it likes
            assert same(shown, printed), f"{command}\n{printed}"


def test_the_commands_of_the_page_start_a_broker_that_has_the_plugin() -> None:
    if ran("docker version", shell=True).returncode:
        pytest.skip("Docker is not available")
    first, *_, last = (block for _, block in fenced(PAGE, "sh"))
    name, ports = f"rabbit-chx-tutorial-{secrets.token_hex(3)}", free_ports(2)
    lines = f"{first}{last}".replace("tutorial", name).splitlines()
    (clean_up,) = [line for line in lines if line.startswith("docker rm ")]
    start = [line for line in lines if not line.startswith(("pip ", "kill ", "export ", "docker rm "))]
    script = "\n".join(start).replace("1:5672:", f"1:{ports[0]}:").replace("1:15672:", f"1:{ports[1]}:")
    try:
        done = ran(["bash", "-e", "-c", script], timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        url = pika.URLParameters(f"amqp://guest:guest@localhost:{ports[0]}")
        with pika.BlockingConnection(url) as connection:
            connection.channel().exchange_declare("legacy", "x-consistent-hash")
    finally:
        ran(["bash", "-c", clean_up], timeout=PATIENCE)
