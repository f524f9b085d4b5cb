"""Work through the README as a newcomer: install the wheel as it says, and run each block in that environment, outside the checkout.

A warning names what is not run as it is: the commands for a clone, and `kubectl`, which becomes `docker`. Any other block is
run, one that is added later as well.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from doctest import OutputChecker
from pathlib import Path

import pytest

from tests.broker.erlang import container_of
from tests.broker.test_guides import answered, at
from tests.broker.worker_programs import started
from tests.brokers import say
from tests.canary import may_hold
from tests.patience import wait_until
from tests.queues import a_channel, bind_ring, delete_named
from tests.unit.test_docs import README, SAME, marked
from tests.wheels import outside

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
BULK = "bulk"
"""A virtual host for the super stream of docs/spark-bulk.md, which has the name of the README's exchange."""
HANDLED = """\
ada b'two apples'
ada b'{"customer": "ada", "amount": "3"}'
ada b'{"customer":"ada","amount":3}'
grace b'a pear'
grace b'{"customer": "grace", "amount": "5"}'
grace b'{"customer":"grace","amount":5}'
"""
"""What the worker prints of the messages of the publisher, of the commands, and of Spark."""


@pytest.fixture
def broker(rabbitmq_broker):
    rabbitmq_broker.ctl("add_vhost", BULK)
    rabbitmq_broker.ctl("set_permissions", "-p", BULK, rabbitmq_broker.username, ".*", ".*", ".*")
    yield rabbitmq_broker
    rabbitmq_broker.ctl("delete_vhost", BULK)
    delete_named(rabbitmq_broker, "orders", "rabbit-chx")  # also the record of their order


@contextmanager
def bound_by_an_application(broker):
    """An exchange orders in an order that only its node knows; checks where printed keys go."""

    def check(printed: str) -> None:
        for key, queue in map(str.split, printed.splitlines()):
            channel.basic_publish("orders", key, b"")
            wait_until(lambda queue=queue: channel.basic_get(queue, auto_ack=True)[0], f"{key} is in {queue}")

    with a_channel(broker) as channel:
        bind_ring(channel, "orders", [f"orders.{number}" for number in (2, 0, 3, 1)])
        yield check
    delete_named(broker, "orders", "rabbit-chx")


class Newcomer:
    """Runs blocks in the working directory, with the environment that `pip install` has made."""

    def __init__(self, broker, programs: Path) -> None:
        self._broker = broker
        self.programs = programs

    def run(self, language: str, block: str) -> str:
        """Run a block and return what it printed; answer yes to each question, and save a program or a file first."""
        if language == "yaml":
            Path(block.splitlines()[0].removeprefix("# ")).write_text(block)
            return ""
        block = at(self._broker, block).replace("amqp://guest:guest@localhost", self._broker.url)
        if language == "python":
            may_hold(Path("program.py")).write_text(block)
            block = f"export AMQP_URL={self._broker.url}\npython program.py"
        management = {"RABBITMQ_MANAGEMENT_URL": self._broker.management_url}
        done = answered(["set -e", *block.splitlines()], outside(self.programs, **management))
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def compare(self, session: str) -> None:
        """Run the commands of a session, and compare what they print with what the page shows."""
        for each in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            command, _, shown = each.partition("\n")
            printed = self.run("sh", command)
            assert OutputChecker().check_output(shown, printed, SAME), f"{command}\n{printed}"

    def work(self, program: str):
        """Start a worker."""
        management = f'exchange="orders", management={self._broker.management_url!r}'
        program = at(self._broker, program).replace('exchange="orders"', management)
        may_hold(Path("worker.py")).write_text(program)
        return started(["worker.py"], programs=self.programs)


def rows_of_a_stream(broker) -> str:
    """The lines of docs/spark-bulk.md, which create a super stream, write rows to it and read them back."""
    lines = marked("spark-bulk.md", "test_the_created_super_stream_is_there")
    lines += marked("spark-bulk.md", "test_rows_are_written_once_and_read_back")
    return lines.replace("rabbitmq-stream://user:password@host", broker.stream_url.replace("%2F", BULK))


def test_each_block_of_the_readme_runs_outside_the_checkout(install, broker, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (needed,) = re.findall(r"rabbit-chx\[[\w,]+\]", README)
    (more,) = re.findall(r"Spark: add (,\w+)", README)
    newcomer = Newcomer(broker, install(needed))
    assert "rabbit-chx demo" in README
    newcomer.run("sh", "rabbit-chx demo --part broker")
    with ExitStack() as workers:
        for language, block in BLOCKS:
            if "pip install " in block:
                continue  # done above, since the page begins with a program
            if block.startswith("make "):
                say(f"a block of the README is not run, as it needs a clone:\n{block}")
            elif language == "console":
                newcomer.compare(block)
            elif "kubectl" in block:
                say(f"`docker` is run for `kubectl`:\n{block}")
                node = f"docker exec {container_of(broker)}"
                with bound_by_an_application(broker) as check:
                    check(newcomer.run("sh", re.sub(r"docker exec NAME|kubectl exec POD --", node, block)))
            elif "import Group" in block:
                worker = workers.enter_context(newcomer.work(block))
            elif "SparkSession" in block:
                newcomer.programs = install(needed.replace("]", f"{more}]"))
                newcomer.run("python", block + rows_of_a_stream(broker))
            else:
                newcomer.run(language, block)
        wait_until(lambda: worker.found(".+") == HANDLED.splitlines(), lambda: worker.text)
    assert "orders.3" in Path("report.html").read_text()
