"""The messages that were sent to one stream and are not confirmed, with the publishing ids that say so."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from rabbit_chx.streams.publishing.lots import Lot


class InFlight:
    """Lots in the order of their publishing ids.

    The broker nearly always confirms in this order, so that a lot knows by one number what is confirmed of it: to look up each
    message takes three times as long.
    """

    def __init__(self) -> None:
        self._lots: deque[Lot] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[Lot]:
        return iter(self._lots)

    def add(self, lots: Sequence[Lot]) -> None:
        """Add lots that are sent for the first time."""
        self._lots.extend(lots)
        self._count += sum(map(len, lots))

    def confirm(self, ids: Iterable[int]) -> list[Lot]:
        """Note which messages are confirmed; remove and return the lots of which all are, and all of the lots before them."""
        rest, at = sorted(ids), 0
        for lot in self._lots:
            if at == len(rest):
                break
            before = lot.unconfirmed
            at += lot.confirm_next(rest, at)
            if lot.unconfirmed == before > 0:
                rest, at = lot.confirm_any(rest[at:]), 0
            self._count -= before - lot.unconfirmed
        done: list[Lot] = []
        while self._lots and not self._lots[0].unconfirmed:
            done.append(self._lots.popleft())
        return done

    def clear(self) -> None:
        """Forget all of them."""
        self._lots.clear()
        self._count = 0
