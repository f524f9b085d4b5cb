"""Queues, permissions and releases that a member of a group rejects or warns about."""

from __future__ import annotations

import logging
import re
import shlex
from contextlib import ExitStack
from functools import partial

import pytest

from rabbit_chx.broker.permissions import Needs
from rabbit_chx.consuming import Group, InvalidValue
from tests.broker.privileges import release_of
from tests.faults.load import within
from tests.members import running
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, SINGLE_ACTIVE, bind_ring
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.one_release]

MANY = {
    "x-expires": 10_000_000,
    "x-message-ttl": 10_000_000,
    "x-dead-letter-exchange": "lost",
    "x-dead-letter-routing-key": "it's of type 'x'",
    "x-max-length": 10,
    "x-max-length-bytes": 1000,
    "x-overflow": "reject-publish",
    "x-queue-leader-locator": "balanced",
}
UNFIT = {
    "a classic queue": {"x-queue-type": "classic"},
    "a classic queue ": {"x-single-active-consumer": True, "x-max-length": 5},
    "a quorum queue without x-single-active-consumer": {"x-queue-type": "quorum", **MANY},
    "a quorum queue without x-single-active-consumer ": {
        "x-queue-type": "quorum",
        "x-single-active-consumer": False,
    },
    "a stream": {"x-queue-type": "stream"},
}


class Shop:
    """A virtual host, and members in it."""

    def __init__(self, site, channel):
        self.site, self.channel = site, channel
        self.old = release_of(site.broker) < (4, 0)

    def declare(self, **queues):
        for name, arguments in queues.items():
            self.channel.queue_declare(name, durable=True, arguments=arguments)

    def publish(self, queue):
        self.channel.basic_publish("", queue, b"body")

    def user(self, needs):
        """A user with only these permissions."""
        return a_user(self.site.broker, *shlex.split(needs.line("/", "u"))[5:], vhost=self.site.vhost)

    def group(self, queues, **options):
        given = {"url": self.site.url(), "exchange": "orders", "name": "billing", "failover_only": self.old}
        return Group(**{**given, **options}, queues=queues)

    def refused(self, queues, **options):
        """Run a member that must raise; return the text of its error."""
        group = self.group(queues, **options)
        with pytest.raises(InvalidValue) as caught:
            within(PATIENCE, lambda: group.run(lambda _: None), "the refusal")
        return str(caught.value)

    def consumed(self, queue):
        return self.channel.queue_declare(queue, passive=True).method.consumer_count

    def seated(self, seat=0, group="billing"):
        names = self.site.queue_names("^rabbit-chx")
        return f"rabbit-chx.seat.{group}.{seat}" in names


@pytest.fixture
def shop(site, channel):
    return Shop(site, channel)


@pytest.fixture
def warnings(caplog):
    """A function that returns the warnings and errors that the toolkit and pika have logged."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.newest_first
def test_a_member_accepts_only_quorum_queues_with_a_single_active_consumer(shop):
    shop.declare(fit=ORDERED)
    for number, (what, arguments) in enumerate(UNFIT.items()):
        shop.declare(**{f"q{number}": arguments})
        text = shop.refused(["fit", f"q{number}"])
        expected = (
            f"invalid queue 'q{number}': got {what.strip()}, expected a quorum queue with a single active"
        )
        assert text.startswith(expected)
    assert shop.refused(["fit", "gone"]).startswith("invalid queue: got 'gone', expected an existing queue.")


def test_a_check_neither_creates_queues_nor_fills_the_log(shop, warnings):
    plain = SINGLE_ACTIVE if shop.old else ORDERED
    shop.declare(a=plain, b={**plain, **MANY}, c=plain)
    shop.refused(["a", "b", "c", "gone"])
    assert not shop.site.queue_names("^gone$")
    assert warnings() == []


def test_a_queue_whose_name_is_too_long_to_be_checked_is_consumed_with_a_warning(shop, warnings):
    name = "q" * 200
    shop.declare(**{name: ORDERED})
    seen = []
    with running(shop.group([name]), seen.append):
        shop.publish(name)
        wait_until(lambda: seen, "a message")
    (warning,) = warnings()
    assert (
        "the broker does not show the arguments of a queue: PRECONDITION_FAILED - inequivalent arg" in warning
    )


@pytest.mark.newest_first
def test_one_warning_lists_all_queues_with_a_delivery_limit(shop, warnings):
    limited = ORDERED if shop.old else SINGLE_ACTIVE
    free = SINGLE_ACTIVE if shop.old else ORDERED
    shop.declare(a=limited, b={**SINGLE_ACTIVE, "x-delivery-limit": 5}, c=free, d={**free, **MANY})
    with running(shop.group(list("abcd"))):
        wait_until(warnings, "the warning")
        wait_until(shop.seated, "the member has a seat")
    (warning,) = warnings()
    assert warning.startswith("group 'billing': queues 'a', 'b': a delivery limit applies")


def test_a_member_warns_about_dead_lettering_without_an_exchange(shop, warnings):
    free = SINGLE_ACTIVE if shop.old else ORDERED
    shop.declare(a=free, b={**free, **MANY})
    with running(shop.group(["a", "b"], on_failure="dead-letter")):
        wait_until(warnings, "the warning")
    (warning,) = warnings()
    assert "queue 'a': no argument x-dead-letter-exchange" in warning


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("lot", "an existing queue. Declare it before the group starts, for example as a quorum queue in a topology file"),
        ("b", "a queue that the group does not consume"),
    ],
    ids=["missing", "of the group"],
)  # fmt: skip
def test_an_unfit_parking_queue_is_an_error_at_the_start(shop, queue, expected):
    shop.declare(a=ORDERED, b=ORDERED)
    text = shop.refused(["a", "b"], on_failure="park", parking_queue=queue)
    assert text.startswith(f"invalid parking_queue: got '{queue}', expected {expected}")


@pytest.mark.newest_first
def test_of_two_groups_one_gets_all_messages_of_a_queue_until_it_ends(shop, warnings):
    shop.declare(a=ORDERED)
    seen = {"billing": [], "shipping": []}
    groups = {name: shop.group(["a"], name=name) for name in seen}
    members = {}
    with ExitStack() as stack:
        for name, group in groups.items():
            members[name] = stack.enter_context(running(group, seen[name].append))
            wait_until(partial(shop.seated, group=name), "the group has a member")
            wait_until(partial(shop.consumed, "a"), "its queue is consumed")
        wait_until(lambda: "consumed by others" in "".join(warnings()), "the warning")
        (warning,) = (text for text in warnings() if "consumed by others" in text)
        assert warning.startswith("group 'shipping': queue 'a': consumed by others, such as another group")
        for _ in range(20):
            shop.publish("a")
        wait_until(lambda: sum(map(len, seen.values())) == 20, "all messages")
        (active,) = (name for name, messages in seen.items() if messages)
        (other,) = seen.keys() - {active}
        groups[active].stop()
        # RabbitMQ 3.10 drops a message that comes to the old member, because of the delivery limit of -1.
        wait_until(lambda: not members[active].is_alive(), "the end of the member")
        shop.publish("a")
        wait_until(lambda: len(seen[other]) == 1, "a message for the other group")
    assert len(seen[active]) == 20


def test_members_of_one_group_do_not_warn_about_each_other(shop, warnings):
    shop.declare(a=SINGLE_ACTIVE if shop.old else ORDERED, b=SINGLE_ACTIVE if shop.old else ORDERED)
    with ExitStack() as stack:
        with running(shop.group(["a", "b"])):
            wait_until(shop.seated, "the first member has a seat")
            stack.enter_context(running(shop.group(["a", "b"])))
            wait_until(partial(shop.seated, 1), "the second member has a seat")
        stack.enter_context(running(shop.group(["a", "b"])))
        # Usually in the seat of the first one, unless the second has moved there.
        wait_until(lambda: shop.seated(0) and shop.seated(1), "a third member has a seat")
    assert not [text for text in warnings() if "consumed by others" in text]


@pytest.mark.newest_first
def test_a_release_that_ignores_priorities_is_rejected_unless_failover_only_is_set(shop):
    shop.declare(a=SINGLE_ACTIVE if shop.old else ORDERED)
    if shop.old:
        text = shop.refused(["a"], failover_only=False)
        assert text.startswith("invalid broker release: got '3.10.")
        assert "failover_only=True accepts that" in text
    seen = []
    with running(shop.group(["a"], failover_only=True), seen.append):
        shop.publish("a")
        wait_until(lambda: seen, "a message")


# ---- permissions

NEEDS = {
    "configure": {("queue", "rabbit-chx.seat.billing.0")},
    "write": {("exchange", "amq.default"), ("queue", "rabbit-chx.hold.check")},
    "read": {("queue", "rabbit-chx.seat.billing.0"), ("queue", "a")},
}


def test_without_configure_permission_queues_are_not_checked(shop, warnings):
    shop.declare(a=ORDERED)
    seen = []
    with shop.user(Needs(**NEEDS)) as user, running(shop.group(["a"], url=user.url), seen.append):
        shop.publish("a")
        wait_until(lambda: seen, "a message")
    (warning,) = warnings()
    assert (
        "could not check whether each queue is a quorum queue with a single active consumer: user" in warning
    )
    assert re.search(rf"user '{user.name}' has no configure\b.* permission on queue 'a'", warning)


def test_a_new_queue_that_the_user_may_not_read_is_left_out(shop, warnings, monkeypatch):
    monkeypatch.setattr("rabbit_chx.consuming.member.member._LOOK_EVERY", 0.2)
    seen, needs = [], Needs(**{**NEEDS, "read": NEEDS["read"] | {("queue", "b")}})
    with ExitStack() as stack:
        bind_ring(shop.channel, "orders", ["a"], ORDERED)
        user = stack.enter_context(shop.user(needs))
        group = shop.group(None, url=user.url, management=shop.site.management)
        stack.enter_context(running(group, lambda message: seen.append(message.queue)))
        wait_until(shop.seated, "the member has a seat")
        bind_ring(shop.channel, "orders", ["c"], ORDERED)
        wait_until(lambda: any("is not consumed until" in text for text in warnings()), "the warning")
        bind_ring(shop.channel, "orders", ["b"], ORDERED)
        for queue in "abc":
            shop.publish(queue)
        wait_until(lambda: {*seen} == {"a", "b"}, "the other queues are consumed")
        assert not shop.consumed("c")
    (warning,) = (text for text in warnings() if "is not consumed until" in text)
    assert warning.startswith("group 'billing': queue 'c' is not consumed until the member is restarted")
    assert re.search(
        rf"user '{user.name}' has no read permission on queue 'c'.*rabbitmqctl set_permissions", warning
    )
