"""The ledger of a fault test: what was published, what the publisher reported, and what the queues held.

The body of every message is its number, which is also its row in the publisher. When a fault is over and the
queues are drained, three sets decide:

    lost         the publisher reported it confirmed, and no queue had it
    unexpected   a queue had it although it was never accepted, or was reported as returned, rejected or unsent;
                 an `unknown` message may arrive or not
    duplicated   copies beyond the first

The control, a loop without confirms, is judged in the same way, to show that the fault loses messages at all.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

import pika

from rabbit_chx.publishing import Outcome
from tests.patience import PATIENCE

NOT_THERE = {Outcome.RETURNED, Outcome.REJECTED, Outcome.UNSENT}
"""Outcomes of messages that no queue holds."""


def body(row: int, size: int = 0) -> bytes:
    return b"%d " % row + b"x" * (size - 10)


def row_of(content: bytes) -> int:
    return int(content.partition(b" ")[0])


@dataclass
class Ledger:
    taken_in: int = 0
    """The publisher accepted the rows below this one."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Of all messages that were not confirmed."""
    received: Counter[int] = field(default_factory=Counter)

    def note(self, failure) -> None:
        """Record a failure, each row once."""
        assert failure.row not in self.outcomes, f"two outcomes for row {failure.row}"
        self.outcomes[failure.row] = failure.outcome

    @property
    def confirmed(self) -> set[int]:
        return set(range(self.taken_in)) - self.outcomes.keys()

    @property
    def lost(self) -> set[int]:
        return self.confirmed - self.received.keys()

    @property
    def unexpected(self) -> set[int]:
        denied = {row for row, outcome in self.outcomes.items() if outcome in NOT_THERE}
        return {row for row in self.received if row >= self.taken_in or row in denied}

    @property
    def duplicated(self) -> int:
        return self.received.total() - len(self.received)

    def rows(self, outcome: Outcome) -> list[int]:
        return sorted(row for row, its in self.outcomes.items() if its is outcome)


def drain(
    url: str,
    queues,
    *,
    quiet: float = 0.0,
    enough: int = 0,
    read=lambda _properties, content: row_of(content),
) -> list[list]:
    """Empty the queues and return the rows of each, in its order.

    A connection that has ended may leave messages in the network: read until none has arrived for `quiet` seconds, or until
    there are `enough`. `read` converts a message to its row.
    """
    found: list[list] = [[] for _ in queues]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        until = time.monotonic() + quiet
        while True:
            waiting = [channel.queue_declare(queue, passive=True).method.message_count for queue in queues]
            for queue, rows, count in zip(queues, found, waiting, strict=True):
                if not count:
                    continue
                # With acks: what arrives meanwhile is delivered, too, and requeued at the end.
                messages = islice(channel.consume(queue, inactivity_timeout=PATIENCE), count)
                for number, (method, properties, content) in enumerate(messages, 1):
                    assert method is not None, f"{queue} holds {count} messages and delivers {number - 1}"
                    rows.append(read(properties, content))
                    if number == count or number % 200 == 0:
                        channel.basic_ack(method.delivery_tag, multiple=True)
                channel.cancel()
                until = time.monotonic() + quiet
            done = bool(enough) and sum(map(len, found)) >= enough
            if not any(waiting) and (done or time.monotonic() >= until):
                return found
            connection.sleep(0.05)
