"""The number of queues changes under load while member processes consume them, and every key keeps its order.

The control shows that the holds are necessary: the same change without them breaks the order.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rabbit_chx.broker import apply
from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.changes.records import declare_commands
from rabbit_chx.consuming.member.roll_call import ask
from rabbit_chx.working.markers import Hold
from tests.broker.erlang import quick_command
from tests.broker.scaling_scene import GROUP, RING, SLOTS, Scene, scale
from tests.patience import PATIENCE
from tests.proof import LONG, never, record_result
from tests.queues import a_channel, message_count

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.since_4_0,
    pytest.mark.broker,
    pytest.mark.proves("Consumers", "queues added and removed under load", "without holds the order breaks"),
]

UNBOUND = RING.replace('queues:\n  "orders.{0..%(last)d}"', 'queues:\n  "orders.{0..11}"')
"""Declares all twelve queues, regardless of how many are bound."""

MANY = 5_000 if LONG else 2_000


@pytest.fixture
def scene(request, site, tmp_path):
    with Scene(site, tmp_path, getattr(request, "param", RING)) as scene:
        yield scene


@pytest.mark.long
@pytest.mark.parametrize(
    "scene", [RING, pytest.param(SLOTS, marks=pytest.mark.one_release)], ids=["ring", "slots"], indirect=True
)
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
    never(out_of_order=ledger.out_of_order)
    assert all(ledger.by_queue[f"orders.{number}"] for number in range(12))


@pytest.mark.parametrize(
    "scene", [pytest.param(RING, marks=pytest.mark.proof), SLOTS], ids=["ring", "slots"], indirect=True
)
@pytest.mark.long
def test_queues_and_members_come_and_go_at_once(scene) -> None:
    """Queues go from 8 to 12 to 6 while members go from 2 to 6 to 3."""
    scene.start_members(2)
    scene.start_publishing()
    scene.publish_on(MANY)
    with ThreadPoolExecutor() as pool:
        growing = pool.submit(scale, scene, "--to", "12")
        scene.start_members(4)
        code, _, errors = growing.result()
        assert code == 0, errors
        scene.publish_on(MANY)
        scene.wait(lambda: len(scene.answers()) == 6)
        shrinking = pool.submit(scale, scene, "--to", "6")
        for _ in range(3):
            scene.end_member()
            scene.publish_on(200)
        code, _, errors = shrinking.result()
        assert code == 0, errors
    scene.publish_on(MANY)
    ledger = scene.finish()
    record_result(
        f"{ledger.published:,} messages while queues went from 8 to 12 to 6 and members from 2 to 6 to 3"
    )
    never(out_of_order=ledger.out_of_order)
    scene.wait(lambda: len(scene.answers()) == 3)
    scene.assert_clean(6)


@pytest.mark.parametrize("scene", [UNBOUND], ids=["ring"], indirect=True)
@pytest.mark.long
def test_without_holds_the_order_breaks(scene) -> None:
    """The new queues are empty when they are bound, so their messages overtake the backlog of the old ones."""
    scene.milliseconds = 20  # slower than the publisher, also on a busy machine
    scene.start_members(2)
    new = [f"orders.{number}" for number in range(8, 12)]
    with scene.site.connection() as connection:
        holds = [Hold.of(queue, [], groups=[GROUP]) for queue in new]
        for hold in holds:
            PikaDriver(connection).run(declare_commands(hold))
        asked = partial(ask, connection, GROUP, timeout=2.0, holds=holds)
        scene.wait(lambda: all(len(each.queues) == 12 for each in asked()))
        for hold in holds:
            connection.channel().queue_delete(hold.name)
    scene.start_publishing()
    scene.wait(lambda: scene.published - scene.handled() >= 500)
    scene.write(12)
    apply(scene.site.url(), scene.planned(), management=scene.site.management)
    scene.publish_on(500)
    assert scene.finish().out_of_order


@pytest.mark.long
def test_a_removed_queue_without_buckets_loses_no_message_that_a_member_has(scene) -> None:
    """It was bound with a new weight before the old one was unbound, and all its messages are with the member."""
    scene.milliseconds = 200
    scene.start_members(1)
    with a_channel(scene.site) as channel:
        channel.queue_bind("orders.7", "orders", "2")
        channel.queue_unbind("orders.7", "orders", "1")
        for number in range(15):
            channel.basic_publish("", "orders.7", f"key {number}".encode())
        scene.wait(lambda: message_count(channel, "orders.7") == 0)
    options = ("--to", "7", "--node", quick_command(scene.site.broker))
    # The sixth change is the marker; the record of the change, three changes of the recorded order and the unbind come before it.
    code, done, errors = scale(scene, *options, kill_before=6)
    assert (code, done) == (-signal.SIGKILL, ["step"]), errors
    code, done, errors = scale(scene, *options)
    assert (code, done) == (0, ["drain", "delete"]), errors
    assert scene.handled() == 15


def test_of_two_changes_at_once_one_is_refused_and_says_that_it_changed_nothing(scene) -> None:
    """It says how to continue, and what to write into the file."""
    one_ended, acted = threading.Event(), list[int]()

    def until_the_other_ends(process: subprocess.Popen[str]) -> None:
        acted.append(process.pid)
        if len(acted) == 1:
            process.send_signal(signal.SIGSTOP)
            one_ended.wait(PATIENCE)
            process.send_signal(signal.SIGCONT)

    def run(to: str) -> tuple[int, list[str], str]:
        try:
            return scale(scene, "--to", to, on_action=until_the_other_ends)
        finally:
            one_ended.set()

    scene.start_members(2)
    with ThreadPoolExecutor() as pool:
        both = dict(zip((10, 12), pool.map(run, ("10", "12")), strict=True))
    refused, done = sorted(both, key=lambda to: -both[to][0])
    code, actions, errors = both[refused]
    assert (code, actions) == (1, [])
    assert "Nothing was changed." in errors
    assert "Not finished" not in errors
    assert both[done][0] == 0, both[done][2]
    assert len({*acted}) == 1
    scene.assert_clean(done)
