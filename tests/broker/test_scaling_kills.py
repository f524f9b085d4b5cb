"""`rabbit-chx scale` and `rebalance` are killed (SIGKILL) under load and run again.

Every key keeps its order, and nothing is left behind.
"""

from __future__ import annotations

import signal
from itertools import count, cycle, islice

import pytest

from tests.broker.scaling_scene import KEYS, RING, SLOTS, Scene, scale
from tests.proof import LONG, dice

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.since_4_0,
    pytest.mark.broker,
    pytest.mark.proves(
        "Consumers",
        "`scale` and `rebalance` killed (SIGKILL) and run again",
        "without holds the order breaks",
    ),
    pytest.mark.timeout(1800),
]

FEW_SLOTS, MORE_SLOTS = SLOTS.replace("64", "8"), SLOTS.replace("64", "12")
WAYS = pytest.mark.parametrize(
    "scene",
    [pytest.param(RING, marks=[pytest.mark.long, pytest.mark.proof, pytest.mark.one_release]), FEW_SLOTS],
    ids=["ring", "slots"],
    indirect=True,
)
STEPWISE = (
    WAYS if LONG else pytest.mark.parametrize("scene", [FEW_SLOTS], ids=["slots"], indirect=True)
)  # a ring takes 12 minutes
KILLED = -signal.SIGKILL
KILLS = 3 if LONG else 1
"""In each direction."""


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, request.param, queues=4, milliseconds=2, waiting=300) as scene:
        scene.start_members(2)
        scene.start_publishing()
        yield scene


def finish(scene: Scene, to: int) -> None:
    code, _, errors = scale(scene, "--to", str(to))
    assert code == 0, errors + scene.state()


@pytest.mark.long
@WAYS
def test_scale_killed_at_any_time_finishes_when_run_again(scene) -> None:
    random = dice("kills of scale")
    killed = dict.fromkeys((6, 4), 0)
    while min(killed.values()) < KILLS:
        for to in killed:
            for tried in count():
                kill_in = random.uniform(0.5, 3 + tried)
                code, _, errors = scale(scene, "--to", str(to), kill_in=kill_in)
                if code != KILLED:
                    break
                killed[to] += 1
            assert code == 0, errors
            scene.publish_on(100)
    scene.assert_in_order(4)


@STEPWISE
@pytest.mark.long
@pytest.mark.proof
@pytest.mark.one_release
def test_scale_killed_in_every_run_finishes_after_several_runs(scene) -> None:
    for to in (6, 4):
        for number in count(1):
            code, done, errors = scale(scene, "--to", str(to), kill_after=number)
            if len(done) < number:
                assert code == 0, errors
                break
            assert code in {0, KILLED}, errors
    scene.assert_in_order(4)


@pytest.mark.parametrize("scene", [MORE_SLOTS], ids=["slots"], indirect=True)
@pytest.mark.long
@pytest.mark.proof
@pytest.mark.one_release
def test_rebalance_killed_after_each_action_finishes_when_run_again(scene, tmp_path) -> None:
    random, keys = dice("kills of rebalance"), tmp_path / "keys.txt"
    killed = 0
    for number in islice(cycle(range(1, 7)), 40):  # keys that happen to be balanced need no action
        keys.write_text("\n".join(key for key in KEYS for _ in range(random.choice((1, 1, 8)))))
        options = ("--keys", str(keys))
        code, _, errors = scale(scene, *options, verb="rebalance", kill_after=number)
        if code == KILLED:
            killed += 1
            code, _, errors = scale(scene, *options, verb="rebalance")
        assert code == 0, errors
        slots = [
            each.source
            for each in scene.site.management.bindings(scene.site.vhost)
            if ".slot." in each.source
        ]
        assert len(slots) == len(set(slots)) == 12
        scene.publish_on(100)
        if killed == 4:
            break
    assert killed == 4
    finish(scene, 4)
    scene.assert_in_order(4)


@pytest.mark.long
@pytest.mark.proof
@pytest.mark.parametrize("scene", [RING], ids=["ring"], indirect=True)
def test_scale_killed_between_two_unbinds_finishes_with_members_that_started_since(scene) -> None:
    """The queue that was unbound first is not held, and no binding leads new members to it."""
    code, _, errors = scale(scene, "--to", "2", kill_before=12)
    assert code == KILLED, errors
    bindings = scene.site.management.bindings(scene.site.vhost)
    assert sum(each.source == "orders" for each in bindings) == 3
    for _ in range(2):
        scene.end_member(signal.SIGKILL)
    scene.start_members(2)
    finish(scene, 2)
    finish(scene, 4)
    scene.assert_in_order(4)
