"""`rabbit-chx scale` is killed (SIGKILL) before each of its changes of the broker, and run again or given up.

One run more ends the change: no message is lost, every key keeps its order, and nothing stays held.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count

import pytest

from tests.broker.scaling_scene import RING, SLOTS, Scene, scale
from tests.proof import LONG, dice, record_result

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.since_4_0,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.one_release,
    pytest.mark.proves(
        "Consumers",
        "`scale` killed (SIGKILL) before each of its commands, then repeated or given up",
        "without holds the order breaks",
    ),
    pytest.mark.timeout(3600),
]

KILLED = -signal.SIGKILL
WAYS = pytest.mark.parametrize(
    "scene", [RING, SLOTS.replace("64", "6")], ids=["ring", "slots"], indirect=True
)
EVERY = 1 if LONG else 5


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, request.param, queues=2, milliseconds=2) as scene:
        scene.start_members(2)
        scene.start_publishing()
        yield scene
        assert not scene.finish().out_of_order
        scene.assert_clean(2)


def numbers() -> Iterator[int]:
    """The changes before which the command is killed: all, or a sample."""
    return count(1 + dice("kills before a command").randrange(EVERY), EVERY)


def kill(scene: Scene, to: int, number: int, *, replace: bool) -> bool:
    """Run `scale` until it is killed; return False if it finished before. With ``replace``, other members take over."""
    code, _, errors = scale(scene, "--to", str(to), kill_before=number)
    if code != KILLED:
        assert code == 0, errors
        scene.assert_finished(to)
        return False
    if replace:
        for _ in range(2):
            scene.end_member(signal.SIGKILL)
        scene.start_members(2)
    return True


def finish(scene: Scene, queues: int, *options: str) -> None:
    code, _, errors = scale(scene, *options)
    assert code == 0, errors + scene.state()
    scene.assert_finished(queues)


@WAYS
def test_one_repeat_finishes_wherever_scale_was_killed(scene) -> None:
    kills = 0
    for number in numbers():
        before = kills
        for to in (3, 2):
            if kill(scene, to, number, replace=kills % 2 == 1):
                kills += 1
                finish(scene, to, "--to", str(to))
        scene.publish_on(200)
        if kills == before:
            break
    record_result(f"`scale` killed before {kills} of its commands, and finished by one repeat")


@WAYS
def test_abort_restores_the_state_before_wherever_scale_was_killed(scene) -> None:
    kills = 0
    for to in (3, 2):
        for number in numbers():
            if not kill(scene, to, number, replace=kills % 2 == 1):
                break
            kills += 1
            finish(scene, 5 - to, "--abort")
        scene.publish_on(200)
    record_result(f"`scale` killed before {kills} of its commands, and given up with --abort")
