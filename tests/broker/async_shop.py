"""Queues and members for tests of groups in an event loop."""

from __future__ import annotations

from time import monotonic

from rabbit_chx.broker.driver import PikaDriver
from rabbit_chx.changes.records import declare_commands, hold_commands
from rabbit_chx.consuming import AsyncGroup
from rabbit_chx.consuming.member.roll_call import ask
from rabbit_chx.working.markers import Hold
from tests.broker.privileges import release_of
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, SINGLE_ACTIVE, bind_ring


class Shop:
    """A virtual host with an exchange and ordered queues, and members that consume them."""

    def __init__(self, site):
        self.site = site
        self.old = release_of(site.broker) < (4, 0)
        self.handled = []
        self.connection = site.connection()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def declare(self, *names):
        bind_ring(self.channel, "orders", names, SINGLE_ACTIVE if self.old else ORDERED)

    def publish(self, queue, *bodies):
        for body in bodies:
            self.channel.basic_publish("", queue, body.encode())

    def left(self, queue, count=0):
        """Empty a queue, and return the bodies of its messages in order.

        Waits for at least ``count`` messages, because the broker takes a moment to requeue those of a member.
        """
        found, deadline = [], monotonic() + PATIENCE
        for method, _, body in self.channel.consume(queue, auto_ack=True, inactivity_timeout=0.3):
            if method is not None:
                found.append(body.decode())
            elif len(found) >= count or monotonic() > deadline:
                break
        self.channel.cancel()
        return found

    @property
    def options(self):
        return {"failover_only": self.old, "management": self.site.broker.management_url}

    def group(self, **options):
        return AsyncGroup(self.site.url(), exchange="orders", name="billing", **{**self.options, **options})

    async def handle(self, message):
        self.handled.append(message.body.decode())

    def wait_for(self, *bodies):
        wait_until(lambda: set(bodies) <= set(self.handled), f"{bodies} handled; so far {self.handled[-5:]}")

    def statuses(self, *holds):
        """Ask the members, and tell them to consume the queues of these holds, too; those that are busy do not answer."""
        return ask(self.connection, "billing", timeout=2.0, holds=holds)

    def hold(self, queue, *losing):
        hold = Hold.of(queue, losing, groups=["billing"])
        for commands in (declare_commands(hold), hold_commands(hold)):
            PikaDriver(self.connection).run(commands)
        return hold
