"""``plan --out`` and ``apply`` of the saved plan on real brokers: unchanged, changed in between, and killed at each change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from itertools import count

import pytest

from tests.broker.erlang import quick_command
from tests.patience import PATIENCE
from tests.proof import record_result
from tests.verbs import run_verb

pytestmark = [pytest.mark.one_release, pytest.mark.broker]

FILE = """
schema: 1
vhost: "%s"
exchanges:
  events: {type: topic, bindings: [{exchange: orders, key: "order.#"}]}
  orders: {type: x-consistent-hash, queues: {%s}}
queues: {%s}
"""
EMPTY = """
schema: 1
vhost: "%s"
"""
KILLED = -signal.SIGKILL


@pytest.fixture
def plans(site, tmp_path, capsys, monkeypatch):
    return Plans(site, tmp_path, capsys, monkeypatch)


class Plans:
    """Topology files of one exchange, and verbs in this process."""

    def __init__(self, site, folder, capsys, monkeypatch) -> None:
        self.site, self.folder, self.run = site, folder, partial(run_verb, capsys)
        monkeypatch.setenv("AMQP_URL", site.url())
        monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)

    def file(self, queues: str):
        path = self.folder / "topology.yaml"
        bound = ", ".join(f"{queue}: 1" for queue in queues)
        declared = ", ".join(f"{queue}: {{}}" for queue in queues)
        values = (self.site.vhost, bound, declared)
        path.write_text(FILE % values if queues else EMPTY % self.site.vhost)
        return path

    def apply(self, queues: str, *options: object) -> None:
        found = self.run("apply", self.file(queues), "--yes", *options)
        assert found.code == 0, found.err

    def saved(self, queues: str, *options: object, code: int = 2):
        path = self.folder / "release.plan"
        found = self.run("plan", self.file(queues), "-o", path, *options)
        assert found.code == code, found.err
        return path

    @property
    def ring(self) -> list[object]:
        return self.site.broker.ring("orders", self.site.vhost)

    def refused(self, plan, *options: object) -> str:
        """Why the plan is refused; nothing is changed."""
        before = self.site.bindings(), self.ring, sorted(self.site.queue_names(".*"))
        found = self.run("apply", plan, *options)
        assert found.code == 1, found.err
        assert found.err.endswith("Nothing was changed.\n")
        assert (self.site.bindings(), self.ring, sorted(self.site.queue_names(".*"))) == before
        return found.err


def test_a_saved_plan_does_the_reviewed_steps_on_an_unchanged_broker(plans) -> None:
    plans.apply("abc")
    plan = plans.saved("bcd", "--max-moved", "100")
    rows = plans.run("plan", plans.file("bcd"), "--max-moved", "100", "--output", "json").rows
    shown = [row["do"] for row in rows if "do" in row]
    found = plans.run("apply", plan, "--output", "json")
    assert found.code == 0, found.err
    assert [row["step"] for row in found.rows if row["type"] == "done"] == shown
    assert len(shown) == 3
    assert plans.ring == ["b", "c", "d"]
    assert "no changes needed" in plans.run("apply", plan).out
    assert plans.run("apply", plans.saved("bcd", code=0)).code == 0


def test_an_order_that_was_known_when_the_plan_was_made_must_be_known_when_it_is_applied(plans) -> None:
    plans.apply("abc", "--no-record")
    node = "--node", quick_command(plans.site.broker)
    plan = plans.saved("abc", *node, code=0)
    assert "the order of its ring was known, and is unknown now" in plans.refused(plan)
    found = plans.run("apply", plan, *node)
    assert found.code == 0, found.err
    assert "Recorded the bind order of exchange 'orders'" in found.out
    assert plans.run("apply", plan).code == 0  # the record is enough now


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("before", "after"), [("", "abc"), ("abc", "bd"), ("ab", "cd"), ("abc", "a")])
def test_one_repeat_finishes_a_saved_plan_wherever_it_was_killed(plans, before, after) -> None:
    clean = "--max-moved", "100", "--prune"
    for number in count(1):
        for queues in ("", before):
            plans.apply(queues, *clean)
        plan = plans.saved(after, *clean)
        program = [sys.executable, "-m", "tests.broker.killed_command", str(number), "apply", str(plan)]
        killed = subprocess.run(
            program, env=os.environ, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        if killed.returncode != KILLED:
            break
        again = plans.run("apply", plan)
        assert again.code == 0, again.err
        assert plans.ring == list(after)
        assert plans.run("apply", plan).code == 0
    assert killed.returncode == 0, killed.stderr
    assert number > 3
    record_result(
        f"a saved plan ({before or 'nothing'} to {after}) killed before each of {number - 1} commands"
    )
