"""Random histories of bindings on real brokers: for each, a verb's answer is right, or refused."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rabbit_chx import ConsistentHashExchange, Ring
from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding
from rabbit_chx.topology.planning.steps import Bind
from tests.broker.topology_site import Site
from tests.proof import LONG, Check, dice, never, record_result
from tests.queues import a_channel

pytestmark = [pytest.mark.broker, pytest.mark.newest_first, pytest.mark.timeout(3600 if LONG else 300)]

AT_ONCE = 40 if LONG else 8
"""Histories that share a virtual host and, if there is one, a restart."""
ROUNDS = 6 if LONG else 2
"""Every second one has a restart, with which a record on Mnesia ends."""
KEYS = [f"key-{number}" for number in range(20)]
WEIGHTS = ["1", "2", "3", "5"]
ARGUMENTS: list[dict[str, Any]] = [{}, {}, {"x": "1"}, {"x": "2"}]
VERBS = ["ring", "simulate"]
"""They refuse what `route` refuses."""
ASSUMED = "the only binding is assumed to have buckets"


@dataclass
class History:
    """An exchange with queues of its own, what was bound, and what was done."""

    name: str
    dice: random.Random
    bound: list[Binding] = field(default_factory=list)
    used: list[Binding] = field(default_factory=list)
    """Each binding that ever was. None is bound again: over HTTP, that looks as if nothing had happened (docs/watch.md)."""
    steps: list[str] = field(default_factory=list)

    @property
    def queues(self) -> list[str]:
        return [f"{self.name}.{number}" for number in range(3)]

    def new(self, queue: str, key: str = "") -> Binding | None:
        """A binding that never was."""
        for _ in range(20):
            made = Binding(self.name, queue, key or self.dice.choice(WEIGHTS), self.dice.choice(ARGUMENTS))
            if made not in self.used:
                self.used.append(made)
                self.bound.append(made)
                return made
        return None

    def step(self, channel: Any) -> None:
        """Change the bindings as another program would."""
        what = self.dice.choice(["bind", "bind", "unbind", "replace", "replace", "delete"])
        self.steps.append(what)
        if what == "bind" or not self.bound:
            self._bind(channel, self.new(self.dice.choice(self.queues)))
            return
        old = self.dice.choice([each for each in self.bound if not self._hides(each)])
        queue = str(old.destination)
        if what == "delete":
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)
            self.bound = [each for each in self.bound if each.destination != queue]
            return
        if what == "replace" and self.dice.random() < 0.5:
            self._bind(channel, self.new(queue, self.dice.choice([old.key, ""])))
            what = "unbind"
        channel.queue_unbind(queue, self.name, old.key, dict(old.arguments))
        self.bound.remove(old)
        if what == "replace":
            self._bind(channel, self.new(queue, self.dice.choice([old.key, ""])))

    def _hides(self, added: Binding) -> bool:
        """Whether unbinding a second binding leaves what was there before: the broker drops the buckets, and HTTP shows no change."""
        older = self.used[: self.used.index(added)]
        return any(each in self.bound and each.destination == added.destination for each in older)

    def _bind(self, channel: Any, made: Binding | None) -> None:
        if made is not None:
            channel.queue_bind(str(made.destination), self.name, made.key, dict(made.arguments))


def test_after_any_history_of_bindings_the_queues_of_keys_are_right_or_refused(broker, run, request):
    release, rng = request.node.callspec.params["broker"], dice("histories")
    started, outcomes, wrong = time.monotonic(), Counter[str](), []
    for number in range(ROUNDS):
        with Site(broker) as site:
            for history, outcome in outcomes_of(site, run, random.Random(rng.random()), number):
                outcomes[outcome] += 1
                if outcome == "wrong":
                    wrong.append((history.name, history.steps, history.used))
    seen = ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(outcomes.items()))
    record_result(
        Check(
            *("Routing", "histories of bind, unbind, rebind and restart", release, outcomes.total()),
            *(len(wrong), time.monotonic() - started, seen),
        )
    )
    never(wrong=wrong)
    assert outcomes["right"] > 0
    assert outcomes["refused"] > 0


def outcomes_of(site: Site, run: Any, rng: random.Random, number: int) -> Iterator[tuple[History, str]]:
    histories = [History(f"h{each}", random.Random(rng.random())) for each in range(AT_ONCE)]
    begin(site, histories)
    restarts = number % 2 == 1
    take_steps(site, histories, 3)
    if restarts:
        site.broker.restart_app()
        take_steps(site, histories, 1)
    listed = run("list", "--url", site.url(), "--output", "json")
    orders = {row["exchange"]: row["order"] for row in map(json.loads, listed.out.splitlines())}
    if "unknown" in orders.values():
        assert listed.code == 2
    seen = read(site.management, site.vhost, node=site.broker).rings
    for history in histories:
        landed = published(site, history)
        never(wrong_with_a_node=landed.items() ^ predicted(seen[history.name]).items())
        answer = run("route", "-x", history.name, "--url", site.url(), "--output", "json", *KEYS)
        other = run(history.dice.choice(VERBS), "-x", history.name, "--url", site.url())
        assert (answer.code == 0) == (orders[history.name] != "unknown"), answer
        assert (other.code == 0) == (answer.code == 0) or not history.bound, other
        yield history, judged(answer, landed)


def begin(site: Site, histories: list[History]) -> None:
    """Bind two or three queues to each exchange: half of the exchanges by a plan, which records their order."""
    with a_channel(site) as channel:
        for history in histories:
            for queue in history.queues:
                channel.queue_declare(queue, durable=True)
            channel.exchange_declare(history.name, CONSISTENT_HASH, durable=True)
            for queue in history.queues[: history.dice.randint(1, 3)]:
                history.new(queue)
        for history in histories[::3]:
            for each in history.bound:
                history._bind(channel, each)
    planned = [each for history in histories if history not in histories[::3] for each in history.bound]
    apply(site.url(), site.plan(*map(Bind, planned)), management=site.management)


def take_steps(site: Site, histories: list[History], most: int) -> None:
    with a_channel(site) as channel:
        for history in histories:
            for _ in range(history.dice.randint(0, most)):
                history.step(channel)


def published(site: Site, history: History) -> dict[str, str]:
    """The queue that each key has reached; a key that reached none is missing."""
    landed = {}
    with a_channel(site) as channel:
        for queue in history.queues:
            channel.queue_purge(queue)
        channel.confirm_delivery()
        for key in KEYS:
            channel.basic_publish(history.name, key, key.encode())
        for queue in history.queues:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                landed[got[2].decode()] = queue
    return landed


def predicted(ring: Ring) -> dict[str, Any]:
    exchange = ConsistentHashExchange(ring)
    return {key: exchange.route(key) for key in KEYS} if ring.bucket_map else {}


def judged(answer: Any, landed: dict[str, str]) -> str:
    if answer.code != 0:
        return "refused"
    told = {row["key"]: row["queue"] for row in map(json.loads, answer.out.splitlines()) if "queue" in row}
    if told == landed:
        return "right"
    return "assumed" if ASSUMED in answer.err and not landed else "wrong"
