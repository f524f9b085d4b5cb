"""The books of a fault test: what was published, what was said of it, and what the queues held.

The body of every message is its number, which is also its row in the publisher. When a fault is over and the
queues are drained, three sets decide:

    lost         the publisher said confirmed, and no queue had it
    unexpected   a queue had it although it was never taken in, or was said not to be there (returned,
                 rejected, unsent); `unknown` may turn up or not, that is what the word means
    duplicated   copies beyond the first

The same is done for the control, a loop that asks for no confirms, so that a fault which loses nothing of the
publisher's is seen to lose something at all.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

import pika

from rabbit_chx.publishing import Outcome

NOT_THERE = {Outcome.RETURNED, Outcome.REJECTED, Outcome.UNSENT}
"""What the publisher says only of messages that no queue holds."""


def body(row: int, size: int = 0) -> bytes:
    return b"%d " % row + b"x" * (size - 10)


def row_of(content: bytes) -> int:
    return int(content.partition(b" ")[0])


@dataclass
class Ledger:
    taken_in: int = 0
    """The publisher took the rows below this one."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Of all that were not confirmed."""
    received: Counter[int] = field(default_factory=Counter)

    def note(self, failure) -> None:
        """Book a failure, each row once."""
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
    url: str, queues, *, quiet: float = 0.0, read=lambda _properties, content: row_of(content)
) -> list[list]:
    """Take everything out of the queues: for each the rows in its order, until none holds a message.

    `quiet` keeps looking for that long after the last message: what a dying connection left may still come.
    `read` makes of a message what is kept of it: its row.
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
                # Acked, since what comes in meanwhile is delivered too, and goes back when this is over.
                messages = islice(channel.consume(queue, inactivity_timeout=30), count)
                for number, (method, properties, content) in enumerate(messages, 1):
                    assert method is not None, f"{queue} holds {count} messages and delivers {number - 1}"
                    rows.append(read(properties, content))
                    if number == count or number % 200 == 0:
                        channel.basic_ack(method.delivery_tag, multiple=True)
                channel.cancel()
                until = time.monotonic() + quiet
            if not any(waiting) and time.monotonic() >= until:
                return found
            connection.sleep(0.05)
