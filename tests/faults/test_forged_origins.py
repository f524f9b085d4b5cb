"""`rabbit-chx replay` publishes nothing for a publisher to where the publisher may not, whatever the headers say."""

from __future__ import annotations

from collections import Counter

import pytest
from pika import BasicProperties

from rabbit_chx.broker import connect
from rabbit_chx.broker.amqp import server_version
from rabbit_chx.broker.properties import Properties
from rabbit_chx.consuming.replay import Choice, Outcome, replay
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.parking import OFFSET
from tests.broker.topology_site import Site
from tests.patience import wait_until
from tests.queues import a_channel, message_count
from tests.users import a_user

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(600),
    pytest.mark.proves(
        "Consumers",
        "`replay` of dead letters with forged origins, as a user who may publish everywhere",
        "honest dead letters go back to their exchange",
    ),
]

ALSO = {"test_a_dead_letter_goes_only_to_where_its_publisher_published_it": ["4.0", "3.10"]}
PARKED = {f"x-rabbit-chx-parked-{name}": "payroll" for name in ("queue", "routing-key")} | {
    "x-rabbit-chx-parked-exchange": ""
}
ADMIN = PARKED | {"x-rabbit-chx-parked-exchange": "admin"}
DEATHS = [
    {"queue": queue, "reason": "expired", "count": 1, "exchange": exchange, "routing-keys": ["payroll"]}
    for queue in ("payroll", "orders")
    for exchange in ("", "admin")
]
FORGED = [
    PARKED,
    ADMIN,
    ADMIN | {OFFSET: 7},
    *({"x-death": [death], "x-first-death-queue": death["queue"], "x-first-death-reason": "expired"} for death in DEATHS),
    *(ADMIN | {"x-death": [death]} for death in DEATHS),
]  # fmt: skip


@pytest.fixture
def channel(broker):
    """A queue `orders` whose messages die into `dead`, and others with which its publishers have nothing to do."""
    with Site(broker) as site, a_channel(site, confirms=True) as channel:
        channel.exchange_declare("orders", "fanout")
        channel.exchange_declare("admin", "fanout")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("orders", durable=True, arguments=arguments)
        channel.queue_bind("orders", "orders")
        for queue in ("dead", "payroll", "admin"):
            channel.queue_declare(queue, durable=True)
        channel.queue_bind("admin", "admin")
        channel.site = site
        yield channel


def test_a_dead_letter_goes_only_to_where_its_publisher_published_it(channel) -> None:
    """Once, the headers decided, which survive the death of a message."""
    site = channel.site
    with (
        a_user(site.broker, "^$", "^orders$", "^$", vhost=site.vhost) as attacker,
        connect(attacker.url) as own,
    ):
        attacking = own.channel()
        attacking.confirm_delivery()
        for headers in FORGED:
            attacking.basic_publish("orders", "k", b"forged", Properties(headers=headers, expiration="1"))
        attacking.basic_publish("orders", "k", b"honest", BasicProperties(expiration="1"))
    wait_until(lambda: message_count(channel, "dead") == len(FORGED) + 1, "the messages have died")
    with site.connection() as operator:
        release = Release._of_broker(server_version(operator))
        outcomes = Counter(each.outcome for each in replay(operator, "dead", Choice(), warn=print))
        if release._keeps_own_deaths:
            # Of a message from a stream, which one claims to be, exchange and key are claims.
            assert outcomes == {Outcome.REPLAYED: len(FORGED), Outcome.REFUSED: 1}
        else:  # the broker adds to what a publisher has written
            assert outcomes == {Outcome.REFUSED: len(FORGED) + 1}
            bodies = {
                each.message.body
                for each in replay(operator, "dead", Choice(to=["orders"]), warn=print)
                if each.outcome is Outcome.REPLAYED
            }
            assert b"honest" in bodies
    assert [message_count(channel, queue) for queue in ("payroll", "admin")] == [0, 0]
