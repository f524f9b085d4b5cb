"""Messages for a stream on their way, many at a time.

A stream takes hundreds of thousands of messages a second, which leaves no time for an object for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from rabbit_chx.mirror.hashing import shortstr
from rabbit_chx.publishing.messages import Outcome, OutgoingMessage, Owner
from rabbit_chx.publishing.outbox import BaseOutbox
from rabbit_chx.publishing.rows import Part


class Lot(Sequence[OutgoingMessage]):
    """Messages of one owner that are sent together; an `OutgoingMessage` is made for one that is looked at.

    ``rows`` has the number of each message among those of its owner, who is told what becomes of them. The
    publishing ids increase; None stands for the next ones.
    """

    __slots__ = (
        "_parts",
        "_whole",
        "attempts",
        "duplicates",
        "early",
        "ended",
        "first",
        "ids",
        "keys",
        "messages",
        "numbered",
        "open",
        "owner",
        "rows",
        "size",
        "source",
        "stream",
    )

    def __init__(
        self,
        rows: Sequence[int],
        keys: Sequence[str | bytes | None],
        messages: Sequence[bytes],
        ids: Sequence[int] | None,
        owner: Owner,
        stream: str = "",
    ) -> None:
        self.rows = rows
        self.keys = keys
        self.messages = messages
        self.ids = ids
        self.numbered: bool = False
        """Whether the publisher has chosen the publishing ids."""
        self.owner = owner
        self.stream = stream
        self.size: int = sum(map(len, messages))
        """Bytes."""
        self.attempts: int = 0
        """Whether it was handed to a connection: from then on, it may have arrived and cannot be withdrawn."""
        self.duplicates: int = 0
        """How many messages the broker has dropped, because the stream had their publishing ids already."""
        self.first: int = 0
        """The place of the first message that is not confirmed."""
        self.early: set[int] = set()
        """The publishing ids behind it that are confirmed."""
        self.open: int = len(messages)
        """Of a whole lot: how many messages have no outcome."""
        # References to itself would keep it in memory until the next garbage collection, so None means itself.
        self._whole: Lot | None = None
        self._parts: list[Lot] | None = None
        self.source: Lot | None = None
        """The lot that was sent, if this one has only those of its messages that have the same outcome."""
        self.ended: set[int] | None = None
        """The rows that have their outcomes, if these differ."""

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._part(range(len(self))[index])
        key = shortstr(self.keys[index] or b"", "routing key")
        return OutgoingMessage(
            self.rows[index], b"", key, b"", self.messages[index], self.owner, stream=self.stream
        )

    @property
    def whole(self) -> Lot:
        """The lot that its owner knows, which may go to several streams."""
        return self if self._whole is None else self._whole

    @property
    def parts(self) -> list[Lot]:
        """The lots for each stream of a whole lot."""
        return [self] if self._parts is None else self._parts

    @property
    def end(self) -> Outcome:
        """What becomes of it if it is given up while it waits to be sent."""
        return Outcome.UNSENT

    def _part(self, places: Sequence[int]) -> Lot:
        if len(places) == len(self):
            return self
        part = Lot(
            [self.rows[place] for place in places],
            [self.keys[place] for place in places],
            [self.messages[place] for place in places],
            self.ids and [self.ids[place] for place in places],
            self.owner,
            self.stream,
        )
        part._whole = self.whole
        return part

    def number(self, ids: range) -> None:
        """Give each message its publishing id."""
        self.ids, self.numbered = ids, True
        for part in self._parts or ():
            part.ids, part.numbered = [ids[row - self.rows[0]] for row in part.rows], True

    def entries(self) -> Iterable[tuple[int, bytes]]:
        """Return the encoded messages that are not confirmed, with their publishing ids."""
        assert self.ids is not None
        pairs = zip(self.ids[self.first :], self.messages[self.first :], strict=True)
        return (pair for pair in pairs if pair[0] not in self.early) if self.early else pairs

    @property
    def unconfirmed(self) -> int:
        """How many messages are not confirmed."""
        return len(self) - self.first - len(self.early)

    def is_open(self, place: int) -> bool:
        """Whether the message at this place is not confirmed."""
        return place >= self.first and (self.ids is None or self.ids[place] not in self.early)

    def confirm_next(self, ids: list[int], at: int) -> int:
        """Note confirms from this place on, if they are those of the next messages; return how many messages these are."""
        assert self.ids is not None
        expected = list(self.ids[self.first : self.first + len(ids) - at])
        if self.early or ids[at : at + len(expected)] != expected:
            return 0
        self.first += len(expected)
        return len(expected)

    def confirm_any(self, ids: list[int]) -> list[int]:
        """Note confirms in any order, and return those of other lots."""
        assert self.ids is not None
        own = set(self.ids[self.first :]).intersection(ids) - self.early
        self.early |= own
        while self.first < len(self) and self.ids[self.first] in self.early:
            self.early.remove(self.ids[self.first])
            self.first += 1
        return [each for each in ids if each not in own]

    def divide(self, streams: Sequence[str]) -> None:
        """Divide the messages into `parts` by the stream of each."""
        places: dict[str, list[int]] = {}
        for place, stream in enumerate(streams):
            places.setdefault(stream, []).append(place)
        if len(places) == 1:
            (self.stream,), self._parts = places, None
            return
        self._parts = [self._part(own) for own in places.values()]
        for part, stream in zip(self._parts, places, strict=True):
            part.stream = stream

    def by_outcome(self, rejected: Container[int]) -> Mapping[Outcome, Lot]:
        """Divide messages that were sent: those that are confirmed, those that the broker rejected, and the others."""
        assert self.ids is not None
        places: dict[Outcome, list[int]] = {}
        for place, number in enumerate(self.ids):
            outcome = Outcome.REJECTED if number in rejected else Outcome.UNKNOWN
            places.setdefault(outcome if self.is_open(place) else Outcome.CONFIRMED, []).append(place)
        found = {outcome: self._part(own) for outcome, own in places.items()}
        for part in found.values():
            part.source = None if part is self else self
        return found

    def settled(self) -> None:
        """Note that its messages have their outcome; the caller has the lock of their owner."""
        if self.source is None:
            self.first = len(self)
        else:
            self.source.ended = (self.source.ended or set()).union(self.rows)
        self.whole.open -= len(self)

    def left(self) -> Iterable[OutgoingMessage]:
        """Return the messages of a whole lot that have no outcome."""
        for part in self.parts:
            for place, row in enumerate(part.rows):
                if part.is_open(place) and row not in (part.ended or ()):
                    yield part[place]


class InFlight:
    """The lots that were sent to one stream and are not confirmed, in the order of their publishing ids.

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


class LotPart(Part):
    """Consecutive rows of a bulk, in lots."""

    __slots__ = ()

    def begin(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note a lot as pending."""
        self.pending.add(cast(OutgoingMessage, messages))

    def end(self, messages: Sequence[OutgoingMessage]) -> None:
        """Note that a lot, or a part of one, is pending no longer."""
        lot = cast(Lot, messages)
        self._rows.duplicates += lot.duplicates
        lot.settled()
        if not lot.whole.open:
            self.pending.discard(cast(OutgoingMessage, lot.whole))

    @property
    def open(self) -> int:
        """How many messages have no outcome, or one that is not recorded yet."""
        return sum(cast(Lot, lot).open for lot in self.pending)

    def left(self) -> Iterable[OutgoingMessage]:
        """Return the messages that have no outcome."""
        return [message for lot in self.pending for message in cast(Lot, lot).left()]


class LotOutbox(BaseOutbox[Lot]):
    """The lots that wait for the sender of one stream."""

    def wait_for_room(self, deadline: float | None, since: float | None, *, fits: bool = False) -> bool:
        """Wait while too many messages are pending; return whether there was room before the deadline: see `Pipeline.accept`."""
        if self._has_space() and self._accepting and self.why_given_up is None:
            return True
        with self._changed:
            return self._wait_for_space(deadline, since, fits=fits)

    def put(self, lot: Lot, since: float | None = None) -> bool:
        """Queue a lot, whether there is room or not; return whether it is queued.

        It is not if the outbox is closed, or if messages were given up since this time: the stream would have its ids, which are
        higher, and drop the earlier messages as duplicates when they are published again. A lot that is not queued is pending all
        the same: the caller settles it.
        """
        with self._changed:
            self._pending += len(lot)
            self._pending_bytes += lot.size
            if self._closed or (since is not None and self.given_up_at > since):
                return False
            self._unsent.append(lot)
            return True

    def number_again(self, last: int, following: int) -> int:
        """Give messages that wait the ids from ``following`` on, if the stream has theirs already, up to ``last``; return the next one.

        They were accepted before the publisher knew which ids the stream has, and the broker would drop them as duplicates.
        """
        with self._changed:
            lots = [lot for lot in self._unsent if lot.numbered]
            if any(lot.ids is not None and lot.ids[0] <= last for lot in lots):
                for lot in lots:
                    lot.ids = range(following, following + len(lot))
                    following += len(lot)
        return following

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._unsent

    def take(self, most: int, after: int) -> list[Lot]:
        """Remove and return the next lots, with about as many messages, as long as their ids increase from an id on."""
        with self._changed:
            taken: list[Lot] = []
            while self._unsent and most > 0:
                ids = self._unsent[0].ids
                assert ids is not None
                if ids[0] <= after:
                    break
                lot = self._unsent.popleft()
                lot.attempts = 1
                taken.append(lot)
                most, after = most - len(lot), ids[-1]
            return taken

    def settle(self, items: Sequence[Lot], outcome: Outcome, reply: str = "") -> None:
        """Record the outcome of lots, and tell their owners."""
        if not items:
            return
        duplicates = sum(lot.duplicates for lot in items)
        self._settled(sum(map(len, items)), sum(lot.size for lot in items), outcome, duplicates)
        for lot in items:
            lot.owner.settled(lot, outcome, reply)
