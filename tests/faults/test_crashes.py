"""A message that kills its worker is given up in the end; messages beside it, and messages of members that stop, are not."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from rabbit_chx.consuming import Group, Message
from rabbit_chx.publishing import Publisher
from tests.faults.groups import REPOSITORY
from tests.members import running
from tests.patience import PATIENCE
from tests.queues import a_channel

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

ALSO = {
    name: ["4.0"]
    for name in (
        "test_a_message_that_kills_its_worker_is_parked_and_no_other_is",
        "test_stops_do_not_count_as_crashes",
    )
}
CRASHES = 2
KEYS = [f"key-{number}" for number in range(20)]


@pytest.fixture
def scene(broker, topology):
    """A topology with two queues, and the settings of a group whose parking queue exists."""
    used = topology(queues=2, x_queue_type="quorum", x_delivery_limit=-1, x_single_active_consumer=True)
    parked = f"{used.exchange}.parked"
    with broker.connection() as connection:
        connection.channel().queue_declare(parked, durable=True)
    settings = {
        "url": broker.url,
        "exchange": used.exchange,
        "name": used.exchange,
        "queues": used.queues,
        "on_failure": "park",
        "parking_queue": parked,
        "crashes": CRASHES,
    }
    yield settings
    with broker.connection() as connection:
        connection.channel().queue_delete(parked)


def publish(settings, bodies, keys):
    with Publisher(settings["url"], settings["exchange"]) as publisher:
        publisher.publish_many(bodies, keys)


def parked_of(broker, settings):
    """The bodies and the errors of parked messages, which stay."""
    with a_channel(broker) as channel:
        found = []
        while (got := channel.basic_get(settings["parking_queue"]))[0] is not None:
            found.append((got[2], got[1].headers["x-rabbit-chx-parked-error"]))
        return found


@contextmanager
def worker(kind, settings):
    program = [sys.executable, "-m", "tests.faults.crashing_worker", kind, json.dumps(settings)]
    with subprocess.Popen(program, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "order", "deadly"),
    [("Group", "queue", (30, 61)), ("AsyncGroup", "key", (30, 61)), ("Group", "queue", (0, 7))],
)
def test_a_message_that_kills_its_worker_is_parked_and_no_other_is(broker, scene, kind, order, deadly):
    """Two messages kill, with others of their keys behind them; each restart follows at once, as under a supervisor.

    The last two are the first of their queues: the second one kills right after the first one is parked.
    """
    settings = {**scene, "order": order, **({"concurrency": 3} if order == "key" else {})}
    bodies = [b"%d" % number for number in range(100)]
    for number in deadly:
        bodies[number] = b"kill"
    publish(settings, bodies, [KEYS[number % 20] for number in range(100)])
    wanted = {f"{number}\n" for number in range(100)} - {f"{number}\n" for number in deadly}
    seen, deaths = [], 0
    while not wanted <= set(seen):
        with worker(kind, settings) as process:
            for line in process.stdout:
                seen.append(line)
                if wanted <= set(seen):
                    process.kill()
            died = process.wait(PATIENCE) == 9
            deaths += died
        assert died or wanted <= set(seen)
        assert deaths <= 6 * CRASHES, "the message comes back for ever"
    assert deaths >= 2 * CRASHES
    parked = parked_of(broker, settings)
    assert [body for body, _ in parked] == [b"kill", b"kill"]
    assert {error for _, error in parked} == {
        f"RuntimeError: {CRASHES} processes have ended while they handled the message"
    }
    for key in range(20):
        own = [int(line) for line in seen if int(line) % 20 == key]
        assert [*dict.fromkeys(own)] == sorted({*own}), "out of order"


def test_stops_do_not_count_as_crashes(broker, scene):
    """Members stop many times while messages wait; their handlers see each message once, and nothing is parked."""
    publish(scene, [b"%d" % number for number in range(200)], ["key-1"] * 200)
    seen: list[tuple[bytes, int | None]] = []
    stops = 30
    for _ in range(stops):
        before = len(seen)
        group = Group(**scene)

        def handle(message: Message, group=group) -> None:
            seen.append((message.body, message.deliveries))
            group.stop()

        with running(group, handle) as member:
            member.join(PATIENCE)
        assert len(seen) == before + 1
    assert [int(body) for body, _ in seen] == [*range(stops)]
    counts = [count for _, count in seen]
    assert counts == [*range(stops)], "each stop adds one to the broker's count of waiting messages"
    assert parked_of(broker, scene) == []
