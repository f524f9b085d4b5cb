"""Canaries of a watch on real brokers: what members of groups, the ring, the connection and the permissions do to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from threading import Event

import pytest

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.consuming import AsyncGroup, Group
from rabbit_chx.topology import apply, loads, plan, read
from rabbit_chx.watch import CanarySender, Observer, watch
from tests.broker.privileges import release_of
from tests.broker.test_canary_reports import running
from tests.faults.load import wait_until
from tests.json_lines import documented, printed
from tests.patience import PATIENCE
from tests.queues import close_connections
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.long]

QUEUES = [f"orders.{number}" for number in range(4)]
PLACES = {"routing key": {}, "header": {"hash-header": "tenant"}, "property": {"hash-property": "message_id"}}


class Scene:
    """An exchange with ordered queues, applied from a file, and a watch with short intervals that sends canaries."""

    def __init__(self, site, arguments=()):
        self.site = site
        exchange = {
            "type": "x-consistent-hash",
            "queues": dict.fromkeys(QUEUES, 1),
            "arguments": dict(arguments),
        }
        document = {
            "schema": 1,
            "vhost": site.vhost,
            "exchanges": {"orders": exchange},
            "queues": {name: {"preset": "ordered"} for name in QUEUES},
        }
        self.wanted = loads(json.dumps(document), format="json")
        apply(site.url(), plan(self.wanted, read(site.management, site.vhost)), management=site.management)
        self.old = release_of(site.broker) < (4, 0)
        self.handled = []
        self.stop = Event()

    def intervals(self, sender, wanted=None):
        observer = Observer(self.site.management, self.site.vhost, "orders")
        return watch(observer, wanted, seconds=0.5, stop=self.stop, sender=sender)

    def sender(self, *user):
        return CanarySender(self.site.url(*user), "orders", timeout=5.0)

    def options(self, **more):
        return {"exchange": "orders", "name": "billing", "queues": QUEUES, "failover_only": self.old, **more}

    def on_pika(self, **options):
        group = Group(self.site.url(), **self.options(**options))
        return running(group, lambda: group.run(self.handled.append))

    def on_asyncio(self, **options):
        group = AsyncGroup(self.site.url(), **self.options(**options))

        async def handle(message):
            self.handled.append(message)

        return running(group, lambda: asyncio.run(group.run(handle)))


def until(shown, met):
    """The first interval that meets a condition."""
    for number, interval in enumerate(shown):
        if met(interval):
            return interval
        assert number < PATIENCE, (interval.canaries, interval.problems)
    raise AssertionError


def problems(interval):
    return {(each.name, each.queue) for each in interval.problems if each.name.startswith("canary")}


def all_as_expected(interval):
    """Whether all are; on a slow machine, some may be late at first."""
    found = interval.canaries
    assert not found.not_judged
    return found.as_expected == found.sent == len(QUEUES) and not problems(interval)


@pytest.mark.parametrize("place", PLACES)
def test_members_report_the_canaries_of_all_queues_and_handle_none(site, place):
    scene = Scene(site, PLACES[place])
    members = [scene.on_pika] if scene.old else [scene.on_pika, scene.on_asyncio]
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(member())
        for wanted in (scene.wanted, None):
            with scene.sender() as sender:
                shown = scene.intervals(sender, wanted)
                for _ in range(3):
                    interval = until(shown, all_as_expected)
                    assert 0 < interval.canaries.longest_seconds < PATIENCE
    assert scene.handled == []


def test_a_ring_in_another_order_than_the_file_misroutes_canaries(site):
    scene = Scene(site)
    with site.connection() as connection, scene.on_pika(), scene.sender() as sender:
        shown = scene.intervals(sender, scene.wanted)
        until(shown, all_as_expected)
        channel = connection.channel()
        channel.queue_unbind(QUEUES[0], "orders", "1")
        channel.queue_bind(QUEUES[0], "orders", "1")
        release = read(site.management, site.vhost).release
        file, live = (
            ConsistentHashExchange(dict.fromkeys(names, 1), release=release)
            for names in (QUEUES, [*QUEUES[1:], QUEUES[0]])
        )
        interval = until(shown, lambda each: each.canaries.misrouted)
        found = {each for each in problems(interval) if each[0] == "canary-misrouted"}
        keys = [f"canary-{number}" for number in range(1000)]
        wrong = {file.route(key) for key in keys if file.route(key) != live.route(key)}
        assert found <= {("canary-misrouted", queue) for queue in wrong}
        message = next(each.message for each in interval.problems if each.name == "canary-misrouted")
        assert any(repr(queue) in message for queue in QUEUES)
        channel.queue_unbind(QUEUES[1], "orders", "1")
        channel.queue_unbind(QUEUES[2], "orders", "1")
        channel.queue_unbind(QUEUES[3], "orders", "1")
        for name in QUEUES[1:]:
            channel.queue_bind(name, "orders", "1")
        until(shown, all_as_expected)


def test_canaries_without_a_consumer_are_unanswered_and_expire(site):
    scene = Scene(site)
    with scene.sender() as sender:
        shown = scene.intervals(sender, scene.wanted)
        with scene.on_pika():
            until(shown, all_as_expected)
        until(shown, lambda each: problems(each) == {("canary-unanswered", queue) for queue in QUEUES})
        shown.close()

    def left():
        listed = site.broker.ctl("list_queues", "-p", site.vhost, "--no-table-headers", "messages")
        return set(listed.split())

    with scene.sender() as sender:
        assert until(iter(left, None), lambda found: found == {"0"})
        with scene.on_asyncio():
            until(scene.intervals(sender), all_as_expected)
    assert scene.handled == []


@pytest.mark.one_release
def test_canaries_are_not_judged_while_the_order_is_unknown_but_must_be_answered(site):
    scene = Scene(site)
    with site.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare("plain", "x-consistent-hash", durable=True)
        for name in QUEUES[:2]:  # by hand, so that no record tells the order
            channel.queue_bind(name, "plain", "1")
    observer = Observer(site.management, site.vhost, "plain")
    with CanarySender(site.url(), "plain", timeout=5.0) as sender:
        shown = watch(observer, seconds=0.5, stop=scene.stop, sender=sender)
        with scene.on_pika():
            interval = until(shown, lambda each: each.canaries.not_judged == each.canaries.sent == 6)
            assert not interval.canaries.as_expected
        until(shown, lambda each: problems(each) == {("canary-unanswered", None)})


@pytest.mark.one_release
def test_canaries_are_unroutable_without_a_queue_that_gets_them(site):
    scene = Scene(site)
    with site.connection() as connection, scene.sender() as sender:
        for name in QUEUES:
            connection.channel().queue_unbind(name, "orders", "1")
        shown = scene.intervals(sender, scene.wanted)
        until(shown, lambda each: problems(each) == {("canary-unroutable", queue) for queue in QUEUES})


@pytest.mark.one_release
@pytest.mark.parametrize("with_file", [True, False])
def test_keys_whose_queue_was_deleted_are_a_problem_also_of_a_watch_that_begins_later(site, with_file):
    tenants = {"type": "x-modulus-hash", "slots": 8, "queues": dict.fromkeys(QUEUES, 1)}
    queues = {name: {"preset": "ordered"} for name in QUEUES}
    document = {"schema": 1, "vhost": site.vhost, "exchanges": {"tenants": tenants}, "queues": queues}
    wanted = loads(json.dumps(document), format="json")
    apply(site.url(), plan(wanted, read(site.management, site.vhost)), management=site.management)

    def watched(sender):
        observer = Observer(site.management, site.vhost, "tenants")
        return watch(observer, wanted if with_file else None, seconds=0.5, stop=Event(), sender=sender)

    with site.connection() as connection, CanarySender(site.url(), "tenants", timeout=5.0) as sender:
        shown = watched(sender)
        until(shown, lambda each: each.canaries.sent == len(QUEUES))
        connection.channel().queue_delete(QUEUES[3])
        until(shown, lambda each: any(name == "canary-unroutable" for name, _ in problems(each)))
    missing = next(watched(None)).problems
    assert {each.name for each in missing} & {"queue-missing", "unbound-queue"}
    assert any("lost" in each.message for each in missing)


@pytest.mark.one_release
def test_a_lost_connection_is_a_problem_until_the_next_canaries(site):
    scene = Scene(site)
    with scene.on_pika(), scene.sender() as sender:
        shown = scene.intervals(sender)
        until(shown, all_as_expected)
        close_connections(site.broker, "rabbit-chx watch canaries")
        # Canaries that are given to the sender before it knows of this would be sent on a new connection.
        wait_until(lambda: sender.news().failure, "the sender has lost its connection")
        until(shown, lambda each: problems(each) == {("canary-not-sent", None)})
        until(shown, all_as_expected)


def test_a_user_who_may_not_publish_sees_which_permission_is_missing(site):
    scene = Scene(site)
    with (
        a_user(site.broker, "^$", "^$", "^$", vhost=site.vhost) as user,
        scene.on_pika(),
        scene.sender(user.name, user.password) as sender,
    ):
        shown = scene.intervals(sender)
        interval = until(shown, lambda each: problems(each) == {("canary-not-sent", None)})
        (message,) = (each.message for each in interval.problems if each.name == "canary-not-sent")
        assert "'^orders$'" in message
        assert user.password not in message
        user.grant("^$", "^orders$", "^$")
        until(shown, all_as_expected)


@pytest.mark.one_release
def test_the_command_prints_the_results_and_ends_without_an_error(site):
    scene = Scene(site)
    command = [sys.executable, "-m", "rabbit_chx", "watch", "-x", "orders", "--interval", "5", "--canary"]
    address = {"AMQP_URL": site.url(), "RABBITMQ_MANAGEMENT_URL": site.broker.management_url}
    with (
        scene.on_pika(),
        subprocess.Popen(
            [*command, "--output", "json"],
            env=os.environ | address,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        rows = [json.loads(process.stdout.readline())]
        # On a slow machine, the first canaries may be sent in two intervals.
        while len(rows) < 20 and rows[-1]["canaries"]["sent"] != len(QUEUES):
            rows.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        rows += map(json.loads, process.stdout)
        error = process.stderr.read()
    assert (process.returncode, error) == (0, b"")
    assert printed("watch", rows) == documented("watch")
    assert rows[0]["canaries"]["sent"] == 0
    assert len(QUEUES) in {row["canaries"]["sent"] for row in rows}
