"""The number of queues changes under load while processes of a group consume them: every key keeps its order.

The control shows what the holds are for: the same change without them breaks the order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rabbit_chx.consuming import members
from rabbit_chx.topology import apply
from tests.broker.scaling_scene import GROUP, RING, SLOTS, Scene
from tests.json_lines import printed

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.since_4_0,
    pytest.mark.broker,
    pytest.mark.proves("Consumers", "queues added and removed under load", "without holds the order breaks"),
]

WAYS = pytest.mark.parametrize("scene", [RING, SLOTS], ids=["ring", "slots"], indirect=True)


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, getattr(request, "param", RING)) as scene:
        yield scene


def scale(scene: Scene, *options: str, kill_after: int = 0) -> tuple[int, list[str], str]:
    """Run the command; return its exit code, what it did, and its errors. Kill it after so many things, if any."""
    url, management = scene.site.url(), scene.site.broker.management_url
    program = [
        sys.executable,
        "-m",
        "rabbit_chx",
        "scale",
        str(scene.file),
        "-U",
        url,
        "--yes",
        "--output",
        "json",
    ]
    env = os.environ | {"RABBITMQ_MANAGEMENT_URL": management, "PYTHONPATH": str(Path(__file__).parents[2])}
    done: list[str] = []
    with subprocess.Popen(
        [*program, *options], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            row = json.loads(line)
            printed("scale", [row])
            done += [row["what"]] if row["type"] == "done" else []
            if kill_after and len(done) == kill_after:
                running.send_signal(signal.SIGKILL)
        errors = running.stderr.read() if running.stderr else ""
    return running.returncode, done, errors


def queues_there(scene: Scene) -> list[str]:
    return sorted(
        queue.name for queue, _ in scene.site.management.queues(scene.site.vhost) if not queue.exclusive
    )


@WAYS
def test_scaling_under_load_keeps_the_order_of_every_key(scene) -> None:
    scene.start_members(2)
    scene.start_publishing()
    code, done, errors = scale(scene, "--to", "12")
    assert code == 0, errors
    assert done.count("hold") == done.count("release") == 4
    scene.publish_on(500)
    code, done, errors = scale(scene, "--to", "6")
    assert code == 0, errors
    assert done.count("delete") == 6
    scene.publish_on(500)
    ledger = scene.finish()
    assert not ledger.out_of_order
    assert all(ledger.by_queue[f"orders.{number}"] for number in range(12))


def test_without_holds_the_order_breaks(scene) -> None:
    scene.start_members(2)
    scene.start_publishing()
    before = scene.planned()
    assert not before.steps
    scene.write(12)
    new = [f"orders.{number}" for number in range(8, 12)]
    planned = scene.planned()
    apply(scene.site.url(), planned, management=scene.site.management)
    with scene.site.connection() as connection:
        members(connection, GROUP, queues=new)
    scene.publish_on(500)
    assert scene.finish().out_of_order


def test_without_members_nothing_is_switched(scene) -> None:
    code, done, errors = scale(scene, "--to", "12")
    assert code == 1
    assert not done
    assert "no member of any group consumes 'orders.0'" in errors
    assert not scene.planned().steps
