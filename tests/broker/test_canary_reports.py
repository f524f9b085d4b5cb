"""Whatever reads a queue acknowledges canaries, reports their queue, and hands out only messages, in their order."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import contextmanager

import pytest
from pika import BasicProperties

from rabbit_chx.canaries import CANARY, reported
from rabbit_chx.consuming import AsyncGroup, Group, QueueReader
from rabbit_chx.consuming.member.roll_call import members_over
from rabbit_chx.replies import REPLY_TO
from tests.broker.privileges import release_of
from tests.faults.load import wait_until, within
from tests.patience import PATIENCE
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.long]

QUEUE = "o0"
MESSAGES = [f"m{number}" for number in range(40)]
CANARIES = [f"c{number}" for number in range(40)]
WARNING = "canaries and questions are not answered"


class Scene:
    """One ordered queue, a channel that sends messages and canaries to it, and the reports that come back."""

    def __init__(self, site):
        self.site = site
        self.old = release_of(site.broker) < (4, 0)
        self.connection = site.connection()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        unlimited = {} if self.old else {"x-delivery-limit": -1}  # on 3.x, -1 drops every returned message
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True, **unlimited}
        self.channel.queue_declare(QUEUE, durable=True, arguments=arguments)
        self.channel.exchange_declare("orders", "x-consistent-hash", durable=True)
        self.channel.queue_bind(QUEUE, "orders", "1")
        self.reports, self.handled = [], []
        self.channel.basic_consume(REPLY_TO, self._on_report, auto_ack=True)

    def _on_report(self, _, __, properties, ___):
        self.reports.append(reported(properties.headers))

    def send(self, *names):
        """Canaries have names that begin with c."""
        for name in names:
            canary = BasicProperties(headers={CANARY: name}, reply_to=REPLY_TO)
            properties = canary if name.startswith("c") else BasicProperties()
            self.channel.basic_publish("orders", name, name.encode(), properties, mandatory=True)

    def wait_for(self, *canaries):
        def arrived():
            self.connection.process_data_events(0.01)
            return {name for name, _ in self.reports} >= set(canaries)

        wait_until(arrived, f"{canaries} reported; so far {self.reports}")

    def wait_for_messages(self, count):
        wait_until(lambda: len(self.handled) >= count, f"{count} messages; so far {self.handled}")

    def in_queue(self):
        """All messages in the queue, those that are not acknowledged included."""
        listed = self.site.broker.ctl(
            "list_queues", "-p", self.site.vhost, "--no-table-headers", "name", "messages"
        )
        return dict(line.rsplit("\t", 1) for line in listed.splitlines())[QUEUE]

    def options(self, **more):
        own = {"exchange": "orders", "name": "billing", "queues": [QUEUE], "failover_only": self.old}
        return {**own, **more}


@pytest.fixture
def scene(site):
    scene = Scene(site)
    yield scene
    scene.connection.close()


@contextmanager
def running(group, run):
    thread = threading.Thread(target=within, args=(3 * PATIENCE, run, "the member"))
    thread.start()
    try:
        yield
    finally:
        group.stop()
        thread.join()


def on_pika(scene, **options):
    group = Group(scene.site.url(), **scene.options(**options))
    return running(group, lambda: group.run(lambda message: scene.handled.append(message.body.decode())))


def on_asyncio(scene, **options):
    group = AsyncGroup(scene.site.url(), **scene.options(**options))

    async def handle(message):
        scene.handled.append(message.body.decode())

    return running(group, lambda: asyncio.run(group.run(handle)))


@pytest.mark.parametrize("member", [on_pika, on_asyncio])
def test_a_member_reports_canaries_and_handles_the_messages_between_them_in_order(scene, member):
    both = [name for pair in zip(MESSAGES, CANARIES, strict=True) for name in pair]
    scene.send(*both)
    with member(scene, prefetch=3):
        scene.wait_for(*CANARIES)
        assert scene.reports == [(name, QUEUE) for name in CANARIES]
        assert scene.handled == MESSAGES

        def handled():
            return [
                queue.handled
                for each in members_over(scene.connection, "billing")
                for queue in each.queues.values()
            ]

        wait_until(lambda: handled() == [len(MESSAGES)], "canaries do not count as handled")
        wait_until(lambda: scene.in_queue() == "0", "canaries are acknowledged")


def test_a_reader_of_a_queue_reports_canaries_and_takes_only_messages(scene):
    scene.send("c0", "m0", "m1", "c1", "m2", "c2")
    taken = []
    with QueueReader(scene.site.url(), QUEUE, prefetch=2) as reader:
        while len(taken) < 3:
            batch = reader.take(10)
            taken += [message.body.decode() for message in batch.messages]
            reader.acknowledge(batch)
        scene.wait_for("c0", "c1", "c2")
        wait_until(lambda: scene.in_queue() == "0", "all are acknowledged")
        assert reader.take(10, timeout=0.0).messages == ()
    assert taken == ["m0", "m1", "m2"]
    assert scene.reports == [("c0", QUEUE), ("c1", QUEUE), ("c2", QUEUE)]


@pytest.mark.parametrize("member", [on_pika, on_asyncio])
def test_a_member_that_may_not_report_warns_once_and_goes_on_consuming(scene, member, caplog):
    caplog.set_level(logging.WARNING, "rabbit_chx.consuming")

    def warnings():
        return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]

    with a_user(scene.site.broker, ".*", ".*", ".*", vhost=scene.site.vhost) as user:
        scene.site.url = lambda: user.url
        with member(scene):
            scene.send("m0", "c0")
            scene.wait_for("c0")
            user.grant(".*", "^$", ".*")
            scene.send("c1", "m1")
            wait_until(warnings, "the missing permission is reported")
            scene.send("c2", "m2", "c3", "m3")
            scene.wait_for_messages(4)
            wait_until(lambda: scene.in_queue() == "0", "all are acknowledged")
    (warning,) = warnings()
    assert "access to exchange 'amq.default'" in warning
    assert "set_permissions" not in warning  # the command would take away what the member still has
    assert user.password not in caplog.text
    assert scene.handled == ["m0", "m1", "m2", "m3"]
    assert scene.reports == [("c0", QUEUE)]


@pytest.mark.one_release
def test_a_report_during_an_alarm_does_not_stop_acknowledgements(scene, broker):
    """The broker reads nothing more from a connection that publishes during an alarm, acknowledgements included."""
    going = threading.Event()
    group = Group(scene.site.url(), **scene.options(prefetch=3))

    def handle(message):
        assert going.wait(PATIENCE)
        scene.handled.append(message.body.decode())

    scene.send("m0", "c0", *MESSAGES[1:])
    with running(group, lambda: group.run(handle)):
        broker.ctl("set_vm_memory_high_watermark", "absolute", "1")
        try:
            wait_until(lambda: "memory" in broker.eval("rabbit_alarm:get_alarms()."), "the alarm")
            going.set()
            scene.wait_for_messages(len(MESSAGES))
            wait_until(lambda: scene.in_queue() == "0", "all are acknowledged")
            assert scene.reports == []
        finally:
            going.set()
            broker.ctl("set_vm_memory_high_watermark", "0.6")
        scene.wait_for("c0")
    assert scene.handled == MESSAGES
