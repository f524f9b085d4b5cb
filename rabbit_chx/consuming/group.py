"""A worker that shares the queues of a hash exchange with any number of others, on pika.

    from rabbit_chx.consuming import Group, Message

    def handle(message: Message) -> None:
        print(message.routing_key, message.body)

    Group("amqp://user:password@host", exchange="orders", name="billing").run(handle)

Start as many copies of the program as you like. The broker divides the queues among the members, hands the queues of a
member that ends to the others, and keeps each queue in order, because the queues are quorum queues with a single active
consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread

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
        name: the name of the group, the same for all its members.
        queues: names of queues, or the ``Path`` of a topology file. By default the queues that the bindings of the
            exchange lead to, read from the management API every 30 seconds.
        prefetch: how many unacknowledged messages the broker sends for each queue.
        concurrency: how many queues are handled at the same time, each in its own thread.
        attempts: how often the handler is called for a message before the message counts as failed; its queue is paused
            until then.
        backoff: seconds before the second attempt; the delay doubles with each attempt, up to 60 (or ``backoff``, if longer).
            All delays together must be shorter than ``consumer_timeout``.
        on_failure: ``"stop"`` the member, which raises the handler's error; ``"dead-letter"`` the failed message; or
            ``"park"`` it in ``parking_queue``.
        parking_queue: the queue for failed messages with ``on_failure="park"``.
        stop_timeout: seconds that a stopping member waits for its handlers.
        heartbeat: the heartbeat interval in seconds; the broker gives the queues to other members after two silent intervals.
        consumer_timeout: seconds within which a message must be acknowledged after its delivery; otherwise the broker gives its
            queue to another member (RabbitMQ 4.3 and later; by default the broker's setting, 30 minutes).
        failover_only: accept a broker older than 4.0, which gives all queues to one member until that member ends.
        management: the management API, or its URL; by default on the broker's host.
        credentials: user and password that are not in the URL: a function, or the ``Path`` of a file with the password.
        tls: the context for amqps; by default the certificate and the host name are verified.
    """

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call the handler with each message until `stop`, SIGTERM or Ctrl-C.

        A message is acknowledged after the handler has returned. The member reconnects after a lost connection. In the
        main thread, the first SIGTERM or Ctrl-C ends the run after the current messages; a second signal ends it at once.

        Raises:
            InvalidValue: a group cannot use the queues, the broker or the handler.
            BrokerUnavailable: the broker refuses the connection permanently.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=False)
        if self._member is not None:
            raise InvalidValue("use of Group", "run() while it runs", "one run at a time")
        reporter = self._reporter()
        self._member = member = Member(
            self._settings, partial(connect, **self._connection), self._source, handler, reporter
        )
        outcome: Future[None] = Future()
        try:
            if self._stopped:
                return
            with stopped_by_signals(member.stop):
                thread = Thread(target=_run, args=(member.run, outcome), name="rabbit-chx group", daemon=True)
                thread.start()
                while thread.is_alive():
                    thread.join(1.0)
        finally:
            member.stop()
            self._member = None
            reporter.close()
        outcome.result()

    def stop(self) -> None:
        """End `run` after the current messages; every later `run` returns at once. Can be called from any thread."""
        self._stopped = True
        if (member := self._member) is not None:
            member.stop()


def _run(function: Callable[[], None], outcome: Future[None]) -> None:
    """Call a function in a thread and keep its error for another thread to raise."""
    try:
        function()
        outcome.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised in the other thread
        outcome.set_exception(error)
