"""A verb that is ended by SIGTERM while it changes a broker: what was begun is reported, and what was switched on is off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from rabbit_chx.broker.reading.tracing import traced
from rabbit_chx.cli import _exit_code
from tests.broker.erlang import node_command
from tests.broker.scaling_scene import KEYS, RING, SLOTS, Scene, scale
from tests.broker.test_rebalance import Shop, is_traced
from tests.faults.load import wait_until
from tests.json_lines import printed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.topology_site import Site

pytestmark = [pytest.mark.newest_first, pytest.mark.broker]

MANY = """
schema: 1
vhost: "%s"
exchanges:
  orders: {type: x-consistent-hash, queues: {"q.{000..299}": 1}}
queues:
  "q.{000..299}": {}
"""


def started(site: Site, *arguments: object) -> subprocess.Popen[str]:
    """A verb in a process."""
    env = os.environ | {"AMQP_URL": site.url(), "RABBITMQ_MANAGEMENT_URL": site.broker.management_url}
    command = [sys.executable, "-u", "-m", "rabbit_chx", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def errors_of(site: Site, *arguments: object) -> str:
    with started(site, *arguments) as running:
        return running.communicate(timeout=60)[1]


def runs(site: Site) -> list[str]:
    """The programs that trace, as the node knows them."""
    return site.broker.eval(
        "[io:format('~0p~n', [N]) || {rabbit_chx_tracer, _, _} = N <- global:registered_names()], ok."
    ).splitlines()[:-1]


def test_sigterm_turns_the_tracer_off(site, tmp_path) -> None:
    shop = Shop(site, tmp_path)
    options = ("--dry-run", "--sample", 600, "--node", node_command(site.broker))
    with started(site, "rebalance", shop.file, *options) as running:
        wait_until(lambda: is_traced(site), "the tracer is on", 60)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 143, errors
    assert errors.splitlines()[-1] == "Interrupted."
    assert not is_traced(site)


def test_the_tracer_is_off_soon_after_rebalance_was_killed(site, tmp_path) -> None:
    shop = Shop(site, tmp_path)
    options = ("--dry-run", "--sample", 1, "--node", node_command(site.broker))
    with started(site, "rebalance", shop.file, *options) as running:
        wait_until(lambda: is_traced(site), "the tracer is on", 60)
        running.kill()
        running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    warning = f"Warning: the message tracer of virtual host '{site.vhost}' is on"
    for verb in (["check"], ["plan"], ["apply", "--yes"], ["scale", "--yes"]):
        assert warning in errors_of(site, *verb, shop.file)
    wait_until(lambda: not is_traced(site), "the node turns the tracer off", 120)
    assert warning not in errors_of(site, "check", shop.file)


def test_the_node_turns_the_tracer_off_if_the_program_was_killed(site) -> None:
    killed = traced(site.broker, site.vhost, at_most=3)
    killed.__enter__()  # and never left, as by kill -9
    assert is_traced(site)
    with traced(site.broker, site.vhost, at_most=60):
        wait_until(lambda: len(runs(site)) == 1, "the time of the killed program is over", 30)
        assert is_traced(site), "another program still measures"
    assert not is_traced(site)
    with traced(site.broker, site.vhost, at_most=1):
        wait_until(lambda: not is_traced(site), "the node turns the tracer off", 30)


def test_a_tracer_that_somebody_else_turned_on_stays_on(site) -> None:
    site.broker.ctl("trace_on", "-p", site.vhost)
    with traced(site.broker, site.vhost, at_most=60):
        assert is_traced(site)
    assert is_traced(site)


def test_sigterm_during_apply_reports_the_steps_that_are_done(site, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(MANY % site.vhost)
    with started(site, "apply", file, "--yes") as running:
        assert running.stdout
        next(line for line in running.stdout if line.startswith("[1/"))
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 143, errors
    *_, report, end = filter(None, errors.splitlines())
    assert end == "Interrupted."
    done = 1 + output.count("[")
    assert report == f"Steps done: {done} of 601. Run the same command again to apply the rest."
    monkeypatch.setenv("AMQP_URL", site.url())
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)
    assert _exit_code(["apply", str(file), "--yes"]) == 0
    assert len(site.management.bindings_from(site.vhost, "orders")) == 300


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, getattr(request, "param", RING), queues=2, milliseconds=1) as scene:
        scene.start_members(1)
        scene.start_publishing()
        yield scene


def check_sigterm_while_held(running, member) -> None:
    """Stop the member as soon as a queue is held, so that nothing can be drained, and end the command."""
    for line in running.stdout:
        if json.loads(line).get("what") == "hold":
            member.send_signal(signal.SIGSTOP)
            break
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 143, errors
    *_, report, end = filter(None, errors.splitlines())
    assert end == "Interrupted."
    assert report.startswith("Not finished: run the same command again to continue")


@pytest.mark.since_4_0
def test_sigterm_during_scale_reports_what_is_unfinished_which_status_shows_and_abort_ends(scene) -> None:
    (member,) = scene.members
    options = ("--to", 3, "--yes", "--output", "json")
    with started(scene.site, "scale", scene.file, *options) as running:
        check_sigterm_while_held(running, member)

    code, rows = rows_of(scene, "--status")
    assert code == 2
    (change,) = (row for row in rows if row["type"] == "unfinished")
    assert (change["aborting"], change["running"]) == (False, None)
    assert f"process {running.pid}" in change["by"]
    states = {row["queue"]: row["state"] for row in rows if row["type"] == "change_queue"}
    assert states == {"orders.0": "draining", "orders.1": "draining", "orders.2": "held"}
    assert rows_of(scene, "--dry-run", "--to", "3")[0] == 2

    member.send_signal(signal.SIGCONT)
    code, done, errors = scale(scene, "--abort")
    assert code == 0, errors
    assert "delete" in done
    assert rows_of(scene, "--status") == (0, [])
    assert rows_of(scene, "--abort") == (0, [])
    scene.assert_in_order(2)


@pytest.mark.long
@pytest.mark.since_4_0
@pytest.mark.parametrize("scene", [SLOTS.replace("64", "8")], ids=["slots"], indirect=True)
def test_sigterm_during_rebalance_reports_what_is_unfinished_which_the_same_command_continues(
    scene, tmp_path
) -> None:
    scene.publish_on(100)
    keys = tmp_path / "keys.txt"
    hot = {key for _, key, _, queue in scene.ledger().lines if queue == "orders.0"}
    keys.write_text("\n".join(key for key in KEYS for _ in range(8 if key in hot else 1)))
    options = ("--keys", str(keys))
    (member,) = scene.members
    with started(scene.site, "rebalance", scene.file, *options, "--yes", "--output", "json") as running:
        check_sigterm_while_held(running, member)
    assert rows_of(scene, "--status")[0] == 2

    member.send_signal(signal.SIGCONT)
    code, _, errors = scale(scene, *options, verb="rebalance")
    assert code == 0, errors
    assert rows_of(scene, "--status") == (0, [])
    code, _, errors = scale(scene, "--to", "2")  # as many slots for each queue as before
    assert code == 0, errors
    scene.assert_in_order(2)


def rows_of(scene: Scene, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `scale` and its JSON lines."""
    with started(scene.site, "scale", scene.file, *options, "--yes", "--output", "json") as running:
        output, errors = running.communicate(timeout=120)
    rows = [json.loads(line) for line in output.splitlines()]
    printed("scale", rows)
    if running.returncode not in {0, 2}:
        raise AssertionError(errors)
    return running.returncode, rows
