"""Work through the pages that begin with a broker: each file is written, each command is run in one shell, and each output is compared.

The wheel is installed as the page says, and nothing of the checkout is found. The broker of a page gets a name and ports that
are free.
"""

from __future__ import annotations

import doctest
import os
import re
import secrets
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rabbit_chx.broker import drain
from rabbit_chx.testing.node import free_ports
from tests.patience import PATIENCE, wait_until
from tests.programs import ran
from tests.unit.test_docs import PAGES, fenced
from tests.wheels import outside

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]

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
def shell(name, install, tmp_path):
    (requirement,) = re.findall("^pip install '(.*)'$", PAGES[name], re.MULTILINE)
    found = Shell(tmp_path, outside(install(requirement), COLUMNS="160"))
    yield found
    found.stop()


@dataclass(frozen=True)
class Place:
    """Where the page's broker is in the test: under a name and on ports that are free."""

    name: str
    amqp: int
    http: int
    stream: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@localhost:{self.amqp}"

    def there(self, text: str) -> str:
        """Commands or a file of the page, for this place."""
        text = re.sub(r"\btutorial\b", self.name, text)
        for port, here in ((5672, self.amqp), (15672, self.http), (5552, self.stream)):
            text = text.replace(f"1:{port}:", f"1:{here}:")
        text = text.replace("@localhost\n", f"@localhost:{self.amqp}\n")
        if "StreamGroup" in text:
            return text.replace("@localhost", f"@localhost:{self.stream}")
        text = (
            re.sub("^rabbit-chx group .*", rf"\g<0> --stream-port {self.stream}", text)
            if "--exchange" in text
            else text
        )
        return text.replace(
            'exchange="orders",', f'exchange="orders", management="http://localhost:{self.http}",'
        )


@pytest.fixture
def place():
    if ran("docker version", shell=True).returncode:
        pytest.skip("Docker is not available")
    found = Place(f"rabbit-chx-tutorial-{secrets.token_hex(3)}", *free_ports(3))
    yield found
    ran(f"docker rm -f -v {found.name}", shell=True, timeout=PATIENCE)


def files(page: str) -> dict[str, str]:
    """The files of a page, by the names before them."""
    return dict(
        re.findall(r"Save this as `([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    )


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


@pytest.mark.parametrize("name", ["tutorial.md", "from-kafka.md"])
def test_a_page_does_what_it_shows(name, place, shell, tmp_path) -> None:
    page = PAGES[name]
    for file, text in files(page).items():
        (tmp_path / file).write_text(place.there(text))
    begin, *_, end = (place.there(block) for _, block in fenced(page, "sh"))
    shell.run(re.sub("^(python3 -m venv|pip) .*\n", "", begin, flags=re.MULTILINE))  # done by the fixture
    shell.run(f"export RABBITMQ_MANAGEMENT_URL=http://localhost:{place.http}")
    sessions = "".join(block for _, block in fenced(page, "console"))
    commands = re.split(r"^\$ ", sessions, flags=re.MULTILINE)[1:]
    assert len(commands) >= 8
    for each in commands:
        command, _, shown = each.partition("\n")
        if command.startswith("kill ") and name == "tutorial.md":
            # Otherwise, a message that is not acknowledged yet may be in both logs.
            drain(place.url, [f"orders.{number}" for number in range(4)], settle=0.0)
        printed = printed_by(shell, place.there(command), shown)
        if not (command.endswith("&") or command.startswith("kill ")):  # of jobs, bash prints what it likes
            assert same(shown, printed), f"{command}\n{printed}"
    shell.run(end)
    assert place.name not in ran("docker ps -a", shell=True).stdout
