"""What stops a plan on a real broker, through pika and through aio-pika, and what the user is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import signal
import threading

import aio_pika
import pytest

from rabbit_chx.broker.aio_driver import AioDriver
from rabbit_chx.broker.applying.apply import apply, apply_async
from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.errors import ApplyStopped, BrokerUnavailable
from rabbit_chx.topology.model import CONSISTENT_HASH, Binding, Exchange, Queue
from rabbit_chx.topology.planning.steps import Bind, DeclareExchange, DeclareQueue, DeleteQueue, Plan, Unbind
from tests.broker.topology_site import CHX, CLASSIC, QUORUM, STREAM, foundation
from tests.faults.load import within
from tests.patience import PATIENCE, wait_until
from tests.proof import dice
from tests.queues import a_channel

pytestmark = [
    pytest.mark.newest_first,
    pytest.mark.broker,
    pytest.mark.proves(
        "Topology",
        "applies that stop, with the step in the error",
        "the same plans go through without the obstacle",
    ),
]


# ---- what is there already


def test_other_hash_arguments_are_noticed_that_the_broker_ignores(site, applied) -> None:
    apply(site.url(), site.plan(DeclareExchange(CHX)), management=site.management)
    other = Exchange("orders", CONSISTENT_HASH, arguments={"hash-header": "customer"})
    plan = site.plan(DeclareExchange(other), DeclareQueue(CLASSIC))
    with pytest.raises(ApplyStopped, match=r"tenant.*customer.*blue/green") as stopped:
        applied(site.url(), plan, management=site.management)
    assert (stopped.value.done, stopped.value.failed) == ((), plan.steps[0])
    assert not site.queue_names(".*")  # not the queue, and no lock either
    blind = applied(site.url(), site.plan(DeclareExchange(other)))
    assert any("hash-header" in text for text in blind.unverified)


BIND_ONCE = Bind(Binding("orders", "plain", "1", {"note": 1}))
REFUSED = [
    (DeclareExchange(Exchange("orders", "fanout")), "'type' x-consistent-hash instead of fanout.*blue/green"),
    (DeclareQueue(Queue("plain", "quorum")), "queue 'plain' exists with.*another queue"),
    (Bind(Binding("orders", "plain", "5")), "would ignore a second binding"),
    (Bind(Binding("orders", "nope", "1")), "no queue 'nope'.*plan again"),
    (Bind(Binding("orders", "other", "#")), "must be an integer"),
    (
        DeclareExchange(Exchange("recent", "x-recent-history")),
        "rabbitmq-plugins enable rabbitmq_recent_history_exchange",
    ),
]


@pytest.mark.parametrize(("step", "words"), REFUSED)
def test_a_step_that_the_broker_refuses_or_would_ignore_changes_nothing(site, applied, step, words) -> None:
    steps = map(DeclareQueue, (CLASSIC, Queue("other")))
    apply(site.url(), site.plan(DeclareExchange(CHX), *steps, BIND_ONCE))
    with pytest.raises(ApplyStopped, match=words):
        applied(site.url(), site.plan(step), management=site.management)
    assert site.management.exchange(site.vhost, "orders") == CHX
    assert site.management.bindings_from(site.vhost, "orders") == [BIND_ONCE.binding]


def test_a_refusal_within_a_pipeline_is_told_of_its_own_step(site, applied) -> None:
    apply(site.url(), site.plan(DeclareQueue(CLASSIC)))
    others = [Queue(f"q{number}") for number in range(40)]
    plan = site.plan(*map(DeclareQueue, [*others[:20], Queue("plain", "quorum"), *others[20:]]))
    with pytest.raises(ApplyStopped, match="declare another queue") as stopped:
        applied(site.url(), plan, management=site.management)
    error = stopped.value
    assert (error.done, error.failed, error.remaining) == (plan.steps[:20], plan.steps[20], plan.steps[21:])
    assert set(site.queue_names(".*")) == {"plain", *(each.name for each in others[:20])}


def test_a_refusal_after_a_change_in_place_leaves_the_ring_in_the_planned_order(site, applied) -> None:
    names = ("a", "b", "c", "x")
    one = {name: Binding("orders", name, "1") for name in names}
    apply(site.url(), site.plan(DeclareExchange(CHX), *(DeclareQueue(Queue(name)) for name in names)))
    apply(site.url(), site.plan(*(Bind(one[name]) for name in "abc")), management=site.management)
    changes = [
        Unbind(one["c"]),
        Unbind(one["b"]),
        Bind(Binding("orders", "b", "2")),
        Bind(one["c"]),
        Bind(one["x"]),
    ]
    plan = site.plan(*changes, Bind(Binding("orders", "nope", "1")))
    with pytest.raises(ApplyStopped, match="no queue 'nope'") as stopped:
        applied(site.url(), plan, management=site.management)
    assert stopped.value.done == plan.steps[:5]
    assert site.broker.ring("orders", site.vhost) == ["a", "b", "b", "c", "x"]


def test_a_queue_with_messages_is_deleted_by_force_only(site, applied) -> None:
    kinds = (CLASSIC, QUORUM, STREAM)
    apply(site.url(), site.plan(*map(DeclareQueue, kinds)))
    with a_channel(site, confirms=True) as channel:
        for queue in kinds:
            channel.basic_publish("", queue.name, b"", mandatory=True)
    for queue in kinds:
        with pytest.raises(ApplyStopped, match="force the deletion"):
            applied(site.url(), site.plan(DeleteQueue(queue.name)), management=site.management)
    assert len(site.queue_names(".*")) == len(kinds)
    with pytest.raises(ApplyStopped, match="give management="):
        applied(site.url(), site.plan(DeleteQueue("plain")))
    applied(site.url(), site.plan(*(DeleteQueue(queue.name, force=True) for queue in kinds)))
    assert not site.queue_names(".*")
    gone = site.plan(DeleteQueue("plain"))
    assert applied(site.url(), gone, management=site.management).skipped == gone.steps


# ---- what is refused


def test_a_plan_for_another_virtual_host_is_refused(site, applied) -> None:
    plan = site.plan(DeclareQueue(CLASSIC))
    with pytest.raises(ApplyStopped, match=r"nothing was changed.*the connection leads to '/'"):
        applied(site.broker.url, plan, management=site.management)


def test_a_dry_run_changes_nothing(site, applied) -> None:
    plan = foundation(site)
    assert applied(site.url(), plan, management=site.management, dry_run=True).remaining == plan.steps
    assert not site.queue_names(".*")
    with pytest.raises(ApplyStopped, match="policies are set over HTTP"):
        applied(site.url(), plan, dry_run=True)


def test_no_broker_is_a_clear_error_without_the_password(applied) -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9") as error:
        applied("amqp://u:secret@127.0.0.1:9/%2F", Plan("/", (DeclareQueue(CLASSIC),)))
    assert "secret" not in str(error.value)


def test_a_command_without_an_answer_ends_at_its_deadline(site, applied) -> None:
    if site.broker.source.kind == "external":
        pytest.skip("a broker of somebody else is not paused")
    plan = site.plan(DeclareQueue(CLASSIC), DeclareExchange(CHX), DeleteQueue("plain", force=True))
    begun = []

    def pause(_: object) -> None:
        if not begun:
            begun.append(True)
            site.broker.pause()

    try:
        with pytest.raises(
            ApplyStopped, match=r"did not answer exchange_declare of 'orders' within 5 seconds"
        ) as stopped:
            within(PATIENCE, lambda: applied(site.url(), plan, on_step=pause, timeout=5.0), "the apply")
    finally:
        site.broker.unpause()
    assert stopped.value.done == plan.steps[:1]
    wait_until(lambda: LOCK not in site.queue_names(".*"), "the lock is released")


def test_a_name_that_the_broker_changes_does_not_hang(site, applied) -> None:
    """RabbitMQ strips a line feed from a queue's name, and pika waits for an answer about the name that it sent."""
    plan = site.plan(DeclareQueue(Queue("nl\nx")))
    with pytest.raises(
        ApplyStopped, match=r"did not answer queue_declare|no queue|does not list|cannot send it"
    ):
        applied(site.url(), plan, management=site.management, timeout=1.0)
    wait_until(lambda: LOCK not in site.queue_names(".*"), "the lock is released")


def test_a_full_virtual_host_is_not_taken_for_a_held_lock(site, applied) -> None:
    site.broker.ctl("set_vhost_limits", "-p", site.vhost, '{"max-queues": 0}')
    with pytest.raises(ApplyStopped, match=r"may not have more than 0 queues; `rabbitmqctl ") as full:
        applied(site.url(), site.plan(DeclareQueue(CLASSIC)), management=site.management)
    _, _, hint = str(full.value).partition("`rabbitmqctl ")
    site.broker.ctl(*shlex.split(hint.partition("`")[0].replace("N", "10")))
    applied(site.url(), site.plan(DeclareQueue(CLASSIC)), management=site.management)


# ---- one at a time


def test_two_applies_exclude_each_other_and_the_second_is_told_who_is_first(site) -> None:
    second = []

    def meanwhile(_: object) -> None:
        for options in ({"management": site.management}, {}):
            with pytest.raises(ApplyStopped) as stopped:
                apply(site.url(), site.plan(DeclareQueue(QUORUM)), **options)
            second.append(str(stopped.value))

    apply(site.url(), site.plan(DeclareQueue(CLASSIC)), management=site.management, on_step=meanwhile)
    assert "nothing was changed" in second[0]
    assert re.search(r" on .*, process \d+, since", second[0])
    assert "the management API shows the holder" in second[1]
    assert site.queue_names(".*") == ["plain"]


def test_two_applies_on_one_connection_exclude_each_other_too(site) -> None:
    plans = [site.plan(*(DeclareQueue(Queue(f"{name}{n}")) for n in range(100))) for name in "ab"]

    async def both() -> list[object]:
        async with await aio_pika.connect_robust(site.url()) as connection:
            channel = await connection.channel()
            found = await asyncio.gather(
                apply_async(connection, plans[0]), apply_async(channel, plans[1]), return_exceptions=True
            )
            assert not channel.is_closed  # it was only asked for its connection
            return found

    refused = [each for each in asyncio.run(both()) if isinstance(each, ApplyStopped)]
    assert len(refused) == 1
    assert "holds the lock" in str(refused[0])

    with a_channel(site) as channel:

        def meanwhile(_: object) -> None:
            with pytest.raises(ApplyStopped, match="holds the lock"):
                apply(channel, plans[1])

        few = site.plan(*plans[0].steps[:3])
        assert apply(channel, few, on_step=meanwhile).done == few.steps
        assert channel.is_open


@pytest.mark.parametrize("number", [1, 2])
async def test_a_cancellation_while_a_command_waits_for_its_answer_releases_the_lock(
    site, number, monkeypatch
) -> None:
    """The first command takes the lock."""
    plan, count, send = site.plan(DeclareQueue(CLASSIC)), itertools.count(1), AioDriver._send

    async def cancelled(self, commands):
        if next(count) == number:
            asyncio.current_task().cancel()
        return await send(self, commands)

    monkeypatch.setattr(AioDriver, "_send", cancelled)
    async with await aio_pika.connect(site.url()) as connection:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(apply_async(connection, plan))
        assert LOCK not in site.queue_names(".*")
        await apply_async(connection, plan)
    assert site.queue_names(".*") == ["plain"]


@pytest.mark.parametrize("batch", [1, 8])
def test_ctrl_c_at_any_moment_ends_it_and_the_connection_is_still_good(site, batch, monkeypatch) -> None:
    """A client that is interrupted while it reads an answer loses it, and then waits for it to release the lock."""
    monkeypatch.setattr("rabbit_chx.broker.applying.step_commands._IN_A_BATCH", batch)
    queues = [Queue(f"q{number}") for number in range(20)]
    apply(site.url(), site.plan(DeclareExchange(CHX), *map(DeclareQueue, queues)))
    bounds = [Binding("orders", queue.name, "1") for queue in queues]
    plan = site.plan(*(kind(bound) for bound in bounds for kind in (Bind, Unbind)))
    moments = dice("interrupts")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(10):
            shot = threading.Timer(moments.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGINT))
            steps = itertools.count(1)

            def on_step(_: object) -> None:
                match next(steps):  # noqa: B023
                    case 3:
                        shot.start()  # noqa: B023
                    case 40:  # an interrupt after the end would hit the test
                        wait_until(lambda: False, "the interrupt")

            with site.connection() as connection:
                with pytest.raises(KeyboardInterrupt):
                    apply(connection, plan, on_step=on_step)
                shot.join()
                channel = connection.channel()
                for bound in bounds:  # what was bound when it came
                    channel.queue_unbind(bound.destination, "orders", bound.key)
            assert LOCK not in site.queue_names(".*")
    finally:
        signal.signal(signal.SIGINT, before)
