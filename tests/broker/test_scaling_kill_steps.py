"""`rabbit-chx scale` is killed (SIGKILL) before each of its changes of the broker, and run again or abandoned.

One run more ends the change: no message is lost, every key keeps its order, and nothing stays held. No run finds a file
of an earlier one: each has a home and a working directory of its own.
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
    pytest.mark.proof,
    pytest.mark.one_release,
    pytest.mark.proves(
        "Consumers",
        "`scale` killed (SIGKILL) before its commands, then repeated or abandoned",
        "without holds the order breaks",
    ),
    pytest.mark.timeout(3600),
]

KILLED = -signal.SIGKILL
ON_RING, ON_SLOTS = pytest.param(RING, id="ring"), pytest.param(SLOTS.replace("64", "6"), id="slots")
BOTH = [ON_RING, ON_SLOTS]
REPEATED = pytest.mark.parametrize("scene", BOTH if LONG else [ON_RING], indirect=True)
ABORTED = pytest.mark.parametrize("scene", BOTH if LONG else [ON_SLOTS], indirect=True)
MIDDLE = 8
"""The change before which `scale` is killed when `--abort` follows: bindings have changed, and queues are held."""


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, request.param, queues=2, milliseconds=2, waiting=300) as scene:
        scene.start_members(2)
        scene.start_publishing()
        yield scene


def numbers(scene: Scene) -> Iterator[int]:
    """The changes before which the command is killed: in the long proof all of a ring on Khepri, and every third of others."""
    every = (1 if scene.text == RING and scene.site.broker.store == "khepri" else 3) if LONG else 6
    return count(1 + dice("kills before a command").randrange(every), every)


class Kills:
    """Runs of `scale` that are killed. Every second time other members take over, and every fifth time the broker restarts."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.count = 0

    def kill(self, number: int, queues: int, *options: str) -> bool:
        """Run `scale` until it is killed; return False if it finished before, with this number of queues."""
        code, _, errors = scale(self.scene, *options, kill_before=number)
        if code != KILLED:
            assert code == 0, errors
            self.scene.assert_finished(queues)
            return False
        self.count += 1
        if self.count % 2 == 0:
            for _ in range(2):
                self.scene.end_member(signal.SIGKILL)
            self.scene.start_members(2)
        if self.count % 5 == 4 and self.scene.site.broker.store == "khepri":  # Mnesia would reorder rings
            self.scene.site.broker.restart()
            self.scene.wait(lambda: [each.answered for each in self.scene.answers()] == [True] * 2)
        return True

    def record(self, what: str) -> None:
        division = "slots" if "slots:" in self.scene.text else "a ring"
        version = self.scene.site.broker.version
        record_result(f"RabbitMQ {version}, {division}: {what.format(f'{self.count} of its commands')}")


def finish(scene: Scene, queues: int, *options: str) -> None:
    code, _, errors = scale(scene, *options)
    assert code == 0, errors + scene.state()
    scene.assert_finished(queues)


@REPEATED
def test_one_repeat_finishes_wherever_scale_was_killed(scene) -> None:
    kills = Kills(scene)
    for number in numbers(scene):
        before = kills.count
        for to in (3, 2):
            if kills.kill(number, to, "--to", str(to)):
                finish(scene, to, "--to", str(to))
        scene.publish_on(200)
        if kills.count == before:
            break
    scene.assert_in_order(2)
    kills.record("`scale` killed before {}, and finished by one repeat")


@ABORTED
def test_abort_restores_the_state_before_wherever_scale_was_killed(scene) -> None:
    kills = Kills(scene)
    for to in (3, 2):
        for number in numbers(scene):
            if not kills.kill(number, to, "--to", str(to)):
                break
            finish(scene, 5 - to, "--abort")
        scene.publish_on(200)
    scene.assert_in_order(2)
    kills.record("`scale` killed before {}, and abandoned with `--abort`")


@ABORTED
def test_one_repeat_of_either_command_finishes_wherever_abort_was_killed(scene) -> None:
    kills = Kills(scene)
    for to in (3, 2):
        for number in numbers(scene):
            code, _, errors = scale(scene, "--to", str(to), kill_before=MIDDLE)
            assert code == KILLED, errors
            if not kills.kill(number, 5 - to, "--abort"):
                break
            if number % 4 < 2:
                finish(scene, 5 - to, "--abort")
            else:
                finish(scene, to, "--to", str(to))
                finish(scene, 5 - to, "--to", str(5 - to))
        finish(scene, to, "--to", str(to))
        scene.publish_on(200)
    scene.assert_in_order(2)
    assert kills.count >= 2
    kills.record("`scale --abort` killed before {}, and finished by one repeat of it or of `scale`")
