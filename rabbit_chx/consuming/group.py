"""A worker that shares the queues of a hash exchange with any number of others.

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
from functools import partial

from rabbit_chx.consuming.member.workers import Workers
from rabbit_chx.consuming.options import Options
from rabbit_chx.consuming.retries import check_handler
from rabbit_chx.message import Message
from rabbit_chx.traces import in_spans


class Group(Options):
    """A member of a group of workers that share the queues of an exchange.

    Args:
        url: an AMQP URL, or several that are tried in turn, also after a lost connection.
        exchange: the exchange whose queues are consumed.
        name: the name of the group, the same for all its members.
        queues: names of queues, or the ``Path`` of a topology file. By default the queues that the bindings of the
            exchange lead to, read from the management API every 30 seconds.
        order: ``"queue"`` handles the messages of a queue one after the other; ``"key"`` handles messages of different keys of a
            queue at the same time, and those of each key one after the other.
        key: with ``order="key"``, a function that gives the key of a message. By default the key is what the exchange hashes.
            The thread of the connection calls it, so it must return at once.
        prefetch: how many unacknowledged messages the broker sends for each queue.
        concurrency: how many queues, or with ``order="key"`` messages, are handled at the same time, each in its own thread.
        attempts: how often the handler is called for a message before the message counts as failed; its queue, or
            with ``order="key"`` its key, is paused until then.
        backoff: seconds before the second attempt; the delay doubles with each attempt, up to 60 (or ``backoff``, if longer).
            All delays together must be shorter than ``consumer_timeout``.
        on_failure: ``"stop"`` the member, which raises the handler's error; ``"dead-letter"`` the failed message; or
            ``"park"`` it in ``parking_queue``.
        parking_queue: the queue for failed messages with ``on_failure="park"``.
        crashes: how many processes a message may end while they handle it before it is dead-lettered or parked; None for any number.
            The count begins when the broker has taken the message back that often. With ``on_failure="stop"``, it has no effect.
        timeouts: ``close`` is how long a stopping member waits for its handlers. The other fields must keep their defaults: a
            member tries to connect until it is stopped.
        heartbeat: the heartbeat interval in seconds; the broker gives the queues to other members after two silent intervals.
        consumer_timeout: seconds within which a message must be acknowledged after its delivery; otherwise the broker gives its
            queue to another member (RabbitMQ 4.3 and later; by default the broker's setting, 30 minutes).
        failover_only: accept a broker older than 4.0, which gives all queues to one member until that member ends.
        management: the management API, or its URL; by default on the host of each ``url``.
        credentials: user and password that are not in the URL: a function, or the ``Path`` of a file with the password.
        tls: the context for amqps; by default the certificate and the host name are verified.
        connection_name: the connection's name in the broker's list; by default it contains the group's name.

    A program may use a group in any thread, and one `run` at a time. A forked child may call `run`, which starts afresh; its
    `stop` does not reach the parent's run and raises.
    """

    def run(self, handler: Callable[[Message], object], *, signals: bool = True) -> None:
        """Call the handler with each message until `stop`, SIGTERM or Ctrl-C.

        A message is acknowledged after the handler has returned. The member reconnects after a lost connection. In the
        main thread, the first SIGTERM or Ctrl-C ends the run after the current messages; a second signal ends it at once.

        Args:
            handler: called with each message. An exception counts as a failed attempt; `Reject` and `RetryAfter` say what follows.
            signals: whether to handle SIGTERM and Ctrl-C; False leaves them to the program, which calls `stop`.

        Raises:
            InvalidValue: a group cannot use the queues, the broker or the handler.
            BrokerUnavailable: the broker refuses the connection permanently.
            Exception: the handler's error, with ``on_failure="stop"``.
        """
        check_handler(handler, coroutine=False)
        self._run(partial(self._new_member, Workers, in_spans(handler, self._settings.name)), signals=signals)
