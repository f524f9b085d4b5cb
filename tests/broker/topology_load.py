"""Messages through a topology that changes: where each key lands, and a publisher that makes no pause for a plan.

The body of a message is its number, so that after publishing the queues tell where each of them landed.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final, Self

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.publishing import Publisher
from tests.inbox import emptied
from tests.patience import PATIENCE, wait_until
from tests.queues import a_channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rabbit_chx import Ring
    from tests.broker.topology_site import Site

KEYS: Final = tuple(f"customer-{number}" for number in range(20_000))

_BATCH: Final = 100
_PAUSE: Final = 0.01
_MANY: Final = 20_000


def drained(site: Site) -> dict[int, list[str]]:
    """Empty all queues: for each message those in which it was."""
    found: dict[int, list[str]] = defaultdict(list)
    with a_channel(site) as channel:
        for queue in site.queue_names("^(?!rabbit-chx[.])"):  # no lock of an apply's
            for message in emptied(channel, queue):
                found[int(message.body)].append(queue)
    return found


def landing(site: Site, exchange: str, keys: Sequence[str] = KEYS) -> list[str]:
    """The queue in which a message of each key is found: in one each, and in no second one."""
    with Publisher(site.url(), exchange) as publisher:
        publisher.publish_many([b"%d" % number for number in range(len(keys))], keys)
    assert publisher.totals.confirmed == len(keys)
    assert publisher.totals.resent == 0  # none came back, not even once
    found = drained(site)
    assert all(len(places) == 1 for places in found.values())
    return [found[number][0] for number in range(len(keys))]


def said(queues: Ring | Mapping[str, int], keys: Sequence[str] = KEYS) -> list[str]:
    """The queue in which the mirror of an exchange puts a message of each key."""
    exchange = ConsistentHashExchange(queues)
    return [exchange.destinations[index] for index in exchange.route_many(keys)]


def differing(before: Sequence[str], after: Sequence[str]) -> set[int]:
    """The places in two equally long lists at which they differ."""
    return {place for place, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1}


def assert_share(counted: int, of: int, share: float) -> None:
    """As many of a sample as an exact share of the whole says, give or take four standard deviations."""
    error = 4 * math.sqrt(share * (1 - share) / of)
    assert abs(counted / of - share) <= error, f"{counted} of {of}, where {share:.4%} was said"


class Load:
    """Publishes all the while, each key in turn, from a thread of its own."""

    def __init__(self, site: Site, exchange: str, keys: Sequence[str]) -> None:
        self._publisher = Publisher(site.url(), exchange)
        self._keys = keys
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._rounds: list[range] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Return when each key has been sent once: where nothing came before a change, nothing is seen to move."""
        self._publisher.open()
        self._thread.start()
        self._wait_for_each_key_from(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        self._publisher.close()
        assert self._failure is None, self._failure

    @property
    def sent(self) -> int:
        """How many messages have been taken in; their numbers are the ones below."""
        return self._publisher.totals.published

    def _run(self) -> None:
        try:
            # The pauses grow with the number of messages, because the test reads all of them at the end.
            while not self._stop.wait(_PAUSE * (1 + self.sent / _MANY)):
                numbers = range(self.sent, self.sent + _BATCH)
                bodies = [b"%d" % number for number in numbers]
                self._publisher.publish_many(bodies, [self._keys[n % len(self._keys)] for n in numbers])
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self._failure = error

    def flows(self, _: object = None) -> None:
        """Return when every key was sent once more and confirmed: for apply to call after each step."""
        start = self.sent
        self._rounds.append(range(start, start + len(self._keys)))
        self._wait_for_each_key_from(start)

    def _wait_for_each_key_from(self, start: int) -> None:
        goal = start + len(self._keys)

        def confirmed() -> bool:
            assert self._thread.is_alive(), self._failure
            return self._publisher.totals.confirmed >= goal

        wait_until(confirmed, f"{goal} messages are confirmed", pause=_PAUSE / 10)

    def check_none_was_lost_or_came_back(self, found: Mapping[int, Sequence[str]]) -> None:
        """Every message was confirmed at its first attempt, and is in at least one queue."""
        totals = self._publisher.totals
        assert totals.confirmed == totals.published == self.sent
        assert totals.resent == 0
        assert found.keys() == set(range(self.sent))

    def check_each_key_moved_at_most_once(self, found: Mapping[int, Sequence[str]]) -> set[str]:
        """The keys that moved; none of them went back to a queue that it had left."""
        moved = set()
        for place, key in enumerate(self._keys):
            own = range(place, self.sent, len(self._keys))
            queues = [queue for queue, _ in groupby(found[number][0] for number in own)]
            assert len(queues) <= 2, f"{key} went to {queues}"
            moved |= {key} if len(queues) == 2 else set()
        return moved

    def after_each_step(self, found: Mapping[int, Sequence[str]]) -> list[list[str]]:
        """For each call of `flows` the queue to which each of the keys went."""
        count = len(self._keys)
        return [
            [found[number][0] for number in sorted(numbers, key=lambda n: n % count)]
            for numbers in self._rounds
        ]
