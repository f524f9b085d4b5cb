"""A verb that is ended by SIGTERM or Ctrl-C while it changes a broker: what was begun is reported, and what was switched on is off."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.reading.tracing import traced
from rabbit_chx.mirror.releases import Release
from tests import verbs
from tests.broker.erlang import node_command
from tests.broker.scaling_scene import KEYS, RING, SLOTS, Scene, scale
from tests.broker.test_rebalance import Shop, is_traced
from tests.json_lines import printed
from tests.patience import PATIENCE, wait_until
from tests.verbs import commands, run_verb

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.topology_site import Site

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves(
        "Topology",
        "SIGTERM or SIGKILL while a verb changes a broker: reported, continued or abandoned; the message tracer",
        "each change was under way when the signal came",
    ),
]

ON = "the message tracer of virtual host"
MANY = """
schema: 1
vhost: "%s"
exchanges:
  orders: {type: x-consistent-hash, queues: {"q.{000..299}": 1}}
queues:
  "q.{000..299}": {}
"""


STOPPING = """
import os, signal, sys
from rabbit_chx.cli import carry_out, main

member, tell = int(sys.argv.pop(1)), carry_out.tell

def stopping(*words, **fields):
    if fields.get("what") == "hold":
        os.kill(member, signal.SIGSTOP)
    tell(*words, **fields)

carry_out.tell = stopping
main()
"""
"""Runs a verb that stops a member as soon as a queue is held, so that nothing can be drained."""

BRIEF = """
from rabbit_chx.cli import main, slot_load
slot_load._PATIENCE, slot_load._SLACK = 4.0, 5.0
main()
"""
"""Runs a verb whose tracer outlives it by seconds, not by half a minute."""


def started(site: Site, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    env = {"AMQP_URL": site.url(), "RABBITMQ_MANAGEMENT_URL": site.broker.management_url}
    return verbs.started(*arguments, env=env | {"PYTHONUNBUFFERED": "1"}, text=True, **options)


@pytest.fixture
def run(site, capsys, monkeypatch):
    monkeypatch.setenv("AMQP_URL", site.url())
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)
    return partial(run_verb, capsys)


def runs(site: Site) -> list[str]:
    """The programs that trace, as the node knows them."""
    return site.broker.eval(
        "[io:format('~0p~n', [N]) || {rabbit_chx_tracer, _, _} = N <- global:registered_names()], ok."
    ).splitlines()[:-1]


@pytest.mark.long
def test_sigterm_turns_the_tracer_off(site, tmp_path) -> None:
    shop = Shop(site, tmp_path)
    options = ("--dry-run", "--sample", 600, "--node", node_command(site.broker))
    with started(site, "rebalance", shop.file, *options) as running:
        wait_until(lambda: is_traced(site), "the tracer is on")
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143, errors
    assert errors.splitlines()[-1] == "Interrupted."
    assert not is_traced(site)


@pytest.mark.long
@pytest.mark.one_release
def test_the_tracer_is_off_soon_after_rebalance_was_killed(site, tmp_path, run) -> None:
    shop = Shop(site, tmp_path)
    options = ("--dry-run", "--sample", 1, "--node", node_command(site.broker))
    with started(site, "rebalance", shop.file, *options, program=("-c", BRIEF)) as running:
        wait_until(lambda: is_traced(site), "the tracer is on")
        running.kill()
        running.communicate(timeout=PATIENCE)
    assert running.returncode == -signal.SIGKILL
    assert ON in run("check", shop.file).err
    wait_until(lambda: not is_traced(site), "the node turns the tracer off")
    assert ON not in run("check", shop.file).err


def test_every_verb_that_asks_the_management_api_reports_a_tracer_that_is_on(site, tmp_path, run) -> None:
    shop = Shop(site, tmp_path)
    (tmp_path / "keys.txt").write_text("tenant-1\n")
    assert run("export", "--format", "definitions", "-o", tmp_path / "definitions.json").code == 0
    with site.connection() as connection:
        connection.channel().queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    on_broker = ["-x", "tenants"]
    lines = [
        *([verb, shop.file] for verb in ("check", "plan")),
        *([verb, shop.file, "--yes"] for verb in ("apply", "scale")),
        ["scale", shop.file, "--status"],
        ["rebalance", shop.file, "--dry-run", "--keys", tmp_path / "keys.txt"],
        *(["list"], ["export"]),
        ["export", tmp_path / "definitions.json", "--url", site.url()],
        ["route", "k", *on_broker],
        *([verb, *on_broker] for verb in ("ring", "simulate")),
        ["report", *on_broker, "-o", tmp_path / "page.html"],
        ["group", "workers"],
    ]
    if Release._of_broker(site.broker.version)._has_stream_groups:
        port = urlsplit(site.broker.stream_url).port
        lines.append(["group", "workers", "--stream", "log", "--stream-port", port])
    asking = {
        name for name, verb in commands().items() if "management_url" in {each.name for each in verb.params}
    }
    assert {line[0] for line in lines} | {"doctor", "watch"} == asking
    site.broker.ctl("trace_on", "-p", site.vhost)
    for line in lines:
        assert run(*line).err.count(ON) == 1, line
    rows = {row["name"]: row for row in run("doctor", "--output", "json").rows}
    with started(site, "watch", "-x", "tenants") as running:
        assert running.stderr
        assert any(ON in line for line in running.stderr)
        running.send_signal(signal.SIGTERM)
    _, _, hint = rows["message tracer"]["hint"].partition("`rabbitmqctl ")
    site.broker.ctl(*shlex.split(hint.partition("`")[0]))
    assert not is_traced(site)


def test_the_node_turns_the_tracer_off_if_the_program_was_killed(site) -> None:
    killed, begun = traced(site.broker, site.vhost, at_most=3), time.monotonic()
    killed.__enter__()  # and never left, as by kill -9
    assert is_traced(site) or time.monotonic() - begun > 3
    with traced(site.broker, site.vhost, at_most=600):
        wait_until(lambda: len(runs(site)) == 1, "the time of the killed program is over")
        assert is_traced(site), "another program still measures"
    assert not is_traced(site)
    with traced(site.broker, site.vhost, at_most=1):
        wait_until(lambda: not is_traced(site), "the node turns the tracer off")


def test_a_tracer_that_somebody_else_turned_on_stays_on(site) -> None:
    site.broker.ctl("trace_on", "-p", site.vhost)
    with traced(site.broker, site.vhost, at_most=600):
        assert is_traced(site)
    assert is_traced(site)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=[pytest.mark.one_release, pytest.mark.long]),
    ],
)
def test_a_signal_during_apply_reports_the_steps_that_are_done(
    site, tmp_path: Path, run, number, code
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(MANY % site.vhost)
    # The small pipe keeps the command from ending before the signal.
    with started(site, "apply", file, "--yes", pipesize=4096) as running:
        assert running.stdout
        assert running.stderr
        next(line for line in running.stdout if line.startswith("[1/"))
        running.send_signal(number)
        # Not `communicate`, which would miss the lines that were read ahead.
        output, errors = running.stdout.read(), running.stderr.read()
    assert running.returncode == code, errors
    *_, report, end = filter(None, errors.splitlines())
    assert end == "Interrupted."
    # The signal may keep the line of the last step from being written.
    done = 1 + output.count("[")
    text = "Steps done: at least {} of 601. Run the same command again to apply the rest."
    assert report in {text.format(done), text.format(done + 1)}
    assert site.queue_names(LOCK) == []
    assert run("apply", file, "--yes").code == 0
    assert len(site.management.bindings_from(site.vhost, "orders")) == 300


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, getattr(request, "param", RING), queues=2, milliseconds=1) as scene:
        scene.start_members(1)
        scene.start_publishing()
        yield scene


def check_sigterm_while_held(running) -> None:
    """End the command when a queue is held."""
    next(line for line in running.stdout if json.loads(line).get("what") == "hold")
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143, errors
    *_, report, end = filter(None, errors.splitlines())
    assert end == "Interrupted."
    assert report.startswith("Not finished: run the same command again to continue")


@pytest.mark.long
@pytest.mark.since_4_0
def test_sigterm_during_scale_reports_what_is_unfinished_which_status_shows_and_abort_ends(scene) -> None:
    (member,) = scene.members
    options = ("--to", 3, "--yes", "--output", "json")
    program = ("-c", STOPPING, member.pid)
    with started(scene.site, "scale", scene.file, *options, program=program) as running:
        check_sigterm_while_held(running)

    code, rows = rows_of(scene, "--status")
    assert code == 2
    (change,) = (row for row in rows if row["type"] == "unfinished")
    assert (change["aborting"], change["running"]) == (False, None)
    assert change["by"].endswith(f"process {running.pid}")  # the time is beside it
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
@pytest.mark.proof
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
    verb, program = ("rebalance", scene.file, *options), ("-c", STOPPING, member.pid)
    with started(scene.site, *verb, "--yes", "--output", "json", program=program) as running:
        check_sigterm_while_held(running)
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
        output, errors = running.communicate(timeout=PATIENCE)
    rows = [json.loads(line) for line in output.splitlines()]
    printed("scale", rows)
    if running.returncode not in {0, 2}:
        raise AssertionError(errors)
    return running.returncode, rows
