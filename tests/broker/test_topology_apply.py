"""Plans applied to real brokers, through pika and through aio-pika: what stands afterwards, and how one goes on."""

from __future__ import annotations

import os
import sys

import pytest

from rabbit_chx import ToExchange
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.errors import ApplyStopped
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Policy, Queue, Topology
from rabbit_chx.topology.planning.plan import plan as make_plan
from rabbit_chx.topology.planning.steps import (
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)
from tests.broker.topology_site import CHX, CLASSIC, Site, foundation, with_aio_pika, with_pika
from tests.programs import ran
from tests.queues import a_channel, delete_exchange
from tests.unit.test_examples import EXAMPLES, TOPOLOGY

pytestmark = pytest.mark.broker


def test_every_kind_of_step_is_applied_and_can_be_read_back(site, applied) -> None:
    plan = foundation(site)
    told = []
    result = applied(site.url(), plan, management=site.management, on_step=told.append)
    assert result.done == plan.steps == tuple(told)
    assert not result.skipped
    assert not result.unverified

    management = site.management
    exchanges = {each.name: each for each in management.exchanges(site.vhost)}
    assert exchanges["orders"] == CHX
    assert exchanges["behind"].internal
    assert exchanges["front"].alternate == "behind"
    queues = {queue.name: queue for queue, *_ in management.queues(site.vhost)}
    assert {name: queue.type for name, queue in queues.items()} == {
        "plain": "classic", "replicated": "quorum", "log": "stream", "limited": "classic",
    }  # fmt: skip
    assert queues["limited"].arguments == {"x-max-length": 10, "x-overflow": "reject-publish"}
    assert (
        site.broker.ring("orders", site.vhost) == ["plain"] * 2 + [ToExchange("behind")] + ["replicated"] * 3
    )
    assert Policy("limits", "^plain$", "queues", {"max-length": 5}, 3) in management.policies(site.vhost)

    again = applied(site.url(), plan, management=site.management)
    assert again.skipped == tuple(step for step in plan.steps if isinstance(step, (Bind, SetPolicy)))

    away = site.plan(
        Unbind(Binding("orders", "plain", "2", {"note": 1})),
        Bind(Binding("orders", "plain", "1", {"note": 301})),
        Unbind(Binding("orders", "replicated", "3", {"note": 300})),
        Unbind(Binding("orders", ToExchange("behind"), "1", {"note": 2})),
        ClearPolicy("limits"),
        DeleteQueue("replicated"),
        DeleteQueue("limited"),
        DeleteQueue("log", force=True),
        DeleteExchange("behind"),
    )
    result = applied(site.url(), away, management=site.management)
    assert result.done == away.steps
    assert any("replicated" in text for text in result.unverified)  # no quorum queue knows if-empty
    assert site.broker.ring("orders", site.vhost) == ["plain"]
    assert [queue.name for queue, *_ in management.queues(site.vhost)] == ["plain"]
    assert not management.policies(site.vhost)
    assert "behind" not in {exchange.name for exchange in management.exchanges(site.vhost)}
    assert LOCK not in site.queue_names(".*")


@pytest.mark.newest_first
def test_pika_and_aio_pika_leave_equal_brokers_and_undo_each_others_work(broker) -> None:
    with Site(broker) as one, Site(broker) as two:
        numbers = [1, -1, 200, 40_000, 70_000, 2**31, 2**40]
        for site, applied in ((one, with_pika), (two, with_aio_pika)):
            steps = [DeclareExchange(Exchange("by", "headers")), DeclareQueue(CLASSIC)]
            steps += [
                Bind(Binding("by", "plain", "", {"n": n, "deep": {"m": n}, "all": [n]})) for n in numbers
            ]
            applied(site.url(), site.plan(*steps), management=site.management)
        assert one.bindings() == two.bindings()
        assert len(one.bindings().splitlines()) == len(numbers) + 1
        for site, applied in ((one, with_aio_pika), (two, with_pika)):
            steps = [Unbind(each) for each in site.management.bindings_from(site.vhost, "by")]
            result = applied(site.url(), site.plan(*steps), management=site.management)
            assert len(result.done) == len(numbers)
            assert not site.management.bindings_from(site.vhost, "by")


# ---- broken off


@pytest.mark.newest_first
def test_what_is_left_of_an_apply_is_planned_again(site, applied, monkeypatch) -> None:
    monkeypatch.setattr("rabbit_chx.broker.applying.step_commands._IN_A_BATCH", 3)
    queues = [Queue(f"q{number}") for number in range(6)]
    bindings = tuple(Binding("orders", queue.name, "2") for queue in queues)
    wanted = Topology(site.vhost, (CHX,), tuple(queues), bindings)
    first = make_plan(wanted, read(site.management, site.vhost))

    def on_step(step) -> None:
        if step == first.steps[-4]:
            site.broker.ctl("close_all_connections", "--vhost", site.vhost, "on purpose")

    with pytest.raises(ApplyStopped, match="plan again") as stopped:
        applied(site.url(), first, management=site.management, on_step=on_step)
    second = make_plan(wanted, read(site.management, site.vhost))
    assert len(second.steps) == len(stopped.value.remaining) + 1 == 3
    assert applied(site.url(), second, management=site.management).done == second.steps
    observed = read(site.management, site.vhost)
    assert not make_plan(wanted, observed).steps
    assert observed.ring_sources["orders"] == "record"  # no other program bound anything
    assert site.broker.ring("orders", site.vhost) == [queue.name for queue in queues for _ in range(2)]


@pytest.mark.long
@pytest.mark.newest_first
def test_of_two_plans_for_one_state_the_second_is_refused(site, applied) -> None:
    def ring(*queues: str) -> Topology:
        bindings = tuple(Binding("orders", queue, "1") for queue in queues)
        return Topology(
            site.vhost, (Exchange("orders", CONSISTENT_HASH),), tuple(map(Queue, queues)), bindings
        )

    applied(
        site.url(), make_plan(ring("a", "b"), read(site.management, site.vhost)), management=site.management
    )
    observed = read(site.management, site.vhost)
    first, second = (make_plan(ring("a", "b", new), observed) for new in "cd")
    applied(site.url(), first, management=site.management)
    with pytest.raises(
        ApplyStopped, match=r"nothing was changed: .* have changed since it was planned"
    ) as stopped:
        applied(site.url(), second, management=site.management)
    assert stopped.value.done == ()
    assert site.broker.ring("orders", site.vhost) == ["a", "b", "c"]
    assert "d" not in site.queue_names(".*")


@pytest.mark.parametrize("name", TOPOLOGY)
def test_the_example_declares_once(broker, name) -> None:
    url = broker.management_url.replace("://", f"://{broker.username}:{broker.password}@")
    names = [*(f"example.orders.{number}" for number in range(4)), "example.vip"]

    def run() -> str:
        return ran(
            [sys.executable, "-W", "error", EXAMPLES / name],
            check=True,
            env=os.environ | {"AMQP_URL": broker.url, "RABBITMQ_MANAGEMENT_URL": url},
        ).stdout

    try:
        assert "11 steps done" in run()
        assert broker.ring("example.orders") == [*names, "example.vip", "example.vip"]
        assert run() == "0 steps done\n"
    finally:
        with a_channel(broker) as channel:
            delete_exchange(channel, "example.orders", names)
