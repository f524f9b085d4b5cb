"""A worker that shares the queues of a hash exchange with any number of others, on pika.

    from rabbit_chx.consuming import Group, Message

    def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    Group("amqp://user:password@host", exchange="orders", name="billing").run(handle)

Start the program as often as you like. The broker divides the queues among the members, gives those of a member that
ends to the others, and keeps the order of each queue, because the queues are quorum queues with a single active consumer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from rabbit_chx.broker.amqp import connect
from rabbit_chx.consuming.member import Member
from rabbit_chx.consuming.messages import Message
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.settings import check_handler
from rabbit_chx.consuming.signals import stopped_by_signals
from rabbit_chx.errors import InvalidValue


class Group(Options):
    """A member of a group of workers that share the queues of an exchange.

    Args:
        url: an AMQP URL.
        exchange: the exchange whose queues are consumed.
        name: of the group; all its members have the same.
        queues: names of queues, or the ``Path`` of a topology file. By default those that bindings lead to, which are read
            from the management API every 30 seconds.
        prefetch: messages that the broker sends ahead for each queue.
        concurrency: queues whose messages are handled at the same time, each in a thread of its own.
        attempts: how often the handler is called for a message before it counts as failed; meanwhile its queue waits.
        backoff: seconds before the second attempt, twice as many before each later one, and at most 60.
        on_failure: what to do with a failed message: ``"stop"`` the member, which raises the handler's error,
            ``"dead-letter"`` it, or ``"park"`` it in ``parking_queue``.
        parking_queue: a queue for failed messages.
        stop_timeout: seconds that a stop waits for the handler.
        heartbeat: seconds; after twice as many without a sign of life the broker gives the queues to other members.
        consumer_timeout: seconds in which a message must be acknowledged after it was sent ahead, or the broker gives its
            queue to another member (RabbitMQ 4.3 and later; by default the broker's, which is 30 minutes).
        failover_only: accept a broker before 4.0, where one member gets all queues while it lives.
        management: the management API, or its URL; by default on the host of the broker.
        credentials: user and password that are not in the URL: a function, or the ``Path`` of a file with the password.
        tls: the context for amqps; by default the certificate and the host name are verified.
    """

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call the handler with each message until `stop`, SIGTERM or Ctrl-C.

        A message is acknowledged after the handler has returned. Lost connections are opened again. In the main thread
        SIGTERM and the first Ctrl-C end the run after the messages at hand; the second Ctrl-C ends it at once.

        Raises:
            InvalidValue: the queues, the broker or the handler are not fit for a group.
            BrokerUnavailable: the broker refuses the connection for good.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=False)
        if self._member is not None:
            raise InvalidValue("use of Group", "run() while it runs", "one run at a time")
        self._member = member = Member(
            self._settings, partial(connect, **self._connection), self._source, handler
        )
        if self._stopped:
            return
        try:
            with stopped_by_signals(member.stop):
                thread = _Thread(member.run)
                thread.start()
                while thread.is_alive():
                    thread.join(1.0)
        finally:
            member.stop()
            self._member = None
        thread.raise_error()

    def stop(self) -> None:
        """End `run` after the messages at hand; call it from any thread."""
        self._stopped = True
        if (member := self._member) is not None:
            member.stop()


class _Thread(threading.Thread):
    """A thread whose error is raised by another."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(name="rabbit-chx group", daemon=True)
        self._function = function
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
