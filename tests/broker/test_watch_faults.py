"""Faults of a real broker change the page of a watch, its metrics and the alerts of a real Prometheus, until they are fixed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Final

import pytest

from rabbit_chx import ConsistentHashExchange
from tests.broker.conftest import NEWEST_IN_CI, RELEASES
from tests.broker.watch_scene import LAST, QUEUES, Alerts, Problems, Scene, watching
from tests.proof import record_result

pytestmark = [pytest.mark.broker, pytest.mark.long]

PLUGIN: Final = "rabbitmq_consistent_hash_exchange"
HOT: Final = "one key"
HOT_QUEUE: Final = str(ConsistentHashExchange(dict.fromkeys(QUEUES, 1), release="4.3").route(HOT))
KEYS: Final = [f"key-{number}" for number in range(600)]
NOTHING: Final[frozenset[tuple[str, str]]] = frozenset()
OPTIONS: Final = {"3.10": ["--node", "{node}"], "4.0": [], "4.3": []}


@pytest.fixture(scope="module")
def scene(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    with Scene(request.param, folder, *OPTIONS[request.param]) as scene:
        scene.settles(NOTHING, NOTHING)
        yield scene


# ---- faults, and how they are fixed


def unbind(scene: Scene) -> None:
    scene.channel.queue_unbind(LAST, "orders", "1")


def bind(scene: Scene) -> None:
    scene.channel.queue_bind(LAST, "orders", "1")  # at the end, as before


def delete(scene: Scene) -> None:
    scene.channel.queue_delete(LAST)


def declare(scene: Scene) -> None:
    scene.apply()
    consume(scene)


def cancel(scene: Scene) -> None:
    scene.consumers.basic_cancel(scene.tags[LAST])


def consume(scene: Scene) -> None:
    scene.tags[LAST] = scene.consume(LAST)


def publish_one_key(scene: Scene) -> None:
    scene.keys = repeat(HOT)


def publish_many_keys(scene: Scene) -> None:
    scene.keys = cycle(KEYS)


def import_definitions(scene: Scene) -> None:
    """Import a binding with another weight: an import adds bindings and removes none."""
    binding = {"source": "orders", "vhost": "/", "destination": LAST, "destination_type": "queue"}
    definitions = {"bindings": [binding | {"routing_key": "3", "arguments": {}}]}
    scene.management._request("POST", ["definitions"], body=definitions)


def disable(scene: Scene) -> None:
    scene.run("rabbitmq-plugins", "disable", PLUGIN)


def enable(scene: Scene) -> None:
    scene.run("rabbitmq-plugins", "enable", PLUGIN)


def kill(scene: Scene) -> None:
    scene.disconnect()
    scene.broker.kill()


def start(scene: Scene) -> None:
    scene.broker.restart()
    scene.connect()


def restart(scene: Scene) -> None:
    scene.disconnect()
    start(scene)


@dataclass(frozen=True)
class Case:
    """A fault, how it is fixed, and what shows it."""

    cause: Callable[[Scene], None]
    fix: Callable[[Scene], None]
    problems: Problems
    alerts: Alerts
    at_once: tuple[bool, bool] = (True, True)
    """Whether the next polls must show the fault, and that it is fixed: not if they depend on the statistics of queues."""

    def run(self, scene: Scene) -> None:
        """Cause the fault and fix it, each time until the watch and Prometheus show it."""
        self.cause(scene)
        seen = scene.settles(self.problems, self.alerts)
        self.fix(scene)
        fixed = scene.settles(NOTHING, NOTHING)
        record_result(
            f"watch --interval 5, {scene.release}, {self.cause.__name__}: {seen}; {self.fix.__name__}: {fixed}"
        )
        if scene.reading < 20:  # else the watch may wait before it reads the virtual host again
            soon = [each.polls for each, known in zip((seen, fixed), self.at_once, strict=True) if known]
            assert max(soon, default=0) <= 2


DRIFTED: Final = ("RabbitChxRingDrifted", "")
STRANDED: Final = ("RabbitChxQueueStranded", LAST)
UNREACHABLE: Final = (
    frozenset({("broker-unreachable", None)}),
    frozenset({("RabbitChxBrokerUnreachable", "")}),
)
CASES: Final = {
    "unbound": Case(
        unbind,
        bind,
        frozenset({("unbound-queue", LAST), ("ring-drifted", None)}),
        frozenset({DRIFTED, STRANDED}),
    ),
    "deleted": Case(
        delete,
        declare,
        frozenset({("queue-missing", LAST), ("unbound-queue", LAST), ("ring-drifted", None)}),
        frozenset({DRIFTED, STRANDED}),
        (True, False),
    ),
    "no consumer": Case(
        cancel,
        consume,
        frozenset({("no-consumer", LAST)}),
        frozenset({("RabbitChxQueueWithoutConsumer", LAST)}),
        (False, False),
    ),
    "one key": Case(
        publish_one_key,
        publish_many_keys,
        frozenset({("hot-queue", HOT_QUEUE)}),
        frozenset({("RabbitChxHotQueue", HOT_QUEUE)}),
        (False, False),
    ),
    "import": Case(
        import_definitions,
        Scene.apply,
        frozenset({("ring-drifted", LAST), ("ring-unknown", None)}),
        frozenset({DRIFTED}),
    ),
    "plugin": Case(
        disable,
        enable,
        frozenset({("plugin-off", None)}),
        frozenset({("RabbitChxExchangeBroken", ""), DRIFTED}),
    ),
    "order unknown": Case(
        restart,
        Scene.apply,
        frozenset({("ring-unknown", None)}),
        frozenset({("RabbitChxRingUnknown", "")}),
        (False, True),
    ),
    "order changed": Case(
        restart, Scene.apply, frozenset({("ring-drifted", None)}), frozenset({DRIFTED}), (False, True)
    ),
}
WHERE: Final = {
    "4.3": ["unbound", "deleted", "no consumer", "one key", "import", "plugin"],
    "4.0": ["order unknown"],
    "3.10": ["order changed"],
}
"""On Mnesia, a restart loses the order of the buckets; with --node, the watch reads it from the node."""


@pytest.mark.parametrize(
    ("scene", "name"),
    [(release, name) for release in RELEASES for name in WHERE[release]],
    indirect=["scene"],
    scope="module",
)
def test_a_fault_is_shown_and_alerted_until_it_is_fixed(scene, name: str) -> None:
    scene.keys = iter(())
    CASES[name].run(scene)


@pytest.mark.parametrize("scene", RELEASES[-1:], indirect=True)
def test_counters_that_start_again_give_no_absurd_rates(scene) -> None:
    """A broker is down and comes back, with counters from zero."""
    scene.keys = cycle(KEYS)
    scene.until(lambda: scene.polls[-1].interval["totals"]["received"] > 50)
    before, known = scene.published, len(scene.polls)
    Case(kill, start, *UNREACHABLE, (True, False)).run(scene)
    scene.until(lambda: scene.polls[-1].interval["totals"]["received"] > 50)
    down = next(number for number, poll in enumerate(scene.polls) if number >= known and poll.problems)
    intervals = [poll.interval for poll in scene.polls[down:]]
    assert scene.broker.password not in json.dumps(intervals)
    rows = [row for interval in intervals for row in interval["rows"]]
    assert sum(row["received"] or 0 for row in rows) <= scene.published - before
    for interval in intervals:
        shares = [row["observed"] for row in interval["rows"] if row["observed"] is not None]
        assert not shares or sum(shares) == pytest.approx(1)
        assert all(row["received"] is None or row["received"] >= 0 for row in interval["rows"])
        assert interval["totals"]["rate_in"] == pytest.approx(
            interval["totals"]["received"] / interval["seconds"]
        )


@pytest.mark.parametrize("scene", RELEASES[-1:], indirect=True)
def test_a_broker_that_hangs_is_reported_by_the_next_poll(scene) -> None:
    """The longest time is that of a broker that hangs just after a poll."""
    scene.keys = iter(())
    with watching(scene.broker, "--interval", "10") as process:
        process.stdout.readline()
        hung = 0.0

        def pause(scene: Scene) -> None:
            nonlocal hung
            scene.broker.pause()
            hung = time.time()

        def unpause(scene: Scene) -> None:
            rows = map(json.loads, process.stdout)
            found = next(each for each in rows if each["problems"] or each["time"] > hung)
            names = [each["name"] for each in found["problems"]]
            record_result(f"watch --interval 10, a paused broker: {names} after {time.time() - hung:.1f} s")
            assert names == ["broker-unreachable"]
            scene.broker.unpause()

        Case(pause, unpause, *UNREACHABLE).run(scene)


@pytest.mark.parametrize("scene", NEWEST_IN_CI, indirect=True)
def test_a_quiet_watch_sends_four_requests_per_poll(scene) -> None:
    """From 4.3.5 on, none of them lists bindings or definitions: the broker answers 304 to the ETag of the definitions."""
    scene.keys = iter(())
    known = len(scene.polls)
    scene.until(lambda: len(scene.polls) > known)
    logged = len(scene.requests())
    scene.until(lambda: len(scene.polls) > known + 2)
    assert {poll.interval["requests"] for poll in scene.polls[known + 1 :]} == {4}
    listed = ("GET", "/api/bindings/%2F", "200")
    unchanged = ("GET", "/api/definitions/%2F", "304")
    usual = {("GET", f"/api/{path}", "200") for path in ("queues/%2F", "overview", "nodes")}
    scene.until(lambda: len(scene.requests()) >= logged + 8)
    tagged = tuple(map(int, scene.broker.version.split("."))) >= (4, 3, 5)
    assert set(scene.requests()[logged:]) == usual | {unchanged if tagged else listed}
