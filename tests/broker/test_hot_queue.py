"""Run the commands of docs/hot-queue.md in a shell while one key is hot and one message blocks its worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rabbit_chx.publishing import Publisher
from tests.broker.erlang import node_command
from tests.broker.test_guides import here  # noqa: F401 - deletes what examples/topology.yaml declares
from tests.broker.test_tutorial import Shell, same
from tests.members import Member, in_background
from tests.patience import wait_until
from tests.programs import ran
from tests.unit.test_docs import PAGES, ROOT, fenced, marked

pytestmark = [
    pytest.mark.broker,
    pytest.mark.one_release,
    pytest.mark.since_4_3,  # earlier releases list queues in another order
    pytest.mark.long,
    pytest.mark.proof,
]

WORKER = """
import os, threading
from rabbit_chx.consuming import Group

def handle(message):
    if message.body == b"stuck":
        threading.Event().wait()

management = os.environ["RABBITMQ_MANAGEMENT_URL"]
Group(os.environ["AMQP_URL"], exchange="orders", name="billing", management=management).run(handle)
"""
BLOCKS = "customer-1", "orders.3"
"""A key whose message blocks the worker, and its queue; customer-42, which is hot, goes to orders.0."""


def sample_keys() -> str:
    return marked("hot-queue.md", "sample_keys")


def published(url: str) -> AbstractContextManager[Member]:
    """Publish, half of it for one customer, until the block ends."""

    def publish(ended: threading.Event) -> None:
        with Publisher(url, exchange="orders") as publisher:
            publisher.publish(b"stuck", BLOCKS[0])
            number = 100
            while not ended.wait(0.2):
                keys = ["customer-42"] * 20 + [f"customer-{number + i}" for i in range(20)]
                publisher.publish_many([b"order"] * len(keys), keys)
                number += 20

    return in_background(publish)


@pytest.fixture
def shell(broker, here):  # noqa: F811
    """A shell with the variables and the rabbitmqctl of the page, and with the exchange and a worker."""
    programs = here / "bin"
    programs.mkdir()
    control = programs / "rabbitmqctl"
    control.write_text(f'#!/bin/sh\nexec {node_command(broker).removesuffix(" eval")} "$@"\n')
    control.chmod(0o755)
    urls = {"AMQP_URL": broker.url, "RABBITMQ_MANAGEMENT_URL": broker.management_url, "COLUMNS": "160"}
    path = os.pathsep.join([str(Path(sys.executable).parent), str(programs), os.environ["PATH"]])
    env = os.environ | urls | {"PATH": path}
    ran(["rabbit-chx", "apply", str(ROOT / "examples/topology.yaml"), "--yes"], env=env, check=True)
    found = Shell(here, env)
    with subprocess.Popen([sys.executable, "-c", WORKER], env=env) as worker:
        try:
            yield found
        finally:
            worker.send_signal(signal.SIGKILL)  # its handler never ends
            found.stop()


def test_the_runbook_finds_the_stuck_queue_and_the_hot_key(broker, shell, here) -> None:  # noqa: F811
    (here / "sample_keys.py").write_text(sample_keys())
    sessions = "".join(block for _, block in fenced(PAGES["hot-queue.md"], "console"))
    commands = re.split(r"^\$ ", sessions, flags=re.MULTILINE)[1:]
    assert len(commands) >= 9
    with published(broker.url):
        for each in commands:
            command, _, shown = each.partition("\n")
            printed = [shell.run(command)]
            wait_until(lambda: same(shown, printed[-1]) or printed.append(shell.run(command)), command)  # noqa: B023
            if "trace_off" in command:
                keys = (here / "keys.txt").read_text().splitlines()
                assert keys.count("customer-42") > 100

        def only_one_is_stuck() -> bool:
            groups = [line.split() for line in shell.run("rabbit-chx group billing").splitlines()]
            rates = {
                cells[0]: float(cells[3]) for cells in groups if cells and cells[0].startswith("orders.")
            }
            return len(rates) == 4 and rates.pop(BLOCKS[1]) == 0 and all(rates.values())

        wait_until(only_one_is_stuck, "the other queues are handled")
