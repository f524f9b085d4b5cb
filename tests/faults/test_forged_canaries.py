"""What a watch with canaries shows, while others forge canaries, reports, questions and answers."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
from pika import BasicProperties

from rabbit_chx.broker import connect
from rabbit_chx.canaries import CANARY
from rabbit_chx.consuming import AsyncGroup, Group, QueueReader
from rabbit_chx.consuming.member.roll_call import members_over, question
from rabbit_chx.replies import REPLY_TO
from rabbit_chx.text import UNPRINTABLE
from rabbit_chx.topology import apply, loads, plan, read
from rabbit_chx.watch import CanarySender, Observer, watch
from tests.broker.privileges import release_of
from tests.broker.topology_site import Site
from tests.faults.load import wait_until
from tests.patience import PATIENCE
from tests.proof import Check, record_result
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(300)]

SMOKE = {
    "test_no_publisher_can_make_a_watch_show_what_is_not_so",
    "test_a_consumer_that_lies_is_counted_once_and_shown_escaped",
}
CONSUMED, ALONE = "canaries.0", "canaries.1"
REPORTED = "x-rabbit-chx-canary-queue"
ESCAPES = "\x1b]0;PWNED\x07\x9b2J\u202e"
ROUNDS = 6
ADDRESSES = (
    f"{REPLY_TO}.g1h2.x==",
    f"{REPLY_TO}.g1h2AA5yZXBseUAzMzIxMjEzNgAAA+YAAAAAawUESQ==.o/4DKGB8PU1y8cr6BoGHWA==",
)
"""One that a broker before 4.3 cannot read, and one of a process that has ended."""


class Scene:
    """An exchange with two queues, the second without a consumer, and a watch that sends canaries."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.old = release_of(site.broker) < (4, 0)
        self.stop = threading.Event()
        document = {
            "schema": 1,
            "vhost": site.vhost,
            "exchanges": {"orders": {"type": "x-consistent-hash", "queues": {CONSUMED: 1, ALONE: 1}}},
            "queues": {name: {"preset": "ordered"} for name in (CONSUMED, ALONE)},
        }
        self.wanted = loads(json.dumps(document), format="json")
        apply(site.url(), plan(self.wanted, read(site.management, site.vhost)), management=site.management)

    def intervals(self, sender: CanarySender):
        observer = Observer(self.site.management, self.site.vhost, "orders")
        return watch(observer, self.wanted, seconds=0.5, stop=self.stop, sender=sender)

    @contextmanager
    def consuming(self, kind: type):
        """A consumer of the first queue."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                if kind is QueueReader:
                    self._read()
                elif kind is AsyncGroup:
                    asyncio.run(group.run(handle_async))
                else:
                    group.run(lambda _: None)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        async def handle_async(_) -> None:
            pass

        if kind is not QueueReader:
            options = {"exchange": "orders", "name": "canaries", "queues": [CONSUMED]}
            group = kind(self.site.url(), **options, failover_only=self.old)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            if kind is not QueueReader:
                group.stop()
            thread.join(PATIENCE)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    def _read(self) -> None:
        with QueueReader(self.site.url(), CONSUMED) as reader:
            while not self.stop.is_set():
                reader.acknowledge(reader.take(100, timeout=0.1))


@pytest.fixture
def scene(broker):
    with Site(broker) as site:
        yield Scene(site)


def forge(attacker, known: list[str]) -> None:
    """Publish to both queues what the attacker hopes that a watch or a member takes for its own.

    It even knows the names of the canaries, but not the address of the watch, which only consumers see.
    """
    addresses = (*ADDRESSES, "victim", CONSUMED, None)
    names = ["c", "", "0" * 5_000, 7, ["c"], *known]
    for key in map(str, range(4)):
        for name in names:
            for address in addresses:
                for queue in (ALONE, ESCAPES, 7):
                    headers = {CANARY: name, REPORTED: queue}
                    attacker.basic_publish(
                        "orders", key, b"", BasicProperties(headers=headers, reply_to=address)
                    )
        for address in addresses:
            for number in ("0", "0." + "0" * 16, ESCAPES):
                asked = BasicProperties(reply_to=address, correlation_id=number)
                attacker.basic_publish("orders", key, question(), asked)
                answer = {"host": ESCAPES, "pid": 666, "queues": {ALONE: {}}}
                attacker.basic_publish("orders", key, json.dumps(answer).encode(), asked)


@pytest.mark.parametrize("kind", [Group, AsyncGroup, QueueReader])
def test_no_publisher_can_make_a_watch_show_what_is_not_so(scene, kind, monkeypatch) -> None:
    known: list[str] = []
    publish = CanarySender._publish
    monkeypatch.setattr(
        CanarySender,
        "_publish",
        lambda self, channel, canary, expiration: (
            known.append(canary.id),
            publish(self, channel, canary, expiration),
        ),
    )
    site = scene.site
    write_only = a_user(site.broker, "^$", "^orders$", "^$", vhost=site.vhost)
    sending = CanarySender(site.url(), "orders", timeout=5.0)
    with write_only as user, connect(user.url) as connection, scene.consuming(kind), sending as sender:
        attacker = connection.channel()
        shown = scene.intervals(sender)
        reported = 0

        def is_judged(interval) -> bool:
            """Whether canaries of both queues are judged: that of a queue without a consumer one interval later."""
            nonlocal reported
            reported += interval.canaries.as_expected
            names = {(each.name, each.queue) for each in interval.problems if each.name.startswith("canary")}
            return reported > 0 and ("canary-unanswered", ALONE) in names

        wait_until(lambda: is_judged(next(shown)), "the first report", pause=0)
        for _ in range(ROUNDS):
            forge(attacker, known[-4:])
            interval = next(shown)
            found = interval.canaries
            assert (found.misrouted, found.unroutable, found.not_judged) == (0, 0, 0)
            assert is_judged(interval)
        wait_until(
            lambda: (found := next(shown).canaries).as_expected == found.unanswered == 1, "reports", pause=0
        )
        if kind is not QueueReader:
            with site.connection() as asking:
                (member,) = members_over(asking, "canaries", timeout=30)
            assert (member.answered, {*member.queues}, member.pid != 666) == (True, {CONSUMED}, True)
    record_result(
        Check(
            "Consumers",
            f"`watch --canary` beside a `{kind.__name__}`: canaries, reports, questions and answers of a publisher",
            site.broker.release or "4.3",
            ROUNDS,
            0,
            0.0,
            "a queue without a consumer is shown as such in each interval",
        )
    )


def test_a_consumer_that_lies_is_counted_once_and_shown_escaped(scene) -> None:
    """Who reads the queues can say anything about canaries; what it says is bounded and escaped."""
    site = scene.site

    def lie(channel, method, properties, _) -> None:
        if not properties.headers or CANARY not in properties.headers:
            return
        name = properties.headers[CANARY]
        token, _, number = name.partition(" ")
        for claimed in (7, "q" * 300, ESCAPES, CONSUMED):
            for canary in (name, f"{token} {int(number) + 1}", name + "x", ["c"], 7):
                for _ in range(50):
                    answer = BasicProperties(headers={CANARY: canary, REPORTED: claimed})
                    channel.basic_publish("", properties.reply_to, b"", answer)

    with site.connection() as connection:
        channel = connection.channel()
        channel.basic_consume(CONSUMED, lie, auto_ack=True)
        liar = threading.Thread(target=channel.start_consuming, daemon=True)
        liar.start()
        with CanarySender(site.url(), "orders", timeout=5.0) as sender:
            shown, sent, judged = scene.intervals(sender), 0, 0

            def shows_a_lie() -> bool:
                """Check the next interval; lies that come late are not shown in it."""
                nonlocal sent, judged
                interval = next(shown)
                found = interval.canaries
                sent, judged = sent + found.sent, judged + sum(found.outcomes.values())
                assert judged <= sent
                for text in (found.text, *(each.message for each in interval.problems)):
                    assert not UNPRINTABLE.search(text), ascii(text)
                    assert len(text) < 500
                return any("PWNED" in each.message for each in interval.problems)

            lies = [shows_a_lie() for _ in range(ROUNDS)]
            wait_until(lambda: any(lies) or shows_a_lie(), "a lie is shown", pause=0)
        connection.add_callback_threadsafe(channel.stop_consuming)
        liar.join(PATIENCE)
